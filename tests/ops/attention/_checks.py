"""What the tests of each op of attention have in common."""

import functools

import jax
import numpy as np

from jaxgnn.testing import check_against_float64
from tests.ops._table import BARE, longest_row
from tests.ops.attention._attention import TABLE, by_hand


def check_every_gradient(op, name, implementation, dtype="float32"):
    """Values, weights and every gradient on a graph against the reference in float64."""
    graph = BARE[name]
    arrays = TABLE[op].arrays(graph, dtype=dtype)
    length = 16 * longest_row(graph)  # every score is a sum itself
    check_against_float64(
        _of_arrays(op, name, implementation),
        _of_arrays(op, name, "xla"),
        *arrays.values(),
        reduction_length=length,
        gradient_length=max(length, graph.num_edges),
        largest_terms=functools.partial(largest_terms, TABLE[op], graph, tuple(arrays)),
    )


@functools.cache  # one function for each graph, so that it is compiled once
def _of_arrays(op, name, implementation):
    graph = BARE[name]
    names = tuple(TABLE[op].arrays(graph))

    def run(*given):
        arrays = dict(zip(names, given, strict=True))
        return TABLE[op](graph, arrays, implementation=implementation, return_weights=True)

    return run


def largest_terms(attention, graph, names, given, values, cotangents) -> list[float]:
    """The largest magnitude among the terms of each gradient, in NumPy.

    The gradient to a score is a difference, ``p (dp - delta)``, of which nothing is left where a
    row has one edge. So its terms are ``p |dp|`` and ``p |delta|``, times the derivative of the
    score. The arrays that are summed have the terms of the sum, ``p dy``, as well.
    """
    arrays = dict(zip(names, given, strict=True))
    (_, p), (dy, dp) = values, cotangents
    count = int(graph.indptr[-1])
    rows = np.repeat(np.arange(graph.num_rows), np.diff(np.asarray(graph.indptr)))
    p, dp, dy = p[:count], dp[:count], dy[rows]
    summed = arrays[attention.summed][np.asarray(graph.indices)[:count]]
    if "edge_values" in arrays:
        summed = summed + arrays["edge_values"][:count]
    if "edge_value_kernel" in arrays:
        features, kernel = arrays["edge_features"][:count], arrays["edge_value_kernel"]
        summed = summed + np.einsum("ef,fgd->egd", features, kernel)
    summed = np.repeat(summed, p.shape[1] // summed.shape[1], axis=1)
    dp = dp + np.sum(dy * summed, axis=-1)
    delta = np.zeros((graph.num_rows, p.shape[1]))
    np.add.at(delta, rows, p * dp)
    of_scores = np.max(p * np.maximum(np.abs(dp), np.abs(delta[rows])), initial=0.0)
    of_sums = np.max(p[..., None] * np.abs(dy), initial=0.0)
    largest = {name: np.abs(array).max(initial=0.0) for name, array in arrays.items()}
    slopes = attention.slopes(largest)
    in_sums = attention.in_sums(largest) | {attention.summed: 1.0}
    return [
        max(slopes.get(name, 0.0) * of_scores, in_sums.get(name, 0.0) * of_sums) for name in names
    ]


def check_formula(op, implementation):
    """The sums and weights of a padded graph against a loop over rows, heads and edges."""
    attention, graph = TABLE[op], BARE["padding_edges"]
    given = [attention.arrays(graph, full=full) for full in (False, True)]

    @jax.jit
    def run(given):
        options = {"implementation": implementation, "return_weights": True}
        return [attention(graph, arrays, **options) for arrays in given]

    for arrays, made in zip(given, run(given), strict=True):
        for actual, wanted in zip(made, by_hand(attention, graph, arrays), strict=True):
            np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)
