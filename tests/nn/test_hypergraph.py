"""The layers on hypergraphs, each against its formula in float64 with dense matrices."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxgnn
from jaxgnn import Incidence, nn
from jaxgnn.ops._graph.segment_softmax import FORWARD as SEGMENT_SOFTMAX
from jaxgnn.ops._graph.spmm import SPMM
from jaxgnn.testing import check_forward_mode, random_array
from tests.ops._table import usable
from tests.ops.hypergraph._hypergraph import FEATURES, HYPEREDGES, INCIDENCE, NODES, formula, power

X = random_array((NODES, FEATURES), "float32", seed=0)
H = np.asarray(INCIDENCE.todense(), np.float64)
SIZES, DEGREES = H.sum(axis=0), H.sum(axis=1)
MEANS = power(SIZES, -1)[:, None] * H.T  # Means over the nodes of each hyperedge.
NODE_MEANS = power(DEGREES, -1)[:, None] * H


def _numbers(module):
    """Makes all parameters random, as biases that are zero would hide; returns them in float64."""
    leaves, structure = jax.tree.flatten(nnx.state(module, nnx.Param))
    noisy = [p + random_array(p.shape, p.dtype, i, scale=0.3) for i, p in enumerate(leaves)]
    nnx.update(module, jax.tree.unflatten(structure, noisy))
    numbers = nnx.to_pure_dict(nnx.state(module, nnx.Param))
    return jax.tree.map(lambda p: np.asarray(p, np.float64), numbers)


def _linear(p, x):
    return x @ p["kernel"] + p.get("bias", 0)


def _mlp(p, x):
    return _linear(p["layers"][1], np.maximum(_linear(p["layers"][0], x), 0))


def _softmax(logits):
    e = np.exp(logits - logits.max())
    return e / e.sum()


def _leaky(x):
    return np.where(x > 0, x, 0.2 * x)


def _uni_gcn(p, x):
    scale = power(DEGREES, -0.5)[:, None] * H * power(MEANS @ DEGREES, -0.5)
    return _linear(p["linear"], scale @ (MEANS @ x))


def _uni_gat(p, x):
    heads = []
    for head, theta in enumerate(np.split(p["linear"]["kernel"], 2, axis=1)):
        z, h = x @ theta, MEANS @ (x @ theta)
        of_node, of_hyperedge = np.split(p["attention"][head], 2)
        y = np.zeros_like(z)
        for v in np.flatnonzero(DEGREES):
            hyperedges = np.repeat(np.arange(HYPEREDGES), H[v].astype(int))
            alpha = _softmax(_leaky(z[v] @ of_node + h[hyperedges] @ of_hyperedge))
            y[v] = alpha @ h[hyperedges]
        heads.append(y)
    return heads, p["bias"]


def _hnhn(p, x, alpha=-1.5, beta=0.5):
    to_hyperedges = H.T * power(DEGREES, beta)
    to_hyperedges *= power(to_hyperedges.sum(axis=1), -1)[:, None]
    to_nodes = H * power(SIZES, alpha)
    to_nodes *= power(to_nodes.sum(axis=1), -1)[:, None]
    one, two = p["to_hyperedges"], p["to_nodes"]
    h = np.maximum(to_hyperedges @ (x @ one["kernel"]) + one["bias"], 0)
    return to_nodes @ (h @ two["kernel"]) + two["bias"]


def _deep_sets(p, x, to_hyperedges, to_nodes):
    h = _mlp(p["to_hyperedges"], to_hyperedges @ _mlp(p["of_nodes"], x))
    return _mlp(p["to_nodes"], to_nodes @ _mlp(p["of_hyperedges"], h))


def _layer_norm(p, x):
    centred = x - x.mean(axis=-1, keepdims=True)
    return (
        centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-6) * p["scale"] + p["bias"]
    )


def _set_attention(p, x, members):
    """``members[row]`` counts how often each column is in the set of the row."""
    keys, values, query = _linear(p["key"], x), _linear(p["value"], x), p["query"]
    rows = []
    for counts in members.astype(int):
        inside = np.repeat(np.arange(len(counts)), counts)
        parts = []
        for head, theta in enumerate(query):
            part = slice(head * len(theta), (head + 1) * len(theta))
            alpha = _softmax(keys[inside, part] @ theta) if len(inside) else np.zeros(0)
            parts.append(theta + alpha @ values[inside, part])
        rows.append(np.concatenate(parts))
    y = _layer_norm(p["norms"][0], np.stack(rows))
    return _layer_norm(p["norms"][1], y + _mlp(p["mlp"], y))


def _all_set_transformer(p, x):
    h = _set_attention(p["to_hyperedges"], x, H.T)
    return _set_attention(p["to_nodes"], h, H)


def _hyper_gcn(p, x):
    a = np.eye(NODES)
    for e in range(HYPEREDGES):
        members = np.repeat(np.arange(NODES), H[:, e].astype(int))
        for u, v in itertools.permutations(range(len(members)), 2):
            a[members[u], members[v]] += 2 / (len(members) * (len(members) - 1))
    root = power(a.sum(axis=1), -0.5)
    return _linear(p["linear"], root[:, None] * a @ (root[:, None] * x))


def _hgnn_plus(p, x):
    w = 1 / (1 + np.exp(-np.repeat(p["group_logits"], [3, 4])))
    return formula(INCIDENCE, x, p["conv"]["kernel"], p["conv"]["bias"], w)


IN, OUT = FEATURES, 4  # narrower behind the linear map; the other way round where it says wide
LAYERS = {
    "UniGCN": (lambda r, **o: nn.UniGCNConv(IN, OUT, rngs=r, **o), _uni_gcn),
    "UniGCN wide": (lambda r, **o: nn.UniGCNConv(IN, 9, rngs=r, **o), _uni_gcn),
    "UniSAGE": (
        lambda r, **o: nn.UniSAGEConv(IN, OUT, rngs=r, **o),
        lambda p, x: _linear(p["linear"], x + H @ MEANS @ x),
    ),
    "UniSAGE mean": (
        lambda r, **o: nn.UniSAGEConv(IN, OUT, aggregation="mean", rngs=r, **o),
        lambda p, x: _linear(p["linear"], x + NODE_MEANS @ MEANS @ x),
    ),
    "UniGIN": (
        lambda r, **o: nn.UniGINConv(IN, 9, rngs=r, **o),
        lambda p, x: _linear(p["linear"], (1 + p["epsilon"]) * x + H @ MEANS @ x),
    ),
    "UniGAT": (
        lambda r, **o: nn.UniGATConv(IN, OUT, heads=2, rngs=r, **o),
        lambda p, x: np.concatenate(_uni_gat(p, x)[0], axis=1) + p["bias"],
    ),
    "UniGAT mean": (
        lambda r, **o: nn.UniGATConv(IN, OUT, heads=2, concat=False, rngs=r, **o),
        lambda p, x: np.mean(_uni_gat(p, x)[0], axis=0) + p["bias"],
    ),
    "HNHN": (
        lambda r, **o: nn.HNHNConv(IN, OUT, hidden_features=9, alpha=-1.5, beta=0.5, rngs=r, **o),
        _hnhn,
    ),
    "HNHN means": (
        lambda r, **o: nn.HNHNConv(IN, OUT, rngs=r, **o),
        lambda p, x: _hnhn(p, x, alpha=0, beta=0),
    ),
    "AllDeepSets": (
        lambda r, **o: nn.AllDeepSetsConv(IN, OUT, hidden_features=5, rngs=r, **o),
        lambda p, x: _deep_sets(p, x, H.T, H),
    ),
    "AllDeepSets mean": (
        lambda r, **o: nn.AllDeepSetsConv(IN, OUT, aggregation="mean", rngs=r, **o),
        lambda p, x: _deep_sets(p, x, MEANS, NODE_MEANS),
    ),
    "AllSetTransformer": (
        lambda r, **o: nn.AllSetTransformerConv(IN, OUT, heads=2, hidden_features=5, rngs=r, **o),
        _all_set_transformer,
    ),
    "HyperGCN": (lambda r, **o: nn.HyperGCNConv(IN, OUT, rngs=r, **o), _hyper_gcn),
    "HyperGCN wide": (lambda r, **o: nn.HyperGCNConv(IN, 9, rngs=r, **o), _hyper_gcn),
    "HGNN+": (lambda r, **o: nn.HGNNPlusConv(IN, OUT, group_sizes=[3, 4], rngs=r, **o), _hgnn_plus),
    "HGNN": (
        lambda r, **o: nn.HypergraphConv(IN, OUT, normalization="sym", rngs=r, **o),
        lambda p, x: formula(INCIDENCE, x, p["kernel"], p["bias"], normalization="sym"),
    ),
    "HypergraphConv": (
        lambda r, **o: nn.HypergraphConv(IN, OUT, num_hyperedges=HYPEREDGES, rngs=r, **o),
        lambda p, x: formula(
            INCIDENCE, x, p["kernel"], p["bias"], np.log1p(np.exp(p["weights"]["logits"]))
        ),
    ),
}


@pytest.mark.costly(len(LAYERS))
@pytest.mark.parametrize("name", LAYERS)
def test_is_its_formula_for_every_member_of_a_batch(name):
    make, expected = LAYERS[name]
    layer = make(nnx.Rngs(0))
    numbers = _numbers(layer)
    y = jax.jit(lambda x: layer(INCIDENCE, x))(jnp.stack([X, 2 * X]))
    for i in range(2):
        exact = expected(numbers, (i + 1) * np.asarray(X, np.float64))
        np.testing.assert_allclose(y[i], exact, rtol=1e-4, atol=1e-5 * np.abs(exact).max())


@pytest.mark.costly
@pytest.mark.parametrize("name", [n for n in LAYERS if " " not in n])
def test_every_parameter_and_the_features_have_finite_gradients(name):
    layer = LAYERS[name][0](nnx.Rngs(0))
    _numbers(layer)
    graphdef, state = nnx.split(layer)

    @jax.jit
    def gradients(state, x):
        return jax.grad(
            lambda s, x: jnp.sum(nnx.merge(graphdef, s)(INCIDENCE, x) ** 2), argnums=(0, 1)
        )(state, x)

    for gradient in jax.tree.leaves(gradients(state, X)):
        assert np.isfinite(gradient).all() and np.any(gradient)


ONE_OF_EACH = [n for n in LAYERS if " " not in n]


@pytest.mark.costly
@pytest.mark.parametrize("by_default", [False, True], ids=["argument", "session default"])
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_the_reference_by_name_has_forward_mode_gradients(name, by_default):
    layer = LAYERS[name][0](nnx.Rngs(0), implementation=None if by_default else "xla")
    with jaxgnn.default_implementation("xla" if by_default else None):
        check_forward_mode(lambda x: layer(INCIDENCE, x), X)


# The sparse ops of a layer that calls others too, and the names that any of them has here.
SPARSE_OPS = {"AllDeepSets": [SPMM], "AllSetTransformer": [SPMM, SEGMENT_SOFTMAX]}
NAMED = [
    (layer, name)
    for layer, kernels in SPARSE_OPS.items()
    for name in dict.fromkeys(name for kernel in kernels for name in usable(kernel))
    if name != "xla"
]


@pytest.mark.again("tests/ops/test_dispatch.py")
@pytest.mark.costly
@pytest.mark.parametrize("by_default", [False, True], ids=["argument", "session default"])
@pytest.mark.parametrize("name, implementation", NAMED)
def test_names_of_sparse_kernels_are_for_the_sparse_ops_alone(name, implementation, by_default):
    make = LAYERS[name][0]
    layer = make(nnx.Rngs(0), implementation=None if by_default else implementation)
    without = [k.name for k in SPARSE_OPS[name] if implementation not in usable(k)]
    with jaxgnn.default_implementation(implementation if by_default else None):
        if without:  # a name never falls back
            with pytest.raises(NotImplementedError, match=re.escape(f"{without[0]}[")):
                layer(INCIDENCE, X)
            return
        y = layer(INCIDENCE, X)
    plain = make(nnx.Rngs(0), implementation="xla")
    np.testing.assert_allclose(y, plain(INCIDENCE, X), rtol=1e-4, atol=1e-5)


ATTENDING = {
    f"attention by {name}": lambda r, o=options: nn.HypergraphConv(
        IN, OUT, use_attention=True, heads=2, rngs=r, **o
    )
    for name, options in {
        "sums": {"path": "sums"},
        "mixing": {"path": "mixing"},
        "the reference": {"implementation": "xla"},
    }.items()
}
OF_NONE = {name: LAYERS[name][0] for name in ONE_OF_EACH} | ATTENDING


@pytest.mark.costly
@pytest.mark.parametrize("name", OF_NONE)
def test_a_batch_without_members_has_none_in_its_result_and_no_gradients(name):
    layer = OF_NONE[name](nnx.Rngs(0))
    arguments = (None, jnp.ones((HYPEREDGES, IN))) if name in ATTENDING else ()
    graphdef, state = nnx.split(layer)

    @jax.jit
    def run(state, x):
        return nnx.merge(graphdef, state)(INCIDENCE, x, *arguments)

    none = jnp.zeros((0, *X.shape))
    y, pull_back = jax.vjp(run, state, none)
    assert y.shape == (0, *jax.eval_shape(run, state, X).shape)
    dstate, dx = pull_back(y)
    assert dx.shape == none.shape
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(dstate))


ATTENTION = {
    "nodes, heads": {"heads": 2},
    "hyperedges, mean": {"heads": 2, "attention_mode": "edge", "concat": False},
    "pyg": {"weighting": "pyg", "negative_slope": 0.5},
}


@pytest.mark.parametrize("name", ATTENTION)
def test_hypergraph_attention_is_its_formula(name):
    options = ATTENTION[name]
    layer = nn.HypergraphConv(IN, OUT, use_attention=True, rngs=nnx.Rngs(1), **options)
    p = _numbers(layer)
    attributes = random_array((HYPEREDGES, FEATURES), "float32", seed=5)
    weight = abs(random_array((HYPEREDGES,), "float32", seed=4)) + 0.25
    y = nnx.jit(lambda layer, *arguments: layer(*arguments))(
        layer, INCIDENCE, X, weight, attributes
    )
    arguments = p["kernel"], p["bias"], weight, attributes, p["attention"]
    options = {k: v for k, v in options.items() if k != "heads"}
    np.testing.assert_allclose(
        y, formula(INCIDENCE, X, *arguments, **options), rtol=1e-4, atol=1e-4
    )


def test_hgnn_plus_multiplies_weights_with_those_of_the_groups():
    layer = nn.HGNNPlusConv(IN, OUT, group_sizes=[3, 4], rngs=nnx.Rngs(0))
    weight = np.arange(1.0, 8.0)
    half = formula(INCIDENCE, X, *(layer.conv.kernel[...], layer.conv.bias[...]), weight)
    y = layer(INCIDENCE, X, jnp.asarray(weight, jnp.float32))
    np.testing.assert_allclose(y, half, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "group_sizes", [np.array([3, 4]), (np.int64(3), 4)], ids=["array", "tuple"]
)
def test_hgnn_plus_takes_sizes_of_groups_as_numpy_has_them(group_sizes):
    layers = (
        nn.HGNNPlusConv(IN, OUT, group_sizes=sizes, rngs=nnx.Rngs(0))
        for sizes in (group_sizes, [3, 4])
    )
    layer, plain = layers
    assert layer.group_sizes == (3, 4) and all(type(size) is int for size in layer.group_sizes)
    y = nnx.jit(lambda layer, x: layer(INCIDENCE, x))(layer, X)
    np.testing.assert_allclose(y, plain(INCIDENCE, X), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("none", [[], np.array([], int)], ids=["list", "array"])
def test_hgnn_plus_without_groups_is_the_convolution(none):
    layer = nn.HGNNPlusConv(IN, OUT, group_sizes=none, rngs=nnx.Rngs(0))
    assert layer.group_sizes is None and layer.group_logits is None
    np.testing.assert_array_equal(layer(INCIDENCE, X), layer.conv(INCIDENCE, X))


class TestWeights:
    def test_begin_as_they_should(self):
        for initial in (0.1, 1.0, 30.0):
            np.testing.assert_allclose(
                nn.HyperedgeWeights(3, initial=initial)(), initial, rtol=1e-5
            )

    def test_stay_positive_whatever_is_learnt(self):
        weights = nn.HyperedgeWeights(4)
        weights.logits[...] = jnp.array([-80.0, -1.0, 0.0, 80.0])
        assert np.all(np.asarray(weights()) > 0)

    def test_a_layer_learns_them(self):
        layer = nn.HypergraphConv(IN, OUT, num_hyperedges=HYPEREDGES, rngs=nnx.Rngs(0))
        gradients = nnx.grad(lambda m: jnp.sum(m(INCIDENCE, X) ** 2))(layer)
        slopes = np.asarray(gradients["weights"]["logits"][...])
        used = np.flatnonzero(SIZES)
        assert np.all(slopes[used] != 0) and not np.any(np.delete(slopes, used))


DROPPING = {
    "HypergraphConv": lambda: nn.HypergraphConv(
        IN, OUT, use_attention=True, dropout=0.5, rngs=nnx.Rngs(0)
    ),
    "UniGAT": lambda: nn.UniGATConv(IN, OUT, dropout=0.5, rngs=nnx.Rngs(0)),
    "AllSetTransformer": lambda: nn.AllSetTransformerConv(IN, OUT, dropout=0.5, rngs=nnx.Rngs(0)),
}


@pytest.mark.parametrize("name", DROPPING)
def test_dropout_is_on_with_rngs_only(name):
    layer = DROPPING[name]()
    arguments = [INCIDENCE, X]
    if name == "HypergraphConv":
        arguments += [None, jnp.ones((HYPEREDGES, IN))]
    evaluate = jax.jit(lambda: layer(*arguments))
    train = jax.jit(lambda seed: layer(*arguments, rngs=nnx.Rngs(dropout=jax.random.key(seed))))
    np.testing.assert_array_equal(train(1), train(1))
    assert float(jnp.abs(train(1) - train(2)).max()) > 1e-3
    assert float(jnp.abs(train(1) - evaluate()).max()) > 1e-3


@pytest.mark.parametrize("name", ["UniGAT", "AllSetTransformer", "HyperGCN"])
def test_bfloat16_computation_with_float32_parameters(name):
    make = LAYERS[name][0]
    layers = make(nnx.Rngs(0)), make(nnx.Rngs(0), dtype=jnp.bfloat16)
    exact, y = (jax.jit(lambda x, layer=layer: layer(INCIDENCE, x))(X) for layer in layers)
    assert all(p.dtype == jnp.float32 for p in jax.tree.leaves(nnx.state(layers[1], nnx.Param)))
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(y.astype(jnp.float32), exact, atol=0.05 * float(abs(exact).max()))


@pytest.mark.parametrize("name", ["UniGCN", "UniGAT", "HNHN", "AllSetTransformer", "HyperGCN"])
def test_a_hypergraph_without_hyperedges_is_defined(name):
    layer = LAYERS[name][0](nnx.Rngs(0))
    y = jax.jit(lambda x: layer(Incidence.from_hyperedges([], NODES), x))(X)
    assert y.shape[0] == NODES and np.isfinite(y).all()


def _conv(**options):
    return lambda: nn.HypergraphConv(IN, OUT, rngs=nnx.Rngs(0), **options)


BAD_OPTIONS = {
    "heads without attention": (
        _conv(heads=2),
        ["HypergraphConv: heads", "without attention", "2"],
    ),
    "dropout without attention": (_conv(dropout=0.5), ["dropout", "without attention", "0.5"]),
    "no heads": (_conv(use_attention=True, heads=0), ["heads", "at least 1", "0"]),
    "dropout": (_conv(use_attention=True, dropout=1.0), ["dropout", "[0, 1)", "1.0"]),
    "width": (lambda: nn.UniGCNConv(0, 4, rngs=nnx.Rngs(0)), ["UniGCNConv", "at least 1", "0"]),
    "aggregation": (
        lambda: nn.UniSAGEConv(4, 4, aggregation="max", rngs=nnx.Rngs(0)),
        ["UniSAGEConv: aggregation", "'sum' or 'mean'", "'max'"],
    ),
    "heads that do not divide": (
        lambda: nn.AllSetTransformerConv(4, 6, heads=4, rngs=nnx.Rngs(0)),
        ["AllSetTransformerConv: out_features", "multiple of 4 heads", "6"],
    ),
    "group sizes": (
        lambda: nn.HGNNPlusConv(4, 4, group_sizes=[2, -1], rngs=nnx.Rngs(0)),
        ["HGNNPlusConv: group_sizes", "(2, -1)"],
    ),
    "group sizes of no whole numbers": (
        lambda: nn.HGNNPlusConv(4, 4, group_sizes=np.array([2.0, 1.5]), rngs=nnx.Rngs(0)),
        ["HGNNPlusConv: group_sizes", "numbers of hyperedges", "1.5"],
    ),
    "initial weight": (
        lambda: nn.HyperedgeWeights(2, initial=-1.0),
        ["HyperedgeWeights: initial", "positive", "-1.0"],
    ),
    "number of weights": (lambda: nn.HyperedgeWeights(-2), ["num_hyperedges", "-2"]),
    "learnt weights of another hypergraph": (
        lambda: _conv(num_hyperedges=4)()(INCIDENCE, X),
        ["HypergraphConv: incidence", "of 4 hyperedges", "got 7"],
    ),
    "weights beside the learnt ones": (
        lambda: _conv(num_hyperedges=7)()(INCIDENCE, X, jnp.ones(7)),
        ["HypergraphConv: weight", "None", "weights of 7", "(7,)"],
    ),
    "attention without attributes": (
        lambda: _conv(use_attention=True)()(INCIDENCE, X),
        ["attributes", "given with attention, of shape (7, 6)", "None"],
    ),
    "groups of another hypergraph": (
        lambda: nn.HGNNPlusConv(IN, 4, group_sizes=[2, 2], rngs=nnx.Rngs(0))(INCIDENCE, X),
        ["HGNNPlusConv: incidence", "of 4 hyperedges", "7"],
    ),
    "weights of groups": (
        lambda: nn.HGNNPlusConv(IN, 4, group_sizes=[7], rngs=nnx.Rngs(0))(
            INCIDENCE, X, jnp.ones(3)
        ),
        ["HGNNPlusConv: weight", "(7,)", "(3,)"],
    ),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_bad_options_are_named(name):
    call, fragments = BAD_OPTIONS[name]
    with pytest.raises(ValueError) as error:
        call()
    for fragment in fragments:
        assert fragment in str(error.value), f"{fragment!r} not in: {error.value}"


@pytest.mark.parametrize("name", [n for n in LAYERS if " " not in n])
def test_hypergraph_and_features_that_do_not_fit_are_named(name):
    layer = LAYERS[name][0](nnx.Rngs(0))
    where = type(layer).__name__
    with pytest.raises(ValueError, match=rf"{where}: x must be of shape \[..., 10, 6\], nodes"):
        layer(INCIDENCE, X[:, :5])
    with pytest.raises(ValueError, match=rf"{where}: x must be of shape \[..., 10, 6\], nodes"):
        layer(INCIDENCE, X[:7])
    with pytest.raises(ValueError, match=f"{where}: incidence must be a jaxgnn.Incidence"):
        layer(INCIDENCE.by_node(), X)
    beyond = Incidence(jnp.array([0, NODES]), jnp.array([0, 0]), NODES, HYPEREDGES)
    with pytest.raises(ValueError, match=r"node_ids\[1\] must be in \[0, 10\)"):
        layer(beyond, X)


def test_hypergcn_takes_a_hyperedge_of_more_pairs_than_int32_holds():
    nodes = 46_400
    layer = nn.HyperGCNConv(1, 1, use_bias=False, rngs=nnx.Rngs(0))
    x = jnp.zeros((nodes, 1)).at[0].set(1.0)
    y = layer(Incidence.from_hyperedges([range(nodes)], nodes), x)
    assert 0 < abs(float(y[1, 0])) < 1e-3
