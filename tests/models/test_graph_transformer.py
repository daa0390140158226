"""GraphTransformer: its formula, virtual nodes, padding, positions, and gradients."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from flax import nnx

import jaxgnn
from jaxgnn import CSRGraph
from jaxgnn.graph import GraphBatch, GraphSample, laplacian_positions, random_walk_positions
from jaxgnn.models import GraphTransformer
from jaxgnn.models._virtual_nodes import virtual_nodes
from jaxgnn.testing import random_array

RNG = np.random.default_rng(0)
NODES, EDGES = 9, 20
SENDERS, RECEIVERS = RNG.integers(0, NODES - 1, EDGES), RNG.integers(0, NODES - 1, EDGES)
SENDERS[0] = NODES - 1  # The last node receives no edge.
GRAPH = CSRGraph.from_edges(SENDERS, RECEIVERS, NODES)
GIVEN = {
    "x": random_array((NODES, 5), "float32", seed=1),
    "edge_features": random_array((EDGES, 3), "float32", seed=2),
    "laplacian": laplacian_positions(GRAPH, 2),
    "walks": random_walk_positions(GRAPH, 3),
}
EVERYTHING = {
    "edge_features": 3,
    "laplacian_features": 2,
    "walk_features": 3,
    "virtual_nodes": 2,
}


def _model(**options) -> GraphTransformer:
    defaults = {"num_layers": 1, "heads": 2, "dropout": 0.0, "rngs": nnx.Rngs(0)}
    return GraphTransformer(5, 8, 4, **(defaults | options))


@nnx.jit
def _apply(model, graph, inputs, rngs=None):
    return model(graph, **inputs, rngs=rngs)


def _attended(q, k, v, scores):
    """Attention of one head as matrices, to where ``scores`` are not -inf."""
    scores = q @ k.T / np.sqrt(q.shape[1]) + scores
    weights = np.exp(scores - np.where(np.isinf(scores), 0, scores).max(axis=1, keepdims=True))
    sums = weights.sum(axis=1, keepdims=True)
    weights = np.divide(weights, sums, out=np.zeros_like(weights), where=sums > 0)
    return weights, weights @ v


def _numpy_formula(model, inputs):
    """The network with one layer, in numpy, edge by edge and head by head."""

    def linear(layer, x):
        return x @ np.asarray(layer.kernel[...]) + (
            0 if layer.bias is None else np.asarray(layer.bias[...])
        )

    def norm(x):  # its scale is one and its bias zero
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)

    def heads(x):
        return np.split(x, model.sizes.heads, axis=-1)

    def largest(v):
        return (
            v
            if model.sizes.k is None
            else np.where(v >= np.sort(v, axis=1)[:, [-model.sizes.k]], v, 0)
        )

    inputs = {name: np.asarray(array, np.float64) for name, array in inputs.items()}
    h = linear(model.lin_in, inputs["x"])
    positions = np.concatenate([inputs["laplacian"], inputs["walks"]], axis=1)
    h = h + linear(model.lin_positions, positions)
    near, far, mlp = (branch.function for branch in model.body.branches)

    z = linear(near.query_key_value, norm(h))
    logits = linear(near.edge_logits, inputs["edge_features"])
    values = heads(linear(near.edge_values, inputs["edge_features"]))
    receivers, senders = np.asarray(GRAPH.receivers()), np.asarray(GRAPH.senders)
    parts = []
    for head, (q, k, v) in enumerate(zip(*map(heads, np.split(z, 3, axis=-1)), strict=True)):
        # One column for each edge, since edges are repeated.
        scores = np.where(receivers == np.arange(NODES)[:, None], logits[:, head], -np.inf)
        _, y = _attended(q, k[senders], largest(v)[senders] + values[head], scores)
        parts.append(y)
    h = h + linear(near.out, np.concatenate(parts, axis=1))

    queries = np.asarray(far.queries[...])  # [heads, virtual nodes, dim]
    q, k, v = map(heads, np.split(linear(far.query_key_value, norm(h)), 3, axis=-1))
    z = [_attended(*part, 0.0)[1] for part in zip(queries, k, v, strict=True)]
    z = linear(far.key_value, norm(np.concatenate(z, axis=1)))
    k, v = map(heads, np.split(z, 2, axis=-1))
    y = [_attended(*part, 0.0)[1] for part in zip(q, k, v, strict=True)]
    h = h + linear(far.out, np.concatenate(y, axis=1))

    first, last = mlp.mlp.layers
    h = h + linear(last, np.asarray(jax.nn.gelu(linear(first, norm(h)))))
    return linear(model.lin_out, norm(h))


def test_it_is_attention_to_neighbours_through_virtual_nodes_and_an_mlp():
    model = _model(**EVERYTHING, k=2)
    expected = _numpy_formula(model, GIVEN)
    np.testing.assert_allclose(_apply(model, GRAPH, GIVEN), expected, rtol=1e-4, atol=1e-5)


def _samples():
    rng = np.random.default_rng(3)
    for nodes, edges in ((5, 12), (1, 0), (7, 20)):
        ends = rng.integers(0, nodes, (2, edges))
        graph = CSRGraph.from_edges(*ends, nodes)
        features = {
            "x": rng.normal(size=(nodes, 5)).astype(np.float32),
            "laplacian": laplacian_positions(graph, 2),
            "walks": random_walk_positions(graph, 3),
        }
        of_edges = rng.normal(size=(edges, 3)).astype(np.float32)
        yield graph, GraphSample.from_graph(graph, nodes=features, edges=of_edges)


def _apply_to_batch(model, samples, shift=0.0):
    """The network on a padded batch, with ``shift`` added to the features of the first node."""
    batch = GraphBatch.from_graphs(samples, pad_to=(20, 50, 6))
    inputs = {**batch.nodes, "edge_features": batch.edges}
    masks = {"edge_features": batch.edge_mask()}
    spoiled = {
        name: np.where(np.asarray(masks.get(name, batch.node_mask))[:, None], array, np.nan)
        for name, array in inputs.items()
    }
    spoiled["x"][0] += shift
    return np.asarray(_apply(model, batch, spoiled))


def test_graphs_of_a_padded_batch_get_what_they_get_alone_and_padding_may_be_nan():
    model = _model(**EVERYTHING)
    graphs, samples = zip(*_samples(), strict=True)
    together = _apply_to_batch(model, samples)
    bounds = np.cumsum([0, *(graph.num_rows for graph in graphs)])
    for sample, (start, end) in zip(samples, itertools.pairwise(bounds), strict=True):
        alone = _apply_to_batch(model, [sample])[: end - start]
        np.testing.assert_allclose(together[start:end], alone, rtol=1e-4, atol=1e-5)
    last = {**samples[2].nodes, "edge_features": samples[2].edges}
    alone = _apply(model, graphs[2], last)
    np.testing.assert_allclose(together[6:13], alone, rtol=1e-4, atol=1e-5)


def test_through_virtual_nodes_all_nodes_of_a_graph_reach_each_other_and_no_others():
    model = _model(**EVERYTHING)
    x = np.asarray(random_array((4, 5), "float32", seed=4))
    nodes = {"x": x, "laplacian": x[:, :2], "walks": x[:, :3]}
    # One edge, and two nodes without edges.
    pair = GraphSample([0], [1], 4, nodes=nodes, edges=np.ones((1, 3), np.float32))
    y, z = (_apply_to_batch(model, [pair, pair], shift) for shift in (0, 1))
    assert np.flatnonzero(np.abs(y - z)[:8].max(axis=1) > 1e-6).tolist() == [0, 1, 2, 3]


def test_nodes_that_are_masked_out_change_nothing_wherever_they_are():
    model = _model(virtual_nodes=3)
    places = np.array([0, 1, 3, 4, 5, 7, 8, 10, 11])  # Nine real nodes among twelve.
    mask = np.zeros(12, bool)
    mask[places] = True
    padded = CSRGraph.from_edges(places[SENDERS], places[RECEIVERS], 12)
    x = np.full((12, 5), np.nan, np.float32)
    x[places] = GIVEN["x"]
    expected = _apply(model, GRAPH, {"x": GIVEN["x"]})
    y = _apply(model, padded, {"x": x, "node_mask": mask})
    np.testing.assert_allclose(y[places], expected, rtol=1e-4, atol=1e-5)
    # With all nodes, what virtual nodes read is not a number.
    assert np.isnan(_apply(model, padded, {"x": x, "node_mask": mask | True})[places]).all()


def test_graphs_outside_of_jit_are_joined_with_virtual_nodes_in_numpy():
    masked = virtual_nodes(GRAPH, 2, np.arange(NODES) % 3 > 0)
    assert masked.members.indptr.tolist() == [0, 6]
    assert masked.members.indices[:6].tolist() == [1, 2, 4, 5, 7, 8]
    batch = virtual_nodes(GraphBatch.from_graphs([GRAPH, GRAPH], pad_to=(20, 50, 4)), 2, None)
    assert np.diff(batch.members.indptr).tolist() == [NODES, NODES, 2, 0]
    assert np.diff(batch.readers.indptr).tolist() == [2] * 20
    assert batch.readers.indices[2 * NODES : 2 * NODES + 4].tolist() == [2, 3, 2, 3]
    arrays = [(graph.indptr, graph.indices) for graph in (*masked, *batch)]
    assert all(isinstance(array, np.ndarray) for array in jax.tree.leaves(arrays))


def test_in_training_each_eigenvector_of_each_graph_has_a_random_sign():
    model = _model(laplacian_features=2, walk_features=3)
    sample = GraphSample(SENDERS, RECEIVERS, NODES)
    batch = GraphBatch.from_graphs([sample, sample])
    inputs = {name: np.concatenate([GIVEN[name]] * 2) for name in ("x", "laplacian", "walks")}
    signs = np.array([[a, b] for a in (1, -1) for b in (1, -1)])
    flipped = [
        np.asarray(_apply(model, batch, inputs | {"laplacian": inputs["laplacian"] * pair}))
        for pair in signs
    ]
    seen = {0: set(), NODES: set()}
    for seed in range(24):
        y = np.asarray(_apply(model, batch, inputs, nnx.Rngs(dropout=seed)))
        for start, signs_of_seeds in seen.items():
            part = slice(start, start + NODES)
            near = [np.allclose(y[part], f[part], rtol=1e-4, atol=1e-5) for f in flipped]
            assert sum(near) == 1
            signs_of_seeds.add((seed, near.index(True)))
    first, second = (
        [sign for _, sign in sorted(signs_of_seeds)] for signs_of_seeds in seen.values()
    )
    assert set(first) == set(second) == {0, 1, 2, 3} and first != second
    model.eval()
    kept = model.signs(inputs["laplacian"], batch, nnx.Rngs(dropout=0))
    np.testing.assert_array_equal(kept, inputs["laplacian"])
    model.train()
    with pytest.raises(ValueError, match=r"rngs must be an nnx.Rngs with a dropout stream"):
        _apply(model, batch, inputs)


def test_with_streams_every_parameter_gets_a_gradient():
    model = _model(**EVERYTHING, k=2, attention_dropout=0.3, dropout=0.1, hyper_connections=2)

    @nnx.jit
    def gradients(model):
        def loss(model):
            return jnp.sum(model(GRAPH, **GIVEN, rngs=nnx.Rngs(dropout=1)) ** 2)

        return nnx.grad(loss)(model)

    for path, gradient in nnx.to_flat_state(gradients(model)):
        assert np.abs(gradient[...]).max() > 0, path


def test_bfloat16_computation_and_parameters_are_near_float32():
    model = _model(**EVERYTHING)
    expected = _numpy_formula(model, GIVEN)
    inputs = jax.tree.map(lambda a: jnp.asarray(a, jnp.bfloat16), GIVEN)
    short = _model(**EVERYTHING, dtype=jnp.bfloat16, param_dtype=jnp.bfloat16)
    nnx.update(short, jax.tree.map(lambda p: p.astype(jnp.bfloat16), nnx.state(model)))
    y = _apply(short, GRAPH, inputs)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(y.astype(jnp.float32), expected, atol=0.1)


def test_leading_axes_share_the_graph_and_features_may_be_a_sparse_matrix():
    model = _model(edge_features=3, virtual_nodes=2)
    xs = random_array((3, NODES, 5), "float32", seed=5)
    inputs = {"edge_features": GIVEN["edge_features"]}
    together = _apply(model, GRAPH, inputs | {"x": xs})
    sparse = CSRGraph.from_scipy(scipy.sparse.csr_array(np.asarray(xs[1])), weighted=True)
    alone = _apply(model, GRAPH, inputs | {"x": sparse})
    np.testing.assert_allclose(together[1], alone, rtol=1e-4, atol=1e-5)


def test_an_exported_model_takes_graphs_of_any_size():
    model = _model(virtual_nodes=2)
    file = jaxgnn.export(model, GRAPH, GIVEN["x"], shapes=("nodes, edges", "nodes, _"))
    other = CSRGraph.from_edges([0, 1, 2], [1, 2, 0], 3)
    x = random_array((3, 5), "float32", seed=6)
    expected = _apply(model, other, {"x": x})
    np.testing.assert_allclose(jaxgnn.load_exported(file)(other, x), expected, atol=1e-5)


BATCH = GraphBatch.from_graphs([GRAPH])
OBLONG = CSRGraph.from_edges([0], [0], 2, num_senders=3)
X = GIVEN["x"]
BAD = {
    "no graph": (lambda: _model()(None, X), "graph must be a CSRGraph or a GraphBatch"),
    "oblong": (lambda: _model()(OBLONG, X), r"graph must be square, got shape \(2, 3\)"),
    "rows": (
        lambda: _model()(GRAPH, X[:4]),
        r"x must be of shape \[..., 9, 5\], nodes by features, got shape \(4, 5\)",
    ),
    "width": (
        lambda: _model()(GRAPH, X[:, :3]),
        r"x must be of shape \[..., 9, 5\], nodes by features, got shape \(9, 3\)",
    ),
    "rows of a sparse matrix": (
        lambda: _model()(GRAPH, OBLONG),
        "x must be of one row for each of 9 nodes, got 2 rows",
    ),
    "mask": (
        lambda: _model()(GRAPH, X, node_mask=np.ones(4, bool)),
        r"node_mask must be bool of shape \(9,\), one flag .*, got bool of shape \(4,\)",
    ),
    "mask of numbers": (
        lambda: _model(virtual_nodes=1)(GRAPH, X, node_mask=np.ones(9, np.float32)),
        r"node_mask must be bool of shape \(9,\), .*, got float32 of shape \(9,\)",
    ),
    "mask of a batch": (
        lambda: _model()(BATCH, X, node_mask=np.ones(9, bool)),
        "node_mask must be None for a GraphBatch",
    ),
    "no edge features": (
        lambda: _model(edge_features=3)(GRAPH, X),
        r"edge_features must be of shape \[..., 20, 3\], as edge_features=3 says, got None",
    ),
    "edge features": (
        lambda: _model(edge_features=3)(GRAPH, X, edge_features=GIVEN["edge_features"][:4]),
        r"edge_features must be of shape \[..., 20, 3\].*got shape \(4, 3\)",
    ),
    "positions of another width": (
        lambda: _model(laplacian_features=3)(GRAPH, X, laplacian=GIVEN["laplacian"]),
        r"laplacian must be of shape \[..., 9, 3\], as laplacian_features=3 says, got shape",
    ),
    "positions of no use": (
        lambda: _model()(GRAPH, X, walks=GIVEN["walks"]),
        "walks must be None, since the model was made with walk_features=0",
    ),
    "heads": (lambda: _model(heads=3), "hidden_features must be a multiple of 3 heads, got 8"),
    "k": (lambda: _model(k=5), r"k must be an int in 1\.\.4, got 5"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=f"^GraphTransformer: {message}"):
        call()
