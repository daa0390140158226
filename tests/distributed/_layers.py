"""Every layer and model that takes a graph, and its value and gradients on one device and several.

Tests on CPU devices and tests on GPUs read the same table.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxgnn import CSRGraph, distributed, models, nn, ops
from jaxgnn.equivariant import spherical_harmonics
from jaxgnn.graph import HeteroGraph, LocalGraph, RelationalGraph, with_one_loop_each
from tests.distributed._graphs import NODES, WIDTH, features, graph, mesh, sharded_graph

EDGE_WIDTH = 3


class Given(NamedTuple):
    """What a network is called with, of the whole graph or of a device."""

    graph: CSRGraph
    x: Any
    edges: Any

    @property
    def as_batch(self) -> LocalGraph | None:
        """What norms take: nothing for the whole graph."""
        return self.graph if isinstance(self.graph, LocalGraph) else None


class Case(NamedTuple):
    """A network, and its call."""

    make: Callable[[nnx.Rngs], nnx.Module]
    call: Callable[[Any, Given, nnx.Rngs], Any] = lambda net, given, rngs: net(given.graph, given.x)


def _dropping(net, given, rngs):
    return net(given.graph, given.x, rngs=rngs)


def _of_edges(net, given, rngs):
    return net(given.graph, given.x, given.edges)


def _of_edges_dropping(net, given, rngs):
    return net(given.graph, given.x, given.edges, rngs=rngs)


def _of_distances(net, given, rngs):
    return net(given.graph, given.x, jnp.abs(given.edges[:, 0]))


def _of_vectors(net, given, rngs):
    return net(given.graph, given.x, spherical_harmonics("0e+1o", given.edges), given.edges)


def _of_rows(net, given, rngs):
    return net(given.x, given.as_batch)


def _layer(kind, /, *widths, **options):
    """A layer from ``WIDTH`` to 4."""
    return lambda rngs: kind(WIDTH, *(widths or (4,)), **options, rngs=rngs)


def _model(kind, /, **options):
    return lambda rngs: kind(WIDTH, 8, 3, **options, rngs=rngs)


HEADS = {"heads": 2, "dropout": 0.4}
EDGES = {"edge_dim": EDGE_WIDTH}
MLP = {"activation": "relu"}
CITES, KNOWS = ("node", "cites", "node"), ("node", "knows", "node")


class _Dropped(nnx.Module):
    """A convolution of the edges that are left, whose own dropout draws by their new numbers."""

    def __init__(self, undirected, rngs):
        self.drop = nn.DropEdge(0.4, undirected=undirected)
        self.convolution = nn.GATConv(WIDTH, 3, **HEADS, rngs=rngs)
        self.messages = nn.GINEConv(WIDTH, edge_dim=EDGE_WIDTH, rngs=rngs)

    def __call__(self, given, rngs):
        graph, edges = self.drop(given.graph, given.edges, rngs=rngs)
        x = self.messages(graph, given.x, edges)
        return self.convolution(graph.with_self_loops(), x, rngs=rngs)


class _Relations(nnx.Module):
    """Layers of two relations, which are the graph and its edges of even slots."""

    def __init__(self, rngs):
        relations = {"num_relations": 2, "rngs": rngs}
        self.stacked = nn.RGCNConv(WIDTH, 4, **relations)
        self.typed = nn.RGCNConv(4, 4, num_bases=1, aggregation="sum", **relations)
        types = ("node",), (CITES, KNOWS)
        self.transformer = nn.HGTConv(4, 4, types, heads=2, rngs=rngs)
        layers = {CITES: nn.SGConv(4, 4, rngs=rngs), KNOWS: nn.GATConv(4, 4, rngs=rngs)}
        self.each = nn.HeteroConv(layers)

    def __call__(self, given, rngs):
        graph, kinds = given.graph, (given.edges[:, 0] > 0).astype(jnp.int32)
        other = graph.with_weights(jnp.abs(given.edges[:, 1]))
        x = self.stacked([graph, other], given.x)
        x = x + self.typed(RelationalGraph.from_edge_types(graph, kinds, 2), x)
        of_two = HeteroGraph({CITES: graph, KNOWS: graph})
        x = x + self.transformer(of_two, {"node": x})["node"]
        return self.each(of_two, {"node": x})["node"]


class _Weighted(nnx.Module):
    """Convolutions of weights that are trained, normalised on the devices."""

    def __init__(self, rngs):
        self.first, self.second = nn.GCNConv(WIDTH, 8, rngs=rngs), nn.ChebConv(8, 4, rngs=rngs)
        self.scale = nnx.Param(jnp.ones(EDGE_WIDTH))

    def __call__(self, given, rngs):
        weights = jax.nn.softplus(given.edges @ self.scale[...])
        weighted = given.graph.with_weights(weights)
        x = jnp.tanh(self.first(weighted, given.x))
        looped = given.graph.with_weights(weights).with_self_loops(0.5, num_real_nodes=20)
        return self.second(looped.normalized("sym"), x) + self.second(weighted, x)


def _alone(net, given, rngs):
    return net(given, rngs)


def _attention_loss(net, given, rngs):
    pairs = jnp.array([[0, 5, 7, -1, 12], [3, 20, 3, 4, 22]])
    return net(given.graph, given.x) + net.attention_loss(given.graph, given.x, pairs)


CASES = {
    # What `make test` runs: other edges, all nodes, normalisation, dropped loops.
    "DropEdge, both directions": Case(functools.partial(_Dropped, True), _alone),
    "GraphTransformer": Case(
        _model(
            models.GraphTransformer,
            **{"num_layers": 1, "heads": 2, "virtual_nodes": 2, "dropout": 0.3},
            **{"attention_dropout": 0.3, "edge_features": EDGE_WIDTH},
        ),
        lambda net, g, rngs: net(g.graph, g.x, edge_features=g.edges, rngs=rngs),
    ),
    "weights that are trained": Case(_Weighted, _alone),
    "APPNP": Case(lambda rngs: nn.APPNP(num_steps=2, dropout=0.3), _dropping),
    "AGNNConv": Case(lambda rngs: nn.AGNNConv()),
    "BatchNorm": Case(lambda rngs: nn.BatchNorm(WIDTH, rngs=rngs), _of_rows),
    "CFConv": Case(_layer(nn.CFConv, 4, num_filters=4), _of_distances),
    "ChebConv": Case(_layer(nn.ChebConv, num_terms=3)),
    "ChebConv, random walks": Case(_layer(nn.ChebConv, num_terms=3, normalization="rw")),
    "ChebConv, not normalised": Case(_layer(nn.ChebConv, num_terms=3, normalization=None)),
    "DropEdge": Case(functools.partial(_Dropped, False), _alone),
    "DropNode": Case(
        lambda rngs: nn.DropNode(0.4), lambda net, g, rngs: net(g.x, g.graph, rngs=rngs)
    ),
    "EdgeConv": Case(lambda rngs: nn.EdgeConv(nn.FusedMLP([16, 6, 4], **MLP, rngs=rngs))),
    "EdgeMLP": Case(
        lambda rngs: nn.EdgeMLP(WIDTH, [6, 4], edge_features=3, edge_dropout=0.3, rngs=rngs),
        _of_edges_dropping,
    ),
    "EquivariantConv": Case(
        lambda rngs: nn.EquivariantConv(
            "2x0e+2x1o", "0e+1o", "1x0e+1x1o", num_basis=EDGE_WIDTH, rngs=rngs
        ),
        _of_vectors,
    ),
    "GATConv": Case(_layer(nn.GATConv, **HEADS, **EDGES), _of_edges_dropping),
    "GATv2Conv": Case(_layer(nn.GATv2Conv, **HEADS, **EDGES, fill_value="max"), _of_edges_dropping),
    "GCNConv": Case(_layer(nn.GCNConv)),
    "GCNIIConv": Case(
        lambda rngs: nn.GCNIIConv(WIDTH, place=1, rngs=rngs),
        lambda net, g, rngs: net(g.graph, g.x, jnp.flip(g.x, -1)),
    ),
    "GINConv": Case(_layer(nn.GINConv)),
    "GINEConv": Case(lambda rngs: nn.GINEConv(WIDTH, **EDGES, rngs=rngs), _of_edges),
    "GatedGraphConv": Case(lambda rngs: nn.GatedGraphConv(WIDTH, 2, reduce="max", rngs=rngs)),
    "GraphNorm": Case(lambda rngs: nn.GraphNorm(WIDTH), _of_rows),
    "HGTConv, HeteroConv, RGCNConv": Case(_Relations, _alone),
    "InteractionNetwork": Case(
        lambda rngs: nn.InteractionNetwork(WIDTH, EDGE_WIDTH, rngs=rngs),
        lambda net, g, rngs: net(g.graph, g.x, g.edges)[0],
    ),
    "LEConv": Case(_layer(nn.LEConv)),
    "LayerNorm": Case(lambda rngs: nn.LayerNorm(WIDTH, mode="graph"), _of_rows),
    "MessagePassing": Case(
        lambda rngs: nn.MessagePassing(
            nn.EdgeMLP(WIDTH, [4], edge_features=3, rngs=rngs),
            nn.LSTMUpdate(WIDTH, 4, rngs=rngs),
            num_steps=2,
        ),
        lambda net, g, rngs: net(g.graph, g.x, g.edges),
    ),
    "PNAConv": Case(_layer(nn.PNAConv, average_degree=nn.DegreeAverages(5.0, 1.5))),
    "PNAConv of edges": Case(
        _layer(nn.PNAConv, average_degree=nn.DegreeAverages(5.0, 1.5), pre_layers=2, **EDGES),
        _of_edges,
    ),
    "PairNorm": Case(lambda rngs: nn.PairNorm(), _of_rows),
    "ResGatedGraphConv": Case(_layer(nn.ResGatedGraphConv, **EDGES), _of_edges),
    "SAGEConv": Case(_layer(nn.SAGEConv, 4, k=4, dropout=0.3), _dropping),
    "SAGEConv of maxima": Case(_layer(nn.SAGEConv, 4, reduce="max")),
    "SGConv": Case(_layer(nn.SGConv, num_steps=2)),
    "SchNetInteraction": Case(lambda rngs: nn.SchNetInteraction(WIDTH, rngs=rngs), _of_distances),
    "SuperGATConv": Case(_layer(nn.SuperGATConv, **HEADS), _dropping),
    "SuperGATConv, its loss": Case(_layer(nn.SuperGATConv, heads=2), _attention_loss),
    "TransformerConv": Case(_layer(nn.TransformerConv, **HEADS, **EDGES), _of_edges_dropping),
    "EncodeProcessDecode": Case(
        lambda rngs: models.EncodeProcessDecode(WIDTH, EDGE_WIDTH, 8, 3, num_steps=2, rngs=rngs),
        _of_edges,
    ),
    "GCNII": Case(_model(models.GCNII, num_layers=2, dropout=0.3), _dropping),
    "MaxKGNN": Case(_model(models.MaxKGNN, k=4, num_layers=2, kind="gcn", dropout=0.3), _dropping),
}


def _edge_features():
    draws = np.random.default_rng(7).standard_normal((graph().num_edges, EDGE_WIDTH))
    return draws.astype(np.float32)


class _Network(NamedTuple):
    """A network of the table: its state, and its loss and gradients on a graph.

    Attributes:
      state: parameters, and the rest.
      loss: ``(graph, x, targets, edges, params, other)``.
      given: features of nodes, targets and features of edges, on the host.
    """

    state: tuple[Any, Any]
    loss: Callable[..., jax.Array]
    given: tuple[np.ndarray, ...]


def _network(name: str) -> _Network:
    case = CASES[name]
    graphdef, *state = nnx.split(case.make(nnx.Rngs(0)), nnx.Param, ...)

    def loss(graph, x, targets, edges, params, other):
        net = nnx.merge(graphdef, params, jax.tree.map(jnp.asarray, other))
        y = case.call(net, Given(graph, x, edges), nnx.Rngs(dropout=3))
        squares = jnp.sum((y - targets[:, : y.shape[1]]) ** 2, axis=-1)
        return distributed.mean_over_nodes(graph, squares)

    return _Network(tuple(state), loss, (features(), features(seed=2), _edge_features()))


_gradients = functools.partial(jax.value_and_grad, argnums=(1, 3, 4))


def on_devices(name: str, sharded: distributed.ShardedGraph) -> Any:
    """The loss of a network, and its gradients of features, edges and parameters, on devices."""
    network = _network(name)
    x, targets, edges = network.given
    over = distributed.sharded(network.loss, sharded.mesh, rows=(1, 2), edges=(3,), outputs="all")
    rows = sharded.shard_rows(x), sharded.shard_rows(targets), sharded.shard_edges(graph(), edges)
    value, (of_x, of_edges, of_params) = jax.jit(_gradients(over))(sharded, *rows, *network.state)
    return value, sharded.gather_rows(of_x), of_edges, of_params


def assert_as_on_one_device(name: str, devices: int, exchange: distributed.Exchange) -> None:
    """Compares loss and gradients of a network of the table on several devices with one."""
    network, sharded = _network(name), sharded_graph(devices, exchange)
    given = *map(jnp.asarray, network.given), *network.state
    expected, (dx, dedges, dparams) = jax.jit(_gradients(network.loss))(graph(), *given)
    wanted = expected, dx, sharded.shard_edges(graph(), dedges), dparams
    close = functools.partial(np.testing.assert_allclose, rtol=5e-5, atol=5e-5)
    jax.tree.map(close, on_devices(name, sharded), wanted)


UNCUT = ({}, {"exchange": "all_to_all"}, {"overlap": True})
"""Options of ``shard`` with which a graph without cut edges is spread."""


def assert_uncut_as_on_one_device(devices: int, options: dict[str, Any]) -> None:
    """Compares graphs without edges and graphs of which none is cut with one device.

    XLA ends the process where arrays without elements reach it, of edges or of lists.
    """
    parts, x = np.arange(NODES) % devices, features()
    senders, receivers = np.arange(0, NODES - devices, devices), np.arange(devices, NODES, devices)
    for whole in (
        CSRGraph.from_edges([], [], NODES),
        CSRGraph.from_edges(senders, receivers, NODES),
    ):
        sharded = distributed.shard(whole, mesh(devices), partition=parts, **options)

        def loss(graph, x):
            looped = with_one_loop_each(graph).graph
            again = graph.with_self_loops().with_self_loops(duplicates=True)
            y = ops.neighbour_reduce(looped, x, "max") + ops.spmm(again, x) + ops.spmm(graph, x)
            return distributed.mean_over_nodes(graph, jnp.sum(y**2, axis=1))

        over = distributed.sharded(loss, sharded.mesh, outputs="all")
        value, dx = jax.jit(jax.value_and_grad(over, argnums=1))(sharded, sharded.shard_rows(x))
        of_one_device = jax.jit(jax.value_and_grad(loss, argnums=1))
        expected, of_one = of_one_device(whole, jnp.asarray(x))
        np.testing.assert_allclose(value, expected, rtol=1e-5)
        np.testing.assert_allclose(sharded.gather_rows(dx), of_one, rtol=1e-5, atol=1e-6)
