"""Edges grouped by block: every edge once, in the block of its row, next to its sender's others."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxgnn import CSRGraph
from jaxgnn.graph import BlockShape, EdgeBlocks, _edge_blocks
from jaxgnn.graph._edge_blocks import ROW_BITS, blocks_for, make_edge_blocks
from jaxgnn.testing import GRAPHS
from tests.graph._oracles import assert_same_tree

# Several tiles of senders; rows of many edges, cut into several tasks; both kinds of block.
_LARGE = {
    "several_tiles": lambda rng: CSRGraph.from_edges(
        rng.integers(0, 900_000, 5_000), rng.integers(0, 300, 5_000), 300, num_senders=900_000
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
    plan = graph.plan
    return graph.indptr, plan.transposed_indptr, plan.transposed_indices, plan.permutation


def _blocks(graph):
    return make_edge_blocks(*map(np.asarray, _arrays(graph)))


def _row_order(blocks):
    rows = blocks.row_order
    return np.arange(blocks.shape.row_blocks * blocks.shape.rows) if rows is None else rows


def _ends(blocks):
    """Block, receiver and sender of each entry."""
    shape, entries = blocks.shape, blocks.entries[: blocks.offsets[-1]]
    block = np.repeat(blocks.blocks, np.diff(blocks.offsets))
    place = block % shape.row_blocks * shape.rows + (entries & (2**ROW_BITS - 1))
    sender = block // shape.row_blocks * shape.senders + (entries >> ROW_BITS)
    return block, _row_order(blocks)[place], sender


def _count_as_many_edges(monkeypatch, *rows):
    """Lets small graphs have blocks of so many rows by degree, as large ones have."""
    for name, value in (("_MANY_ROWS", rows), ("_MANY_EDGES", 0), ("_MANY_BLOCKS", 0)):
        monkeypatch.setattr(_edge_blocks, name, value)


@pytest.fixture
def by_degree(monkeypatch):
    _count_as_many_edges(monkeypatch, 3, 7)


@pytest.mark.parametrize("rows", [(), (3, 7)])
@pytest.mark.parametrize("build", [pytest.param(build, id=name) for name, build in _graphs()])
def test_every_edge_is_there_once_grouped_by_block_and_sender(monkeypatch, build, rows):
    if rows:
        _count_as_many_edges(monkeypatch, *rows)
    graph = build()
    made = _blocks(graph)
    assert [(blocks.shape.rows, blocks.row_order is None) for blocks in made] == (
        [(count, False) for count in rows] or [(64, True)]
    )
    for blocks in made:
        block, row, sender = _ends(blocks)
        edges = blocks.edges[: blocks.offsets[-1]]
        np.testing.assert_array_equal(np.sort(edges), np.arange(graph.indptr[-1]))
        np.testing.assert_array_equal(row, np.asarray(graph.receivers())[edges])
        np.testing.assert_array_equal(sender, np.asarray(graph.indices)[edges])
        in_order = np.lexsort((sender, block))
        np.testing.assert_array_equal(block[in_order], block)
        np.testing.assert_array_equal(sender[in_order], sender)
        assert np.diff(blocks.offsets).max(initial=0) <= blocks.shape.edges_per_task
        assert blocks.entries.size % 8 == 0  # kernels read so many at once


@pytest.mark.parametrize("build", [pytest.param(build, id=name) for name, build in _graphs()])
def test_rows_are_in_order_of_the_bits_of_their_degrees_then_as_given(by_degree, build):
    graph = build()
    for blocks in _blocks(graph):
        assert blocks.row_order.dtype == np.int32
        np.testing.assert_array_equal(np.sort(blocks.row_order), np.arange(graph.num_rows))
        degrees = np.asarray(graph.degrees())[blocks.row_order]
        steps = np.diff([int(degree).bit_length() for degree in degrees])
        assert (steps <= 0).all()
        assert (np.diff(blocks.row_order)[steps == 0] > 0).all()


@pytest.mark.parametrize("build", [pytest.param(build, id=name) for name, build in _graphs()])
def test_made_under_jit_has_the_bits_of_the_host(monkeypatch, build):
    _count_as_many_edges(monkeypatch, 7)
    graph = build()
    assert_same_tree(jax.jit(make_edge_blocks)(*_arrays(graph)), _blocks(graph))


def _additions(blocks):
    """Sums of the edges of one sender in one block."""
    block, _, sender = _ends(blocks)
    return np.count_nonzero((np.diff(block) != 0) | (np.diff(sender) != 0)) + 1


NODES, COMMUNITIES = 4_000, 4


def _power_law(skew, in_community):
    """Communities of neighbouring nodes; some edges stay in one."""
    rng = np.random.default_rng(0)
    weights = np.arange(1, NODES + 1) ** -skew
    senders, receivers = rng.choice(NODES, (2, 200_000), p=weights / weights.sum())
    nearest = senders - senders % COMMUNITIES + receivers % COMMUNITIES
    senders = np.where(rng.random(len(senders)) < in_community, nearest, senders)
    # Nodes of a community are neighbours in no order of degrees.
    node = np.lexsort((rng.random(NODES), np.arange(NODES) % COMMUNITIES)).argsort()
    return CSRGraph.from_edges(node[senders], node[receivers], NODES)


@pytest.mark.parametrize(
    "skew, in_community, saved",
    [(0.0, 0.0, -0.01), (0.4, 0.0, 0.02), (0.6, 0.0, 0.1), (0.6, 0.8, 0.04)],
)
def test_the_order_of_rows_saves_additions(monkeypatch, skew, in_community, saved):
    _count_as_many_edges(monkeypatch, 32, 64)
    made = _blocks(_power_law(skew, in_community))
    for blocks in made:
        _, row, sender = _ends(blocks)
        as_given = np.unique(np.stack([row // blocks.shape.rows, sender]), axis=1).shape[1]
        assert _additions(blocks) <= (1 - saved) * as_given
    narrow, wide = map(_additions, made)
    assert wide < 0.95 * narrow


def test_rows_that_fit_at_once_get_the_largest_blocks_and_wide_ones_the_smallest():
    both = BlockShape.choices(233_000, 233_000, 111_000_000)
    assert [(shape.rows, shape.by_degree) for shape in both] == [(208, True), (416, True)]
    made = [EdgeBlocks(*[np.zeros(0)] * 5, shape=shape) for shape in both]  # pyrefly: ignore
    for row_bytes, rows in ((256 * 2, 416), (128 * 4, 416), (256 * 4, 208), (551 * 4, 208)):
        assert blocks_for(made, row_bytes).shape.rows == rows
    assert blocks_for(made, 552 * 4) is None
    assert blocks_for((), 4) is None
    (few,) = BlockShape.choices(2_449_029, 2_449_029, 123_718_280)
    assert (few.rows, few.by_degree) == (64, False)


def test_senders_and_rows_fit_their_bits():
    for sizes in ((1, 1, 0), (233_000, 233_000, 111_000_000), (1, 2**31 - 1, 2**31 - 1)):
        for shape in BlockShape.choices(*sizes):
            assert shape.rows < 2**ROW_BITS
            assert shape.senders <= 2 ** (32 - ROW_BITS)


def test_a_plan_with_the_blocks_of_another_graph_is_refused(by_degree):
    graph, other = (
        CSRGraph.from_edges(senders, [0, 1, 2, 3], 4) for senders in ([3, 2, 1, 0], [0, 1, 2, 3])
    )

    def check(blocks):
        plan = dataclasses.replace(graph.plan, edge_blocks=blocks)
        dataclasses.replace(graph, plan=plan).validate()

    own, larger = _blocks(graph)
    check((own, larger))
    with pytest.raises(ValueError, match=r"plan\.edge_blocks\[0\]\.entries\[0\]"):
        check(_blocks(other))
    with pytest.raises(ValueError, match=r"plan\.edge_blocks\[0\]\.row_order\[0\]"):
        check((dataclasses.replace(own, row_order=own.row_order[::-1]), larger))
    with pytest.raises(ValueError, match=r"plan\.edge_blocks must be of shapes"):
        check((dataclasses.replace(own, shape=dataclasses.replace(own.shape, rows=2)), larger))
