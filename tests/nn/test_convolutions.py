"""The convolutions against their formulae, and what exists between MaxK and aggregation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxgnn
from jaxgnn import CBSR, CSRGraph, nn, ops
from jaxgnn.nn.shared import maxk as shared
from jaxgnn.ops._maxk_spmm.maxk_spmm import FORWARD
from jaxgnn.testing import check_forward_mode, random_array
from tests.ops._table import BUILT, usable

GRAPH = BUILT["unweighted"]
NODES = GRAPH.num_rows
X = random_array((NODES, 12), "float32", seed=0)
LAYERS = {"sage": nn.SAGEConv, "gcn": nn.GCNConv, "gin": nn.GINConv}


def _adjacency(graph) -> np.ndarray:
    dense = np.zeros(graph.shape)
    np.add.at(dense, (np.asarray(graph.receivers()), np.asarray(graph.indices)), 1.0)
    return dense


def _activated(x: np.ndarray, activation: str | None, k: int) -> np.ndarray:
    if activation == "relu":
        return np.maximum(x, 0)
    if activation is None:
        return x
    smallest_kept = np.sort(x, axis=1)[:, -k, None]
    return np.where(x >= smallest_kept, x, 0)


def _inverse(degrees: np.ndarray, power: float) -> np.ndarray:
    return np.where(degrees > 0, np.maximum(degrees, 1) ** -power, 0)


# Kernels of sparse ops that run here; insisting on a k-sparse one is for platforms that have one.
SPARSE_NAMES = [n for n in usable(FORWARD) if n != "xla"]
SPARSE_MODES = ["maxk"] if SPARSE_NAMES else []


def test_a_k_sparse_kernel_is_insisted_on_whether_xla_is_the_layers_or_the_sessions():
    layer = nn.SAGEConv(12, 6, activation="maxk", k=4, kernel_mode="maxk", rngs=nnx.Rngs(1))
    x = jnp.ones((GRAPH.num_rows, 12))
    with jaxgnn.default_implementation("xla"), pytest.raises(NotImplementedError, match="k-sparse"):
        layer(GRAPH, x)


@pytest.mark.parametrize("kernel_mode", ["auto", "dense", *SPARSE_MODES])
@pytest.mark.parametrize("activation", ["maxk", "relu", None])
def test_sage_is_its_formula(activation, kernel_mode):
    layer = nn.SAGEConv(
        12, 6, activation=activation, k=4, kernel_mode=kernel_mode, rngs=nnx.Rngs(1)
    )
    a = _adjacency(GRAPH)
    h = _activated(np.asarray(X), activation, 4)
    mean = (_inverse(a.sum(axis=1), 1.0)[:, None] * a) @ h
    self_terms = h @ layer.self_linear.kernel[...] + layer.self_linear.bias[...]
    expected = self_terms + mean @ layer.neighbor_linear.kernel[...]
    np.testing.assert_allclose(layer(GRAPH, X), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("activation", ["maxk", "relu", None])
def test_gcn_on_a_graph_that_the_caller_has_normalised_is_its_formula(activation):
    options = {"activation": activation, "k": 2, "add_self_loops": False, "use_linear_bias": True}
    layer = nn.GCNConv(12, 6, **options, rngs=nnx.Rngs(2))
    layer.bias[...] = jnp.arange(6.0)
    a = _adjacency(GRAPH)
    h = np.asarray(X) @ layer.linear.kernel[...] + layer.linear.bias[...]
    h = _activated(h, activation, 2)
    rows, columns = _inverse(a.sum(axis=1), 0.5), _inverse(a.sum(axis=0), 0.5)
    expected = rows[:, None] * (a @ (columns[:, None] * h)) + np.arange(6.0)
    actual = layer(GRAPH.normalized("sym"), X)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("activation", ["maxk", "relu", None])
def test_gin_is_its_formula_with_and_without_an_mlp(activation):
    a = _adjacency(GRAPH)
    for mlp in (None, nnx.Linear(6, 3, rngs=nnx.Rngs(4))):
        layer = nn.GINConv(12, 6, activation=activation, k=2, mlp=mlp, rngs=nnx.Rngs(3))
        layer.epsilon[...] = jnp.float32(0.25)
        h = np.asarray(X) @ layer.linear.kernel[...] + layer.linear.bias[...]
        h = _activated(h, activation, 2)
        expected = 1.25 * h + a @ h
        if mlp is not None:
            expected = expected @ mlp.kernel[...] + mlp.bias[...]
        np.testing.assert_allclose(layer(GRAPH, X), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", LAYERS)
def test_weighted_graphs_use_their_weights(kind):
    # A loop that is added has the weight one in both graphs.
    options = {"add_self_loops": False} if kind == "gcn" else {}
    layer = LAYERS[kind](12, 6, **options, rngs=nnx.Rngs(5))
    doubled = GRAPH.with_weights(2 * jnp.ones(GRAPH.num_edges))
    plain, weighted = layer(GRAPH, X), layer(doubled, X)
    if kind == "gin":  # a sum doubles
        h = layer.linear(X)
        np.testing.assert_allclose(weighted - h, 2 * (plain - h), rtol=1e-4, atol=1e-4)
    else:  # normalisation cancels a common factor
        np.testing.assert_allclose(weighted, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", LAYERS)
def test_between_maxk_and_aggregation_features_are_compressed(kind, monkeypatch):
    seen = []
    original = shared.ops.maxk_spmm

    def spy(graph, x, **options):
        seen.append(x)
        return original(graph, x, **options)

    monkeypatch.setattr(shared.ops, "maxk_spmm", spy)
    LAYERS[kind](12, 8, activation="maxk", k=3, dropout=0.5, rngs=nnx.Rngs(6))(
        GRAPH, X, rngs=nnx.Rngs(dropout=0)
    )
    (kept,) = seen
    assert isinstance(kept, CBSR)
    assert kept.values.shape == (NODES, 3)


def test_no_dense_activation_is_saved_for_the_backward_pass():
    layer = nn.SAGEConv(256, 64, activation="maxk", k=8, rngs=nnx.Rngs(7))
    graphdef, state = nnx.split(layer)
    x = random_array((NODES, 256), "float32", seed=1)

    def apply(state, x):
        return nnx.merge(graphdef, state)(GRAPH, x)

    saved = jax.tree.leaves(jax.vjp(apply, state, x)[1])
    # The aggregated neighbours are dense and needed; the activation is not among them.
    dense = [leaf for leaf in saved if getattr(leaf, "shape", None) == (NODES, 256)]
    assert len(dense) == 1


@pytest.mark.parametrize("kind", LAYERS)
def test_dropout_follows_maxk_and_is_off_without_rngs(kind):
    layer = LAYERS[kind](12, 8, activation="maxk", k=4, dropout=0.5, rngs=nnx.Rngs(8))
    # A GPU's scatters may sum in another order each time.
    same_up_to_rounding = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    same_up_to_rounding(layer(GRAPH, X), layer(GRAPH, X))
    first, same = (layer(GRAPH, X, rngs=nnx.Rngs(dropout=1)) for _ in range(2))
    other = layer(GRAPH, X, rngs=nnx.Rngs(dropout=2))
    same_up_to_rounding(first, same)
    assert float(jnp.abs(first - other).max()) > 1e-3


def test_dropout_keeps_the_expected_value_and_at_most_k_entries():
    kept = nn.MaxK(5)(random_array((400, 20), "float32", seed=2))
    dropped = shared.dropout(kept, 0.3, nnx.Rngs(dropout=0))
    zero = float(jnp.mean(dropped.values == 0))
    assert abs(zero - 0.3) < 0.05
    survivors = dropped.values != 0
    np.testing.assert_allclose(
        dropped.values[survivors], kept.values[survivors] / np.float32(0.7), rtol=1e-6
    )


@pytest.mark.parametrize("kind", LAYERS)
def test_k_can_be_overridden_for_a_schedule(kind):
    small = LAYERS[kind](12, 8, activation="maxk", k=2, rngs=nnx.Rngs(9))
    large = LAYERS[kind](12, 8, activation="maxk", k=6, rngs=nnx.Rngs(9))
    np.testing.assert_allclose(small(GRAPH, X, k=6), large(GRAPH, X), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", LAYERS)
def test_bfloat16_computation_with_float32_parameters(kind):
    layer = LAYERS[kind](12, 8, activation="maxk", k=4, dtype=jnp.bfloat16, rngs=nnx.Rngs(10))
    y = layer(GRAPH, X.astype(jnp.bfloat16))
    assert y.dtype == jnp.bfloat16
    assert all(p.dtype == jnp.float32 for p in jax.tree.leaves(nnx.state(layer, nnx.Param)))
    exact = LAYERS[kind](12, 8, activation="maxk", k=4, rngs=nnx.Rngs(10))(GRAPH, X)
    assert float(jnp.mean(jnp.abs(y.astype(jnp.float32) - exact))) < 0.1


@pytest.mark.parametrize("kind", LAYERS)
def test_vmap_over_a_batch_of_features_equals_one_by_one(kind):
    layer = LAYERS[kind](12, 8, activation="maxk", k=4, rngs=nnx.Rngs(11))
    batch = random_array((3, NODES, 12), "float32", seed=3)
    together = jax.vmap(lambda x: layer(GRAPH, x))(batch)
    as_leading_axis = layer(GRAPH, batch)
    for i in range(3):
        np.testing.assert_allclose(together[i], layer(GRAPH, batch[i]), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(as_leading_axis[i], together[i], rtol=1e-4, atol=1e-5)


# Where a checkpoint has the parameters of each layer, and their shapes.
PARAMETERS = {
    "sage": {
        "self_linear/kernel": (12, 6),
        "self_linear/bias": (6,),
        "neighbor_linear/kernel": (12, 6),
    },
    "gcn": {"linear/kernel": (12, 6), "bias": (6,)},
    "gin": {"linear/kernel": (12, 6), "linear/bias": (6,), "epsilon": ()},
}


@pytest.mark.parametrize("kind", LAYERS)
def test_parameters_are_where_checkpoints_have_them(kind):
    layer = LAYERS[kind](12, 6, rngs=nnx.Rngs(12))
    state = nnx.state(layer, nnx.Param)
    shapes = {"/".join(path): value.shape for path, value in nnx.to_flat_state(state)}
    assert shapes == PARAMETERS[kind]
    plain = nnx.Linear(12, 6, rngs=nnx.Rngs(12))
    first = layer.self_linear if kind == "sage" else layer.linear
    np.testing.assert_array_equal(first.kernel[...], plain.kernel[...])


def _spy(monkeypatch, name):
    """The options of all calls of an op."""
    seen = []
    original = getattr(shared.ops, name)

    def op(*args, **options):
        seen.append(options)
        return original(*args, **options)

    monkeypatch.setattr(shared.ops, name, op)
    return seen


@pytest.mark.parametrize("kind", ["gcn", "gin"])
def test_an_activation_behind_the_linear_layer_is_one_op_with_it(kind, monkeypatch):
    linears = _spy(monkeypatch, "fused_linear")
    LAYERS[kind](12, 8, activation="maxk", k=3, rngs=nnx.Rngs(13))(GRAPH, X, k=5)
    LAYERS[kind](12, 8, activation="relu", rngs=nnx.Rngs(13))(GRAPH, X)
    LAYERS[kind](12, 8, rngs=nnx.Rngs(13))(GRAPH, X)
    assert [options["activation"] for options in linears] == [ops.MaxK(5), "relu", None]


@pytest.mark.parametrize("by_default", [False, True], ids=["argument", "session default"])
@pytest.mark.parametrize("name", SPARSE_NAMES)
@pytest.mark.parametrize("kind", LAYERS)
def test_names_of_sparse_kernels_are_for_the_sparse_ops_alone(kind, name, by_default, monkeypatch):
    maxks = _spy(monkeypatch, "maxk")
    argument = None if by_default else name
    options = {"activation": "maxk", "k": 3, "implementation": argument}
    layer = LAYERS[kind](12, 8, **options, rngs=nnx.Rngs(14))
    with jaxgnn.default_implementation(name if by_default else None):
        y = layer(GRAPH, X)
    assert [options["implementation"] for options in maxks] == [argument]
    plain = LAYERS[kind](12, 8, activation="maxk", k=3, implementation="xla", rngs=nnx.Rngs(14))
    np.testing.assert_allclose(y, plain(GRAPH, X), rtol=1e-4, atol=1e-5)


@pytest.mark.again("tests/ops/test_forward_mode.py")
@pytest.mark.parametrize("by_default", [False, True], ids=["argument", "session default"])
@pytest.mark.parametrize("kind", LAYERS)
def test_the_reference_by_name_has_forward_mode_gradients(kind, by_default):
    options = {"activation": "relu", "implementation": None if by_default else "xla"}
    layer = LAYERS[kind](12, 8, **options, rngs=nnx.Rngs(15))
    with jaxgnn.default_implementation("xla" if by_default else None):
        check_forward_mode(lambda x: layer(GRAPH, x), X)


@pytest.mark.parametrize("by_default", [False, True], ids=["argument", "session default"])
def test_the_mlp_of_gin_has_forward_mode_gradients_by_the_name_of_the_reference(by_default):
    mlp = nn.FusedMLP([8, 8, 8], activation="relu", rngs=nnx.Rngs(16))
    options = {"mlp": mlp, "implementation": None if by_default else "xla"}
    layer = nn.GINConv(12, 8, **options, rngs=nnx.Rngs(15))
    with jaxgnn.default_implementation("xla" if by_default else None):
        check_forward_mode(lambda x: layer(GRAPH, x), X)


@pytest.mark.parametrize("name", SPARSE_NAMES)
def test_the_mlp_of_gin_takes_what_is_fastest_whatever_sparse_kernels_are_the_default(name):
    mlp = nn.FusedMLP([8, 8, 8], activation="relu", rngs=nnx.Rngs(16))
    layer = nn.GINConv(12, 8, mlp=mlp, rngs=nnx.Rngs(15))
    with jaxgnn.default_implementation(name):
        y = layer(GRAPH, X)
    np.testing.assert_allclose(y, layer(GRAPH, X), rtol=1e-4, atol=1e-4)


BAD = {
    "activation": ({"activation": "gelu"}, "activation must be 'maxk', 'relu' or None"),
    "missing k": ({"activation": "maxk"}, "k must be given"),
    "dropout": ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
    "k of none": ({"activation": "maxk", "k": 0}, r"k must be an int in 1..4, got 0"),
    "k beyond": ({"activation": "maxk", "k": 5}, r"k must be an int in 1..4, got 5"),
    "k a float": ({"activation": "maxk", "k": 2.0}, r"k must be an int in 1..4, got 2.0"),
    "kernel mode": ({"kernel_mode": "cusparse"}, "kernel_mode must be 'auto', 'maxk' or 'dense'"),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_graph_and_features_that_do_not_fit_are_named(kind):
    layer = LAYERS[kind](12, 6, rngs=nnx.Rngs(0))
    name = type(layer).__name__
    with pytest.raises(ValueError, match=rf"{name}: x must be of shape \[..., {NODES}, 12\]"):
        layer(GRAPH, X[:, :5])
    with pytest.raises(ValueError, match=rf"{name}: x must be of shape"):
        layer(GRAPH, X[:7])
    with pytest.raises(ValueError, match=f"{name}: graph must be a jaxgnn.graph.CSRGraph"):
        layer(X, GRAPH)
    with pytest.raises(ValueError, match=f"{name}: the number of features must be at least 1"):
        LAYERS[kind](0, 6, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("name", BAD)
def test_bad_options_are_named(name):
    options, message = BAD[name]
    with pytest.raises(ValueError, match=f"SAGEConv: {message}"):
        nn.SAGEConv(4, 8, rngs=nnx.Rngs(0), **options)


@pytest.mark.parametrize("kind", ["gcn", "gin"])
def test_k_may_be_as_large_as_what_it_is_applied_to(kind):
    LAYERS[kind](12, 6, activation="maxk", k=6, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"k must be an int in 1..6, got 7"):
        LAYERS[kind](12, 6, activation="maxk", k=7, rngs=nnx.Rngs(0))


def test_maxk_wants_a_whole_number():
    with pytest.raises(ValueError, match="MaxK: k must be an int of at least 1, got 0"):
        nn.MaxK(0)


@pytest.mark.parametrize("kind", ["sage", "gin"])
def test_a_graph_of_other_receivers_than_senders_is_named(kind):
    graph = CSRGraph.from_edges([0, 4], [1, 2], 3, num_senders=5)
    layer = LAYERS[kind](12, 6, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"Conv: graph must be square.*got shape \(3, 5\)"):
        layer(graph, jnp.ones((5, 12)))


@pytest.mark.parametrize("kind", LAYERS)
def test_features_are_an_array_of_any_numbers(kind):
    layer = LAYERS[kind](12, 6, rngs=nnx.Rngs(0))
    got = rf"got (list|{NODES} of them)"
    with pytest.raises(ValueError, match=rf"Conv: x must be an array,.* {got}"):
        layer(GRAPH, X.tolist())
    bits = X > 0
    with jax.numpy_dtype_promotion("standard"):
        actual = layer(GRAPH, bits)
    np.testing.assert_array_equal(actual, layer(GRAPH, bits.astype(jnp.float32)))
