"""What the kernels of aggregation compute, on the emulator."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CSRGraph
from jaxgnn.ops._graph import pallas as graph_calls
from jaxgnn.testing import assert_bit_equal, random_array
from pallas_kernels.aggregate.aggregate import forward
from pallas_kernels.aggregate.gradient import tile_for
from pallas_kernels.arguments.aggregate import Form
from pallas_kernels.arguments.reductions import REDUCTIONS, summed
from pallas_kernels.graph.spmm import SpmmTile
from tests.pallas_kernels._chips import H100
from tests.pallas_kernels._emulator import emulated
from tests.pallas_kernels.aggregate._cases import (
    ALL,
    PNA,
    check,
    exact_gradient,
    gradient,
    numbers_of,
)

pytestmark = pytest.mark.emulated

COLS, PADDING = 24, 5
LENGTHS = {
    # A row of just one full piece, one of three pieces, empty rows.
    "long rows": [3, 0, 4, 256, 1, 520, 0, 2, 17],
    # The last row is empty: the slot where it begins is padding.
    "short rows": [3, 0, 4, 12, 1, 5, 0, 2, 11, 9, 6, 0],
}


@pytest.fixture(autouse=True)
def emulator():
    with emulated():
        yield


@functools.cache
def _graph(name) -> CSRGraph:
    """Empty rows, padding, a sender that has a third of the edges, and one that has none."""
    rng = np.random.default_rng(0)
    indptr = np.concatenate([[0], np.cumsum(LENGTHS[name])])
    senders = rng.integers(0, COLS - 1, indptr[-1] + PADDING)
    senders[rng.random(len(senders)) < 1 / 3] = 2
    graph = CSRGraph(jnp.asarray(indptr, jnp.int32), jnp.asarray(senders, jnp.int32), num_cols=COLS)
    return graph.prepared()


# Graph, form, width, dtype, and the tile, None if it is chosen.
CASES = {
    "all": ("long rows", Form(ALL, False), 8, "float32", None),
    "the first of ties": ("long rows", Form(ALL, False, "first"), 8, "bfloat16", None),
    "of edges": ("long rows", Form(ALL, True), 3, "float16", None),
    "PNA in slices": ("short rows", Form(PNA, False), 40, "float32", SpmmTile(8, 4, 2)),
    "one by one": ("short rows", Form(("softmax", "min"), False), 33, "float32", None),
    "sums": ("short rows", Form(("sum", "logsumexp"), False), 16, "bfloat16", None),
}


@pytest.mark.costly(3)
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_agree_with_float64(case):
    name, *rest = CASES[case]
    check(_graph(name), *rest)


def test_a_sum_of_functions_of_each_number_agrees_with_float64(monkeypatch):
    root_mean_square = summed(
        lambda maths, x: x * x,
        slope=lambda maths, x: x * 2.0,
        result=lambda maths, total, count: maths.root(total / count),
    )
    monkeypatch.setitem(REDUCTIONS, "rms", root_mean_square)
    check(_graph("long rows"), Form(("mean", "rms", "max"), False), 5, "float32")


def test_gradients_far_from_zero_keep_their_digits():
    graph, form = _graph("short rows"), Form(("std", "logsumexp", "var"), False)
    x = 100 + 0.01 * random_array((COLS, 4), "float32", seed=3)
    dy = random_array((graph.num_rows, 12), "float32", seed=4)
    made = gradient(graph, form, x, dy)
    with jax.enable_x64(True), jax.disable_jit(False):
        _, exact = exact_gradient(graph, x.astype(jnp.float64), dy.astype(jnp.float64), form)
    exact = np.asarray(exact)
    assert np.abs(np.asarray(made, np.float64) - exact).max() < 1e-5 * np.abs(exact).max()


def test_padding_slots_may_hold_anything():
    graph, form = _graph("short rows"), Form(ALL, False)
    x = numbers_of(graph, form, 4, "float32")
    senders = graph.indices.at[-PADDING:].set(2**30)
    spoiled = CSRGraph(graph.indptr, senders, num_cols=COLS, plan=graph.plan)
    made, expected = (forward(graph_calls.pieces(g), x, form, True) for g in (spoiled, graph))
    assert_bit_equal(made, expected)


def test_a_graph_without_edges_gives_zeros():
    graph = CSRGraph.from_edges([], [], 3).prepared()
    form = Form(("max", "mean"), False)
    x = random_array((3, 4), "float32", seed=0)
    y, _ = forward(graph_calls.pieces(graph), x, form, True)
    assert y.shape == (3, 8) and not y.any()
    assert not gradient(graph, form, x, random_array((3, 8), "float32", seed=1)).any()


def test_more_arrays_to_gather_take_narrower_slices_and_fewer_neighbours_at_once():
    graph = graph_calls.pieces(_graph("long rows"))
    tiles = {arrays: tile_for(H100, graph, 20_000, 256, arrays) for arrays in (1, 2, 6)}
    assert {a: t.ahead for a, t in tiles.items()} == {1: 6, 2: 4, 6: 1}
    assert tiles[1].lanes > tiles[6].lanes


def test_two_terms_that_take_turns_are_read_with_16_bytes_of_a_lane():
    graph = graph_calls.pieces(_graph("long rows"))
    tile = tile_for(H100, graph, 20_000, 256, 1, 2)
    assert tile == dataclasses.replace(tile_for(H100, graph, 20_000, 512, 1), entries=2)
