"""The learnt simulator: from the last frames to the next."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float

from experiments.physics.config import TrainConfig
from experiments.physics.data import Bodies, World
from jaxgnn.datasets import ParticleMotion
from jaxgnn.models import EncodeProcessDecode, rollout


class State(NamedTuple):
    """State of a rollout.

    Attributes:
      window: the last frames, [runs, history + 1, particles, 2], the newest last.
      overflow: whether neighbours were missing in any step so far.
    """

    window: Float[Array, "runs frames particles 2"]
    overflow: Bool[Array, ""]


class Simulator(nnx.Module):
    """Predicts the acceleration of each particle from the last velocities and the neighbours.

    Lengths are those of the data, and the unit of time is the interval between two frames.
    Velocities and accelerations are divided by their root mean square in training.
    """

    def __init__(self, config: TrainConfig, motion: ParticleMotion, rngs: nnx.Rngs):
        velocities = np.diff(motion.positions, axis=1)
        accelerations = np.diff(velocities, axis=1)
        # Saved with the parameters.
        self.velocity_scale = nnx.Variable(_root_mean_square(velocities))
        self.acceleration_scale = nnx.Variable(_root_mean_square(accelerations))
        self.network = EncodeProcessDecode(
            2 * config.history + 2,
            3 if motion.senders is None else 5,
            config.hidden_features,
            2,
            num_steps=config.num_steps,
            num_layers=config.num_layers,
            activation="silu",
            dtype=jnp.dtype(config.dtype),
            implementation=config.implementation,
            rngs=rngs,
        )

    def __call__(
        self, world: World, window: Float[Array, "runs frames particles 2"], bodies: Bodies
    ) -> tuple[Float[Array, "runs particles 2"], Bool[Array, ""]]:
        """Accelerations in units of ``acceleration_scale``, and whether neighbours are missing."""
        runs, _, count, _ = window.shape
        velocities = jnp.diff(window, axis=1) / self.velocity_scale[...]
        flat = jnp.moveaxis(velocities, 1, 2).reshape(runs, count, -1)
        x = jnp.concatenate([flat, bodies.particles], axis=-1)
        near = world.neighbours(window[:, -1], bodies)
        if near.features.ndim == 2:  # one graph of all runs
            x = x.reshape(runs * count, -1)
        y = self.network(near.graph, x, near.features)
        return y.reshape(runs, count, 2).astype(jnp.float32), near.overflow

    def step(self, world: World, state: State, bodies: Bodies) -> State:
        """The state one frame later."""
        window = state.window
        accelerations, overflow = self(world, window, bodies)
        change = accelerations * self.acceleration_scale[...]
        following = 2 * window[:, -1] - window[:, -2] + change
        window = jnp.concatenate([window[:, 1:], following[:, None]], axis=1)
        return State(window, state.overflow | overflow)

    def roll_out(
        self,
        world: World,
        window: Float[Array, "runs start particles 2"],
        bodies: Bodies,
        frames: int,
    ) -> tuple[Float[Array, "runs frames particles 2"], Bool[Array, ""]]:
        """The frames after a window, and whether neighbours were missing in any of them."""
        start = State(window, jnp.array(False))
        last, found = rollout(
            lambda state: self.step(world, state, bodies),
            start,
            frames,
            keep=lambda state: state.window[:, -1],
        )
        return jnp.moveaxis(found, 0, 1), last.overflow


def _root_mean_square(array: np.ndarray) -> Array:
    return jnp.float32(np.sqrt(np.mean(np.square(array, dtype=np.float64))))
