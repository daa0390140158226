"""Every public layer, made small: how, and what it is called with."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxgnn import CSRGraph, Incidence, nn
from jaxgnn.graph import GraphBatch, GraphSample, HeteroGraph
from jaxgnn.testing import random_array

GRAPH = CSRGraph.from_edges([0, 1, 2, 0, 3], [1, 2, 2, 3, 0], 4)
HYPERGRAPH = Incidence.from_hyperedges([{0, 1, 2}, {2, 3}], num_nodes=4)
X = random_array((4, 8), "float32", seed=0)
EXPERTS = random_array((3, 4, 8), "float32", seed=1)
STREAMS = random_array((3, 2, 8), "float32", seed=2)
MESSAGES = random_array((4, 5), "float32", seed=3)
PAIRS = jnp.array([[0, 1, 3], [2, 0, 3]])
BATCH = GraphBatch.from_graphs(
    [GraphSample([0, 1, 2], [1, 2, 0], 3), GraphSample([0], [1], 2)], pad_to=(8, 6)
)
OF_BATCH = random_array((8, 8), "float32", seed=4)


class Case(NamedTuple):
    """A layer and a call of it.

    Attributes:
      make: ``make(rngs, **options)``: the options override those that it has here.
      args: of the call.
      drops: whether it has dropout, and so takes ``rngs``.
    """

    make: Callable[..., nnx.Module]
    args: tuple[Any, ...]
    drops: bool = False


def case(
    layer: Callable[..., nnx.Module], sizes: tuple, *args: Any, drops: bool = False, **defaults: Any
) -> Case:
    """Makes the case of a layer that is made of options and perhaps ``rngs``."""
    signature = inspect.signature(layer.__init__)  # The class has Flax's signature.
    _, *defaults_by_name = signature.bind_partial(None, *sizes, **defaults).arguments.items()

    def make(rngs: nnx.Rngs, /, **options: Any) -> nnx.Module:
        of_rngs = {"rngs": rngs} if "rngs" in signature.parameters else {}
        return layer(**(dict(defaults_by_name) | of_rngs | options))

    return Case(make, args, drops)


def _message_passing(rngs: nnx.Rngs, /, **options: Any) -> nn.MessagePassing:
    messages = nn.EdgeMLP(8, [6, 5], edge_dropout=0.5, rngs=rngs)
    arguments = {
        "messages": messages,
        "update": nn.LSTMUpdate(8, 5, [6], rngs=rngs),
        "num_steps": 3,
    }
    return nn.MessagePassing(**(arguments | options))


def _connection(rngs: nnx.Rngs, /, **options: Any) -> nn.HyperConnection:
    arguments = {
        "layer": nnx.Linear(8, 8, rngs=rngs),
        "features": 8,
        "num_streams": 2,
        "rngs": rngs,
    }
    return nn.HyperConnection(**(arguments | options))


def _stack(rngs: nnx.Rngs, /, **options: Any) -> nn.HyperStack:
    arguments = {"layers": [_connection(rngs) for _ in range(3)]}
    return nn.HyperStack(**(arguments | options))


EDGES = random_array((5, 3), "float32", seed=4)
RELATION = ("paper", "cites", "paper")
HETERO = HeteroGraph({RELATION: GRAPH})


def _hetero_conv(rngs: nnx.Rngs, /, **options: Any) -> nn.HeteroConv:
    arguments = {"layers": {RELATION: nn.SAGEConv(8, 6, rngs=rngs)}}
    return nn.HeteroConv(**(arguments | options))


def _attention_pooling(rngs: nnx.Rngs, /, **options: Any) -> nn.AttentionPooling:
    return nn.AttentionPooling(**({"gate": nn.FusedLinear(8, 1, rngs=rngs)} | options))


def _edge_conv(rngs: nnx.Rngs, /, **options: Any) -> nn.EdgeConv:
    return nn.EdgeConv(**({"mlp": nn.FusedMLP([16, 6], activation="relu", rngs=rngs)} | options))


LAYERS: dict[str, Case] = {
    "AGNNConv": case(nn.AGNNConv, (), GRAPH, X),
    "APPNP": case(nn.APPNP, (), GRAPH, X, num_steps=2, dropout=0.5, drops=True),
    "AllDeepSetsConv": case(nn.AllDeepSetsConv, (8, 6), HYPERGRAPH, X),
    "AllSetTransformerConv": case(
        nn.AllSetTransformerConv, (8, 6), HYPERGRAPH, X, heads=2, dropout=0.5, drops=True
    ),
    "AttentionPooling": Case(_attention_pooling, (OF_BATCH, BATCH)),
    "BatchNorm": case(nn.BatchNorm, (8,), OF_BATCH, BATCH),
    "ChebConv": case(nn.ChebConv, (8, 6), GRAPH, X),
    "BesselBasis": case(nn.BesselBasis, (4, 2.0), EDGES[:, 0]),
    "CFConv": case(nn.CFConv, (8, 6), GRAPH, X, EDGES[:, 0], num_filters=4, num_gaussians=5),
    "DotDecoder": case(nn.DotDecoder, (), X, PAIRS),
    "DropEdge": case(nn.DropEdge, (0.5,), GRAPH),
    "DropNode": case(nn.DropNode, (0.5,), X, drops=True),
    "EdgeConv": Case(_edge_conv, (GRAPH, X)),
    "EdgeMLP": case(nn.EdgeMLP, (8, [6, 5]), GRAPH, X, edge_dropout=0.5, drops=True),
    "EquivariantConv": case(
        nn.EquivariantConv,
        ("2x0e+2x1o", "0e+1o", "3x0e+1x1o"),
        GRAPH,
        X,
        random_array((5, 4), "float32", seed=5),
        EDGES,
        num_basis=3,
        radial_features=[4],
    ),
    "EquivariantLinear": case(nn.EquivariantLinear, ("2x0e+2x1o", "3x0e+1x1o"), X),
    "EquivariantRMSNorm": case(nn.EquivariantRMSNorm, ("2x0e+2x1o",), X),
    "ExpertCombiner": case(nn.ExpertCombiner, (8,), EXPERTS),
    "ExpertCoupler": case(nn.ExpertCoupler, (8, 4), EXPERTS),
    "FusedLinear": case(nn.FusedLinear, (8, 6), X),
    "FusedMLP": case(nn.FusedMLP, ([8, 6, 5],), X, activation="gelu"),
    "GATConv": case(
        nn.GATConv, (8, 6), GRAPH, X, EDGES, heads=2, edge_dim=3, dropout=0.5, drops=True
    ),
    "GATv2Conv": case(
        nn.GATv2Conv, (8, 6), GRAPH, X, EDGES, heads=2, edge_dim=3, dropout=0.5, drops=True
    ),
    "GCNConv": case(nn.GCNConv, (8, 6), GRAPH, X, activation="relu", dropout=0.5, drops=True),
    "GCNIIConv": case(nn.GCNIIConv, (8,), GRAPH, X, X, strength=0.5),
    "GINEConv": case(nn.GINEConv, (8,), GRAPH, X, EDGES, edge_dim=3),
    "GINConv": case(nn.GINConv, (8, 6), GRAPH, X, activation="maxk", k=2, dropout=0.5, drops=True),
    "GRUUpdate": case(nn.GRUUpdate, (8, 5), X, MESSAGES),
    "GatedGraphConv": case(nn.GatedGraphConv, (8, 2), GRAPH, X),
    "Gate": case(nn.Gate, ("3x0e+1x1o",), X[:, :7]),
    "GaussianBasis": case(nn.GaussianBasis, (4, 2.0), EDGES[:, 0]),
    "GraphNetBlock": case(nn.GraphNetBlock, (8, 3, 2), GRAPH, X, EDGES, X[0, :2]),
    "GraphNorm": case(nn.GraphNorm, (8,), OF_BATCH, BATCH),
    "HGNNPlusConv": case(nn.HGNNPlusConv, (8, 6), HYPERGRAPH, X, group_sizes=[1, 1]),
    "HGTConv": case(nn.HGTConv, (8, 6, HETERO.metadata), HETERO, {"paper": X}, heads=2),
    "HNHNConv": case(nn.HNHNConv, (8, 6), HYPERGRAPH, X),
    "HeteroConv": Case(_hetero_conv, (HETERO, {"paper": X})),
    "HyperConnection": Case(_connection, (STREAMS,)),
    "HyperGCNConv": case(nn.HyperGCNConv, (8, 6), HYPERGRAPH, X),
    "HyperHead": case(nn.HyperHead, (8,), STREAMS, num_streams=2),
    "HyperStack": Case(_stack, (STREAMS,)),
    "HyperedgeWeights": case(nn.HyperedgeWeights, (3,)),
    "HypergraphConv": case(
        nn.HypergraphConv,
        (8, 6),
        HYPERGRAPH,
        X,
        None,
        X[:2],
        use_attention=True,
        dropout=0.5,
        drops=True,
    ),
    "InteractionNetwork": case(nn.InteractionNetwork, (8, 3), GRAPH, X, EDGES),
    "JumpingKnowledge": case(nn.JumpingKnowledge, ("lstm",), [X, X], features=8, num_layers=2),
    "LSTMUpdate": case(nn.LSTMUpdate, (8, 5, [6]), nn.LSTMState(X, X, jnp.array(False)), MESSAGES),
    "LEConv": case(nn.LEConv, (8, 6), GRAPH, X),
    "LayerNorm": case(nn.LayerNorm, (8,), OF_BATCH, BATCH, mode="graph"),
    "MLPDecoder": case(nn.MLPDecoder, (8, 6), X, PAIRS),
    "MLPUpdate": case(nn.MLPUpdate, (8, 5, [6]), X, MESSAGES),
    "MaxK": case(nn.MaxK, (3,), X),
    "MessagePassing": Case(_message_passing, (GRAPH, X), drops=True),
    "PNAConv": case(nn.PNAConv, (8, 6), GRAPH, X, average_degree=GRAPH),
    "PairNorm": case(nn.PairNorm, (), OF_BATCH, BATCH),
    "PairwiseExpertCoupler": case(nn.PairwiseExpertCoupler, (8, 4), EXPERTS),
    "RGCNConv": case(nn.RGCNConv, (8, 6), [GRAPH, GRAPH], X, num_relations=2, num_bases=2),
    "ResGatedGraphConv": case(nn.ResGatedGraphConv, (8, 6), GRAPH, X, EDGES, edge_dim=3),
    "SchNetInteraction": case(
        nn.SchNetInteraction, (8,), GRAPH, X, EDGES[:, 0], num_filters=4, num_gaussians=5
    ),
    "SAGEConv": case(
        nn.SAGEConv, (8, 6), GRAPH, X, activation="maxk", k=2, dropout=0.5, drops=True
    ),
    "SGConv": case(nn.SGConv, (8, 6), GRAPH, X, num_steps=2),
    "TransformerConv": case(
        nn.TransformerConv, (8, 6), GRAPH, X, EDGES, heads=2, edge_dim=3, dropout=0.5, drops=True
    ),
    "Set2Set": case(nn.Set2Set, (8,), OF_BATCH, BATCH, num_steps=2),
    "SortPool": case(nn.SortPool, (3,), OF_BATCH, BATCH),
    "SymmetricContraction": case(
        nn.SymmetricContraction, ("2x0e+2x1o", "2x0e+2x1o"), X, correlation=2
    ),
    "SuperGATConv": case(nn.SuperGATConv, (8, 6), GRAPH, X, heads=2, dropout=0.5, drops=True),
    "TopKPooling": case(nn.TopKPooling, (8,), OF_BATCH, BATCH, ratio=0.5),
    "UniGATConv": case(nn.UniGATConv, (8, 6), HYPERGRAPH, X, heads=2, dropout=0.5, drops=True),
    "UniGCNConv": case(nn.UniGCNConv, (8, 6), HYPERGRAPH, X),
    "UniGINConv": case(nn.UniGINConv, (8, 6), HYPERGRAPH, X),
    "UniSAGEConv": case(nn.UniSAGEConv, (8, 6), HYPERGRAPH, X),
    "VirtualNode": case(nn.VirtualNode, (8,), OF_BATCH, BATCH),
}


def public_modules(package: Any) -> set[str]:
    """Names of the modules that a package gives out, but for what is there to be derived from."""
    return {
        name
        for name, value in vars(package).items()
        if inspect.isclass(value) and issubclass(value, nnx.Module) and value is not nn.NodeUpdate
    }


def total(tree: Any) -> jax.Array:
    """The sum of all floating arrays of a result."""
    parts = [jnp.sum(y) for y in jax.tree.leaves(tree) if jnp.issubdtype(y.dtype, jnp.floating)]
    return jnp.sum(jnp.stack(parts))
