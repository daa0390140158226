"""Positions of the nodes of a small graph: a circle, then forces along and between edges."""

from __future__ import annotations

import numpy as np

MOST_NODES = 40
"""The largest number of nodes of a graph that is drawn."""
_STEPS = 80


def small_layout(num_nodes: int, senders: np.ndarray, receivers: np.ndarray) -> np.ndarray:
    """Places nodes in the unit square, the same for the same graph.

    Nodes start on a circle. Then all nodes repel each other and edges attract, as in
    https://doi.org/10.1002/spe.4380211102, in steps that become shorter.

    Args:
      num_nodes: number of nodes, at most a few dozen: the cost is its square.
      senders: node that each edge leaves.
      receivers: node that each edge enters.

    Returns:
      Float64 positions [nodes, 2], centred, in [0, 1].
    """
    angles = 2 * np.pi * np.arange(num_nodes) / max(num_nodes, 1)
    at = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    if num_nodes < 3:
        return _fit_square(at)
    joined = np.zeros((num_nodes, num_nodes), bool)
    joined[senders, receivers] = joined[receivers, senders] = True
    np.fill_diagonal(joined, False)
    length = np.sqrt(4 / num_nodes)
    for step in range(_STEPS):
        apart = at[:, None] - at[None]
        distance = np.maximum(np.linalg.norm(apart, axis=-1), 1e-3)
        force = length**2 / distance**2 - joined * distance / length
        move = (apart * force[..., None]).sum(axis=1) - 0.05 * at  # The last term attracts to 0.
        size = np.maximum(np.linalg.norm(move, axis=1, keepdims=True), 1e-9)
        at = at + move / size * np.minimum(size, 0.2 * (1 - step / _STEPS))
    return _fit_square(at)


def _fit_square(at: np.ndarray) -> np.ndarray:
    if not len(at):
        return np.zeros((0, 2))
    low, high = at.min(axis=0), at.max(axis=0)
    return 0.5 + (at - (low + high) / 2) / max(float((high - low).max()), 1e-9)
