"""State dicts of PyTorch Geometric, and of MaxK-GNN, make layers that compute what it does.

What it computes is written here in float64 numpy, by its names of parameters. Where the package is
installed, its layers are asked themselves.
"""

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import CSRGraph, Incidence, nn
from jaxgnn.graph import HeteroGraph
from jaxgnn.interop import from_pyg, to_pyg
from jaxgnn.models import GCNII, MaxKGNN

RNGS = nnx.Rngs(0)
NODES, IN, OUT, HEADS = 4, 3, 2, 2
WIDE = HEADS * OUT
EDGES = np.array([[0, 1, 2, 3, 3, 0, 2], [1, 2, 2, 1, 0, 0, 3]])  # two of them are loops
LOOPED = np.hstack([EDGES[:, EDGES[0] != EDGES[1]], np.array([range(NODES)] * 2)])
RELATIONS = np.arange(EDGES.shape[1]) % 3  # of three kinds
HYPEREDGES = np.array([[0, 1, 2, 2, 3], [0, 0, 0, 1, 1]])


def _numbers(shape: tuple[int, ...], start: float) -> np.ndarray:
    """Numbers between -1 and 1 that are the same everywhere."""
    return np.sin(start + 1.7 * np.arange(np.prod(shape, dtype=int))).reshape(shape)


X, OF_EDGES = _numbers((NODES, IN), 0.5), _numbers((EDGES.shape[1], 2), 0.9)
type State = dict[str, np.ndarray]


def _sum(values: np.ndarray, receivers: np.ndarray) -> np.ndarray:
    total = np.zeros((NODES, *values.shape[1:]))
    np.add.at(total, receivers, values)
    return total


