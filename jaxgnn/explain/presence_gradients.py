"""Scores by derivatives in the presence of edges, and by a presence that is learnt."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Value = Callable[[Float[Array, " edges"]], Float[Array, ""]]
"""The number that is explained, as a function of the presence of each edge slot."""


class Learning(NamedTuple):
    """Options of the learnt mask.

    Attributes:
      steps: number of steps of Adam.
      rate: its learning rate.
      size: factor of the sum of the mask in the loss.
      entropy: factor of the mean entropy of the mask in the loss.
    """

    steps: int
    rate: float
    size: float
    entropy: float


def gradient(value: Value, real: Float[Array, " edges"]) -> Float[Array, " edges"]:
    """Returns the derivative of the value by the presence of each edge, where all are present."""
    return jax.grad(value)(real)


def integrated(value: Value, real: Float[Array, " edges"], steps: int) -> Float[Array, " edges"]:
    """Integrated gradients (https://arxiv.org/abs/1703.01365) from no edges to all edges.

    The mean of the derivatives at ``steps`` midpoints, so that the scores add up to the difference
    of the values with all edges and with none, up to the error of the midpoint rule.
    """
    points = (jnp.arange(steps, dtype=real.dtype) + 0.5) / steps
    total = jax.lax.map(lambda share: jax.grad(value)(share * real), points)
    return jnp.mean(total, axis=0)


def learnt_mask(
    log_probability: Value, candidates: Float[Array, " edges"], others: Array, options: Learning
) -> Float[Array, " edges"]:
    """Returns a mask that keeps a probability high with few edges, as in GNNExplainer.

    See https://arxiv.org/abs/1903.03894. The mask is the sigmoid of a parameter for each edge. Adam
    minimises ``-log_probability + size Σ m + entropy mean H(m)`` from a mask of one half. An edge
    without a derivative of the probability at any step, such as one that does not reach the target,
    gets zero.

    Args:
      log_probability: the number to keep high.
      candidates: 1 for the edge slots that are masked, else 0.
      others: presence of the other edge slots.
      options: how it is learnt.
    """
    count = jnp.maximum(jnp.sum(candidates), 1)

    def support(logits: Array) -> Array:
        return log_probability(jnp.where(candidates > 0, jax.nn.sigmoid(logits), others))

    def penalty(logits: Array) -> Array:
        mask = jax.nn.sigmoid(logits)
        entropies = jax.nn.softplus(logits) - logits * mask  # -m log m - (1 - m) log (1 - m)
        size = options.size * jnp.sum(candidates * mask)
        return size + options.entropy * jnp.sum(candidates * entropies) / count

    def step(state: tuple[Array, ...], number: Array) -> tuple[tuple[Array, ...], None]:
        logits, mean, square, matters = state
        gain = jax.grad(support)(logits)
        slope = jax.grad(penalty)(logits) - gain
        mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope**2
        corrected = mean / (1 - 0.9**number), square / (1 - 0.999**number)
        logits = logits - options.rate * corrected[0] / (jnp.sqrt(corrected[1]) + 1e-8)
        return (logits, mean, square, matters | (gain != 0)), None

    start = jnp.zeros_like(candidates)
    state = (start, start, start, start > 0)
    numbers = jnp.arange(1, options.steps + 1, dtype=candidates.dtype)
    (logits, _, _, matters), _ = jax.lax.scan(step, state, numbers)
    return candidates * jnp.where(matters, jax.nn.sigmoid(logits), 0)
