"""Parametrisation shared by the tests of the ops."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.dispatch import Kernel
from jaxgnn.testing import GRAPHS, random_array

BUILT = {case.name: case.build() for case in GRAPHS}
# The same graphs for ops that refuse weights and normalisations.
BARE = {name: graph.without_weights() for name, graph in BUILT.items()}


def usable(kernel: Kernel) -> list[str]:
    """The implementations that run on the platform at hand."""
    platform = dispatch.current_platform()
    return [n for n, entry in kernel.implementations.items() if platform in entry.platforms]


def longest_row(graph) -> int:
    """Terms in the longest sum of an aggregation or of its transpose."""
    degrees = graph.degrees().max(), graph.transpose().degrees().max()
    return max(1, *(int(d) for d in degrees))


def rows_of_all_kinds(of_each: int, dim: int, least: float = 1e-33) -> jax.Array:
    """Float32: of all scales from ``least`` on, far from zero, almost equal, and so on, mixed."""
    x = np.array(random_array((9, of_each, dim), "float32", seed=of_each))
    x[1] += 1e4
    x[2] *= 1e-30
    x[3] = 1.0 + 1e-6 * x[3]
    x[4] = np.exp(6 * x[4])
    x[5] *= least
    x[6] = np.maximum(x[6], 0)
    x[7, :, ::9] = np.inf
    x[8] *= 1e30
    return jnp.asarray(x.swapaxes(0, 1).reshape(-1, dim))
