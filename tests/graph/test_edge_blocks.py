"""Edges grouped by block: every edge once, in the block of its row, next to its sender's others."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CSRGraph
from jaxgnn.graph import BlockShape, EdgeBlocks
from jaxgnn.graph.plan import built_parts as _parts
from jaxgnn.graph.plan import edge_blocks as _edge_blocks
from jaxgnn.graph.plan.communities import find_communities
from jaxgnn.graph.plan.edge_blocks import ROW_BITS, blocks_for, make_edge_blocks
from jaxgnn.testing import GRAPHS
from tests.graph._oracles import assert_same_tree, edges_by_sender
from tests.pallas_kernels._chips import H100

# Several tiles of senders; rows of many edges, cut into several tasks; both kinds of block.
_SENDERS = 2_200_000
_LARGE = {
    "several_tiles": lambda rng: CSRGraph.from_edges(
        rng.integers(0, _SENDERS, 5_000), rng.integers(0, 300, 5_000), 300, num_senders=_SENDERS
    ),
    "hub": lambda rng: CSRGraph.from_edges(
        rng.integers(0, 70, 9_000), np.where(np.arange(9_000) < 7_000, 99, 3), 200, num_senders=70
    ),
}


def _graphs():
    for case in GRAPHS:
        yield case.name, case.build
    for name, build in _LARGE.items():
        yield name, lambda build=build: build(np.random.default_rng(0))


def _arrays(graph):
    plan = graph.made_plan()
    return graph.indptr, plan.transposed_indptr, plan.transposed_indices, plan.permutation


def _blocks(graph):
    return make_edge_blocks(*map(np.asarray, _arrays(graph)))


def _row_order(blocks):
    rows = blocks.row_order
    return np.arange(blocks.shape.row_blocks * blocks.shape.rows) if rows is None else rows


def _ends(blocks, tiles=None):
    """Task, place in the entries, block, receiver and sender of what the tasks take, in turn."""
    shape = blocks.shape
    tasks = blocks.tasks[shape.tiles.index(tiles or shape.tiles[0])]
    lengths = tasks.ends - tasks.begins
    task = np.repeat(np.arange(len(lengths)), lengths)
    place = np.arange(len(task)) + (tasks.begins - np.cumsum(lengths) + lengths)[task]
    block, entry = tasks.blocks[task], blocks.entries[place]
    row = block % shape.row_blocks * shape.rows + (entry & (2**ROW_BITS - 1))
    sender = block // shape.row_blocks * shape.senders + (entry >> ROW_BITS)
    return task, place, block, _row_order(blocks)[row], sender


def _assert_has_every_edge_once(blocks, graph):
    """By tiles of senders, by block within one, and by sender within a block."""
    assert blocks.entries.size % 8 == 0  # kernels read so many at once
    assert len(blocks.tasks) == len(blocks.shape.tiles)
    for tiles in blocks.shape.tiles:
        task, place, block, row, sender = _ends(blocks, tiles)
        edges = blocks.edges[place]
        np.testing.assert_array_equal(np.sort(edges), np.arange(graph.indptr[-1]))
        np.testing.assert_array_equal(row, np.asarray(graph.receivers())[edges])
        np.testing.assert_array_equal(sender, np.asarray(graph.indices)[edges])
        assert np.bincount(task).max(initial=0) <= blocks.shape.edges_per_task
        span, within = np.divmod(sender, blocks.shape.senders)
        tile = span * tiles + within // -(-blocks.shape.senders // tiles)
        in_order = np.lexsort((sender, block, tile))
        np.testing.assert_array_equal(in_order, np.arange(len(task)))
        mixed = (np.diff(task) == 0) & ((np.diff(block) != 0) | (np.diff(tile) != 0))
        assert not mixed.any()


def _count_as_many_edges(monkeypatch, *rows):
    """Lets small graphs have blocks of so many rows by degree, as large ones have."""
    monkeypatch.setattr(_edge_blocks, "_rows_of_blocks", lambda *sizes: (rows, True))


def _order_by(monkeypatch, order):
    """Lets small graphs have the blocks of large ones: of many edges a row, and of many senders."""
    if order == "degree":
        _count_as_many_edges(monkeypatch, 3, 7)
    if order == "community":
        monkeypatch.setattr(_edge_blocks, "_few_senders", lambda chip: 0)


@pytest.fixture
def by_degree(monkeypatch):
    _order_by(monkeypatch, "degree")


ORDERS = {"degree": (3, 7), "community": (64,), "given": (64,)}


@pytest.mark.costly
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("build", [pytest.param(build, id=name) for name, build in _graphs()])
def test_every_edge_is_there_once_grouped_by_block_and_sender(monkeypatch, build, order):
    graph = build()
    _order_by(monkeypatch, order)
    if order == "given" and graph.num_cols == _SENDERS:
        order = "community"
    made = _blocks(graph)
    assert tuple(blocks.shape.rows for blocks in made) == ORDERS[order]
    assert {blocks.shape.order for blocks in made} == {order}
    assert all((blocks.row_order is None) == (order == "given") for blocks in made)
    for blocks in made:
        _assert_has_every_edge_once(blocks, graph)


@pytest.mark.costly(8)
@pytest.mark.parametrize("build", [pytest.param(build, id=name) for name, build in _graphs()])
def test_rows_are_in_order_of_the_bits_of_their_degrees_then_communities_then_as_given(
    by_degree, build
):
    graph = build()
    for blocks in _blocks(graph):
        assert blocks.row_order.dtype == np.int32
        np.testing.assert_array_equal(np.sort(blocks.row_order), np.arange(graph.num_rows))
        degrees = np.asarray(graph.degrees())[blocks.row_order]
        steps = np.diff([int(degree).bit_length() for degree in degrees])
        assert (steps <= 0).all()
        communities = find_communities(*edges_by_sender(graph))[blocks.row_order]
        among = np.diff(communities)[steps == 0]
        assert (among >= 0).all()
        assert (np.diff(blocks.row_order)[steps == 0][among == 0] > 0).all()


@pytest.mark.costly
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("build", [pytest.param(build, id=name) for name, build in _graphs()])
def test_made_under_jit_has_the_bits_of_the_host(monkeypatch, build, order):
    graph = build()
    _order_by(monkeypatch, order)
    # Another function than in another order, which JAX would remember.
    traced = jax.jit(lambda *arrays: make_edge_blocks(*arrays))(*_arrays(graph))
    assert_same_tree(traced, _blocks(graph))


def test_rows_of_few_edges_are_in_order_of_their_communities_then_as_given(monkeypatch):
    graph = _power_law(0.4, 0.8, shuffled=True)
    _order_by(monkeypatch, "community")
    (blocks,) = _blocks(graph)
    expected = np.argsort(find_communities(*edges_by_sender(graph)), stable=True)
    np.testing.assert_array_equal(blocks.row_order, expected)
    assert (np.diff(blocks.row_order) < 0).any()


def _additions(blocks):
    """Sums of the edges of one sender in one block."""
    _, _, block, _, sender = _ends(blocks)
    return np.count_nonzero((np.diff(block) != 0) | (np.diff(sender) != 0)) + 1


NODES, COMMUNITIES = 4_000, 4


def _power_law(skew, in_community, shuffled=False):
    """Some edges stay in their community, whose nodes are neighbours unless all are shuffled."""
    rng = np.random.default_rng(0)
    weights = np.arange(1, NODES + 1) ** -skew
    senders, receivers = rng.choice(NODES, (2, 200_000), p=weights / weights.sum())
    nearest = senders - senders % COMMUNITIES + receivers % COMMUNITIES
    senders = np.where(rng.random(len(senders)) < in_community, nearest, senders)
    # Nodes of a community are neighbours in no order of degrees.
    community = 0 if shuffled else np.arange(NODES) % COMMUNITIES
    node = np.lexsort((rng.random(NODES), np.broadcast_to(community, NODES))).argsort()
    return CSRGraph.from_edges(node[senders], node[receivers], NODES)


@pytest.mark.costly
@pytest.mark.parametrize(
    "skew, in_community, shuffled, saved",
    [
        (0.0, 0.0, True, -0.01),
        (0.4, 0.0, True, 0.02),
        (0.6, 0.0, True, 0.1),
        (0.6, 0.8, False, 0.04),
        (0.0, 0.8, True, 0.2),
        (0.6, 0.8, True, 0.25),
    ],
)
def test_the_order_of_rows_saves_additions(monkeypatch, skew, in_community, shuffled, saved):
    graph = _power_law(skew, in_community, shuffled)
    _count_as_many_edges(monkeypatch, 32, 64)
    made = _blocks(graph)
    for blocks in made:
        *_, row, sender = _ends(blocks)
        as_given = np.unique(np.stack([row // blocks.shape.rows, sender]), axis=1).shape[1]
        assert _additions(blocks) <= (1 - saved) * as_given
    narrow, wide = map(_additions, made)
    assert wide < 0.95 * narrow


def test_rows_that_fit_at_once_get_the_largest_blocks_and_wide_ones_the_smallest():
    both = BlockShape.choices(H100, 233_000, 233_000, 111_000_000)
    assert [(shape.rows, shape.order) for shape in both] == [(144, "degree"), (288, "degree")]
    made = [EdgeBlocks(*[np.zeros(0)] * 4, shape=shape) for shape in both]  # pyrefly: ignore
    for row_bytes, rows in ((398 * 2, 288), (199 * 4, 288), (200 * 4, 144), (796 * 4, 144)):
        assert blocks_for(H100, made, row_bytes).shape.rows == rows
    assert blocks_for(H100, made, 797 * 4) is None
    assert blocks_for(H100, (), 4) is None


@pytest.mark.parametrize(
    "rows, edges, expected, tiles, task, order",
    [
        (2_449_029, 123_718_280, [64], (2, 3), 1 << 15, "community"),
        (409_601, 4_000_000, [64], (1,), 3_906, "community"),
        (409_600, 4_000_000, [64], (1,), 3_906, "given"),
        (409_601, 0, [64], (1,), 1 << 10, "community"),
        (917_504, 4_000_000, [64], (1,), 3_906, "community"),
        (917_505, 4_000_000, [64], (1, 2), 3_906, "community"),
        (1_310_720, 4_000_000, [64], (1, 2), 3_906, "community"),
        (1_310_721, 4_000_000, [64], (2,), 3_906, "community"),
        (128 * 128 - 1, 128 * 128 * 128, [64], (1,), 2_048, "given"),
        (128 * 128, 128 * 128 * 128, [128], (1,), 2_048, "degree"),
        (128 * 128, 128 * 128 * 128 - 1, [64], (1,), 2_047, "given"),
        (512 * 144, 512 * 144 * 128, [128], (1,), 9_216, "degree"),
        (512 * 159, 512 * 159 * 128, [128], (1,), 10_176, "degree"),
        (512 * 160, 512 * 160 * 128, [128, 160], (1,), 10_240, "degree"),
        (132_534, 78_500_000, [129, 258], (1, 2), 76_660, "degree"),
        (1_000_000, 500_000_000, [144, 288], (1, 2, 4, 8), 1 << 18, "degree"),
    ],
)
def test_blocks_are_large_where_rows_have_many_edges_and_leave_many_blocks(
    rows, edges, expected, tiles, task, order
):
    shapes = BlockShape.choices(H100, rows, rows, edges)
    assert [shape.rows for shape in shapes] == expected
    assert {(s.spans, s.tiles, s.edges_per_task, s.order) for s in shapes} == {
        (1, tiles, task, order)
    }


@pytest.mark.parametrize(
    "rows, edges, k, itemsize, tiles",
    [
        (232_965, 114_615_892, 32, 4, 1),  # 28 MiB of sums
        (232_965, 114_615_892, 64, 4, 2),
        (232_965, 114_615_892, 16, 2, 1),  # 14 MiB
        (232_965, 114_615_892, 32, 2, 2),
        (232_965, 114_615_892, 300, 2, 2),
        (1_000_000, 500_000_000, 16, 4, 2),
        (1_000_000, 500_000_000, 17, 4, 4),
        (2_449_029, 123_718_280, 16, 4, 2),
        (2_449_029, 123_718_280, 300, 4, 2),
        (2_449_029, 123_718_280, 16, 2, 3),
        (917_504, 4_000_000, 16, 2, 1),
        (917_505, 4_000_000, 16, 2, 2),
        (300_000, 300_000 * 128, 64, 4, 3),
        (9_000_000, 9_000_000, 16, 4, 4),  # of either span
        (89_250, 899_756, 64, 4, 1),
        (0, 0, 64, 4, 1),
    ],
)
def test_tiles_are_many_where_their_sums_would_fill_a_cache_and_rows_are_narrow(
    rows, edges, k, itemsize, tiles
):
    for shape in BlockShape.choices(H100, rows, rows, edges):
        assert shape.tiles_for(H100, k, itemsize) == tiles


@pytest.mark.parametrize("rows, cols", [(0, 409_601), (100_000, 0)])
def test_padding_alone_is_cut_in_the_given_order(rows, cols):
    shapes = BlockShape.choices(H100, rows, cols, 128 * 100_000)
    assert {shape.order for shape in shapes} == {"given"}


def test_padding_without_rows_has_blocks_of_no_edges():
    none = np.zeros(3, int)
    graph = CSRGraph.from_edges(none, none, 0, num_senders=409_601, edge_mask=none.astype(bool))
    (blocks,) = _blocks(graph)
    assert all((tasks.begins == tasks.ends).all() for tasks in blocks.tasks)


def test_senders_and_rows_fit_their_bits():
    for sizes in ((1, 1, 0), (233_000, 233_000, 111_000_000), (1, 2**31 - 1, 2**31 - 1)):
        for shape in BlockShape.choices(H100, *sizes):
            assert shape.rows < 2**ROW_BITS
            assert shape.senders <= 2 ** (32 - ROW_BITS)


def test_one_block_of_all_edges_is_shared_out_by_tiles(monkeypatch):
    monkeypatch.setattr(_edge_blocks, "_TILE_SENDERS", {2: 20, 4: 30})
    graph = CSRGraph.from_edges(np.arange(100), np.zeros(100, int), 1, num_senders=100)
    (blocks,) = _blocks(graph)
    assert blocks.shape.tiles == (4, 5)
    _assert_has_every_edge_once(blocks, graph)


@pytest.mark.parametrize("count", [1, 7, 8, 64])
@pytest.mark.parametrize("traced", [False, True])
def test_a_search_finds_every_place_of_a_range_that_is_as_long_as_can_be(count, traced):
    senders = 2 * np.arange(count, dtype=np.int32)
    entries = senders.astype(np.uint32) << ROW_BITS
    wanted = np.arange(-1, 2 * count + 1, dtype=np.int32)
    begins, ends = np.zeros(1, np.int32), np.full(1, count, np.int32)

    def search(*arguments):
        return _edge_blocks._search(jnp if traced else np, *arguments)

    found = (jax.jit(search) if traced else search)(entries, begins, ends, wanted)
    np.testing.assert_array_equal(found, np.searchsorted(senders, wanted))


def test_no_edges_of_many_senders_are_shared_out_under_jit_too(monkeypatch):
    monkeypatch.setattr(_parts, "on_gpu", lambda: True)
    indptr, senders = np.zeros(5, np.int32), np.zeros(0, np.int32)

    def prepared(indptr, senders):
        return CSRGraph(indptr, senders, None, num_cols=1_000_000).prepared().plan.edge_blocks

    host, traced = prepared(indptr, senders), jax.jit(prepared)(indptr, senders)
    assert [blocks.shape.tiles for blocks in host] == [(1, 2)]
    assert_same_tree(traced, host)


def test_more_senders_than_an_entry_can_name_lie_in_several_spans(monkeypatch):
    monkeypatch.setattr(_edge_blocks, "_MOST_SENDERS", 100)
    monkeypatch.setattr(_edge_blocks, "_TILE_SENDERS", {2: 30, 4: 40})
    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(0, 250, 9_000), rng.integers(0, 300, 9_000)
    graph = CSRGraph.from_edges(senders, receivers, 300, num_senders=250)
    (blocks,) = _blocks(graph)
    assert (blocks.shape.spans, blocks.shape.senders, blocks.shape.tiles) == (3, 84, (3,))
    assert (blocks.entries >> ROW_BITS).max() < 84
    _assert_has_every_edge_once(blocks, graph)


def test_a_plan_with_the_blocks_of_another_graph_is_refused(by_degree):
    graph, other = (
        CSRGraph.from_edges(senders, [0, 1, 2, 3], 4) for senders in ([3, 2, 1, 0], [0, 1, 2, 3])
    )

    def check(blocks):
        plan = dataclasses.replace(graph.plan, edge_blocks=blocks)
        dataclasses.replace(graph, plan=plan).validate()

    own, larger = _blocks(graph)
    check((own, larger))
    with pytest.raises(ValueError, match=r"plan\.edge_blocks\[0\]\.row_order\[0\]"):
        check(_blocks(other))
    with pytest.raises(ValueError, match=r"plan\.edge_blocks\[0\]\.entries\[0\]"):
        check((dataclasses.replace(own, entries=own.entries ^ 1), larger))
    with pytest.raises(ValueError, match=r"plan\.edge_blocks\[0\]\.row_order\[0\]"):
        check((dataclasses.replace(own, row_order=own.row_order[::-1]), larger))
    with pytest.raises(ValueError, match=r"plan\.edge_blocks\[0\] must be of structure"):
        check((dataclasses.replace(own, row_order=None), larger))
    tasks = (dataclasses.replace(own.tasks[0], ends=own.tasks[0].ends + 1),)
    with pytest.raises(ValueError, match=r"plan\.edge_blocks\[0\]\.tasks\[0\]\.ends\[0\]"):
        check((dataclasses.replace(own, tasks=tasks), larger))
    tasks = (dataclasses.replace(own.tasks[0], ends=own.tasks[0].ends.astype(np.int64)),)
    with pytest.raises(ValueError, match=r"tasks\[0\]\.ends must be int32, got int64"):
        check((dataclasses.replace(own, tasks=tasks), larger))
    with pytest.raises(ValueError, match=r"plan\.edge_blocks must be of shapes"):
        check((dataclasses.replace(own, shape=dataclasses.replace(own.shape, rows=2)), larger))