def _softmax(scores: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The softmax of scores [edges, heads] over the edges of each group."""
    exponentials = np.exp(scores)
    return exponentials / np.stack([exponentials[groups == g].sum(0) for g in groups])


def _linear(p: State, name: str, x: np.ndarray) -> np.ndarray:
    return x @ p[f"{name}.weight"].T + p.get(f"{name}.bias", 0)


def _leaky(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, 0.2 * x)


def _sage(p: State) -> np.ndarray:
    senders, receivers = EDGES
    degrees = np.bincount(receivers, minlength=NODES)[:, None]
    return _linear(p, "lin_l", _sum(X[senders], receivers) / degrees) + _linear(p, "lin_r", X)


def _gcn_sum(h: np.ndarray) -> np.ndarray:
    senders, receivers = np.hstack([EDGES, [[1, 3], [1, 3]]])  # a loop for those that have none
    roots = np.sqrt(np.bincount(receivers, minlength=NODES))
    return _sum(h[senders] / (roots[senders] * roots[receivers])[:, None], receivers)


def _gcn(p: State) -> np.ndarray:
    return _gcn_sum(_linear(p, "lin", X)) + p["bias"]


def _sg(p: State) -> np.ndarray:
    return _linear(p, "lin", _gcn_sum(_gcn_sum(X)))


def _le(p: State) -> np.ndarray:
    sent = _linear(p, "lin1", X)[EDGES[0]] - _linear(p, "lin2", X)[EDGES[1]]
    return _sum(sent, EDGES[1]) + _linear(p, "lin3", X)


def _rgcn(p: State) -> np.ndarray:
    y, matrices = X @ p["root"] + p["bias"], np.einsum("rb,bio->rio", p["comp"], p["weight"])
    for relation, matrix in enumerate(matrices):
        senders, receivers = EDGES[:, relation == RELATIONS]
        degrees = np.maximum(np.bincount(receivers, minlength=NODES), 1)[:, None]
        y = y + _sum(X[senders], receivers) / degrees @ matrix
    return y


def _gine(p: State) -> np.ndarray:
    messages = np.maximum(X[EDGES[0]] + _linear(p, "lin", OF_EDGES), 0)
    return _linear(p, "nn", (1 + p["eps"]) * X + _sum(messages, EDGES[1]))


def _gin(p: State) -> np.ndarray:
    total = (1 + p["eps"]) * X + _sum(X[EDGES[0]], EDGES[1])
    return _linear(p, "nn.2", np.maximum(_linear(p, "nn.0", total), 0))


def _gat(p: State) -> np.ndarray:
    senders, receivers = LOOPED
    h = _linear(p, "lin", X).reshape(NODES, HEADS, OUT)
    scores = np.sum(h[senders] * p["att_src"] + h[receivers] * p["att_dst"], axis=-1)
    weights = _softmax(_leaky(scores), receivers)
    y = _sum(weights[:, :, None] * h[senders], receivers).reshape(NODES, -1)
    return y + _linear(p, "res", X) + p["bias"]


def _gatv2(p: State) -> np.ndarray:
    senders, receivers = LOOPED
    left, right = (_linear(p, f"lin_{s}", X).reshape(NODES, HEADS, OUT) for s in "lr")
    scores = np.sum(_leaky(left[senders] + right[receivers]) * p["att"], axis=-1)
    weights = _softmax(scores, receivers)
    return _sum(weights[:, :, None] * left[senders], receivers).mean(axis=1) + p["bias"]


def _supergat(p: State) -> np.ndarray:
    senders, receivers = LOOPED
    h = _linear(p, "lin", X).reshape(NODES, HEADS, OUT)
    sums = np.sum(h[senders] * p["att_l"] + h[receivers] * p["att_r"], axis=-1)
    products = np.sum(h[senders] * h[receivers], axis=-1)
    weights = _softmax(_leaky(sums / (1 + np.exp(-products))), receivers)
    return _sum(weights[:, :, None] * h[senders], receivers).reshape(NODES, -1) + p["bias"]


def _transformer(p: State) -> np.ndarray:
    senders, receivers = EDGES
    parts = ((f"lin_{part}", X) for part in ("query", "key", "value"))
    q, k, v = (_linear(p, *part).reshape(NODES, HEADS, OUT) for part in parts)
    e = _linear(p, "lin_edge", OF_EDGES).reshape(-1, HEADS, OUT)
    scores = np.sum(q[receivers] * (k[senders] + e), axis=-1) / np.sqrt(OUT)
    messages = _softmax(scores, receivers)[:, :, None] * (v[senders] + e)
    y, root = _sum(messages, receivers).reshape(NODES, -1), _linear(p, "lin_skip", X)
    gate = 1 / (1 + np.exp(-_linear(p, "lin_beta", np.hstack([y, root, y - root]))))
    return gate * root + (1 - gate) * y


def _hypergraph(p: State) -> np.ndarray:
    nodes, hyperedges = HYPEREDGES
    h = _linear(p, "lin", X).reshape(NODES, HEADS, OUT)
    of_hyperedges = _linear(p, "lin", OF_HYPEREDGES).reshape(2, HEADS, OUT)
    both = np.concatenate([h[nodes], of_hyperedges[hyperedges]], axis=-1)
    weights = _softmax(_leaky(np.sum(both * p["att"], axis=-1)), hyperedges)[:, :, None]
    sizes, degrees = np.bincount(hyperedges), np.bincount(nodes)
    means = _sum(weights * h[nodes] / sizes[hyperedges, None, None], hyperedges)
    y = _sum(weights * means[hyperedges] / degrees[nodes, None, None], nodes)
    return y.reshape(NODES, -1) + p["bias"]


OF_HYPEREDGES = _numbers((2, IN), 0.2)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _gated_graph(p: State) -> np.ndarray:
    h = np.pad(X, [(0, 0), (0, WIDE - IN)])
    for matrix in p["weight"]:
        m = _sum((h @ matrix)[EDGES[0]], EDGES[1])
        read, kept = (
            np.split(z @ p[f"rnn.weight_{name}"].T + p[f"rnn.bias_{name}"], 3, axis=1)
            for name, z in (("ih", m), ("hh", h))
        )
        reset, update = (_sigmoid(a + b) for a, b in zip(read[:2], kept[:2], strict=True))
        h = (1 - update) * np.tanh(read[2] + reset * kept[2]) + update * h
    return h


def _pna(p: State) -> np.ndarray:
    senders, receivers = EDGES
    ends = np.hstack([X[receivers], X[senders], _linear(p, "edge_encoder", OF_EDGES)])
    degrees, towers = np.bincount(receivers, minlength=NODES)[:, None], []
    log = p["aggr_module.avg_deg_log"]
    for tower in range(2):
        hidden = np.maximum(_linear(p, f"pre_nns.{tower}.0", ends), 0)
        messages = _linear(p, f"pre_nns.{tower}.2", hidden)
        found = np.hstack(
            [
                np.stack([getattr(messages[receivers == i], name)(axis=0) for i in range(NODES)])
                for name in ("mean", "min", "max", "std")
            ]
        )
        scales = 1, np.log(degrees + 1) / log, log / np.log(degrees + 1)
        linear = degrees / p["aggr_module.avg_deg_lin"]
        joined = np.hstack([X, *(scale * found for scale in (*scales, linear))])
        towers.append(_linear(p, f"post_nns.{tower}.0", joined))
    return _linear(p, "lin", np.hstack(towers))


OF_TYPES = {"author": X, "paper": _numbers((NODES, WIDE), 0.3)}
HETERO = {
    ("author", "writes", "paper"): EDGES,
    ("paper", "cites", "paper"): EDGES[::-1],
    ("paper", "is of", "author"): EDGES[:, 2:],
}


def _hgt(p: State) -> np.ndarray:
    of_types = {}
    for node_type, x in OF_TYPES.items():
        projected = _linear(p, f"kqv_lin.lins.{node_type}", x)
        of_types[node_type] = [z.reshape(NODES, HEADS, OUT) for z in np.split(projected, 3, axis=1)]
    results = []
    for node_type, x in OF_TYPES.items():
        scores, values, receivers = [], [], []
        for r, (edge_type, (senders, to)) in enumerate(HETERO.items()):
            if edge_type[2] != node_type:
                continue
            keys, _, found = of_types[edge_type[0]]
            rows = [head * len(HETERO) + r for head in range(HEADS)]
            keys = np.einsum("nhi,hio->nho", keys, p["k_rel.weight"][rows])
            found = np.einsum("nhi,hio->nho", found, p["v_rel.weight"][rows])
            prior = p[f"p_rel.{'__'.join(edge_type)}"]
            products = np.sum(of_types[node_type][1][to] * keys[senders], axis=-1)
            scores.append(products * prior / np.sqrt(OUT))
            values.append(found[senders])
            receivers.append(to)
        to, found = np.concatenate(receivers), np.concatenate(values)
        everyone = np.concatenate([to, np.arange(NODES)])  # some receive nothing
        padded = np.concatenate([np.concatenate(scores), np.full((NODES, HEADS), -np.inf)])
        with np.errstate(invalid="ignore"):
            weights = _softmax(padded, everyone)[: len(to), :, None]
        m = _sum(weights * found, to).reshape(NODES, -1)
        y = _linear(
            p, f"out_lin.lins.{node_type}", m * (1 + np.vectorize(math.erf)(m / 2**0.5)) / 2
        )
        share = _sigmoid(p[f"skip.{node_type}"])
        results.append(share * y + (1 - share) * x if x.shape[1] == WIDE else y)
    return np.concatenate(results)


def _on_graph(layer: Any, x: jax.Array) -> Any:
    """The layer on the graph; one with features of edges gets them."""
    graph, features = CSRGraph.from_edge_index(EDGES, NODES, edge_data=jnp.float32(OF_EDGES))
    has_features = isinstance(layer, nn.TransformerConv | nn.GINEConv | nn.PNAConv)
    arrays: list[Any] = [x, features] if has_features else [x]
    return layer(graph, *arrays)


def _on_relations(layer: Any, x: jax.Array) -> jax.Array:
    graphs = [EDGES[:, relation == RELATIONS] for relation in range(3)]
    return layer([CSRGraph.from_edge_index(edges, NODES) for edges in graphs], x)


def _on_hetero(layer: Any, x: jax.Array) -> jax.Array:
    graphs = {name: CSRGraph.from_edge_index(edges, NODES) for name, edges in HETERO.items()}
    y = layer(HeteroGraph(graphs), {"author": x, "paper": jnp.float32(OF_TYPES["paper"])})
    return jnp.concatenate([y["author"], y["paper"]])


def _on_hypergraph(layer: Any, x: jax.Array) -> jax.Array:
    incidence = Incidence.from_hyperedge_index(HYPEREDGES, NODES, num_hyperedges=2)
    return layer(incidence, x, attributes=jnp.float32(OF_HYPEREDGES))


class Case(NamedTuple):
    """A layer of PyTorch Geometric, and ours.

    Attributes:
      make: makes our layer.
      shapes: shapes of the arrays of its state dict.
      formula: what the layer there computes.
      first_row: the first row of its result, as it was when this test was written.
      run: calls our layer.
    """

    make: Callable[[], nnx.Module]
    shapes: dict[str, tuple[int, ...]]
    formula: Callable[[State], np.ndarray]
    first_row: list[float]
    run: Callable[[Any, jax.Array], Any] = _on_graph

    def state(self) -> State:
        """Arrays of these shapes."""
        return {
            name: _numbers(shape, len(name) + i)
            for i, (name, shape) in enumerate(self.shapes.items())
        }


def _pna_layer() -> nn.PNAConv:
    averages = nn.DegreeAverages(5.0, 7.0)  # which those of the state dict replace
    options = {"edge_dim": 2, "towers": 2, "pre_layers": 2, "scalers": _SCALERS}
    return nn.PNAConv(IN, OUT, average_degree=averages, **options, rngs=RNGS)


def _gin_layer() -> nn.GINConv:
    mlp = nn.FusedMLP([IN, 5, OUT], activation="relu", rngs=RNGS)
    return nn.GINConv(IN, IN, linear=False, mlp=mlp, rngs=RNGS)


def _gine_layer() -> nn.GINEConv:
    mlp: Any = nn.FusedLinear(IN, OUT, rngs=RNGS)
    return nn.GINEConv(IN, edge_dim=2, mlp=mlp, rngs=RNGS)


_ATTENTION = (1, HEADS, OUT)
_SCALERS = ("identity", "amplification", "attenuation", "linear")
_METADATA = ["author", "paper"], list(HETERO)
CASES = {
    "SAGEConv": Case(
        lambda: nn.SAGEConv(IN, OUT, rngs=RNGS),
        {"lin_l.weight": (OUT, IN), "lin_l.bias": (OUT,), "lin_r.weight": (OUT, IN)},
        _sage,
        [-0.067789, 0.979828],
    ),
    "GCNConv": Case(
        lambda: nn.GCNConv(IN, OUT, rngs=RNGS),
        {"bias": (OUT,), "lin.weight": (OUT, IN)},
        _gcn,
        [-1.128004, -0.656537],
    ),
    "GINConv": Case(
        _gin_layer,
        {
            "eps": (1,),
            "nn.0.weight": (5, IN),
            "nn.0.bias": (5,),
            "nn.2.weight": (OUT, 5),
            "nn.2.bias": (OUT,),
        },
        _gin,
        [1.796753, 0.116364],
    ),
    "GATConv": Case(
        lambda: nn.GATConv(IN, OUT, heads=HEADS, residual=True, rngs=RNGS),
        {
            "att_src": _ATTENTION,
            "att_dst": _ATTENTION,
            "bias": (WIDE,),
            "lin.weight": (WIDE, IN),
            "res.weight": (WIDE, IN),
        },
        _gat,
        [1.91243, 2.128881, -1.36916, -3.207846],
    ),
    "GATv2Conv": Case(
        lambda: nn.GATv2Conv(IN, OUT, heads=HEADS, concat=False, rngs=RNGS),
        {
            "att": _ATTENTION,
            "bias": (OUT,),
            "lin_l.weight": (WIDE, IN),
            "lin_l.bias": (WIDE,),
            "lin_r.weight": (WIDE, IN),
            "lin_r.bias": (WIDE,),
        },
        _gatv2,
        [-1.318437, 0.420433],
    ),
    "SuperGATConv": Case(
        lambda: nn.SuperGATConv(IN, OUT, heads=HEADS, rngs=RNGS),
        {
            "att_l": _ATTENTION,
            "att_r": _ATTENTION,
            "bias": (WIDE,),
            "lin.weight": (WIDE, IN),
        },
        _supergat,
        [-0.374973, 0.655185, -0.469082, -1.133596],
    ),
    "TransformerConv": Case(
        lambda: nn.TransformerConv(IN, OUT, heads=HEADS, edge_dim=2, beta=True, rngs=RNGS),
        {
            **{f"lin_{part}.weight": (WIDE, IN) for part in ("key", "query", "value", "skip")},
            **{f"lin_{part}.bias": (WIDE,) for part in ("key", "query", "value", "skip")},
            "lin_edge.weight": (WIDE, 2),
            "lin_beta.weight": (1, 3 * WIDE),
        },
        _transformer,
        [0.204319, 0.761606, -1.201248, 0.794455],
    ),
    "SGConv": Case(
        lambda: nn.SGConv(IN, OUT, num_steps=2, rngs=RNGS),
        {"lin.weight": (OUT, IN), "lin.bias": (OUT,)},
        _sg,
        [0.936014, -0.846178],
    ),
    "LEConv": Case(
        lambda: nn.LEConv(IN, OUT, rngs=RNGS),
        {
            "lin1.weight": (OUT, IN),
            "lin1.bias": (OUT,),
            "lin2.weight": (OUT, IN),
            "lin3.weight": (OUT, IN),
            "lin3.bias": (OUT,),
        },
        _le,
        [-2.894381, 0.301212],
    ),
    "GINEConv": Case(
        _gine_layer,
        {
            "eps": (1,),
            "nn.weight": (OUT, IN),
            "nn.bias": (OUT,),
            "lin.weight": (IN, 2),
            "lin.bias": (IN,),
        },
        _gine,
        [-1.737262, -3.068016],
    ),
    "RGCNConv": Case(
        lambda: nn.RGCNConv(IN, OUT, num_relations=3, num_bases=2, rngs=RNGS),
        {"weight": (2, IN, OUT), "comp": (3, 2), "root": (IN, OUT), "bias": (OUT,)},
        _rgcn,
        [1.941759, 2.155287],
        _on_relations,
    ),
    "GatedGraphConv": Case(
        lambda: nn.GatedGraphConv(WIDE, 2, rngs=RNGS),
        {
            "weight": (2, WIDE, WIDE),
            **{f"rnn.weight_{name}": (3 * WIDE, WIDE) for name in ("ih", "hh")},
            **{f"rnn.bias_{name}": (3 * WIDE,) for name in ("ih", "hh")},
        },
        _gated_graph,
        [0.935538, 0.833801, -0.006189, 0.041393],
    ),
    "PNAConv": Case(
        _pna_layer,
        {
            "aggr_module.avg_deg_lin": (1,),
            "aggr_module.avg_deg_log": (1,),
            "edge_encoder.weight": (IN, 2),
            "edge_encoder.bias": (IN,),
            **{f"pre_nns.{t}.0.weight": (IN, 3 * IN) for t in range(2)},
            **{f"pre_nns.{t}.2.weight": (IN, IN) for t in range(2)},
            **{f"pre_nns.{t}.{i}.bias": (IN,) for t in range(2) for i in (0, 2)},
            **{f"post_nns.{t}.0.weight": (1, 17 * IN) for t in range(2)},
            **{f"post_nns.{t}.0.bias": (1,) for t in range(2)},
            "lin.weight": (OUT, OUT),
            "lin.bias": (OUT,),
        },
        _pna,
        [-18.020258, 16.829732],
    ),
    "HGTConv": Case(
        lambda: nn.HGTConv({"author": IN, "paper": WIDE}, WIDE, _METADATA, heads=HEADS, rngs=RNGS),
        {
            "kqv_lin.lins.author.weight": (3 * WIDE, IN),
            "kqv_lin.lins.author.bias": (3 * WIDE,),
            "kqv_lin.lins.paper.weight": (3 * WIDE, WIDE),
            "kqv_lin.lins.paper.bias": (3 * WIDE,),
            **{f"out_lin.lins.{name}.weight": (WIDE, WIDE) for name in ("author", "paper")},
            **{f"out_lin.lins.{name}.bias": (WIDE,) for name in ("author", "paper")},
            **{f"{name}_rel.weight": (3 * HEADS, OUT, OUT) for name in "kv"},
            "skip.author": (1,),
            "skip.paper": (1,),
            **{f"p_rel.{'__'.join(t)}": (1, HEADS) for t in HETERO},
        },
        _hgt,
        [0.148671, 1.031831, 1.08592, -0.972037],
        _on_hetero,
    ),
    "HypergraphConv": Case(
        lambda: nn.HypergraphConv(
            IN, OUT, heads=HEADS, use_attention=True, weighting="pyg", rngs=RNGS
        ),
        {"att": (1, HEADS, 2 * OUT), "bias": (WIDE,), "lin.weight": (WIDE, IN)},
        _hypergraph,
        [-0.849389, 0.384764, 0.833136, -0.700373],
        _on_hypergraph,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_layer_computes_the_formula_of_the_state_dict_that_it_was_given(name):
    case = CASES[name]
    state, layer = case.state(), case.make()
    assert from_pyg(state, layer) is layer
    expected = case.formula(state)
    np.testing.assert_allclose(expected[0], case.first_row, atol=1e-6)
    y = jax.jit(case.run)(layer, jnp.float32(X))
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    back = to_pyg(layer)
    assert {k: v.shape for k, v in back.items()} == case.shapes
    for key, array in back.items():
        np.testing.assert_array_equal(array, np.float32(state[key]))
        assert array.flags.writeable and array.flags.c_contiguous  # as torch.from_numpy wants it


# -- networks -----------------------------------------------------------------------------------


class _Network(nnx.Module):
    """A network as a user writes it, with the attributes of its model in PyTorch."""

    def __init__(self, rngs: nnx.Rngs):
        self.convs = nnx.List([nn.GATConv(3, 4, heads=2, rngs=rngs), nn.SAGEConv(8, 2, rngs=rngs)])
        self.norm = nn.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.head = nnx.Sequential(
            nnx.Linear(2, 3, rngs=rngs), nnx.relu, nnx.Linear(3, 2, rngs=rngs)
        )
        self.scale = nnx.Param(jnp.ones(2))


NETWORK = {
    "convs.0.lin.weight": (8, 3),
    "convs.0.att_src": (1, 2, 4),
    "convs.0.att_dst": (1, 2, 4),
    "convs.0.bias": (8,),
    "convs.1.lin_l.weight": (2, 8),
    "convs.1.lin_l.bias": (2,),
    "convs.1.lin_r.weight": (2, 8),
    "norm.module.weight": (8,),
    "norm.module.bias": (8,),
    "norm.module.running_mean": (8,),
    "norm.module.running_var": (8,),
    "head.0.weight": (3, 2),
    "head.0.bias": (3,),
    "head.2.weight": (2, 3),
    "head.2.bias": (2,),
    "scale": (2,),
}


def test_a_network_is_read_by_the_names_of_its_attributes():
    state = {f"model.{name}": _numbers(shape, len(name)) for name, shape in NETWORK.items()}
    state["model.norm.module.num_batches_tracked"] = np.array(7)
    network: Any = from_pyg(state | {"other.weight": np.ones(3)}, _Network(RNGS), prefix="model.")
    np.testing.assert_array_equal(
        network.head.layers[2].kernel[...], np.float32(state["model.head.2.weight"].T)
    )
    np.testing.assert_array_equal(
        network.norm.norm.var[...], np.float32(state["model.norm.module.running_var"])
    )
    back = to_pyg(network)
    assert {name: array.shape for name, array in back.items()} == NETWORK
    for name, array in back.items():
        np.testing.assert_array_equal(array, np.float32(state[f"model.{name}"]))


def _layer_norm(p: State, name: str, x: np.ndarray) -> np.ndarray:
    spread = np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
    return (x - x.mean(axis=1, keepdims=True)) / spread * p[f"{name}.weight"] + p[f"{name}.bias"]


def _published_maxk_gnn(kind: str, p: State, k: int) -> np.ndarray:
    """The network of the kind in ``utils/models.py`` of MaxK-GNN, without dropout."""
    senders, receivers = EDGES
    degrees = np.bincount(receivers, minlength=NODES)
    roots = np.sqrt(np.bincount(senders, minlength=NODES)[senders] * degrees[receivers])

    def maxk(x: np.ndarray) -> np.ndarray:
        return np.where(x >= np.sort(x, axis=1)[:, [-k]], x, 0)

    def layer(i: int, x: np.ndarray) -> np.ndarray:
        if kind == "sage":
            x = maxk(x)
            means = _sum(x[senders], receivers) / degrees[:, None]
            y = _linear(p, f"layers.{i}.fc_self", x) + _linear(p, f"layers.{i}.fc_neigh", means)
            return _layer_norm(p, f"layers.{i}.norm", y)
        x = maxk(_linear(p, f"linlayers.{i}", x))
        if kind == "gcn":
            y = _sum(x[senders] / roots[:, None], receivers) + p[f"gcnlayers.{i}.bias"]
        else:
            y = (1 + p[f"gcnlayers.{i}.eps"]) * x + _sum(x[senders], receivers)
        return _layer_norm(p, f"normlayers.{i}", y)

    x = _linear(p, "lin_in", X)
    x = x if kind == "sage" else np.maximum(x, 0)
    return _linear(p, "lin_out", layer(1, layer(0, x)))


_IN_AND_OUT = {
    "lin_in.weight": (8, IN),
    "lin_in.bias": (8,),
    "lin_out.weight": (OUT, 8),
    "lin_out.bias": (OUT,),
}
_OTHERS = {
    "linlayers.{}.weight": (8, 8),
    "linlayers.{}.bias": (8,),
    "normlayers.{}.weight": (8,),
    "normlayers.{}.bias": (8,),
}
CHECKPOINTS = {
    "sage": {
        "layers.{}.fc_self.weight": (8, 8),
        "layers.{}.fc_self.bias": (8,),
        "layers.{}.fc_neigh.weight": (8, 8),
        "layers.{}.norm.weight": (8,),
        "layers.{}.norm.bias": (8,),
    },
    "gcn": _OTHERS | {"gcnlayers.{}.bias": (8,)},
    "gin": _OTHERS | {"gcnlayers.{}.eps": (1,)},
}


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_a_checkpoint_of_maxk_gnn_makes_the_published_network(kind):
    layers = {key.format(i): s for key, s in CHECKPOINTS[kind].items() for i in range(2)}
    shapes = _IN_AND_OUT | layers
    state = {key: _numbers(shape, 3 * i) for i, (key, shape) in enumerate(shapes.items())}
    model = MaxKGNN(IN, 8, OUT, num_layers=2, kind=kind, k=3, rngs=RNGS)
    from_pyg(state, model)
    graph = CSRGraph.from_edge_index(EDGES, NODES)
    y = jax.jit(lambda model, x: model(graph, x))(model, jnp.float32(X))
    np.testing.assert_allclose(y, _published_maxk_gnn(kind, state, 3), rtol=1e-4, atol=1e-4)
    assert {key: array.shape for key, array in to_pyg(model).items()} == shapes


_SAGE_STATE = CASES["SAGEConv"].state()


def test_earlier_names_and_those_of_other_layers_are_read_too():
    state = CASES["GATConv"].state()
    weight = state.pop("lin.weight")
    earlier = state | {"lin_src.weight": weight, "lin_dst.weight": weight.copy()}
    layer: Any = from_pyg(earlier, CASES["GATConv"].make())
    np.testing.assert_array_equal(layer.src_linear.kernel[...], np.float32(weight.T))
    state = {k.replace("_l.", "_rel.").replace("_r.", "_root."): a for k, a in _SAGE_STATE.items()}
    of_sums: Any = from_pyg(state, nn.SAGEConv(3, 2, reduce="sum", rngs=RNGS))  # GraphConv
    for name, array in to_pyg(of_sums).items():
        np.testing.assert_array_equal(array, np.float32(_SAGE_STATE[name]))
    mlp: Any = nn.FusedMLP([3, 4], activation="relu", rngs=RNGS)
    from_pyg({"lins.0.weight": np.ones((4, 3)), "lins.0.bias": np.full(4, 2.0)}, mlp)
    assert mlp.layers[0].bias[...].tolist() == [2.0] * 4
    model: Any = MaxKGNN(2, 4, 2, num_layers=1, norm=False, k=2, rngs=RNGS)
    state = to_pyg(model)
    del state["layers.0.fc_self.bias"]
    from_pyg(state | {"layers.0.bias": np.full(4, 3.0)}, model)
    assert model.convolutions[0].self_linear.bias[...].tolist() == [3.0] * 4


class _Both(nnx.Module):
    """A network of two layers that each are two ones there."""

    def __init__(self):
        self.conv = nn.SAGEConv(3, 2, reduce="sum", rngs=RNGS)
        self.head = nn.FusedMLP([2, 4, 1], activation="relu", rngs=RNGS)
        self.norm = nn.BatchNorm(2, rngs=RNGS)


def test_names_are_written_of_whichever_layer_there_is_to_load_them():
    network = _Both()
    usual = to_pyg(network)
    assert {"conv.lin_l.weight", "head.0.weight", "head.2.bias"} < set(usual)
    renamed = {
        "conv.lin_l.": "conv.lin_rel.",
        "conv.lin_r.": "conv.lin_root.",
        "head.0.": "head.lins.0.",
        "head.2.": "head.lins.1.",
    }
    expected = {}
    for name, array in usual.items():
        old = next((old for old in renamed if name.startswith(old)), "")
        expected[name.replace(old, renamed[old]) if old else name] = array
    # A state dict has values, and counters that are not kept here.
    names = dict.fromkeys([*expected, "norm.module.num_batches_tracked"], 0)
    written = to_pyg(network, names=names)
    assert list(written) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(written[name], array)
    from_pyg(written, _Both())
    assert list(to_pyg(network, names=iter(usual))) == list(usual)


BAD_NAMES = {
    "a name of no parameter": (["0.weight", "0.bias", "1.weight"], "got '1.weight'$"),
    "another network's": ({"lin.weight": 1}, "got 'lin.weight'$"),
    "a parameter without a name": (
        ["0.weight"],
        "with '0.bias' or 'lins.0.bias', for layers.0.bias",
    ),
    "one name": ("0.weight", "names, such as module.state_dict.*got a str"),
    "none": ([], "got a list without any"),
    "numbers": ([0, 1], "got a list$"),
    "a module": (nn, "got a module"),
}


@pytest.mark.parametrize("names, message", BAD_NAMES.values(), ids=BAD_NAMES)
def test_names_that_do_not_fit_are_refused(names, message):
    with pytest.raises(ValueError, match=f"^to_pyg: names must be .*{message}"):
        to_pyg(nn.FusedMLP([3, 4], activation="relu", rngs=RNGS), names=names)


def test_widths_of_both_ends_and_shared_weights_have_names_of_their_own():
    gat = nn.GATConv((5, 3), 2, rngs=RNGS)  # receivers first here, senders first there
    assert to_pyg(gat)["lin_dst.weight"].shape == (2, 5)
    assert to_pyg(gat)["lin_src.weight"].shape == (2, 3)
    shared = nn.GATv2Conv(3, 2, share_weights=True, rngs=RNGS)
    state = to_pyg(shared)
    np.testing.assert_array_equal(state["lin_l.weight"], state["lin_r.weight"])
    from_pyg(state, shared)
    with pytest.raises(ValueError, match=r"lin_r.weight.* must be equal to 'lin_l.weight'"):
        from_pyg(state | {"lin_r.weight": state["lin_r.weight"] + 1}, shared)


@pytest.mark.parametrize("name", CASES)
def test_a_parameter_that_the_state_dict_lacks_is_an_error_that_names_it(name):
    state, layer = CASES[name].state(), CASES[name].make()
    before = to_pyg(layer)
    for key in state:
        if "avg_deg" in key:  # numbers of the training set, which the layer was made with
            continue
        others = {other: array for other, array in state.items() if other != key}
        with pytest.raises(ValueError, match=f"^from_pyg: state_dict must be with.*'{key}'.*zeros"):
            from_pyg(others, layer)
    for key, array in to_pyg(layer).items():
        np.testing.assert_array_equal(array, before[key])


def test_what_a_layer_there_does_without_can_be_given_as_zeros():
    sage: Any = nn.SAGEConv(3, 2, rngs=RNGS)
    state = {"lin_l.weight": np.ones((2, 3)), "lin_r.weight": np.ones((2, 3))}  # bias=False there
    with pytest.raises(
        ValueError, match=r"for self_linear\.bias of SAGEConv, got no such"
    ) as raised:
        from_pyg(state, sage)
    zeros = str(raised.value).partition("pass state_dict | ")[2]
    from_pyg(state | eval(zeros, {"np": np}), sage)
    assert sage.self_linear.kernel[...].all() and not sage.self_linear.bias[...].any()


def test_what_a_transformer_there_makes_and_does_not_use_is_ignored():
    transformer = nn.TransformerConv(3, 2, root_weight=False, rngs=RNGS)
    skip = {"lin_skip.weight": np.ones((2, 3)), "lin_skip.bias": np.ones(2)}
    from_pyg(to_pyg(transformer) | skip, transformer)  # which PyG makes and does not use


def test_layers_inside_of_others_are_read_by_the_names_there():
    relations = {("a", "has.many", "b"): nn.SAGEConv((3, 5), 2, rngs=RNGS)}
    assert to_pyg(nn.HeteroConv(relations))["convs.<a___has#many___b>.lin_l.weight"].shape == (2, 5)
    hgt = nn.HGTConv(2, 2, (["a", "b"], [("a", "is.of", "b")]), rngs=RNGS)
    assert "p_rel.a__is#of__b" in to_pyg(hgt)
    mlp = nn.FusedMLP([6, 4, 2], activation="relu", rngs=RNGS)
    assert to_pyg(nn.EdgeConv(mlp))["nn.2.weight"].shape == (2, 4)
    block = nn.SchNetInteraction(3, num_filters=4, num_gaussians=5, rngs=RNGS)
    state = to_pyg(block)  # mlp is conv.nn there, and a state dict has both
    np.testing.assert_array_equal(state["conv.nn.0.weight"], state["mlp.0.weight"])
    from_pyg(state, block)
    assert set(to_pyg(nn.ChebConv(3, 2, num_terms=2, rngs=RNGS))) == {
        "lins.0.weight",
        "lins.1.weight",
        "bias",
    }
    assert set(to_pyg(nn.GCNIIConv(3, share_weights=False, rngs=RNGS))) == {"weight1", "weight2"}
    gated = to_pyg(nn.ResGatedGraphConv((3, 5), 2, rngs=RNGS))
    assert gated["lin_key.weight"].shape == (2, 3) and gated["lin_value.weight"].shape == (2, 5)


def test_relations_that_are_stacked_in_another_order_are_refused():
    state = CASES["HGTConv"].state()
    prior = next(name for name in state if name.startswith("p_rel."))
    other = {name: array for name, array in state.items() if name != prior} | {prior: state[prior]}
    layer = CASES["HGTConv"].make()
    before = to_pyg(layer)
    with pytest.raises(ValueError, match=r"relations in the order of the layer's, .*writes.*cites"):
        from_pyg(other, layer)
    np.testing.assert_array_equal(to_pyg(layer)["k_rel.weight"], before["k_rel.weight"])


def test_a_tower_that_is_not_there_is_named_and_averages_of_degrees_may_lack():
    state = CASES["PNAConv"].state()
    averages = {name: state.pop(name) for name in list(state) if "avg_deg" in name}
    assert from_pyg(state, _pna_layer()).average_degree == (5.0, 7.0)
    read = from_pyg(state | averages, _pna_layer()).average_degree
    np.testing.assert_allclose(np.concatenate(list(averages.values())), read, rtol=1e-6)
    del state["pre_nns.1.2.weight"]
    with pytest.raises(
        ValueError, match=r"with 'pre_nns.1.2.weight', for pre_others.0.kernel of PNA"
    ):
        from_pyg(state, _pna_layer())


def test_parameters_keep_their_dtypes():
    layer = nn.GCNConv(3, 2, param_dtype=jnp.bfloat16, rngs=RNGS)
    from_pyg({"lin.weight": np.ones((2, 3)), "bias": np.ones(2)}, layer)
    assert {p.dtype for p in jax.tree.leaves(nnx.state(layer))} == {jnp.dtype(jnp.bfloat16)}


def test_parameters_are_copies_of_the_arrays():
    weight, bias = np.ones((64, 64), np.float32), np.ones(64, np.float32)
    layer = from_pyg({"lin.weight": weight, "bias": bias}, nn.GCNConv(64, 64, rngs=RNGS))
    weight[:], bias[:] = 7, 7
    assert all(float(jnp.max(p)) == 1 for p in jax.tree.leaves(nnx.state(layer)))


class _OnAnotherDevice:
    def __array__(self, *options: Any) -> np.ndarray:
        raise TypeError("cannot convert cuda:0 device type tensor to numpy")


_GCN = {"lin.weight": np.ones((2, 3)), "bias": np.ones(2)}
_gcn_layer = functools.partial(nn.GCNConv, 3, 2, rngs=RNGS)
_untyped: Any = from_pyg
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "a name of no parameter": (
        lambda: from_pyg(_GCN | {"lin.wieght": np.ones(2)}, _gcn_layer()),
        "names that GCNConv has parameters for, got 'lin.wieght'$",
    ),
    "a part that the layer lacks": (
        lambda: from_pyg(
            {"eps": np.ones(1), "nn.0.weight": np.ones(3)}, nn.GINConv(3, 3, rngs=RNGS)
        ),
        r"'nn.0.weight' \(mlp, which this layer was made without\)",
    ),
    "a parameter without an array": (
        lambda: from_pyg({"bias": np.ones(2)}, _gcn_layer()),
        r"'lin.weight', for linear.kernel of GCNConv, got no such name; .*np.zeros\(\(2, 3\)\)",
    ),
    "a prefix that nothing has": (
        lambda: from_pyg(_GCN, _gcn_layer(), prefix="conv."),
        "'conv.lin.weight', for linear.kernel",
    ),
    "another shape": (
        lambda: from_pyg(_GCN | {"lin.weight": np.ones((3, 2))}, _gcn_layer()),
        r"'lin.weight'\] must be of shape \(2, 3\), for linear.kernel of shape \(3, 2\), "
        r"got shape \(3, 2\)",
    ),
    "text": (
        lambda: from_pyg(_GCN | {"bias": np.array(["a", "b"])}, _gcn_layer()),
        "'bias'] must be of real numbers, got dtype <U1",
    ),
    "an array on another device": (
        lambda: from_pyg(_GCN | {"bias": _OnAnotherDevice()}, _gcn_layer()),
        "'bias'.*cpu.*got _OnAnotherDevice: cannot convert cuda:0",
    ),
    "no mapping": (lambda: _untyped([1], _gcn_layer()), "state_dict must be a mapping.*got list"),
    "a class": (lambda: _untyped({}, nn.GCNConv), "layer must be.*got the class GCNConv"),
    "a parameter that is not there in PyG": (
        lambda: from_pyg({"eps": np.ones(1)}, nn.GINConv(3, 3, rngs=RNGS)),
        "without parameters that PyTorch Geometric lacks, got linear.bias of GINConv",
    ),
    "the same, written": (
        lambda: to_pyg(nn.GINConv(3, 3, rngs=RNGS)),
        "^to_pyg: .*got linear.bias of GINConv",
    ),
    "a layer that is not there": (
        lambda: to_pyg(GCNII(3, 4, 2, num_layers=1, rngs=RNGS)),
        "of a class whose parameters are known .*got a GCNII",
    ),
    "stacked layers": (
        lambda: to_pyg(MaxKGNN(3, 4, 2, k=2, scan_layers=True, rngs=RNGS)),
        "without hyper_connections and scan_layers",
    ),
}


@pytest.mark.parametrize("call, message", BAD.values(), ids=BAD)
def test_what_does_not_fit_is_an_error_that_names_it(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_nothing_is_set_unless_everything_fits():
    layer = _gcn_layer()
    before = to_pyg(layer)
    with pytest.raises(ValueError, match="bias"):
        from_pyg(_GCN | {"bias": np.ones(3)}, layer)
    for name, array in to_pyg(layer).items():
        np.testing.assert_array_equal(array, before[name])


# -- where torch-geometric is installed ---------------------------------------------------------


def _networks(torch: Any, name: str) -> list[Any]:
    """The network that a layer takes, if it does."""
    linear = torch.nn.Linear
    if name == "GINConv":
        return [torch.nn.Sequential(linear(IN, 5), torch.nn.ReLU(), linear(5, OUT))]
    return [linear(IN, OUT)] if name == "GINEConv" else []


def _ours(name: str) -> tuple[nnx.Module, Any]:
    """A layer here, and how it is run on a matrix."""
    if name == "GraphConv":
        layer = nn.SAGEConv(IN, OUT, reduce="sum", rngs=RNGS)
        return layer, lambda layer, x: layer(CSRGraph.from_edge_index(EDGES, NODES), x)
    if name == "MLP":
        mlp = nn.FusedMLP([IN, 5, OUT], activation="relu", rngs=RNGS)
        return mlp, lambda mlp, x: mlp(x)
    return CASES[name].make(), CASES[name].run


def _inputs(torch: Any, name: str, options: dict[str, Any]) -> list[Any]:
    """What the layer there is called with."""
    x = torch.tensor(X).float()
    if name == "HGTConv":
        of_types = {key: torch.tensor(value).float() for key, value in OF_TYPES.items()}
        return [of_types, {key: torch.tensor(edges.copy()) for key, edges in HETERO.items()}]
    if name == "HypergraphConv":
        return [x, torch.tensor(HYPEREDGES), None, torch.tensor(OF_HYPEREDGES).float()]
    if name == "RGCNConv":
        return [x, torch.tensor(EDGES), torch.tensor(RELATIONS)]
    if name == "MLP":
        return [x]
    of_edges = [torch.tensor(OF_EDGES).float()] if "edge_dim" in options else []
    return [x, torch.tensor(EDGES), *of_edges]


# The arguments of the layers there, but for the networks that they take.
THEIRS: dict[str, tuple[tuple, dict[str, Any]]] = {
    "SAGEConv": ((IN, OUT), {}),
    "GCNConv": ((IN, OUT), {}),
    "GINConv": ((), {"train_eps": True}),
    "GINEConv": ((), {"train_eps": True, "edge_dim": 2}),
    "SGConv": ((IN, OUT), {"K": 2}),
    "LEConv": ((IN, OUT), {}),
    "RGCNConv": ((IN, OUT), {"num_relations": 3, "num_bases": 2}),
    "GATConv": ((IN, OUT), {"heads": HEADS, "residual": True}),
    "GATv2Conv": ((IN, OUT), {"heads": HEADS, "concat": False}),
    "SuperGATConv": ((IN, OUT), {"heads": HEADS}),
    "TransformerConv": ((IN, OUT), {"heads": HEADS, "edge_dim": 2, "beta": True}),
    "GatedGraphConv": ((WIDE, 2), {}),
    "PNAConv": (
        (IN, OUT, ["mean", "min", "max", "std"], list(_SCALERS), np.array([1, 2, 4, 1])),
        {"edge_dim": 2, "towers": 2, "pre_layers": 2},
    ),
    "HGTConv": (({"author": IN, "paper": WIDE}, WIDE, _METADATA), {"heads": HEADS}),
    "HypergraphConv": ((IN, OUT), {"heads": HEADS, "use_attention": True}),
    "GraphConv": ((IN, OUT), {}),
    "MLP": (([IN, 5, OUT],), {"norm": None}),
}


@pytest.mark.parametrize("name", THEIRS)
@pytest.mark.filterwarnings("ignore")  # torch's
def test_torch_geometric_has_the_same_layer_under_the_same_names(name):
    torch = pytest.importorskip("torch", reason="reason: needs torch")
    pytest.importorskip("torch_geometric", reason="reason: needs torch-geometric")
    layers = importlib.import_module("torch_geometric.nn")
    arguments, options = THEIRS[name]
    arguments = [torch.tensor(a) if isinstance(a, np.ndarray) else a for a in arguments]
    theirs, again = (
        getattr(layers, name)(*_networks(torch, name), *arguments, **options).eval() for _ in "ab"
    )
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_()
    made, run = _ours(name)
    ours = from_pyg(theirs.state_dict(), made)
    state = to_pyg(ours, names=again.state_dict())
    again.load_state_dict({key: torch.from_numpy(a) for key, a in state.items()})
    inputs = _inputs(torch, name, options)
    y = jax.jit(run)(ours, jnp.float32(X))

    def result(layer: Any) -> np.ndarray:
        with torch.no_grad():
            y = layer(*inputs)
        return (torch.cat([y[key] for key in OF_TYPES]) if isinstance(y, dict) else y).numpy()

    np.testing.assert_allclose(y, result(theirs), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(result(again), result(theirs), rtol=1e-6, atol=1e-6)
