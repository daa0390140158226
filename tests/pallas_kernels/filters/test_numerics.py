"""What the kernels of filtered sums compute, on the emulator."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CSRGraph
from jaxgnn.ops._filters import pallas as calls
from jaxgnn.ops._filters.kernels import MOST_FEATURES
from jaxgnn.ops._filters.reference import filtered_sum as reference
from jaxgnn.testing import assert_bit_equal, random_array
from pallas_kernels.filters import filtered_sum as given_kernels
from pallas_kernels.filters import made as made_kernels
from pallas_kernels.graph.spmm import SpmmTile
from tests.pallas_kernels._emulator import emulated
from tests.pallas_kernels.filters._cases import check_given, check_made, nodes, of_edges, shuffled

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


def _order(graph, name):
    """An order of the arrays of edges for one of the graphs."""
    return shuffled(graph) if name == "long rows" else None


GIVEN: dict[str, tuple[Any, ...]] = {
    "one by one": ("short rows", 33, 33, "float32", "float32"),
    "in slices": ("long rows", 160, 160, "float32", "float32"),
    "narrow": ("long rows", 4, 4, "float32", "float32"),
    "one column": ("short rows", 1, 1, "bfloat16", "bfloat16"),
    "bfloat16": ("long rows", 40, 40, "bfloat16", "bfloat16"),
    "filters in float32": ("short rows", 16, 16, "bfloat16", "float32"),
    "repeated": ("short rows", 36, 12, "float32", "float32"),
    "repeated, cut": ("long rows", 15, 5, "float32", "bfloat16"),
}


@pytest.mark.costly(3)
@pytest.mark.parametrize("case", GIVEN)
def test_given_filters_and_their_gradients_agree_with_float64(case):
    name, *rest = GIVEN[case]
    graph = _graph(name)
    check_given(graph, _order(graph, name), *rest)


MADE: dict[str, tuple[Any, ...]] = {
    "twenty features": ("long rows", 64, 20, "float32"),
    "wide rows": ("short rows", 160, 20, "float32"),
    "one by one": ("short rows", 33, 7, "float32"),
    "one feature": ("short rows", 8, 1, "bfloat16"),
    "one column": ("short rows", 1, 3, "float32"),
    "many features": ("long rows", 36, MOST_FEATURES, "bfloat16"),
    "two columns to a lane": ("short rows", 70, 33, "float32"),
}


@pytest.mark.costly(3)
@pytest.mark.parametrize("case", MADE)
def test_made_filters_and_their_gradients_agree_with_float64(case):
    name, *rest = MADE[case]
    graph = _graph(name)
    check_made(graph, _order(graph, name), *rest)


@pytest.mark.parametrize(
    "tile", [SpmmTile(32, 4, 1, 4), SpmmTile(8, 2, 3, 2), SpmmTile(16, 1, 2, 8)], ids=str
)
def test_every_tile_gives_the_same_sums(tile, monkeypatch):
    monkeypatch.setattr(given_kernels, "tile_for", lambda *args, **options: tile)
    monkeypatch.setattr(made_kernels, "tile_for", lambda *args: tile)
    graph = _graph("short rows")
    check_made(graph, None, 32, 6, "float32")
    check_given(graph, None, 32, 32, "float32", "float32")


def test_infinite_numbers_stay_in_their_row():
    graph, order = _graph("short rows"), None
    (x, _), filters = nodes(graph, 8, "float32"), of_edges(graph, order, 8, "float32")
    x = x.at[2, 3].set(jnp.inf)
    expected = reference.sum_at_rows(graph, order, x, filters)
    made = calls.sum_at_rows(graph, order, x, filters)
    assert_bit_equal(jnp.isfinite(made), jnp.isfinite(expected))
    assert not jnp.isfinite(made).all()


def test_a_graph_without_edges_gives_zeros():
    graph, order = CSRGraph.from_edges([], [], 3).prepared(), None
    x = random_array((3, 4), "float32", seed=0)
    assert not calls.sum_at_rows(graph, order, x, jnp.zeros((0, 4))).any()
    assert not calls.made_at_rows(graph, order, x, jnp.zeros((0, 2)), jnp.ones((2, 4))).any()
    assert not calls.kernel_products(graph, order, x, x, jnp.zeros((0, 2))).any()
    assert calls.basis_products(graph, order, x, x, jnp.ones((2, 4))).shape == (0, 2)
    assert calls.filter_products(graph, order, x, x, width=4, dtype="float32").shape == (0, 4)
