"""MaxKGNN: the three architectures, gradients, and jraph batches."""

import jax
import jax.numpy as jnp
import jraph
import numpy as np
import pytest
from flax import nnx

import jaxgnn
from jaxgnn import CSRGraph, ops
from jaxgnn.models import MaxKGNN
from jaxgnn.testing import check_forward_mode, random_array
from tests.ops._table import BUILT

GRAPH = BUILT["unweighted"]
X = random_array((GRAPH.num_rows, 10), "float32", seed=0)
KINDS = ("sage", "gcn", "gin")


def _model(kind="sage", **options) -> MaxKGNN:
    options = {"num_layers": 2, "k": 4, "dropout": 0.0, "rngs": nnx.Rngs(0)} | options
    return MaxKGNN(10, 16, 3, kind=kind, **options)


def _parameters(model) -> set[str]:
    flat = nnx.to_flat_state(nnx.state(model, nnx.Param))
    return {".".join(map(str, path)) for path, _ in flat}


def test_sage_has_the_published_parameters():
    assert _parameters(_model("sage", num_layers=1)) == {
        "lin_in.kernel",
        "lin_in.bias",
        "convolutions.0.self_linear.kernel",
        "convolutions.0.self_linear.bias",
        "convolutions.0.neighbor_linear.kernel",
        "norms.0.scale",
        "norms.0.bias",
        "lin_out.kernel",
        "lin_out.bias",
    }


@pytest.mark.parametrize(("kind", "parameter"), [("gcn", "bias"), ("gin", "epsilon")])
def test_gcn_and_gin_have_the_published_parameters(kind, parameter):
    assert _parameters(_model(kind, num_layers=1)) == {
        "lin_in.kernel",
        "lin_in.bias",
        "convolutions.0.linear.kernel",
        "convolutions.0.linear.bias",
        f"convolutions.0.{parameter}",
        "norms.0.scale",
        "norms.0.bias",
        "lin_out.kernel",
        "lin_out.bias",
    }


@pytest.mark.parametrize("kind", KINDS)
def test_the_network_is_the_published_sequence(kind):
    model = _model(kind, activation="relu", k=None)
    normalized = GRAPH.normalized({"sage": "mean", "gcn": "sym", "gin": None}[kind])
    h = X @ model.lin_in.kernel[...] + model.lin_in.bias[...]
    h = h if kind == "sage" else jax.nn.relu(h)
    for convolution, norm in zip(model.convolutions, model.norms, strict=True):
        h = norm(convolution(normalized, h))
    np.testing.assert_allclose(model(GRAPH, X), model.lin_out(h), rtol=1e-5, atol=1e-5)


@pytest.mark.costly
@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_gets_a_gradient_and_all_implementations_agree(kind):
    def gradients(**options):
        model = _model(kind, **options)
        return nnx.grad(lambda model: jnp.sum(model(GRAPH, X) ** 2))(model)

    expected = jax.tree.leaves(gradients(implementation="xla"))
    assert all(np.abs(g).max() > 0 for g in expected)
    for options in ({}, {"kernel_mode": "dense"}):
        for actual, oracle in zip(jax.tree.leaves(gradients(**options)), expected, strict=True):
            scale = np.abs(oracle).max()
            np.testing.assert_allclose(actual, oracle, rtol=1e-3, atol=1e-4 * scale)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_one_change_nothing_so_nothing_is_normalised_twice(kind):
    model = _model(kind)
    weighted = GRAPH.with_weights(jnp.ones(GRAPH.num_edges))
    expected = model(GRAPH, X)
    kind_of = {"sage": "mean", "gcn": "sym", "gin": None}[kind]
    for graph in (weighted, weighted.normalized(kind_of), GRAPH.normalized(kind_of)):
        np.testing.assert_allclose(model(graph, X), expected, rtol=1e-4, atol=1e-5)


def test_k_may_differ_by_layer_and_be_overridden():
    model = _model(k=(8, 2))
    assert [c.maxk.k for c in model.convolutions] == [8, 2]
    np.testing.assert_allclose(model(GRAPH, X, k=4), _model(k=4)(GRAPH, X), rtol=1e-5, atol=1e-6)
    mixed = _model(k=(4, 2))(GRAPH, X)
    np.testing.assert_allclose(model(GRAPH, X, k=(4, 2)), mixed, rtol=1e-5, atol=1e-6)


def test_maxk_with_k_of_the_full_width_is_the_identity():
    def linear_only(model):
        for convolution in model.convolutions:
            convolution.maxk, convolution.activation = None, None
        return model

    np.testing.assert_allclose(
        _model(k=16)(GRAPH, X), linear_only(_model(k=16))(GRAPH, X), rtol=1e-5, atol=1e-5
    )


@pytest.mark.costly
@pytest.mark.parametrize("kind", KINDS)
def test_a_padded_jraph_batch_gives_each_graph_what_it_gets_alone(kind):
    model = _model(kind)
    rng = np.random.default_rng(0)
    graphs = []
    for nodes, edges in ((5, 12), (1, 0), (7, 20)):
        graphs.append(
            jraph.GraphsTuple(
                nodes=rng.normal(size=(nodes, 10)).astype(np.float32),
                edges=None,
                senders=rng.integers(0, nodes, edges).astype(np.int32),
                receivers=rng.integers(0, nodes, edges).astype(np.int32),
                n_node=np.array([nodes]),
                n_edge=np.array([edges]),
                globals=None,
            )
        )
    padded = jraph.pad_with_graphs(jraph.batch(graphs), n_node=20, n_edge=50, n_graph=5)

    @jax.jit
    def apply(padded):
        return model(CSRGraph.from_graphs_tuple(padded, padded=True), padded.nodes)

    together = apply(padded)
    start = 0
    for graph in graphs:
        alone = model(CSRGraph.from_graphs_tuple(graph), jnp.asarray(graph.nodes))
        np.testing.assert_allclose(
            together[start : start + len(alone)], alone, rtol=1e-4, atol=1e-5
        )
        start += len(alone)


