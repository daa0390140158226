"""What the tests of each op of attention have in common."""

import functools
import math

import jax.numpy as jnp
import numpy as np

from jaxgnn.testing import check_against_float64
from tests.ops._table import BUILT, longest_row
from tests.ops.attention._attention import TABLE, by_hand


def check_every_gradient(op, name, implementation, dtype="float32"):
    """Values, weights and every gradient on a graph against the reference in float64.

    The arrays are parts of one vector, so that errors are compared with the largest of all
    gradients: where every row has one edge, the gradients of scores are sums that cancel to zero.
    """
    graph = BUILT[name]
    arrays = TABLE[op].arrays(graph, dtype=dtype)
    length = 16 * longest_row(graph)  # every score is a sum itself
    check_against_float64(
        _of_vector(op, name, implementation),
        _of_vector(op, name, "xla"),
        jnp.concatenate([array.ravel() for array in arrays.values()]),
        reduction_length=length,
        gradient_length=max(length, graph.num_edges),
    )


@functools.cache  # one function for each graph, so that it is compiled once
def _of_vector(op, name, implementation):
    graph = BUILT[name]
    shapes = {name: array.shape for name, array in TABLE[op].arrays(graph).items()}
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])

    def run(vector):
        parts = jnp.split(vector, ends[:-1])
        arrays = {n: p.reshape(s) for p, (n, s) in zip(parts, shapes.items(), strict=True)}
        return TABLE[op](graph, arrays, implementation=implementation, return_weights=True)

    return run


def check_formula(op, implementation):
    """The sums and weights of a padded graph against a loop over rows, heads and edges."""
    attention, graph = TABLE[op], BUILT["padding_edges"]
    for full in (False, True):
        arrays = attention.arrays(graph, full=full)
        expected = by_hand(attention, graph, arrays)
        made = attention(graph, arrays, implementation=implementation, return_weights=True)
        for actual, wanted in zip(made, expected, strict=True):
            np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)
