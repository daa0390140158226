"""What the Mosaic GPU kernels compute, on the emulator: bounds, alignment and order included."""

import dataclasses
import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CBSR, CSRGraph
from jaxgnn.ops._graph import pallas as graph_calls
from jaxgnn.ops._graph.reference import segment_softmax as softmax_reference
from jaxgnn.ops._graph.reference import spmm as spmm_reference
from jaxgnn.ops._maxk import pallas as maxk_calls
from jaxgnn.ops._maxk.reference import maxk as maxk_reference
from jaxgnn.ops._maxk_spmm import pallas as maxk_spmm_calls
from jaxgnn.ops._maxk_spmm.reference import maxk_spmm as maxk_spmm_reference
from jaxgnn.testing import DTYPES, assert_bit_equal, assert_close, random_array
from pallas_kernels import simt
from pallas_kernels.graph.segment_softmax import SoftmaxTile
from pallas_kernels.maxk.one_row import OneRow
from pallas_kernels.maxk_spmm import maxk_spmm
from pallas_kernels.simt import blocks
from tests.ops._table import rows_of_all_kinds
from tests.pallas_kernels._chips import H100, on_a_chip
from tests.pallas_kernels._emulator import emulated
from tests.pallas_kernels._numpy_warp import NumpyWarp

pytestmark = pytest.mark.emulated

ROWS, COLS, EDGES, PADDING, HUB = 50, 60, 1400, 7, 800


@pytest.fixture(autouse=True)
def emulator():
    with emulated():
        yield


@pytest.fixture(params=["one_by_one", "in_fours"])
def any_walk(request, monkeypatch):
    """Both ways of the k-sparse product through the neighbours of a row."""
    most = {"one_by_one": float("inf"), "in_fours": 0.0}[request.param]
    monkeypatch.setattr(maxk_spmm, "_MANY_EDGES", most)


def test_rows_that_are_long_for_a_lane_are_read_by_16_bytes_and_kept():
    tiles = {
        (475, 4, 4): (1, 4, 8),
        (475, 1, 4): (1, 1, 8),
        (475, 8, 2): (1, 8, 4),
        (50, 4, 4): (4, 1, 4),
        (50, 1, 4): (1, 1, 2),
        (9, 4, 4): (4, 1, 2),
        (9, 3, 4): (4, 1, 2),
    }
    for (average, heads, itemsize), shape in tiles.items():
        for arrays in (1, 2):
            tile = SoftmaxTile.choose(H100, 1000, 1000 * average, heads, arrays, itemsize)
            assert (tile.lanes, tile.entries, tile.ahead) == shape
            assert (tile.kept > 0) == (average > 128)
            kept = tile.kept * tile.ahead * tile.entries * arrays * 128
            whole = 6 * average * heads * arrays  # half as long again, in float32
            assert kept <= 8192 and (kept == 8192 or not tile.kept or kept >= whole)


@functools.cache
def _graph(name) -> CSRGraph:
    """Empty rows, padding, and a hub of several pieces, of which the last is short."""
    rng = np.random.default_rng(0)
    receivers = rng.integers(0, ROWS, EDGES)
    receivers[:HUB] = 7
    receivers[receivers % 10 == 3] = 5
    indptr = np.concatenate([[0], np.cumsum(np.bincount(receivers, minlength=ROWS))])
    slots = EDGES + PADDING
    weights = None if name == "plain" else jnp.asarray(rng.normal(size=slots), jnp.float32)
    graph = CSRGraph(
        jnp.asarray(indptr, jnp.int32),
        jnp.asarray(rng.integers(0, COLS, slots), jnp.int32),
        weights,
        num_cols=COLS,
    )
    if name == "scaled":
        scales = [jnp.asarray(rng.uniform(0.5, 2.0, n), jnp.float32) for n in (ROWS, COLS)]
        graph = dataclasses.replace(graph, row_scale=scales[0], col_scale=scales[1])
    return graph.prepared()


@pytest.mark.costly
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name, dim", [("plain", 64), ("scaled", 255), ("weighted", 256)])
def test_spmm_and_sddmm(name, dim, dtype):
    graph = _graph(name)
    a, b = random_array((ROWS, dim), dtype, seed=0), random_array((COLS, dim), dtype, seed=1)
    assert_close(graph_calls.spmm(graph, b), spmm_reference.spmm(graph, b), reduction_length=EDGES)
    exact = spmm_reference.sddmm(graph, a, b)
    assert_close(graph_calls.sddmm(graph, a, b), exact, reduction_length=dim)


@pytest.mark.costly
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name, heads, dim", [("weighted", 3, 5), ("scaled", 2, 40), ("plain", 1, 8)]
)
def test_products_of_heads(name, heads, dim, dtype):
    weights = random_array((EDGES + PADDING, heads), "float32", seed=2)
    graph = _graph(name).with_weights(weights)
    a, b = (random_array((n, heads, dim), dtype, seed=n) for n in (ROWS, COLS))
    assert_close(graph_calls.spmm(graph, b), spmm_reference.spmm(graph, b), reduction_length=EDGES)
    exact = spmm_reference.sddmm(graph, a, b)
    made = graph_calls.sddmm(graph, a, b)
    assert made.shape == (EDGES + PADDING, heads) and not np.asarray(made)[EDGES:].any()
    assert_close(made, exact, reduction_length=dim)


