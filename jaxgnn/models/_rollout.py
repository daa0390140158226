"""Repeated steps of a learnt simulator, and the noise that it is trained with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from jaxgnn._errors import bad_input
from jaxgnn._modes import refusing_changes


def rollout[State, Kept](
    step: Callable[[State], State],
    state: State,
    num_steps: int,
    *,
    keep: Callable[[State], Kept] | None = None,
    every: int = 1,
    recompute: bool = False,
) -> tuple[State, Kept]:
    """Applies a step many times by one ``lax.scan``, and keeps what it passes through.

    A step is compiled once for any number of steps. Call it under ``jit``, or outside once: every
    call outside traces ``step`` again.

    Args:
      step: function from a state to the next, of the same shapes and dtypes. A model that it
        captures must be in evaluation mode, if it has batch norm or ``nnx.Dropout``.
      state: the first state, a pytree of arrays.
      num_steps: number of steps.
      keep: function of a state to what is kept of it; None for the whole state.
      every: number of steps between states that are kept.
      recompute: whether the backward pass computes steps again instead of storing what is inside of
        them, for training through a rollout.

    Returns:
      The last state, and what was kept, with a new first axis of ``num_steps // every``. The first
      state is not kept.

    Raises:
      ValueError: if ``num_steps`` is not a multiple of ``every``, or a step changes shapes, or a
        model that it captures.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxgnn import models
      >>> last, states = models.rollout(lambda x: 2 * x, jnp.ones(()), 4)
      >>> float(last), states.tolist()
      (16.0, [2.0, 4.0, 8.0, 16.0])
    """
    where = "models.rollout"
    for name, number in (("num_steps", num_steps), ("every", every)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise bad_input(where, name, "an int of at least 1", repr(number))
    if num_steps % every:
        raise bad_input(where, "num_steps", f"a multiple of every, {every}", num_steps)
    with refusing_changes(where, "step"):
        shapes = [jax.tree.map(_shape_of, s) for s in (state, jax.eval_shape(step, state))]
    if shapes[0] != shapes[1]:
        expected = f"a function that keeps shapes and dtypes, {shapes[0]}"
        raise bad_input(where, "step", expected, shapes[1])
    one = jax.checkpoint(step, prevent_cse=False) if recompute else step

    def advance(state: Any, _: None) -> tuple[Any, Any]:
        state = jax.lax.fori_loop(0, every, lambda _, s: one(s), state) if every > 1 else one(state)
        return state, state if keep is None else keep(state)

    return jax.lax.scan(advance, state, length=num_steps // every)


def _shape_of(array: Any) -> str:
    return f"{jnp.result_type(array)}{list(jnp.shape(array))}"


def random_walk_noise(
    key: Key[Array, ""], positions: Float[Array, "*batch frames particles d"], scale: float
) -> Float[Array, "*batch frames particles d"]:
    """Noise for the positions of training examples, whose velocities do a random walk.

    Learnt simulators are trained on positions with such noise, so that they correct the errors that
    they make in a rollout (https://arxiv.org/abs/2002.09405). The first frame has none. The noise
    of the velocities, which are differences of frames, grows from frame to frame, and has the
    standard deviation ``scale`` in the last one.

    Args:
      key: a random key.
      positions: frames in the order of time, for their shape and dtype, at least two.
      scale: standard deviation of the noise of the last velocity, in the unit of positions.

    Returns:
      The noise, to be added to ``positions``.

    Raises:
      ValueError: if there are fewer than two frames.

    Example:
      >>> import jax
      >>> from jaxgnn import models
      >>> noise = models.random_walk_noise(jax.random.key(0), jnp.zeros((3, 500, 2)), 0.1)
      >>> velocities = noise[1:] - noise[:-1]
      >>> noise[0].any().item(), round(float(velocities[-1].std()), 1)
      (False, 0.1)
    """
    if positions.ndim < 3 or positions.shape[-3] < 2:
        expected = "of shape [..., frames, particles, d], of at least 2 frames"
        raise bad_input(
            "models.random_walk_noise", "positions", expected, f"shape {positions.shape}"
        )
    *batch, frames, particles, d = positions.shape
    shape = (*batch, frames - 1, particles, d)
    steps = jax.random.normal(key, shape, positions.dtype) * (scale / (frames - 1) ** 0.5)
    velocities = jnp.cumsum(steps, axis=-3)
    walk = jnp.cumsum(velocities, axis=-3)
    return jnp.concatenate([jnp.zeros_like(walk[..., :1, :, :]), walk], axis=-3)
