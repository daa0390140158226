"""The backward by blocks of rows, on the emulator: what it adds, and in which memory."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CBSR, CSRGraph
from jaxgnn._ffi import maxk_spmm as ffi
from jaxgnn.graph import BlockShape
from jaxgnn.graph.plan import edge_blocks as graph_edge_blocks
from jaxgnn.graph.plan.edge_blocks import make_edge_blocks
from jaxgnn.ops._maxk.reference import maxk as maxk_reference
from jaxgnn.ops._maxk_spmm import pallas
from jaxgnn.ops._maxk_spmm.reference import maxk_spmm as maxk_spmm_reference
from jaxgnn.testing import DTYPES, assert_close, random_array
from pallas_kernels import simt
from pallas_kernels.chip import Chip
from pallas_kernels.maxk_spmm import edge_blocks, maxk_spmm
from pallas_kernels.maxk_spmm.edge_blocks import BlocksTile
from pallas_kernels.simt import launching
from tests.pallas_kernels._chips import H100, on_a_chip
from tests.pallas_kernels._emulator import emulated
from tests.pallas_kernels._numpy_warp import NumpyWarp

pytestmark = pytest.mark.emulated

# Neither the edges nor all slots are a multiple of the eight that are read at once.
ROWS, COLS, EDGES, PADDING, HUB = 50, 60, 1405, 2, 400
SHAPES = {
    name: BlockShape(rows, senders, edges_per_task, -(-ROWS // rows), spans, (tiles,), order)
    for name, rows, senders, edges_per_task, spans, tiles, order in (
        # Spans and tiles of which the last has fewer senders, blocks of which the last has fewer
        # rows.
        ("small", 16, 35, 90, 2, 2, "degree"),
        ("long", 16, 35, 1000, 2, 2, "degree"),
        ("as_numbered", 16, 60, 90, 1, 3, "given"),
        ("one", 64, 60, 1000, 1, 1, "degree"),
        ("all_threads", 208, 60, 2000, 1, 1, "degree"),
        ("many_tasks", 208, 60, 90, 1, 3, "degree"),
    )
}


@pytest.fixture(autouse=True)
def emulator():
    with emulated():
        yield


def _graph(monkeypatch, name, shape) -> CSRGraph:
    """Empty rows, padding, a hub among the receivers and one among the senders, edge blocks."""
    monkeypatch.setattr(BlockShape, "choices", lambda *sizes: (SHAPES[shape],))
    rng = np.random.default_rng(0)
    receivers, slots = rng.integers(0, ROWS, EDGES), EDGES + PADDING
    receivers[:HUB] = 7
    receivers[receivers % 10 == 3] = 5
    senders = rng.integers(0, COLS, slots)
    senders[rng.permutation(slots)[:HUB]] = 30
    indptr = np.concatenate([[0], np.cumsum(np.bincount(receivers, minlength=ROWS))])
    weights, scales = None, [None, None]
    if name != "plain":
        weights = jnp.asarray(rng.normal(size=slots), jnp.float32)
    if name == "scaled":
        scales = [jnp.asarray(rng.uniform(0.5, 2.0, n), jnp.float32) for n in (ROWS, COLS)]
    graph = CSRGraph(
        jnp.asarray(indptr, jnp.int32),
        jnp.asarray(senders, jnp.int32),
        weights,
        num_cols=COLS,
        row_scale=scales[0],
        col_scale=scales[1],
    ).prepared()
    return _with_blocks(graph)


def _with_blocks(graph: CSRGraph) -> CSRGraph:
    plan = graph.made_plan()
    ends = graph.indptr, plan.transposed_indptr, plan.transposed_indices, plan.permutation
    made = make_edge_blocks(*map(np.asarray, ends))
    plan = dataclasses.replace(plan, edge_blocks=jax.tree.map(jnp.asarray, made))
    return dataclasses.replace(graph, plan=plan)


def _kept(dim, k, dtype) -> CBSR:
    x = random_array((COLS, dim), dtype, seed=0)
    return maxk_reference.maxk(x, k=k, by="value", early_stop=None)


@pytest.fixture
def launched(monkeypatch):
    """What the kernels have in shared memory, by the names of kernels."""
    shared, launch = {}, simt.launch

    def note(*args, name, block_shared=None, **options):
        shared[name] = block_shared
        return launch(*args, name=name, block_shared=block_shared, **options)

    monkeypatch.setattr(simt, "launch", note)
    return shared


@pytest.mark.costly
@pytest.mark.parametrize("held", [None, 5])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name, shape, dim, k",
    [
        ("plain", "small", 64, 8),
        ("scaled", "small", 300, 40),
        ("scaled", "as_numbered", 48, 8),
        ("weighted", "small", 33, 4),
        ("scaled", "one", 255, 5),
        ("plain", "one", 300, 160),
        ("weighted", "all_threads", 64, 32),
        ("weighted", "many_tasks", 64, 30),
    ],
)
def test_blocks_agree_with_the_reference(monkeypatch, launched, name, shape, dim, k, dtype, held):
    graph, kept = _graph(monkeypatch, name, shape), _kept(dim, k, dtype)
    dy = random_array((ROWS, dim), dtype, seed=1)
    if held is not None:
        row_bytes = dim * dy.dtype.itemsize + 4
        monkeypatch.setattr(BlockShape, "can_hold", lambda *_: True)
        on_a_chip(monkeypatch, block_bytes=1024 + 32 + (held + 1) * row_bytes)
    exact = maxk_spmm_reference.grad_values(graph, kept, dy)
    assert_close(pallas.grad_values(graph, kept, dy), exact, reduction_length=EDGES)
    shared = launched["maxk_spmm_grad_values_blocks"]
    assert shared["held_rows"].shape[0] - 1 == (SHAPES[shape].rows if held is None else held)


@pytest.mark.again("test_blocks_agree_with_the_reference")
@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_of_hundreds_of_rows_of_very_different_degrees(monkeypatch, dtype):
    shape = BlockShape(416, COLS, 200, row_blocks=2, spans=1, tiles=(1,), order="degree")
    monkeypatch.setattr(BlockShape, "choices", lambda *sizes: (shape,))
    rng, rows = np.random.default_rng(0), 450
    degrees = np.minimum(rng.permutation(300 // np.arange(1, rows + 1) + 1), 120)
    degrees[rng.permutation(rows)[:20]] = 0
    receivers = np.repeat(np.arange(rows), degrees)
    senders = rng.integers(0, COLS, len(receivers))
    graph = CSRGraph.from_edges(senders, receivers, rows, num_senders=COLS).normalized("mean")
    graph, kept = _with_blocks(graph), _kept(40, 8, dtype)
    dy = random_array((rows, 40), dtype, seed=1)
    exact = maxk_spmm_reference.grad_values(graph, kept, dy)
    assert_close(pallas.grad_values(graph, kept, dy), exact, reduction_length=len(receivers))


@pytest.mark.parametrize("longest", [4, 12, 20])
def test_groups_take_several_runs_of_a_long_task(monkeypatch, longest):
    monkeypatch.setattr(edge_blocks, "_LONGEST_RUN", longest)
    graph, kept = _graph(monkeypatch, "scaled", "one"), _kept(64, 32, "float32")
    dy = random_array((ROWS, 64), "float32", seed=1)
    exact = maxk_spmm_reference.grad_values(graph, kept, dy)
    assert_close(pallas.grad_values(graph, kept, dy), exact, reduction_length=EDGES)


def _senders_of_tile(shape: BlockShape) -> int:
    return shape.senders_of(*shape.tiles)


@pytest.fixture
def traffic(monkeypatch):
    """``traffic(k)``: who fetches the sums of which four columns ahead, and who adds to which."""

    def note(k):
        fetched, added = set(), set()
        prefetch, atomic_add = NumpyWarp.prefetch, NumpyWarp.atomic_add

        def places(warp, pointer, index):
            sums = warp._bytes(pointer, index, 4, 4)[:, 0] // 4
            return set(zip(warp._active_threads(), sums - sums % k % 4, strict=True))

        def note_prefetch(self, pointer, index, itemsize):
            fetched.update(places(self, pointer, index))
            prefetch(self, pointer, index, itemsize)

        def note_add(self, pointer, index, values):
            added.update(places(self, pointer, index))
            assert not fetched or added <= fetched
            atomic_add(self, pointer, index, values)

        monkeypatch.setattr(NumpyWarp, "prefetch", note_prefetch)
        monkeypatch.setattr(NumpyWarp, "atomic_add", note_add)
        return fetched, added

    return note


@pytest.mark.again("test_blocks_agree_with_the_reference")
@pytest.mark.costly(3)
@pytest.mark.parametrize("held", [None, 5])
@pytest.mark.parametrize(
    "name, shape, dim, k",
    [
        ("plain", "small", 64, 8),
        ("scaled", "one", 64, 40),
        ("weighted", "one", 64, 33),
        ("weighted", "long", 200, 160),  # several batches of entries that share few senders
    ],
)
def test_sums_that_no_cache_holds_are_fetched_before(
    monkeypatch, traffic, name, shape, dim, k, held
):
    monkeypatch.setattr(edge_blocks, "_CACHE_SHARE", 1)
    figures = {"cache_bytes": _senders_of_tile(SHAPES[shape]) * k * 4 - 1}
    if held is not None:
        monkeypatch.setattr(BlockShape, "can_hold", lambda *_: True)
        figures["block_bytes"] = 1024 + 32 + (held + 1) * dim * 4
    on_a_chip(monkeypatch, **figures)
    graph, kept = _graph(monkeypatch, name, shape), _kept(dim, k, "float32")
    dy = random_array((ROWS, dim), "float32", seed=1)
    exact = maxk_spmm_reference.grad_values(graph, kept, dy)
    fetched, added = traffic(k)
    assert_close(pallas.grad_values(graph, kept, dy), exact, reduction_length=EDGES)
    assert added and added <= fetched


@pytest.mark.parametrize("shape, excess", [("small", 0), ("all_threads", 1)])
def test_sums_in_a_cache_and_those_of_large_blocks_are_not_fetched(
    monkeypatch, traffic, shape, excess
):
    monkeypatch.setattr(edge_blocks, "_CACHE_SHARE", 1)
    on_a_chip(monkeypatch, cache_bytes=_senders_of_tile(SHAPES[shape]) * 8 * 4 - excess)
    graph, kept = _graph(monkeypatch, "plain", shape), _kept(64, 8, "float32")
    fetched, added = traffic(8)
    pallas.grad_values(graph, kept, random_array((ROWS, 64), "float32", seed=1))
    assert added and not fetched


def test_large_blocks_have_all_threads_and_prefetch_nothing_small_ones_sums_above_the_cache():
    def choose(rows, senders, k):
        tile = BlocksTile.choose(H100, rows, senders, k, 256, 4)
        return tile.warps, tile.batch, tile.prefetches

    products = 1_224_515  # senders of one of two tiles
    assert choose(64, products, 16) == (8, 4, False)
    assert choose(64, products, 32) == (8, 4, True)
    assert choose(128, products, 64) == choose(128, 1 << 17, 32) == (32, 8, False)


@pytest.mark.parametrize("held", [16, 3])
def test_what_is_not_finite_stays_with_its_senders(monkeypatch, held):
    graph, kept = _graph(monkeypatch, "weighted", "small"), _kept(64, 8, "float32")
    graph = graph.with_weights(graph.weights.at[::97].set(jnp.inf).at[5].set(jnp.nan))
    dy = random_array((ROWS, 64), "float32", seed=1).at[20].set(jnp.nan).at[21].set(jnp.inf)
    blocks = pallas._edge_blocks(graph, kept, dy)
    got = maxk_spmm.grad_values_blocks(blocks, kept.indices, dy, BlocksTile(4, 8, held, 4, False))
    exact = np.asarray(maxk_spmm_reference.grad_values(graph, kept, dy))
    assert 0 < np.isfinite(exact).sum() < exact.size
    np.testing.assert_array_equal(np.isnan(got), np.isnan(exact))
    np.testing.assert_allclose(got, exact, rtol=2e-4, atol=2e-4)


def _cache_sums_of(monkeypatch, numbers):
    """Lets the cache hold so many sums of float32, for each size of an entry of a row."""
    parts = {size: 4 * number for size, number in numbers.items()}
    monkeypatch.setattr(graph_edge_blocks, "_CACHED_PARTS", parts)
    monkeypatch.setattr(graph_edge_blocks, "_PARTS", Chip.current().cache_bytes)


@pytest.mark.parametrize(
    "dtype, k, tiles", [("float32", 8, 1), ("float32", 9, 3), ("bfloat16", 8, 3)]
)
def test_as_many_tiles_as_suit_k_and_the_gradient(monkeypatch, dtype, k, tiles):
    monkeypatch.setitem(SHAPES, "several", dataclasses.replace(SHAPES["one"], tiles=(1, 3)))
    _cache_sums_of(monkeypatch, {4: 60 * 8, 2: 60 * 7})
    graph, kept = _graph(monkeypatch, "scaled", "several"), _kept(64, k, dtype)
    dy = random_array((ROWS, 64), dtype, seed=1)
    blocks = pallas._edge_blocks(graph, kept, dy)
    assert (blocks.senders, blocks.span) == (60 // tiles, 60)
    (tasks,) = (of for of in graph.plan.edge_blocks[0].tasks if of.senders == 60 // tiles)
    for part in ("blocks", "begins", "ends"):
        assert getattr(blocks, part) is getattr(tasks, part)
    exact = maxk_spmm_reference.grad_values(graph, kept, dy)
    assert_close(pallas.grad_values(graph, kept, dy), exact, reduction_length=EDGES)


@pytest.mark.parametrize("k, tiles", [(8, 1), (9, 3)])
def test_the_cuda_kernel_gets_the_same_tasks(monkeypatch, k, tiles):
    monkeypatch.setitem(SHAPES, "several", dataclasses.replace(SHAPES["one"], tiles=(1, 3)))
    _cache_sums_of(monkeypatch, {4: 60 * 8})
    graph, kept = _graph(monkeypatch, "scaled", "several"), _kept(64, k, "float32")
    calls = []
    monkeypatch.setattr(ffi, "run", lambda *args, **options: calls.append(args) or [None])
    ffi.grad_values_cuda(graph, kept, random_array((ROWS, 64), "float32", seed=1))
    ((_, _, operands, _, numbers),) = calls
    (tasks,) = (of for of in graph.plan.edge_blocks[0].tasks if of.senders == 60 // tiles)
    for part in ("blocks", "begins", "ends"):
        assert operands[part] is getattr(tasks, part)
    sizes = {"rows_per_block": 64, "senders_per_span": 60, "senders_per_tile": 60 // tiles}
    assert {name: numbers[name] for name in sizes} == sizes


@pytest.mark.again("tests/pallas_kernels/test_numerics.py")
def test_offsets_of_64_bits(monkeypatch):
    with jax.enable_x64(True):
        graph, kept = _graph(monkeypatch, "weighted", "small"), _kept(64, 8, "float32")
        dy = random_array((ROWS, 64), "float32", seed=1)
        (blocks,) = graph.plan.edge_blocks
        (tasks,) = blocks.tasks
        wide = {part: getattr(tasks, part).astype(jnp.int64) for part in ("begins", "ends")}
        tasks = dataclasses.replace(tasks, **wide)
        blocks = dataclasses.replace(blocks, edges=blocks.edges.astype(jnp.int64), tasks=(tasks,))
        plan = dataclasses.replace(graph.plan, edge_blocks=(blocks,))
        graph = dataclasses.replace(graph, plan=plan)
        exact = maxk_spmm_reference.grad_values(graph, kept, dy)
        assert_close(pallas.grad_values(graph, kept, dy), exact, reduction_length=EDGES)


def test_rows_that_are_too_wide_are_walked_one_by_one(monkeypatch, launched):
    graph = _graph(monkeypatch, "plain", "all_threads")
    dy = random_array((ROWS, 600), "float32", seed=1)
    pallas.grad_values(graph, _kept(600, 8, "float32"), dy)
    assert [*launched] == ["maxk_spmm_grad_values"]


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize(
    "rows, dim", [(128, 256), (144, 256), (144, 796), (288, 256), (64, 256), (64, 1000), (64, 3584)]
)
def test_what_a_block_holds_fits_shared_memory(rows, dim, itemsize):
    dtype = {2: jnp.bfloat16, 4: jnp.float32}[itemsize]
    tile = BlocksTile.choose(H100, rows, 1 << 17, 32, dim, itemsize)
    scratch = launching._Scratch(simt.Grid(1, tile.warps), {}, tile.shared(dim, jnp.dtype(dtype)))
    assert 4 * scratch.words <= H100.shared_bytes
    assert 1 <= tile.held <= rows < 512
