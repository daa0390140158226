"""explain.edge_scores: planted explanations, exact removals, kinds of graphs, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import CSRGraph, Incidence, explain, nn, ops
from jaxgnn.explain import edge_scores
from jaxgnn.graph import GraphBatch, GraphSample, HeteroGraph, RelationalGraph
from jaxgnn.testing import random_array

METHODS = ("mask", "gradient", "integrated", "occlusion")
SENDERS = np.array([1, 2, 3, 4, 5, 6, 7, 2, 0, 1])
RECEIVERS = np.array([0, 0, 0, 0, 0, 0, 0, 3, 5, 6])
GRAPH = CSRGraph.from_edges(SENDERS, RECEIVERS, 8)
MARKED = np.isin(GRAPH.indices, (2, 5)) & (np.asarray(GRAPH.receivers()) == 0)
NOISE = 0.05 * random_array((8, 6), "float32", seed=3)
X = NOISE.at[jnp.array([2, 5]), 0].add(3.0)
EDGES = 0.1 * random_array((10, 3), "float32", seed=4)
LAYERS = {
    "TransformerConv": (nn.TransformerConv, (6, 5), {"edge_dim": 3, "heads": 2}),
    "GATConv": (nn.GATConv, (6, 5), {"edge_dim": 3, "heads": 2}),
    "GATv2Conv": (nn.GATv2Conv, (6, 5), {"edge_dim": 3}),
    "SuperGATConv": (nn.SuperGATConv, (6, 5), {}),
    "PNAConv": (nn.PNAConv, (6, 5), {"average_degree": GRAPH, "aggregators": ("mean", "sum")}),
    "SAGEConv": (nn.SAGEConv, (6, 5), {}),
    "GCNConv": (nn.GCNConv, (6, 5), {}),
    "EdgeMLP": (nn.EdgeMLP, (6, [5]), {"reduce": "mean"}),
    "ResGatedGraphConv": (nn.ResGatedGraphConv, (6, 5), {"edge_dim": 3}),
}
RING = CSRGraph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], 4)


def _case(name):
    """A layer, its features of edges, and a target along which the marked senders move node 0."""
    kind, widths, options = LAYERS[name]
    layer = kind(*widths, **options, rngs=nnx.Rngs(2))
    of_edges = EDGES if "edge_dim" in options else None
    given = () if of_edges is None else (of_edges,)
    moved = jax.jit(lambda: (layer(GRAPH, X, *given) - layer(GRAPH, NOISE, *given))[0])()
    moved = moved / jnp.linalg.norm(moved) ** 2
    return layer, of_edges, lambda y: y[0] @ moved


@pytest.mark.costly(1)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", LAYERS)
def test_planted_edges_have_the_highest_scores(name, method):
    layer, of_edges, target = _case(name)
    options = {"size": 0.2, "steps": 100} if method == "mask" else {}
    scores = edge_scores(layer, GRAPH, X, of_edges, target=target, method=method, **options)
    assert scores.shape == (10,) and scores.dtype == jnp.float32
    assert scores[MARKED].min() > 1.5 * jnp.abs(scores[~MARKED]).max()
    if method == "mask":
        assert (scores >= 0).all() and (scores <= 1).all() and scores[MARKED].min() > 0.5


def test_integrated_gradients_add_up_and_single_edges_count():
    layer = nn.SAGEConv(6, 5, rngs=nnx.Rngs(0))
    network = jax.jit(lambda graph, x: jnp.tanh(layer(graph, x)))
    scores = edge_scores(network, GRAPH, X, target=(0, 1), method="integrated", steps=64)
    empty = CSRGraph.from_edges(np.zeros(0, np.int32), np.zeros(0, np.int32), 8)
    difference = (network(GRAPH, X) - network(empty, X))[0, 1]
    np.testing.assert_allclose(scores.sum(), difference, rtol=1e-3)
    single = edge_scores(network, GRAPH, X, target=(3, 0), method="integrated", steps=64)
    share = (network(GRAPH, X) - network(empty, X))[3, 0]  # node 3 has one neighbour
    np.testing.assert_allclose(single.sum(), share, rtol=1e-3)
    assert np.flatnonzero(single).tolist() == [7]


@pytest.mark.costly(1)
@pytest.mark.parametrize("method", METHODS[1:])
def test_self_loops_stay_and_score_zero(method):
    looped = GRAPH.with_self_loops()
    layer = nn.GCNConv(6, 1, rngs=nnx.Rngs(0))
    scores = edge_scores(layer, looped, X, target=0, method=method)
    is_loop = np.asarray(looped.indices) == np.asarray(looped.receivers())
    assert not scores[is_loop].any() and scores[~is_loop].any()
    if method == "integrated":
        run = jax.jit(lambda graph: layer(graph, X)[0, 0])
        loops = CSRGraph.from_edges(np.arange(8), np.arange(8), 8)
        np.testing.assert_allclose(scores.sum(), run(looped) - run(loops), rtol=2e-3)


def test_occlusion_is_the_difference_to_the_graph_without_the_edge():
    def own(graph, x, edges):  # reads the arrays of the graph, which no mask reaches
        messages = x[graph.indices] * edges
        return jax.ops.segment_sum(messages, graph.receivers(), graph.num_rows) ** 2

    edges = random_array((10, 6), "float32", seed=5)
    scores = edge_scores(own, GRAPH, X, edges, target=(0, 2), method="occlusion")
    run = jax.jit(own)
    whole = run(GRAPH, X, edges)
    for slot in range(10):
        rest = np.delete(np.arange(10), slot)
        ends = np.asarray(GRAPH.indices)[rest], np.asarray(GRAPH.receivers())[rest]
        less = run(CSRGraph.from_edges(*ends, 8), X, edges[rest])
        np.testing.assert_allclose(scores[slot], (whole - less)[0, 2], rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"^explain.edge_scores: model must be a function that re"):
        edge_scores(own, GRAPH, X, edges, target=(0, 2))


@pytest.mark.costly(1)
@pytest.mark.parametrize("method", ["gradient", "occlusion"])
def test_several_nodes_and_hops(method):
    layer = nn.GINConv(6, 3, rngs=nnx.Rngs(0))
    two = lambda graph, x: layer(graph, layer(graph, x) @ jnp.ones((3, 6)))  # noqa: E731
    options = {"method": method, "num_hops": 2}
    scores = edge_scores(two, GRAPH, X, target=np.array([0, 5]), **options)
    assert scores.shape == (2, 10)
    alone = edge_scores(two, GRAPH, X, target=5, method=method)
    np.testing.assert_allclose(scores[1], alone, rtol=1e-4, atol=1e-5)
    one_hop = edge_scores(two, GRAPH, X, target=5, method=method, num_hops=1)
    assert np.flatnonzero(one_hop).tolist() == np.flatnonzero(GRAPH.receivers() == 5).tolist()


def test_padding_slots_have_no_score():
    padded = CSRGraph.from_edges([1, 2, 0], [0, 0, 0], 3, edge_mask=[True, True, False])
    layer = nn.GINConv(2, 2, linear=False, rngs=nnx.Rngs(0))
    x = jnp.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
    for method in ("gradient", "occlusion"):
        scores = edge_scores(layer, padded, x, target=(0, 0), method=method)
        np.testing.assert_allclose(scores, [2.0, 3.0, 0.0], rtol=1e-5)


@pytest.mark.costly(1)
@pytest.mark.parametrize("method", METHODS[1:])
@pytest.mark.parametrize("kind", ["batch", "relations", "stacked"])
def test_other_kinds_of_graphs(kind, method):
    rngs = nnx.Rngs(0)
    x = random_array((4, 6), "float32", seed=6)
    if kind == "batch":
        samples = [GraphSample([0, 1, 2], [1, 2, 0], 3), GraphSample([0], [1], 2)]
        graph = GraphBatch.from_graphs(samples, pad_to=(8, 6))
        layer, x = nn.GATConv(6, 2, rngs=rngs), random_array((8, 6), "float32", seed=6)
        model, target = (lambda b, x: nn.pool(layer(b.graph, x), b, "mean")), (0, 1)
    elif kind == "relations":
        name = ("paper", "cites", "paper")
        graph, x = HeteroGraph({name: RING}), {"paper": x}
        model = nn.HGTConv(6, 2, graph.metadata, rngs=rngs)
        target = lambda y: y["paper"][1, 0]  # noqa: E731
    else:
        graph = RelationalGraph.from_graphs([RING, RING.transpose()])
        model, target = nn.RGCNConv(6, 2, num_relations=2, rngs=rngs), (1, 0)
    scores = edge_scores(model, graph, x, target=target, method=method)
    (of_edges,) = jax.tree.leaves(scores)
    expected = {
        "batch": [0, 1, 2],  # the edges of the first graph
        "relations": [1],  # of one edge that enters node 1
        "stacked": [2, 3],  # one of each relation
    }
    found = np.flatnonzero(of_edges)
    assert len(found) and set(found) <= set(expected[kind])
    assert isinstance(scores, dict) == (kind == "relations")


def test_incidences_are_scored_by_removing_them():
    hypergraph = Incidence.from_hyperedges([{0, 1, 2}, {2, 3}], num_nodes=4)
    layer = nn.UniGCNConv(6, 3, rngs=nnx.Rngs(0))
    x = random_array((4, 6), "float32", seed=7)
    scores = edge_scores(layer, hypergraph, x, target=(3, 1), method="occlusion")
    less = Incidence.from_hyperedges([{0, 1, 2}, {3}], num_nodes=4)
    run = jax.jit(lambda hypergraph: layer(hypergraph, x)[3, 1])
    difference = run(hypergraph) - run(less)
    np.testing.assert_allclose(scores[3], difference, rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="method must be 'occlusion' for an Incidence"):
        edge_scores(layer, hypergraph, x, target=(3, 1))


@pytest.mark.again("test_where_all_edges_are_there_a_mean_and_a_softmax_give_each_its_share")
def test_scores_of_weights_that_come_from_a_softmax():
    query = random_array((6, 1), "float32", seed=8)

    def attended(graph, x):
        scores = (x @ query)[graph.indices]
        return ops.spmm(graph.with_weights(ops.segment_softmax(graph, scores)[:, 0]), x)

    scores = edge_scores(attended, GRAPH, X, target=(0, 0))
    weights = ops.segment_softmax(GRAPH, (X @ query)[GRAPH.indices])[:, 0]
    into = np.asarray(GRAPH.receivers()) == 0
    expected = np.where(into, weights * X[GRAPH.indices, 0], 0)
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-6)


ERRORS = {
    "graph": (dict(graph=np.ones((2, 2))), "graph must be a CSRGraph, GraphBatch, "),
    "method": (dict(method="shapley"), "method must be one of 'gradient', "),
    "steps": (dict(steps=3), "steps must be None for this method, got 3"),
    "no steps": (dict(method="mask", steps=0), "steps must be an int of at least 1"),
    "rate": (dict(method="mask", learning_rate=0), "learning_rate must be a positive number"),
    "size": (dict(method="mask", size=-1.0), "size must be a number of at least 0"),
    "node": (dict(target=9), r"target must be in \[0, 4\), rows of predictions, got 9"),
    "class": (dict(target=(0, 5)), r"target\[1\] must be in \[0, 2\), classes of predictions"),
    "classes": (
        dict(target=([0, 1, 2], [0, 1])),
        r"target\[1\] must be one class, or one for each of 3",
    ),
    "float": (dict(target=0.5), "target must be a node, a pair "),
    "triple": (dict(target=(0, 1, 2)), r"target must be a node, .* got \(0, 1, 2\)"),
    "function": (dict(target=lambda y: y), "target must be .* got a function that returns float32"),
    "hops": (dict(num_hops=0), "num_hops must be an int of at least 1"),
    "hops of a function": (dict(target=lambda y: y[0, 0], num_hops=1), "num_hops must be None, un"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_the_argument(name):
    given, message = ERRORS[name]
    arguments = {"graph": RING, "target": 0} | given
    graph = arguments.pop("graph")
    model = lambda graph, x: ops.spmm(graph, x)  # noqa: E731
    with pytest.raises(ValueError, match=f"^explain.edge_scores: {message}"):
        explain.edge_scores(model, graph, jnp.ones((4, 2)), **arguments)


def test_a_traced_graph_is_refused():
    with pytest.raises(ValueError, match="graph must be concrete; call it outside jit"):
        jax.jit(lambda g: edge_scores(ops.spmm, g, jnp.ones((4, 2)), target=0))(RING)


# Two components, and edges two and three hops away from node 0.
APART = CSRGraph.from_edges([1, 2, 3, 5, 6, 4], [0, 1, 2, 4, 4, 5], 7)
IN_REACH = (np.asarray(APART.receivers()) <= 1).tolist()  # of two layers
NEAR = random_array((7, 6), "float32", seed=9)


def _two_layers():
    first, last = nn.GATConv(6, 6, rngs=nnx.Rngs(0)), nn.SAGEConv(6, 3, rngs=nnx.Rngs(1))
    return lambda graph, x: last(graph, jax.nn.elu(first(graph, x)))


@pytest.mark.costly(3)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("target", [0, lambda y: y[0, 1] - y[0, 2]], ids=["node", "function"])
def test_edges_out_of_reach_have_a_score_of_exactly_zero(method, target):
    scores = edge_scores(_two_layers(), APART, NEAR, target=target, method=method)
    assert (scores != 0).tolist() == IN_REACH


@pytest.mark.costly(2)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("method", METHODS)
def test_numbers_of_another_component_that_are_not_finite_change_no_score(method, bad):
    model, options = _two_layers(), {"target": np.array([0, 1]), "method": method}
    spoiled = NEAR.at[6, 2].set(bad)
    expected = edge_scores(model, APART, NEAR, **options)
    found = edge_scores(model, APART, spoiled, **options)
    assert not found[:, np.asarray(APART.receivers()) >= 4].any() and found[0].any()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


NOT_FINITE = {
    "x": (
        0,
        {"x": NEAR.at[2, 3].set(jnp.nan)},
        r"x must be finite .* row 0 .* got nan at \[2, 3\]",
    ),
    "row": (
        np.array([1, 0]),
        # That of node 4 does not matter, nor does the second column of a function of the first.
        {"x": NEAR.at[4].set(jnp.nan).at[5].set(jnp.inf).at[2].set(-jnp.inf)},
        r"x must be finite where the prediction for row 0 depends on it, got -inf at \[2, 0\]",
    ),
    "function": (
        lambda y: y[0, 0],
        {"x": NEAR.at[0].set(jnp.nan).at[2, 0].set(jnp.inf).at[5:].set(jnp.nan)},
        r"x must be finite where the prediction for the target depends on it, got inf at \[2, 0\]",
    ),
    "weight": (
        0,
        {"graph": APART.with_weights(jnp.ones(6).at[0].set(jnp.nan))},
        r"graph must be finite .*, got nan at \[0\]",
    ),
}


@pytest.mark.parametrize("name", NOT_FINITE)
def test_a_number_that_is_not_finite_and_reaches_the_target_is_named(name):
    target, given, message = NOT_FINITE[name]
    arguments = {"graph": APART, "x": NEAR} | given
    model = lambda graph, x: ops.spmm(graph, ops.spmm(graph, x))  # noqa: E731
    with pytest.raises(ValueError, match=f"^explain.edge_scores: {message}$"):
        edge_scores(model, **arguments, target=target)


def test_padding_that_is_not_finite_changes_no_score():
    samples = [GraphSample([0, 1, 2], [1, 2, 0], 3), GraphSample([0], [1], 2)]
    batch = GraphBatch.from_graphs(samples, pad_to=(8, 6))
    layer = nn.GATConv(6, 2, rngs=nnx.Rngs(0))
    model = lambda b, x: nn.pool(layer(b.graph, x), b, "mean")  # noqa: E731
    x = random_array((8, 6), "float32", seed=6)
    expected = edge_scores(model, batch, x, target=(0, 1))
    found = edge_scores(model, batch, x.at[5:].set(jnp.nan), target=(0, 1))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
