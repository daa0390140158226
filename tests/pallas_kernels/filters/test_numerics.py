"""What the kernels of filtered sums compute, on the emulator."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CSRGraph
from jaxgnn.ops._filters import pallas as calls
from jaxgnn.ops._filters.kernels import MOST_FEATURES
from jaxgnn.ops._filters.reference import filtered_sum as reference
from jaxgnn.testing import assert_bit_equal, assert_close, random_array
from pallas_kernels.filters import filtered_sum as given_kernels
from pallas_kernels.filters import made as made_kernels
from pallas_kernels.graph.spmm import SpmmTile
from tests.pallas_kernels._emulator import emulated

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


def _nodes(graph, columns, dtype):
    x = random_array((graph.num_cols, columns), dtype, seed=1)
    return x, random_array((graph.num_rows, columns), dtype, seed=2)


def _order(graph, name):
    """An order of edges other than that of the slots, on one of the graphs."""
    if name == "short rows":
        return None
    return jnp.asarray(np.random.default_rng(5).permutation(graph.num_edges), jnp.int32)


def _of_edges(graph, order, width, dtype):
    made = random_array((graph.num_edges, width), dtype, seed=3)
    padding = np.arange(graph.num_edges)[-PADDING:]
    padding = padding if order is None else order[padding]
    return made.at[padding].set(jnp.nan)  # padding may contain anything


def _check(made, formula, graph, order, *arrays, length, **options):
    with jax.enable_x64(True), jax.disable_jit(False):
        wide = [a.astype(jnp.float64) for a in arrays]
        exact = np.asarray(jax.jit(functools.partial(formula, **options))(graph, order, *wide))
    assert_close(made, exact, reduction_length=length)


GIVEN = {
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
    name, columns, width, dtype, of_filters = GIVEN[case]
    graph = _graph(name)
    order = _order(graph, name)
    (x, dy), filters = _nodes(graph, columns, dtype), _of_edges(graph, order, width, of_filters)
    y = calls.sum_at_rows(graph, order, x, filters)
    assert y.dtype == x.dtype
    _check(y, reference.sum_at_rows, graph, order, x, filters, length=520)
    dx = calls.sum_at_columns(graph, order, dy, filters)
    _check(dx, reference.sum_at_columns, graph, order, dy, filters, length=520)
    dw = calls.filter_products(graph, order, x, dy, width=width, dtype=of_filters)
    assert dw.dtype == filters.dtype
    options = {"width": width, "dtype": "float64"}
    _check(dw, reference.filter_products, graph, order, x, dy, length=columns // width, **options)


MADE = {
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
    name, columns, features, dtype = MADE[case]
    graph = _graph(name)
    order = _order(graph, name)
    (x, dy), basis = _nodes(graph, columns, dtype), _of_edges(graph, order, features, "float32")
    kernel = random_array((features, columns), "float32", seed=4)
    _check_made(graph, order, x, dy, basis, kernel)


def _check_made(graph, order, x, dy, basis, kernel):
    features, columns = kernel.shape
    length = 520 * features
    y = calls.made_at_rows(graph, order, x, basis, kernel)
    assert y.dtype == x.dtype
    _check(y, reference.made_at_rows, graph, order, x, basis, kernel, length=length)
    dx = calls.made_at_columns(graph, order, dy, basis, kernel)
    _check(dx, reference.made_at_columns, graph, order, dy, basis, kernel, length=length)
    to_basis = calls.basis_products(graph, order, x, dy, kernel)
    assert to_basis.dtype == jnp.float32
    _check(to_basis, reference.basis_products, graph, order, x, dy, kernel, length=columns)
    to_kernel = calls.kernel_products(graph, order, x, dy, basis)
    length = graph.num_edges
    _check(to_kernel, reference.kernel_products, graph, order, x, dy, basis, length=length)


@pytest.mark.parametrize(
    "tile", [SpmmTile(32, 4, 1, 4), SpmmTile(8, 2, 3, 2), SpmmTile(16, 1, 2, 8)], ids=str
)
def test_every_tile_gives_the_same_sums(tile, monkeypatch):
    graph, order = _graph("short rows"), None
    (x, dy), basis = _nodes(graph, 32, "float32"), _of_edges(graph, order, 6, "float32")
    monkeypatch.setattr(given_kernels, "tile_for", lambda *args, **options: tile)
    monkeypatch.setattr(made_kernels, "tile_for", lambda *args: tile)
    _check_made(graph, order, x, dy, basis, random_array((6, 32), "float32", seed=4))
    filters = _of_edges(graph, order, 32, "float32")
    y = calls.sum_at_rows(graph, order, x, filters)
    _check(y, reference.sum_at_rows, graph, order, x, filters, length=12)


def test_infinite_numbers_stay_in_their_row():
    graph, order = _graph("short rows"), None
    (x, _), filters = _nodes(graph, 8, "float32"), _of_edges(graph, order, 8, "float32")
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
