"""Edges grouped by block: every edge once, in its block, next to those of the same sender."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxgnn import CSRGraph
from jaxgnn.graph import BlockShape
from jaxgnn.graph._edge_blocks import ROW_BITS, make_edge_blocks
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


def _blocks(graph):
    plan = graph.plan
    ends = plan.transposed_indptr, plan.transposed_indices, plan.permutation
    return make_edge_blocks(*map(np.asarray, ends), graph.num_rows)


def _ends(blocks, shape):
    """Block, receiver and sender of each entry."""
    entries = blocks.entries[: blocks.offsets[-1]]
    block = np.repeat(blocks.blocks, np.diff(blocks.offsets))
    row = block % shape.row_blocks * shape.rows + (entries & (2**ROW_BITS - 1))
    return block, row, block // shape.row_blocks * shape.senders + (entries >> ROW_BITS)


@pytest.mark.parametrize("build", [pytest.param(build, id=name) for name, build in _graphs()])
def test_every_edge_is_there_once_grouped_by_block_and_sender(build):
    graph = build()
    blocks, shape = _blocks(graph), BlockShape.choose(*graph.shape, graph.num_edges)
    block, row, sender = _ends(blocks, shape)
    edges = blocks.edges[: blocks.offsets[-1]]
    np.testing.assert_array_equal(np.sort(edges), np.arange(graph.indptr[-1]))
    np.testing.assert_array_equal(row, np.asarray(graph.receivers())[edges])
    np.testing.assert_array_equal(sender, np.asarray(graph.indices)[edges])
    in_order = np.lexsort((sender, block))
    np.testing.assert_array_equal(block[in_order], block)
    np.testing.assert_array_equal(sender[in_order], sender)
    assert np.diff(blocks.offsets).max(initial=0) <= shape.edges_per_task


@pytest.mark.parametrize("build", [pytest.param(build, id=name) for name, build in _graphs()])
def test_made_under_jit_has_the_bits_of_the_host(build):
    graph = build()
    plan = graph.plan
    ends = plan.transposed_indptr, plan.transposed_indices, plan.permutation
    traced = jax.jit(make_edge_blocks, static_argnums=3)(*ends, graph.num_rows)
    assert_same_tree(traced, _blocks(graph))


def test_senders_and_rows_fit_their_bits():
    for sizes in ((1, 1, 0), (233_000, 233_000, 111_000_000), (1, 2**31 - 1, 2**31 - 1)):
        shape = BlockShape.choose(*sizes)
        assert shape.rows <= 2**ROW_BITS
        assert shape.senders <= 2 ** (32 - ROW_BITS)


def test_a_plan_with_the_blocks_of_another_graph_is_refused():
    graph, other = (
        CSRGraph.from_edges(senders, [0, 1, 2, 3], 4) for senders in ([3, 2, 1, 0], [0, 1, 2, 3])
    )
    plan = dataclasses.replace(graph.plan, edge_blocks=_blocks(graph))
    dataclasses.replace(graph, plan=plan).validate()
    plan = dataclasses.replace(plan, edge_blocks=_blocks(other))
    with pytest.raises(ValueError, match=r"plan\.edge_blocks\.entries\[0\]"):
        dataclasses.replace(graph, plan=plan).validate()