@nnx.jit(static_argnames="k")
def _apply(model, graph, x, k=None):
    return model(graph, x, k=k)


HYPER = {
    "sage, one stream": ("sage", {"hyper_connections": 1}),
    "gcn, two streams scanned": ("gcn", {"hyper_connections": 2, "scan_layers": True}),
}


@pytest.mark.parametrize("name", HYPER)
def test_with_streams_or_scanned_every_parameter_gets_a_gradient(name):
    kind, options = HYPER[name]
    model = _model(kind, dropout=0.3, **options)

    @nnx.jit
    def gradients(model):
        def loss(model):
            return jnp.sum(model(GRAPH, X, rngs=nnx.Rngs(dropout=1)) ** 2)

        return nnx.grad(loss)(model)

    for path, gradient in nnx.to_flat_state(gradients(model)):
        assert np.abs(gradient[...]).max() > 0, path


@pytest.mark.parametrize("streams", [None, 2])
def test_a_scan_over_layers_equals_a_loop(streams):
    loop = _model(hyper_connections=streams)
    scan = _model(hyper_connections=streams, scan_layers=True)
    expected = _apply(loop, GRAPH, X, k=2)
    np.testing.assert_allclose(_apply(scan, GRAPH, X, k=2), expected, rtol=1e-4, atol=1e-5)


def test_with_streams_it_is_norm_and_convolution_between_them():
    model = _model("gcn", activation="relu", k=None, hyper_connections=2)

    @nnx.jit
    def apply_layers(model):
        x = ops.mhc_expand(jax.nn.relu(model.lin_in(X)), 2)
        for connection in model.body.stack.layers:
            x, h_in, h_post, h_res = connection.pre(x)
            layer = connection.layer
            branch = layer.convolution(GRAPH.normalized("sym"), layer.norm(h_in))
            x = connection.post(x, branch, h_post, h_res)
        return model.lin_out(model.body.norm(model.body.head(x)))

    np.testing.assert_allclose(_apply(model, GRAPH, X), apply_layers(model), rtol=1e-4, atol=1e-5)


@pytest.mark.costly
@pytest.mark.parametrize("by_default", [False, True], ids=["argument", "session default"])
@pytest.mark.parametrize("name", HYPER)
def test_the_reference_by_name_has_forward_mode_gradients(name, by_default):
    kind, options = HYPER[name]
    model = _model(kind, **options, implementation=None if by_default else "xla")
    with jaxgnn.default_implementation("xla" if by_default else None):
        check_forward_mode(lambda x: model(GRAPH, x), X)


@pytest.mark.parametrize("by_default", [False, True], ids=["argument", "session default"])
def test_names_of_kernels_are_for_hyper_connections_that_have_them(by_default):
    """Not for what begins and ends the streams, which has nothing to choose from."""
    model = _model(hyper_connections=2, implementation=None if by_default else "pallas")
    if jax.default_backend() != "cpu":
        pytest.skip("reason: needs a CPU, where that name runs nothing")
    refused = pytest.raises(NotImplementedError, match=r"mhc_pre\[pallas\]: needs platform cuda")
    with jaxgnn.default_implementation("pallas" if by_default else None), refused:
        jax.eval_shape(lambda: model(GRAPH, X))


def test_with_streams_k_may_differ_by_layer_and_be_overridden():
    expected = _apply(_model(k=(4, 2), hyper_connections=2), GRAPH, X)
    overridden = _apply(_model(k=(8, 8), hyper_connections=2), GRAPH, X, k=(4, 2))
    np.testing.assert_allclose(overridden, expected, rtol=1e-5, atol=1e-6)


def test_without_streams_depth_makes_all_nodes_alike_and_with_streams_it_does_not():
    graph = GRAPH.with_self_loops()

    def spread(**options):
        model = _model("gcn", num_layers=48, scan_layers=True, **options)
        y = np.asarray(_apply(model, graph, X))
        return y.std(axis=0).mean() / np.abs(y).mean()

    assert spread(hyper_connections=2) > 3 * spread()


BAD = {
    "kind": ({"kind": "gat"}, "kind must be one of sage, gcn, gin"),
    "k zero": ({"k": 0}, r"k must be in 1\.\.16, got 0"),
    "k too large": ({"k": 17}, r"k must be in 1\.\.16, got 17"),
    "k length": ({"k": (1, 2, 3)}, "one for each of 2 layers"),
    "k missing": ({"k": None}, "k must be given"),
    "no streams": ({"hyper_connections": 0}, "hyper_connections must be None or at least 1, got 0"),
    "k of a scan": (
        {"k": (4, 2), "scan_layers": True},
        r"one number for scanned layers, got \(4, 2",
    ),
    "no layers": ({"num_layers": 0}, "num_layers must be at least 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options_are_named(name):
    options, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        _model(**options)