@pytest.mark.costly
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads, kept", [(1, 0), (3, 1), (4, 0), (8, 9), (40, 2), (264, 0)])
def test_segment_softmax_and_its_gradient(monkeypatch, heads, kept, dtype):
    # Of long rows a part stays in shared memory, all or nothing of them.
    choose = SoftmaxTile.choose

    def keeping(*shape):
        return dataclasses.replace(choose(*shape), kept=kept)

    monkeypatch.setattr(SoftmaxTile, "choose", keeping)
    graph = _graph("plain")
    logits, dy = (
        random_array((EDGES + PADDING, heads), dtype, seed=seed, scale=3.0) for seed in (0, 1)
    )
    # A row of nothing but -inf, one with a NaN, one with an infinity, and one of huge numbers.
    first = np.asarray(graph.indptr)
    logits = logits.at[first[12] : first[13]].multiply(1e30)
    logits = logits.at[first[9] : first[10], 0].set(-jnp.inf)
    logits = logits.at[first[8]].set(jnp.nan).at[first[6]].set(jnp.inf)
    p = softmax_reference.segment_softmax(graph, logits)
    assert_close(graph_calls.segment_softmax(graph, logits), p, reduction_length=EDGES)
    p = jnp.nan_to_num(p)
    exact = softmax_reference.grad_logits(graph, p, dy)
    assert_close(graph_calls.grad_logits(graph, p, dy), exact, reduction_length=EDGES)


@pytest.mark.again("test_segment_softmax_and_its_gradient")
@pytest.mark.costly
@pytest.mark.parametrize(
    "lengths, heads, padding",
    [
        ([300, 512, 257], 3, 0),
        ([512], 3, 0),
        ([256, 300], 3, 0),
        ([20 * 256 + 5, 7], 3, 1),
        ([1, 2] * 150, 40, 20),
    ],
    ids=["full and not", "one of two pieces", "of just one", "a hub", "more rows than lanes"],
)
def test_segment_softmax_by_the_warps_of_one_block(monkeypatch, lengths, heads, padding):
    monkeypatch.setattr(blocks, "BLOCKS_PER_MULTIPROCESSOR", 1)
    on_a_chip(monkeypatch, multiprocessors=1)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    edges = int(indptr[-1]) + padding
    graph = CSRGraph(indptr, np.zeros(edges, np.int32), num_cols=1).prepared()
    logits, dy = (random_array((edges, heads), "float32", seed=s, scale=3.0) for s in (0, 1))
    p = softmax_reference.segment_softmax(graph, logits)
    assert_close(graph_calls.segment_softmax(graph, logits), p, reduction_length=max(lengths))
    exact = softmax_reference.grad_logits(graph, p, dy)
    assert_close(graph_calls.grad_logits(graph, p, dy), exact, reduction_length=max(lengths))


def test_numbers_of_64_bits_are_shared_by_lanes():
    warp = NumpyWarp(simt.Grid(1, 1), 0)
    value = warp.lane.to("i64") * 0x180000001 - 5
    np.testing.assert_array_equal(
        warp.shuffle_wide(value, warp.i32(7)).data, value.data[:, 7:8].repeat(32, 1)
    )


@pytest.mark.costly
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name, dim, k",
    [("plain", 64, 8), ("scaled", 256, 31), ("weighted", 300, 40), ("scaled", 1100, 5)],
)
def test_maxk_spmm_and_its_gradients(any_walk, name, dim, k, dtype):
    graph = _graph(name)
    x, dy = random_array((COLS, dim), dtype, seed=0), random_array((ROWS, dim), dtype, seed=1)
    kept = maxk_reference.maxk(x, k=k, by="value", early_stop=None)
    y = maxk_spmm_reference.maxk_spmm(graph, kept)
    assert_close(maxk_spmm_calls.maxk_spmm(graph, kept), y, reduction_length=EDGES)
    dvalues = maxk_spmm_reference.grad_values(graph, kept, dy)
    assert_close(maxk_spmm_calls.grad_values(graph, kept, dy), dvalues, reduction_length=EDGES)
    dweights = maxk_spmm_reference.grad_weights(graph, kept, dy)
    assert_close(maxk_spmm_calls.grad_weights(graph, kept, dy), dweights, reduction_length=k)


