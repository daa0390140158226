"""Rows and edges go to the devices and come back, blocks have one shape, bad input is named."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh

from jaxgnn import CSRGraph, distributed, nn, ops
from jaxgnn.graph import Halo
from jaxgnn.graph.local.edge_numbers import totals_before
from jaxgnn.nn.shared.node_draws import bernoulli_of_nodes
from tests.distributed._graphs import NODES, features, graph, mesh, sharded_graph


@pytest.mark.parametrize("partition", ["degree", "contiguous", "random", "array"])
def test_rows_come_back_in_the_order_of_the_nodes(partition, four_devices):
    method = (np.arange(NODES) * 7) % 4 if partition == "array" else partition
    sharded, x = distributed.shard(graph(), mesh(4), partition=method), features()
    spread = sharded.shard_rows(x, fill=-1)
    assert spread.shape == (4 * sharded.rows, x.shape[1])
    assert [shard.data.shape[0] for shard in spread.addressable_shards] == [sharded.rows] * 4
    assert (np.asarray(spread) == -1).all(axis=1).sum() == 4 * sharded.rows - NODES
    np.testing.assert_array_equal(sharded.gather_rows(spread), x)


def test_all_blocks_have_plans_of_one_shape_on_their_own_devices(four_devices):
    sharded = sharded_graph(4)
    assert sharded.blocks.plan is not None and sharded.blocks.plan.transposed_indptr is not None
    for leaf in jax.tree.leaves(sharded):
        assert leaf.shape[0] == 4
        assert [shard.device for shard in leaf.addressable_shards] == list(four_devices)


def test_a_mesh_with_another_axis_repeats_the_blocks_along_it(four_devices):
    two_axes = Mesh(four_devices.reshape(2, 2), ("copies", "nodes"))
    sharded, x = distributed.shard(graph(), two_axes, axis="nodes"), features()
    y = jax.jit(distributed.sharded(ops.spmm, two_axes, axis="nodes"))(
        sharded, sharded.shard_rows(x)
    )
    expected = ops.spmm(graph(), jnp.asarray(x))
    np.testing.assert_allclose(sharded.gather_rows(y), expected, rtol=1e-5, atol=1e-5)


def test_draws_are_those_of_all_nodes_beyond_32_bits_too():
    ids = np.array([5, 3, 2**30, 70_000], np.int32)
    halo = Halo(jnp.asarray(ids), None, "nodes", 1, num_nodes=2**30 + 1)
    key = jax.random.key(1)
    mask = bernoulli_of_nodes("dropout", key, 0.3, halo, (4, 64), 0)
    few = jax.random.bernoulli(key, 0.3, (70_001, 64))
    np.testing.assert_array_equal(np.asarray(mask)[[0, 1, 3]], np.asarray(few)[ids[[0, 1, 3]]])
    # As many entries in front as there are before the last row: 2^36, which is no shape to draw.
    shifted = Halo(jnp.asarray(ids[:2]), None, "nodes", 1, num_nodes=8)
    of_batch = bernoulli_of_nodes("dropout", key, 0.3, shifted, (3, 2, 4, 5), 1)
    whole = jax.random.bernoulli(key, 0.3, (3, 8, 4, 5))
    np.testing.assert_array_equal(of_batch, whole[:, ids[:2]])


def test_edges_are_numbered_beyond_32_bits_too():
    counts = np.array([2**32 - 1, 7, 2**32 - 1, 0, 5], np.uint32)
    for total, given in ((2**33 + 10, counts), (2**31, counts % 1000)):
        words = np.asarray(totals_before(jnp.asarray(given), total)).astype(np.uint64)
        sums = np.concatenate([[0], np.cumsum(given.astype(np.uint64))[:-1]])
        np.testing.assert_array_equal(words[:, 0] << 32 | words[:, 1], sums.astype(np.uint64))


def test_draws_of_other_generators_are_refused():
    halo = Halo(jnp.arange(4), None, "nodes", 1, num_nodes=4)
    with pytest.raises(ValueError, match=r"dropout: rngs must be keys of threefry2x32.*got rbg"):
        bernoulli_of_nodes("dropout", jax.random.key(0, impl="rbg"), 0.5, halo, (4, 2), 0)


def _other_mesh():
    return distributed.sharded(ops.spmm, mesh(4))(sharded_graph(2), jnp.ones((24, 2)))


def test_self_loops_are_dropped_alike_on_any_number_of_devices(four_devices):
    alone = CSRGraph.from_edges([], [], NODES)
    layer = nn.APPNP(num_steps=1, alpha=0.0, dropout=0.5)
    run = lambda graph, x: layer(graph, x, rngs=nnx.Rngs(dropout=0))  # noqa: E731
    whole = distributed.shard(alone, mesh(4))
    rows = jax.jit(distributed.sharded(run, whole.mesh))(whole, whole.shard_rows(features()))
    expected = run(alone, jnp.asarray(features()))
    assert 0 < np.sum(np.any(np.asarray(expected) != 0, axis=1)) < NODES
    np.testing.assert_array_equal(whole.gather_rows(rows), expected)


@pytest.mark.parametrize(
    ("values", "weight", "expected"),
    [
        ([True, False], [0.25, 0.75], 0.25),
        ([1, 0], [0.25, 0.75], 0.25),
        (np.float16([60000, 60000]), None, 60000),
        ([True, True, False], [True, False, True], 0.5),
    ],
)
def test_means_count_fractions_and_do_not_overflow(values, weight, expected):
    whole = CSRGraph.from_edges([0], [1], len(values))
    weight = None if weight is None else jnp.asarray(weight)
    mean = distributed.mean_over_nodes(whole, jnp.asarray(values), weight)
    assert jnp.issubdtype(mean.dtype, jnp.floating) and float(mean) == expected


def _with_outputs(function, outputs):
    over = distributed.sharded(function, mesh(4), outputs=outputs)
    return over(sharded_graph(4), sharded_graph(4).shard_rows(features()))


def test_a_partition_of_another_graph_of_these_nodes_deals_out_the_same_rows(four_devices):
    bare = CSRGraph.from_edges([0, 1], [1, 2], NODES)
    made = distributed.partition(bare, 4, "random")
    sharded, x = distributed.shard(graph(), mesh(4), partition=made), features()
    np.testing.assert_array_equal(sharded.partition.part_of, made.part_of)
    assert sharded.partition.edges.sum() == graph().num_edges
    y = jax.jit(distributed.sharded(ops.spmm, mesh(4)))(sharded, sharded.shard_rows(x))
    expected = ops.spmm(graph(), jnp.asarray(x))
    np.testing.assert_allclose(sharded.gather_rows(np.asarray(y)), expected, rtol=1e-5, atol=1e-5)


def _loops(nodes):
    return CSRGraph.from_edges(np.arange(nodes), np.arange(nodes), nodes)


TWO_AXES = {"copies": 2, "nodes": 2}
BAD = {
    "shard: graph must be of at least one row for each of 4 devices, got 2 rows": lambda: (
        distributed.shard(CSRGraph.from_edges([0], [1], 2), mesh(4))
    ),
    r"shard: axis must be an axis of the mesh, \('nodes',\), got 'rows'": lambda: distributed.shard(
        graph(), mesh(4), axis="rows"
    ),
    "shard: axis must be the name of one of several axes": lambda: distributed.shard(
        graph(), Mesh(np.array(jax.devices()[:4]).reshape(2, 2), tuple(TWO_AXES))
    ),
    "shard: mesh must be a jax.sharding.Mesh, got int": lambda: distributed.shard(graph(), 4),
    "at least one row for each of 4 parts, got none for part 3": lambda: distributed.shard(
        graph(), mesh(4), partition=np.arange(NODES) % 3
    ),
    "shard: partition must be of 23 rows over 4 devices, got 23 rows over 2 parts": lambda: (
        distributed.shard(graph(), mesh(4), partition=distributed.partition(graph(), 2))
    ),
    "shard: exchange must be 'auto', 'all_gather' or 'all_to_all', got 'ragged'": lambda: (
        distributed.shard(graph(), mesh(4), exchange="ragged")
    ),
    "shard: wire_dtype must be 'bfloat16'.*got 'int8'": lambda: distributed.shard(
        graph(), mesh(4), wire_dtype="int8"
    ),
    "sharded: graph must be a graph on axis 'nodes' of Mesh": _other_mesh,
    "sharded: outputs must be 'rows' or 'all', got 'one'": lambda: distributed.sharded(
        ops.spmm, mesh(4), outputs="one"
    ),
    "sharded: arguments must be a ShardedGraph among them, got int": lambda: distributed.sharded(
        ops.spmm, mesh(4)
    )(1),
    r"argument 1 must be of 32 rows, 8 for each of 4 devices, got shape \(23,\)": lambda: (
        distributed.sharded(ops.spmm, mesh(4))(sharded_graph(4), jnp.ones(NODES))
    ),
    "shard_rows: x must be of one row for each of 23 nodes": lambda: sharded_graph(4).shard_rows(
        np.ones(22)
    ),
    r"shard_matrix: matrix must be of one row for each of 23 nodes, got shape \(2, 5\)": lambda: (
        sharded_graph(4).shard_matrix(CSRGraph.from_edges([0], [1], 2, num_senders=5))
    ),
    "shard_matrix: matrix must be with weights alone, got scales": lambda: sharded_graph(
        4
    ).shard_matrix(graph().normalized("mean")),
    "ShardedMatrix.local: self must be read inside of jax.shard_map": lambda: (
        sharded_graph(4).shard_matrix(graph()).local
    ),
    "sharded: argument 1 must be of 32 rows, 8 for each of 4 devices, got": lambda: (
        distributed.sharded(ops.spmm, mesh(4))(
            sharded_graph(4), distributed.shard(_loops(40), mesh(4)).shard_matrix(_loops(40))
        )
    ),
    r"sharded: argument 1 must be on the devices of the graph's nodes.*got \d+ of 23 nodes": (
        lambda: distributed.sharded(ops.spmm, mesh(4))(
            sharded_graph(4), sharded_graph(4, partition="random").shard_matrix(graph())
        )
    ),
    r"sharded: argument 1 must be on the devices.*got [1-9]\d* of 23 nodes elsewhere": (
        lambda: distributed.sharded(lambda graph, batch: ops.spmm(*batch), mesh(4))(
            sharded_graph(4), [sharded_graph(4, partition="random").shard_matrix(graph()), 1]
        )
    ),
    "sharded: graph must be graphs of one partition": lambda: distributed.sharded(
        lambda graph, batch: batch, mesh(4)
    )(sharded_graph(4), {"other": sharded_graph(4, partition="random")}),
    "argument 1 must be spread over the devices.*got a numpy array of shape": lambda: (
        distributed.sharded(ops.spmm, mesh(4))(sharded_graph(4), np.ones((32, 2)))
    ),
    "argument 1 must be spread over the devices.*got an array on one device": lambda: (
        distributed.sharded(ops.spmm, mesh(4))(sharded_graph(4), jnp.ones((32, 2)))
    ),
    r"sharded: rows must be positions of arguments, such as \(1,\), got 1": lambda: (
        distributed.sharded(ops.spmm, mesh(4), rows=1)
    ),
    "sharded: x must be given by position, got it by name": lambda: distributed.sharded(
        ops.spmm, mesh(4)
    )(sharded_graph(4), x=1),
    "sharded: outputs must be 'rows' for results that differ.*got 'all'": lambda: _with_outputs(
        lambda graph, x: jnp.mean(x), "all"
    ),
    "sharded: outputs must be 'all' for results without a row.*got 'rows'": lambda: _with_outputs(
        lambda graph, x: jnp.mean(x), "rows"
    ),
    "shard: ops must be a tuple of names of ops, got 'spmm'": lambda: distributed.shard(
        graph(), mesh(4), ops="spmm"
    ),
    "shard_rows: x must be of numbers, or bool, got dtype <U1": lambda: sharded_graph(4).shard_rows(
        ["a"] * NODES
    ),
    "shard_rows: x must be in the order of the nodes, and not spread yet": lambda: sharded_graph(
        4
    ).shard_rows(sharded_graph(4).shard_rows(features())),
    "mean_over_nodes: graph must be a CSRGraph, or inside of sharded.*got ShardedGraph": lambda: (
        distributed.mean_over_nodes(sharded_graph(4), features())
    ),
    "gather_rows: x must be of 32 rows": lambda: sharded_graph(4).gather_rows(jnp.ones(23)),
    "shard_edges: of_edges must be of one entry for each of 120 edge slots": lambda: sharded_graph(
        4
    ).shard_edges(graph(), np.ones(119)),
    r"shard_edges: graph must be the graph that was sharded, with \[63": lambda: sharded_graph(
        4
    ).shard_edges(graph().transpose(), np.ones(120)),
    "ShardedGraph.local: self must be read inside of jax.shard_map": lambda: sharded_graph(4).local,
    "mean_over_nodes: values must be of one entry for each of 23 nodes": lambda: (
        distributed.mean_over_nodes(graph(), jnp.ones(22))
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_named_with_numbers(message, four_devices):
    with pytest.raises(ValueError, match=message):
        BAD[message]()
