"""What the tests of each op of attention have in common."""

import functools

import numpy as np

from jaxgnn.testing import check_against_float64
from tests.ops._table import BUILT, longest_row
from tests.ops.attention._attention import TABLE, by_hand


def check_every_gradient(op, name, implementation, dtype="float32"):
    """Values, weights and every gradient on a graph against the reference in float64."""
    attention, graph = TABLE[op], BUILT[name]
    arrays = attention.arrays(graph, dtype=dtype)
    names = tuple(arrays)

    def run(*given):
        return attention(
            graph,
            dict(zip(names, given, strict=True)),
            implementation=implementation,
            return_weights=True,
        )

    # Every score is a sum itself, and its error is one of the exponential's argument.
    length = 16 * longest_row(graph)
    check_against_float64(
        run,
        _reference(op, name, names),
        *arrays.values(),
        reduction_length=length,
        gradient_length=max(length, graph.num_edges),
    )


@functools.cache  # one function for each graph, so that it is compiled once
def _reference(op, name, names):
    return lambda *given: TABLE[op](
        BUILT[name],
        dict(zip(names, given, strict=True)),
        implementation="xla",
        return_weights=True,
    )


def check_formula(op, implementation):
    """The sums and weights of a padded graph against a loop over rows, heads and edges."""
    attention, graph = TABLE[op], BUILT["padding_edges"]
    for full in (False, True):
        arrays = attention.arrays(graph, full=full)
        expected = by_hand(attention, graph, arrays)
        made = attention(graph, arrays, implementation=implementation, return_weights=True)
        for actual, wanted in zip(made, expected, strict=True):
            np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)