@pytest.mark.costly
@pytest.mark.parametrize("dtype", [*DTYPES, "float16"])
@pytest.mark.parametrize("dim", [1, 7, 32, 64, 160, 192, 224, 255, 256, 1024])
def test_maxk_has_the_bits_of_the_reference(dim, dtype):
    x = np.array(random_array((20, dim), "float32", seed=5, scale=10.0))
    x[0], x[1] = 0.0, np.where(np.arange(dim) % 2, -0.0, 0.0)
    x[2] = np.round(x[2])  # ties
    x[3, ::2], x[4], x[5, ::3] = np.nan, np.inf, -np.inf
    x = jnp.asarray(x).astype(dtype)
    for k in sorted({1, (dim + 2) // 3, dim}):
        for by in ("value", "magnitude"):
            exact = maxk_reference.maxk(x, k=k, by=by, early_stop=None)
            assert_bit_equal(maxk_calls.maxk(x, k=k, by=by, early_stop=None), exact)
        dense = maxk_reference.todense(exact)
        assert_bit_equal(maxk_calls.todense(exact), dense)
        assert_bit_equal(maxk_calls.gather_columns(dense, exact.indices), exact.values)


@pytest.mark.costly
@pytest.mark.parametrize("dim", [64, 256])
@pytest.mark.parametrize("rows", [8, 21])
def test_eight_rows_are_exact_whatever_16_bits_can_tell(rows, dim):
    kinds = rows_of_all_kinds(rows, dim)[:-3]
    for k in (1, dim // 8, dim - 1):
        for by in ("value", "magnitude"):
            exact = maxk_reference.maxk(kinds, k=k, by=by, early_stop=None)
            assert_bit_equal(maxk_calls.maxk(kinds, k=k, by=by, early_stop=None), exact)


def _looked_at_again(x, k, by) -> int:
    """Rows at which a whole warp looks, after sixteen bits of them were not enough."""
    looks, keep = [], OneRow.keep

    def counted(self, warp, row, guess):
        looks.append(warp.active[:, 0].sum())
        return keep(self, warp, row, guess)

    with mock.patch.object(OneRow, "keep", counted):
        maxk_calls.maxk(x, k=k, by=by, early_stop=None)
    return sum(looks)


def test_rows_look_alike_to_16_bits_seldom():
    """Or the warp would look again at most of them, one by one."""
    x = random_array((256, 256), "float32", seed=3)
    assert 0 < _looked_at_again(x, 32, "value") < 0.08 * 256


@pytest.mark.parametrize("by", ["value", "magnitude"])
@pytest.mark.parametrize("kind", ["zeros", "sparse", "whole", "signs", "bfloat16"])
def test_rows_of_equal_entries_are_not_looked_at_again(kind, by):
    x = random_array((64, 256), "float32", seed=3)
    rows = {
        "zeros": jnp.zeros_like(x),
        "sparse": jax.nn.relu(x - 2),
        "whole": jnp.round(4 * x),
        "signs": jnp.sign(x),
        "bfloat16": jnp.tile(x[:, :64].astype(jnp.bfloat16).astype(jnp.float32), 4),
    }
    # A warp looks at a single row of its eight rather than at all of them.
    assert _looked_at_again(rows[kind], 30, by) <= 64 // 8


def test_offsets_of_64_bits(any_walk):
    with jax.enable_x64(True):
        graph = _graph("weighted")
        plan = graph.made_plan()
        schedule = dataclasses.replace(
            plan.schedule, offsets=plan.schedule.offsets.astype(jnp.int64)
        )
        plan = dataclasses.replace(plan, schedule=schedule)
        wide = dataclasses.replace(graph, indptr=graph.indptr.astype(jnp.int64), plan=plan)
        x = random_array((COLS, 16), "float32", seed=0)
        assert_bit_equal(graph_calls.spmm(wide, x), graph_calls.spmm(graph, x))
        kept = maxk_reference.maxk(x, k=3, by="value", early_stop=None)
        assert_bit_equal(
            maxk_spmm_calls.maxk_spmm(wide, kept), maxk_spmm_calls.maxk_spmm(graph, kept)
        )
        dy = random_array((ROWS, 16), "float32", seed=1)
        assert_bit_equal(
            maxk_spmm_calls.grad_weights(wide, kept, dy),
            maxk_spmm_calls.grad_weights(graph, kept, dy),
        )
        logits = random_array((graph.num_edges, 3), "float32", seed=2)
        p = graph_calls.segment_softmax(graph, logits)
        assert_bit_equal(graph_calls.segment_softmax(wide, logits), p)
        slopes = graph_calls.grad_logits(graph, p, logits)
        assert_bit_equal(graph_calls.grad_logits(wide, p, logits), slopes)


def test_what_is_not_finite_stays_with_its_neighbours(any_walk):
    graph = _graph("plain")
    x = jnp.zeros((COLS, 64)).at[5].set(jnp.inf).at[0].set(jnp.nan)
    np.testing.assert_array_equal(graph_calls.spmm(graph, x), spmm_reference.spmm(graph, x))
    columns = jnp.broadcast_to(jnp.arange(8, dtype=jnp.uint8), (COLS, 8))
    kept = CBSR(x[:, :8], columns, 64)
    exact = maxk_spmm_reference.maxk_spmm(graph, kept)
    np.testing.assert_array_equal(maxk_spmm_calls.maxk_spmm(graph, kept), exact)
