"""Layers of several relations, against their formulae in float64 numpy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.test_util import check_grads

from jaxgnn import CSRGraph, nn
from jaxgnn.graph import HeteroGraph, RelationalGraph
from jaxgnn.testing import random_array

RELATIONS = 3
NODES, SENDERS = 7, 5
WRITES, CITES, READS = (
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "is read by", "author"),
)


def _graph(seed: int, rows: int, columns: int, *, weighted: bool = False, padding: int = 0):
    """Random edges, some of them repeated; the last row has none."""
    rng = np.random.default_rng(seed)
    senders, receivers = rng.integers(0, columns, 10), rng.integers(0, rows - 1, 10)
    weights = rng.uniform(0.5, 2, 10 + padding).astype(np.float32) if weighted else None
    ends = [np.pad(ids, (0, padding)) for ids in (senders, receivers)]
    mask = np.arange(10 + padding) < 10 if padding else None
    return CSRGraph.from_edges(*ends, rows, weights, num_senders=columns, edge_mask=mask)


def _wide(array) -> np.ndarray:
    return np.asarray(array, np.float64)


def _linear(linear, x: np.ndarray) -> np.ndarray:
    y = x @ _wide(linear.kernel[...])
    return y if linear.bias is None else y + _wide(linear.bias[...])


# -- RGCNConv --------------------------------------------------------------------------------


def _matrices(layer: nn.RGCNConv) -> list[np.ndarray]:
    """The matrix of each relation."""
    kernel = _wide(layer.kernel[...])
    if layer.coefficients is not None:
        return [np.tensordot(c, kernel, 1) for c in _wide(layer.coefficients[...])]
    if layer.num_blocks is None:
        return list(kernel)
    matrices = []
    for blocks in kernel:
        count, rows, columns = blocks.shape
        full = np.zeros((count * rows, count * columns))
        for b, block in enumerate(blocks):
            full[b * rows : (b + 1) * rows, b * columns : (b + 1) * columns] = block
        matrices.append(full)
    return matrices


def _rgcn(layer: nn.RGCNConv, graphs: list[CSRGraph], x_dst, x_src) -> np.ndarray:
    y = np.zeros((len(x_dst), 4)) + _wide(layer.bias[...])
    if layer.root_linear is not None:
        y = y + _linear(layer.root_linear, x_dst)
    for graph, matrix in zip(graphs, _matrices(layer), strict=True):
        adjacency = _wide(graph.to_scipy().toarray())
        if layer.aggregation == "mean":
            totals = adjacency.sum(axis=1, keepdims=True)
            adjacency = adjacency / np.where(totals > 0, totals, 1)
        y = y + adjacency @ x_src @ matrix
    return y


RGCN = {
    "full": {},
    "bases": {"num_bases": 2},
    "blocks": {"num_blocks": 2},
    "sum, without root": {"aggregation": "sum", "root_weight": False},
}


def _relational(weighted: bool, columns: int = NODES) -> list[CSRGraph]:
    return [
        _graph(seed, NODES, columns, weighted=weighted, padding=3 * seed)
        for seed in range(RELATIONS)
    ]


def _rgcn_layer(options: dict, in_features=6) -> nn.RGCNConv:
    layer = nn.RGCNConv(in_features, 4, num_relations=RELATIONS, **options, rngs=nnx.Rngs(0))
    layer.bias[...] = jnp.arange(4.0)
    return layer


@pytest.mark.costly(len(RGCN))
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", RGCN)
def test_rgcn_computes_its_formula_from_graphs_and_from_edge_types(name, weighted):
    graphs, layer = _relational(weighted), _rgcn_layer(RGCN[name])
    x = random_array((NODES, 6), "float32", seed=0)
    expected = _rgcn(layer, graphs, _wide(x), _wide(x))
    np.testing.assert_allclose(layer(graphs, x), expected, rtol=1e-5, atol=1e-5)
    lists = [[np.asarray(p)[:10] for p in (g.senders, g.receivers())] for g in graphs]
    senders, receivers = (np.concatenate(ends) for ends in zip(*lists, strict=True))
    weights = np.concatenate([np.asarray(g.weights)[:10] for g in graphs]) if weighted else None
    types = np.repeat(np.arange(RELATIONS), 10)
    graph, types = CSRGraph.from_edges(senders, receivers, NODES, weights, edge_data=types)
    relational = RelationalGraph.from_edge_types(graph, types, RELATIONS)
    np.testing.assert_allclose(layer(relational, x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["bases", "blocks"])
def test_rgcn_reads_relations_of_two_types_under_jit_and_leading_axes(name):
    graphs, layer = _relational(False, SENDERS), _rgcn_layer(RGCN[name], (3, 6))
    ends = (
        random_array((2, NODES, 3), "float32", seed=0),
        random_array((2, SENDERS, 6), "float32", seed=1),
    )
    run = jax.jit(lambda layer, graph, x: layer(graph, x))
    for graph in (graphs, RelationalGraph.from_graphs(graphs)):
        y = run(layer, graph, ends)
        for place in range(2):
            expected = _rgcn(layer, graphs, *(_wide(x[place]) for x in ends))
            np.testing.assert_allclose(y[place], expected, rtol=1e-5, atol=1e-5)


def test_rgcn_has_the_gradients_of_its_formula():
    structure, state = nnx.split(_rgcn_layer(RGCN["bases"]), nnx.Param)
    graphs, x = _relational(False), random_array((NODES, 6), "float32", seed=0)

    @jax.jit
    def loss(state, x):
        return jnp.sum(jnp.sin(nnx.merge(structure, state)(graphs, x)))

    check_grads(loss, (state, x), order=1, modes=["rev"], rtol=1e-2, atol=1e-2)


def test_what_does_not_fit_rgcn_is_named():
    layer, graphs = _rgcn_layer({}), _relational(False)
    x = jnp.ones((NODES, 6))
    cases = [
        (lambda: layer(graphs[:2], x), "graph must be of 3 relations, got 2"),
        (lambda: layer(graphs[0], x), "graph must be a RelationalGraph, or a list with a graph"),
        (lambda: layer(graphs, x[:3]), r"x must be of shape \[..., 7, 6\]"),
        (
            lambda: _rgcn_layer({"num_blocks": 4}),
            "num_blocks must be a divisor of the widths, 6 and 4",
        ),
        (
            lambda: _rgcn_layer({"num_blocks": 2, "num_bases": 2}),
            "num_blocks must be None with num_bases, got 2",
        ),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=f"RGCNConv: {message}"):
            call()


# -- HGTConv ---------------------------------------------------------------------------------

GRAPH = HeteroGraph(
    {
        WRITES: _graph(0, NODES, SENDERS, padding=2),
        CITES: _graph(1, NODES, NODES),
        READS: _graph(2, SENDERS, NODES),
    }
)
X = {
    "author": random_array((SENDERS, 4), "float32", seed=0),
    "paper": random_array((NODES, 6), "float32", seed=1),
}
_erf = np.vectorize(math.erf)


def _hgt(layer: nn.HGTConv, x: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    heads, dim = layer.heads, layer.out_features // layer.heads
    projected = {
        t: _linear(linear, x[t]).reshape(-1, 3, heads, dim)
        for t, linear in zip(layer.node_types, layer.qkv_linears, strict=True)
    }
    kernels = [
        _wide(kernel[...]).reshape(-1, heads, dim, dim)
        for kernel in (layer.key_kernel, layer.value_kernel)
    ]
    results = {}
    for place, node_type in enumerate(layer.node_types):
        messages = np.zeros((len(x[node_type]), heads, dim))
        for i, h in np.ndindex(*messages.shape[:2]):
            scores, values = [], []
            for r, (edge_type, graph) in enumerate(GRAPH.items()):
                if edge_type[2] != node_type:
                    continue
                start, end = np.asarray(graph.indptr)[i : i + 2]
                for j in np.asarray(graph.indices)[start:end]:
                    _, key, value = projected[edge_type[0]][j, :, h]
                    query = projected[node_type][i, 0, h]
                    score = query @ (key @ kernels[0][r, h]) * _wide(layer.priors[...])[r, h]
                    scores.append(score / dim**0.5)
                    values.append(value @ kernels[1][r, h])
            if scores:
                weights = np.exp(np.array(scores) - max(scores))
                messages[i, h] = weights @ np.array(values) / weights.sum()
        flat = messages.reshape(len(messages), -1)
        y = _linear(layer.out_linears[place], flat * (1 + _erf(flat / 2**0.5)) / 2)
        if y.shape == x[node_type].shape:
            share = 1 / (1 + np.exp(-_wide(layer.skips[...])[place]))
            y = share * y + (1 - share) * x[node_type]
        results[node_type] = y
    return results


def _hgt_layer() -> nn.HGTConv:
    """A layer whose priors and skips are not all one; of authors the width stays the same."""
    widths = {"author": 4, "paper": 6}
    layer = nn.HGTConv(widths, 4, GRAPH.metadata, heads=2, rngs=nnx.Rngs(0))
    layer.priors[...] = random_array(layer.priors.shape, "float32", seed=5)
    layer.skips[...] = random_array(layer.skips.shape, "float32", seed=6)
    return layer


def test_hgt_computes_its_formula_under_jit():
    layer = _hgt_layer()
    expected = _hgt(layer, {t: _wide(x) for t, x in X.items()})
    run = jax.jit(lambda layer, graph, x: layer(graph, x))
    y = run(layer, GRAPH.prepared(), X)
    assert list(y) == ["author", "paper"]
    for node_type, features in y.items():
        np.testing.assert_allclose(features, expected[node_type], rtol=1e-5, atol=1e-5)


def test_hgt_leaves_out_types_that_receive_nothing_and_takes_leading_axes():
    graph = HeteroGraph({WRITES: GRAPH[WRITES]})
    layer = nn.HGTConv({"author": 4, "paper": 6}, 4, graph.metadata, rngs=nnx.Rngs(0))
    run = jax.jit(lambda layer, x: layer(graph, x))
    both = run(layer, {t: jnp.stack([x, 2 * x]) for t, x in X.items()})
    assert list(both) == ["paper"] and both["paper"].shape == (2, NODES, 4)
    np.testing.assert_allclose(both["paper"][0], layer(graph, X)["paper"], rtol=1e-5, atol=1e-6)


def test_hgt_has_the_gradients_of_its_formula():
    structure, state = nnx.split(_hgt_layer(), nnx.Param)

    @jax.jit
    def loss(state, x):
        y = nnx.merge(structure, state)(GRAPH, x)
        return sum(jnp.sum(jnp.sin(features)) for features in y.values())

    check_grads(loss, (state, X), order=1, modes=["rev"], rtol=2e-2, atol=2e-2)


# -- HeteroConv ------------------------------------------------------------------------------


def _layers(rngs: nnx.Rngs) -> dict:
    return {
        WRITES: nn.LEConv((6, 4), 8, rngs=rngs),
        CITES: nn.TransformerConv(6, 4, heads=2, edge_dim=3, dropout=0.5, rngs=rngs),
        READS: nn.GATv2Conv((4, 6), 8, add_self_loops=False, rngs=rngs),
    }


REDUCTIONS = {
    "sum": lambda parts: sum(parts),
    "mean": lambda parts: sum(parts) / 2,
    "max": lambda parts: np.maximum(*parts),
    "min": lambda parts: np.minimum(*parts),
    "cat": lambda parts: np.concatenate(parts, axis=-1),
}


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_layers_of_relations_are_called_with_both_ends_and_their_results_joined(reduce):
    layers = _layers(nnx.Rngs(0))
    bonds = {CITES: random_array((10, 3), "float32", seed=3)}
    y = nn.HeteroConv(layers, reduce=reduce)(GRAPH, X, bonds)
    authors, papers = X["author"], X["paper"]
    of_papers = [
        layers[WRITES](GRAPH[WRITES], (papers, authors)),
        layers[CITES](GRAPH[CITES], papers, bonds[CITES]),
    ]
    np.testing.assert_allclose(y["paper"], REDUCTIONS[reduce](of_papers), rtol=1e-5, atol=1e-6)
    expected = layers[READS](GRAPH[READS], (authors, papers))
    np.testing.assert_allclose(y["author"], expected, rtol=1e-5, atol=1e-6)


def test_relations_without_a_layer_and_types_that_receive_nothing_are_left_out():
    layers = {WRITES: _layers(nnx.Rngs(0))[WRITES]}
    conv = nn.HeteroConv(layers)
    y = jax.jit(lambda conv, graph, x: conv(graph, x))(conv, GRAPH, X)
    assert list(y) == ["paper"]
    expected = layers[WRITES](GRAPH[WRITES], (X["paper"], X["author"]))
    np.testing.assert_allclose(y["paper"], expected, rtol=1e-5, atol=1e-6)


def test_layers_with_dropout_and_without_get_random_numbers_or_none():
    layers = _layers(nnx.Rngs(0))
    conv = nn.HeteroConv(layers)
    bonds = {CITES: random_array((10, 3), "float32", seed=3)}
    plain = conv(GRAPH, X, bonds)
    dropped = conv(GRAPH, X, bonds, rngs=nnx.Rngs(dropout=0))
    assert not jnp.allclose(plain["paper"], dropped["paper"])
    np.testing.assert_array_equal(plain["author"], dropped["author"])
    conv.train()
    with pytest.raises(ValueError, match=r"TransformerConv: rngs must be an nnx.Rngs with a dropo"):
        conv(GRAPH, X, bonds)


def test_what_does_not_fit_layers_of_relations_is_named():
    layers, rngs = _layers(nnx.Rngs(0)), nnx.Rngs(0)
    conv = nn.HeteroConv({WRITES: layers[WRITES]})
    unequal = nn.HeteroConv(
        {WRITES: nn.LEConv((6, 4), 5, rngs=rngs), CITES: nn.LEConv(6, 8, rngs=rngs)}
    )
    hgt = _hgt_layer()
    other = HeteroGraph({CITES: GRAPH[CITES]})
    cases = [
        (
            lambda: conv(other, X),
            r"HeteroConv: graph must be of the relation .*'writes'.* has a la",
        ),
        (
            lambda: conv(GRAPH[CITES], X),
            "HeteroConv: graph must be a .*HeteroGraph.*, got CSRGraph",
        ),
        (lambda: conv(GRAPH, X["paper"]), "HeteroConv: x must be a dictionary of the features"),
        (
            lambda: conv(GRAPH, {"paper": X["paper"]}),
            "HeteroConv: x must be of a type 'author' too",
        ),
        (
            lambda: conv(GRAPH, X | {"author": X["paper"]}),
            r"HeteroConv: x\['author'\] must be of shape \[..., 5, features\]",
        ),
        (lambda: conv(GRAPH, X, {CITES: 1}), "HeteroConv: edge_features must be of relations with"),
        (lambda: conv(GRAPH, X, rngs=0), "HeteroConv: rngs must be None or an nnx.Rngs"),
        (lambda: unequal(GRAPH, X), "HeteroConv: layers must be of results of one shape for 'pape"),
        (lambda: hgt(other, X), "HGTConv: graph must be of the relations .*'writes'"),
        (lambda: hgt(GRAPH, X | {"paper": X["paper"][:, :3]}), r"HGTConv: x\['paper'\] must be of"),
        (
            lambda: nn.HGTConv({"paper": 4}, 4, GRAPH.metadata, rngs=rngs),
            "HGTConv: in_features must be one width, or one for each of",
        ),
        (
            lambda: nn.HGTConv(4, 4, GRAPH.metadata, heads=3, rngs=rngs),
            "HGTConv: heads must be a divisor of out_features, 4, got 3",
        ),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
