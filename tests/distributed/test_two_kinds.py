"""Graphs between nodes of two kinds, and transposed graphs, are spread over devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import CSRGraph, distributed, nn, ops
from jaxgnn.graph import HeteroGraph
from tests.distributed._graphs import NODES, features, graph, mesh, sharded_graph

USERS, ITEMS = 11, 30


@functools.cache
def _ratings():
    """Items that send to users, with weights; one user of very many edges, one without any."""
    draws = np.random.default_rng(0)
    receivers = np.concatenate([np.full(25, 4), draws.integers(0, USERS - 1, 40)])
    weights = draws.uniform(0.5, 1.5, 65).astype(np.float32)
    options = {"num_senders": ITEMS, "weights": weights}
    return CSRGraph.from_edges(draws.integers(0, ITEMS, 65), receivers, USERS, **options)


def _spread(whole, devices, **options):
    return distributed.shard(whole, mesh(devices), columns="degree", **options)


def _users_and_items(seed, width=4):
    draws = np.random.default_rng(seed)
    return (draws.standard_normal((n, width)).astype(np.float32) for n in (USERS, ITEMS))


def _value_and_gradients(graph, users, items):
    """A loss of both kinds of nodes, with kept columns, weights and a mean of the edges."""

    def loss(users, items):
        received = ops.spmm(graph, items) + ops.maxk_spmm(graph, ops.maxk(items, 2))
        unweighted = graph.with_weights(None)
        mean = ops.spmm(unweighted.normalized("mean"), items)
        attended = ops.gat_attention(unweighted, users[:, :1], items[:, :1], items[:, None])
        y = received * users + mean + attended[:, 0]
        return distributed.mean_over_nodes(graph, jnp.sum(y**2, axis=1))

    value, (of_users, of_items) = jax.value_and_grad(loss, argnums=(0, 1))(users, items)
    return value, of_users, of_items


@pytest.mark.parametrize(
    "devices, options",
    [(4, {}), (2, {"exchange": "all_to_all", "overlap": True, "ops": ("spmm", "maxk_spmm")})],
)
def test_sums_and_gradients_of_two_kinds_are_those_of_one_device(devices, options, four_devices):
    whole, (users, items) = _ratings(), _users_and_items(1)
    sharded = _spread(whole, devices, **options)
    assert not sharded.is_square
    rows = sharded.shard_rows(users), sharded.shard_rows(items, side="columns")
    over = distributed.sharded(
        lambda *given: tuple(jnp.atleast_1d(made) for made in _value_and_gradients(*given)),
        sharded.mesh,
        rows=(1, 2),
    )
    value, of_users, of_items = jax.jit(over)(sharded, *rows)
    expected = jax.jit(_value_and_gradients)(whole, users, items)
    np.testing.assert_allclose(value, np.full(devices, expected[0]), rtol=1e-5)
    of_users, of_items = (
        sharded.gather_rows(of_users),
        sharded.gather_rows(of_items, side="columns"),
    )
    np.testing.assert_allclose(of_users, expected[1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(of_items, expected[2], rtol=1e-4, atol=1e-5)


def test_a_transposed_graph_has_its_nodes_where_they_were(four_devices):
    whole, (users, _) = _ratings(), _users_and_items(2)
    sharded = _spread(whole, 4)
    back = sharded.transpose(whole)
    assert back.layout.num_nodes == ITEMS and back.rows == sharded.columns.rows
    over = jax.jit(distributed.sharded(ops.spmm, back.mesh))
    y = over(back, sharded.shard_rows(users))
    expected = ops.spmm(whole.transpose(), jnp.asarray(users))
    made = sharded.gather_rows(y, side="columns")
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)


def test_the_transpose_of_a_square_graph_takes_the_same_rows(four_devices):
    square, x = graph().normalized("sym"), features()
    sharded = distributed.shard(square, mesh(4), overlap=True)
    back = sharded.transpose(square)
    assert back.is_square and back.blocks.split is not None
    rows = sharded.shard_rows(x)

    def both(there, back, x):
        return ops.spmm(back, ops.spmm(there, x))

    y = jax.jit(distributed.sharded(both, mesh(4), rows=(2,)))(sharded, back, rows)
    expected = ops.spmm(square.transpose(), ops.spmm(square, jnp.asarray(x)))
    np.testing.assert_allclose(sharded.gather_rows(y), expected, rtol=1e-5, atol=1e-5)


def test_features_of_edges_go_where_their_edges_are(four_devices):
    draws, x = np.random.default_rng(3), features()
    of_edges = draws.standard_normal((graph().num_edges, 2)).astype(np.float32)
    layer = nn.EdgeMLP(x.shape[1], [5, 4], edge_features=2, rngs=nnx.Rngs(0))
    sharded = sharded_graph(4)
    over = distributed.sharded(layer, sharded.mesh, rows=(1,), edges=(2,))
    rows = sharded.shard_rows(x), sharded.shard_edges(graph(), of_edges)
    y = jax.jit(over)(sharded, *rows)
    expected = layer(graph(), jnp.asarray(x), jnp.asarray(of_edges))
    np.testing.assert_allclose(sharded.gather_rows(y), expected, rtol=1e-5, atol=1e-5)


def _messages_of_relations(received, sent, users, items):
    """Attention over both relations, and weighted means of the ratings that are not left out."""
    got, gave = ("item", "rates", "user"), ("user", "rates back", "item")
    both = HeteroGraph({got: received.without_weights(), gave: sent.without_weights()})
    types = ("item", "user"), (got, gave)
    x = {"user": users, "item": items}
    y = nn.HGTConv(4, 4, types, heads=2, rngs=nnx.Rngs(0))(both, x)
    left = nn.DropEdge(0.5, undirected=True)(received, rngs=nnx.Rngs(dropout=1))
    return y["user"] + ops.spmm(left.normalized("mean"), y["item"]), y["item"]


@pytest.mark.costly(1)
@pytest.mark.parametrize("exchange", ["all_gather", "all_to_all"])
def test_relations_between_two_kinds_are_read_and_dropped_as_on_one_device(exchange, four_devices):
    whole, (users, items) = _ratings(), _users_and_items(3)
    sharded = _spread(whole, 4, exchange=exchange)
    back = distributed.shard(
        whole.transpose(),
        mesh(4),
        partition=sharded.column_partition.part_of,
        columns=sharded.partition.part_of,
        exchange=exchange,
    )
    rows = sharded.shard_rows(users), sharded.shard_rows(items, side="columns")
    over = distributed.sharded(_messages_of_relations, mesh(4), rows=(2, 3))
    of_users, of_items = jax.jit(over)(sharded, back, *rows)
    given = jnp.asarray(users), jnp.asarray(items)
    expected = _messages_of_relations(whole, whole.transpose(), *given)
    made = sharded.gather_rows(of_users), sharded.gather_rows(of_items, side="columns")
    for ours, theirs in zip(made, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def _as_if_square(layer):
    """Calls a layer on as many rows as columns, which lie on other devices."""
    parts = np.arange(NODES) % 4
    apart = distributed.shard(graph(), mesh(4), partition=parts, columns=parts[::-1])
    return distributed.sharded(layer, mesh(4))(apart, apart.shard_rows(features()))


def _on_two_partitions():
    first, other = (sharded_graph(4, partition=method) for method in ("degree", "contiguous"))
    both = distributed.sharded(lambda a, b, x: ops.spmm(a, ops.spmm(b, x)), mesh(4), rows=(2,))
    return both(first, other, first.shard_rows(features()))


def _dropped():
    sharded = _spread(_ratings(), 4)
    _, items = _users_and_items(1)
    layer = nn.DropNode(0.5)
    run = lambda graph, x: layer(x, graph, rngs=nnx.Rngs(0))  # noqa: E731
    rows = sharded.shard_rows(items, side="columns")
    return distributed.sharded(run, sharded.mesh)(sharded, rows)


BAD = {
    r"graph must be square, or the part of each column given, got shape \(11, 30\)": lambda: (
        distributed.shard(_ratings(), mesh(4))
    ),
    "shard: graph must be of at least one column for each of 4 devices, got 3 columns": lambda: (
        distributed.shard(
            CSRGraph.from_edges([0], [1], 9, num_senders=3), mesh(4), columns="degree"
        )
    ),
    "partition: columns must be integers of shape": lambda: distributed.partition(
        _ratings(), 2, columns=np.zeros(3, int)
    ),
    "partition: graph must be square for method='metis'": lambda: distributed.partition(
        _ratings(), 2, "metis", columns=np.zeros(ITEMS, int)
    ),
    "shard_rows: side must be 'rows' or 'columns', got 'items'": lambda: _spread(
        _ratings(), 2
    ).shard_rows(np.ones(ITEMS), side="items"),
    "shard_rows: x must be of one row for each of 30 nodes": lambda: _spread(
        _ratings(), 2
    ).shard_rows(np.ones(USERS), side="columns"),
    r"transpose: graph must be the graph of shape \(23, 23\) that was sharded": lambda: (
        sharded_graph(2).transpose(_ratings())
    ),
    r"sharded: graph must be graphs of one partition, .* got \d+ of 23 nodes elsewhere": (
        _on_two_partitions
    ),
    r"sharded: argument 1 must be of \d+ rows, .* or of \d+ rows, .* got shape \(3,\)": lambda: (
        distributed.sharded(ops.spmm, mesh(4))(_spread(_ratings(), 4), jnp.ones(3))
    ),
    "DropNode: graph must be square": _dropped,
    "GCNConv: graph must be square.*got rows and columns that are nodes of two kinds": lambda: (
        _as_if_square(nn.GCNConv(8, 4, rngs=nnx.Rngs(0)))
    ),
    "with_one_loop_each: graph must be square; make layers .* add_self_loops=False": lambda: (
        _as_if_square(lambda g, x: nn.GATConv((8, 8), 4, rngs=nnx.Rngs(0))(g, (x, x)))
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_named_with_numbers(message, four_devices):
    with pytest.raises(ValueError, match=message):
        BAD[message]()
