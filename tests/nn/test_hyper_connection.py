"""HyperConnection, HyperHead and HyperStack: formula, beginning, variants, state, memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxgnn
from jaxgnn import nn, ops
from jaxgnn.graph import CSRGraph
from jaxgnn.nn.mhc.hyper_connection import initial_bias
from jaxgnn.ops._mhc import pallas
from jaxgnn.testing import assert_close, check_forward_mode, random_array

TOKENS, DIM, N = 6, 8, 4
X = random_array((TOKENS, N, DIM), "float32", seed=0)

VARIANTS = {
    "default": {},
    "paper": {"convention": "paper"},
    "tilekernels": {"convention": "tilekernels"},
    "gamma": {"use_scale": True},
    "static": {"dynamic": False},
    "permutations": {"mixing": "permutations"},
    "static permutations": {"mixing": "permutations", "dynamic": False},
    "one stream read": {"layer_index": 6},
    "implicit": {"gradient": "implicit"},
    "one stream": {"num_streams": 1},
    "one stream, permutations": {"num_streams": 1, "mixing": "permutations"},
    "xla": {"implementation": "xla"},
}


def _connection(seed=0, layer=None, **options):
    rngs = nnx.Rngs(seed)
    layer = nnx.Linear(DIM, DIM, rngs=rngs) if layer is None else layer
    return nn.HyperConnection(layer, DIM, rngs=rngs, **options)


class _Block(nnx.Module):
    """A layer with dropout and a running statistic."""

    def __init__(self, rngs):
        self.linear = nnx.Linear(DIM, DIM, rngs=rngs)
        self.calls = nnx.BatchStat(jnp.zeros(()))

    def __call__(self, x, *, rngs=None, power=1):
        self.calls[...] = self.calls[...] + 1
        y = jnp.tanh(self.linear(x))
        if rngs is not None:
            y = jnp.where(jax.random.bernoulli(rngs.dropout(), 0.5, y.shape), 2 * y, 0)
        return y**power


def _stack(num_layers=5, **options):
    rngs = nnx.Rngs(1)
    layers = [nn.HyperConnection(_Block(rngs), DIM, rngs=rngs) for _ in range(num_layers)]
    return nn.HyperStack(layers, **options)


@pytest.mark.costly
@pytest.mark.parametrize("name", VARIANTS)
def test_begins_as_a_plain_residual_on_equal_streams(name):
    connection = _connection(**VARIANTS[name])
    x = ops.mhc_expand(X[:, 0], connection.num_streams)
    plain = X[:, 0] + connection.layer(X[:, 0])
    np.testing.assert_allclose(connection(x), jnp.broadcast_to(plain[:, None], x.shape), atol=0.1)


@pytest.mark.costly
@pytest.mark.parametrize("name", VARIANTS)
def test_every_parameter_and_the_input_have_a_gradient(name):
    connection = _connection(**VARIANTS[name])
    graphdef, state = nnx.split(connection)
    x = random_array((TOKENS, connection.num_streams, DIM), "float32", seed=1)

    @jax.jit
    def gradients(state, x):
        weights = random_array(x.shape, "float32", seed=2)
        return jax.grad(lambda s, x: jnp.sum(weights * nnx.merge(graphdef, s)(x)), (0, 1))(state, x)

    dstate, dx = gradients(state, x)
    for leaf in jax.tree.leaves((dstate, dx)):
        assert leaf.dtype == jnp.float32
        assert float(jnp.abs(leaf).max()) > 0


def test_is_the_ops_in_a_row():
    connection = _connection(use_scale=True, convention="seed")
    convention = ops.MHC_PRESETS["seed"]
    params = (p[...] for p in (connection.phi, connection.alpha, connection.bias, connection.gamma))
    h_in, h_post, logits = ops.mhc_pre(X, *params, **convention.pre)
    h_res = ops.sinkhorn(logits, **convention.sinkhorn)
    expected = ops.mhc_post(X, connection.layer(h_in), h_post, h_res, **convention.post)
    np.testing.assert_allclose(connection(X), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("permutations", [False, True])
@pytest.mark.parametrize("n", [2, 3, 5])
def test_initial_bias_gives_the_asked_weights_and_diagonal(n, permutations):
    options = {"permutations": permutations, "identity": 0.8}
    for stream in (None, 1):
        bias = initial_bias(n, post_scale=2.0, stream=stream, **options)
        h_pre, h_post = jax.nn.sigmoid(bias[:n]), 2 * jax.nn.sigmoid(bias[n : 2 * n])
        expected = np.full(n, 1 / n)
        if stream is not None:
            expected = np.where(np.arange(n) == stream, 0.9, 0.1 / (n - 1))
        np.testing.assert_allclose(h_pre, expected, rtol=1e-5)
        np.testing.assert_allclose(h_post, 1, rtol=1e-5)
        logits = bias[2 * n :]
        mix = ops.permutation_mixture if permutations else ops.sinkhorn
        h = mix(logits if permutations else logits.reshape(n, n))
        np.testing.assert_allclose(jnp.diag(h), 0.8, atol=1e-4)


@pytest.mark.costly
@pytest.mark.parametrize("name", ["default", "static", "permutations"])
def test_training_makes_the_streams_of_a_stack_differ(name):
    layers = [_connection(i, layer_index=i, **VARIANTS[name]) for i in range(3)]
    graphdef, state = nnx.split(nn.HyperStack(layers))
    x, target = ops.mhc_expand(X[:, 0], N), random_array((TOKENS, DIM), "float32", seed=3)

    @jax.jit
    def step(state):
        def loss(state):
            return jnp.mean((nnx.merge(graphdef, state)(x).mean(axis=1) - target) ** 2)

        value, gradient = jax.value_and_grad(loss)(state)
        return value, jax.tree.map(lambda p, g: p - 0.3 * g, state, gradient)

    first, state = step(state)
    for _ in range(60):
        last, state = step(state)
    assert last < 0.5 * first
    y = nnx.merge(graphdef, state)(x)
    assert float(jnp.std(y, axis=1).max()) > 1e-2


def test_bfloat16_streams_with_float32_parameters():
    rngs = nnx.Rngs(0)
    layer = nnx.Linear(DIM, DIM, dtype=jnp.bfloat16, rngs=rngs)
    connection = _connection(layer=layer)
    y = connection(X.astype(jnp.bfloat16))
    assert y.dtype == jnp.bfloat16
    exact = _connection(layer=lambda h: layer(h.astype(jnp.bfloat16)).astype(h.dtype))
    np.testing.assert_allclose(y.astype(jnp.float32), exact(X), atol=0.05)


def test_wraps_a_graph_convolution():
    graph = CSRGraph.from_edges([0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0], TOKENS)
    convolution = nn.SAGEConv(DIM, DIM, activation="maxk", k=3, dropout=0.5, rngs=nnx.Rngs(0))
    connection = _connection(layer=convolution, features_argument=1)
    x, h_in, h_post, h_res = connection.pre(X)
    expected = connection.post(x, convolution(graph, h_in, k=2), h_post, h_res)
    np.testing.assert_allclose(connection(graph, X, k=2), expected, rtol=1e-5, atol=1e-6)
    stack = nn.HyperStack([connection, connection], recompute_every=1)
    assert stack(graph, X, rngs=nnx.Rngs(dropout=0), k=2).shape == X.shape


@pytest.mark.again("test_a_stack_that_recomputes_may_be_closed_over")
@pytest.mark.parametrize(("recompute_every", "keep_outputs"), [(2, False), ("auto", True)])
def test_recomputing_changes_no_value_no_gradient_and_no_state(recompute_every, keep_outputs):
    plain = _stack()
    recomputed = _stack(recompute_every=recompute_every, keep_outputs=keep_outputs)

    @nnx.jit
    def value_and_gradient(stack, x, rngs):
        def loss(stack, rngs):
            return jnp.sum(stack(x, rngs=rngs, power=2) ** 2)

        return nnx.value_and_grad(loss)(stack, rngs)

    results = []
    for stack in (plain, recomputed):
        rngs = nnx.Rngs(dropout=7)
        results.append(value_and_gradient(stack, X, rngs))
        assert int(rngs.dropout.count[...]) == 5
        assert all(int(c.layer.calls[...]) == 1 for c in stack.layers)
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        assert_close(a, b, reduction_length=X.size)


@pytest.mark.parametrize("remat", [False, True])
def test_dropout_and_state_go_through_linked_ends_as_through_ops_apart(remat, monkeypatch):
    results = []
    for linked in (False, True):
        monkeypatch.setattr(pallas, "has_paired_backward", lambda x, linked=linked: linked)
        rngs = nnx.Rngs(1, dropout=7)
        connection = nn.HyperConnection(_Block(rngs), DIM, rngs=rngs)

        def loss(connection, x, rngs):
            return jnp.sum(connection(x, rngs=rngs, power=2) ** 2)

        wrapped = nnx.remat(loss) if remat else loss
        results.append(nnx.jit(nnx.value_and_grad(wrapped, argnums=(0, 1)))(connection, X, rngs))
        assert int(rngs.dropout.count[...]) == 1
        assert int(connection.layer.calls[...]) == 1
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_gradient_and_implementation_are_those_that_were_asked_for():
    with pytest.raises(NotImplementedError, match=r"\[ffi\]"):
        _connection(implementation="ffi")(X)
    few = ops.MHCConvention(iterations=1)  # too few for the two gradients to agree

    def slope(gradient):
        connection = _connection(gradient=gradient, convention=few)
        return nnx.jit(nnx.grad(lambda c: jnp.sum(c(X) ** 2)))(connection).bias[...]

    assert not np.allclose(slope("exact"), slope("implicit"), rtol=1e-2)


@pytest.mark.again("tests/ops/test_forward_mode.py")
@pytest.mark.costly
@pytest.mark.parametrize("by_default", [False, True], ids=["argument", "session default"])
@pytest.mark.parametrize("name", [n for n in VARIANTS if n != "xla"])
def test_the_reference_by_name_has_forward_mode_gradients(name, by_default):
    connection = _connection(**VARIANTS[name], implementation=None if by_default else "xla")
    x = random_array((TOKENS, connection.num_streams, DIM), "float32", seed=1)
    with jaxgnn.default_implementation("xla" if by_default else None):
        check_forward_mode(lambda x: connection(x), x)


@pytest.mark.parametrize("by_default", [False, True], ids=["argument", "session default"])
@pytest.mark.parametrize("name", ["ffi", "pallas"])
def test_a_head_has_no_kernels_so_that_their_names_leave_it_to_what_is_fastest(name, by_default):
    head = nn.HyperHead(DIM, implementation=None if by_default else name, rngs=nnx.Rngs(0))
    with jaxgnn.default_implementation(name if by_default else None):
        y = head(X)
    np.testing.assert_allclose(y, nn.HyperHead(DIM, rngs=nnx.Rngs(0))(X), rtol=1e-5, atol=1e-6)


def test_stack_equals_one_connection_after_the_other():
    stack, x = _stack(), X
    for connection in stack.layers:
        x = connection(x)
    np.testing.assert_allclose(stack(X), x, rtol=1e-5, atol=1e-5)


def _saved_streams(**options) -> int:
    """Counts the arrays as wide as the streams that the backward pass keeps."""
    graphdef, state = nnx.split(_stack(6, **options))
    pull_back = jax.vjp(lambda s, x: nnx.merge(graphdef, s)(x), state, X)[1]
    return sum(getattr(leaf, "shape", None) == X.shape for leaf in jax.tree.leaves(pull_back))


@pytest.mark.costly
@pytest.mark.parametrize("compile_", [jax.jit, nnx.jit, lambda f: f])
def test_a_stack_that_recomputes_may_be_closed_over(compile_):
    rngs = nnx.Rngs(0)
    layers = [nn.HyperConnection(nnx.Linear(4, 4, rngs=rngs), 4, rngs=rngs) for _ in "ab"]
    x = random_array((3, 4, 4), "float32", seed=1)
    gradients = []
    for recompute_every in (None, 1):
        stack = nn.HyperStack(layers, recompute_every=recompute_every)
        gradient = jax.grad(lambda x, stack=stack: jnp.sum(stack(x) ** 2))
        gradients += [compile_(gradient)(x), gradient(x)]
    for gradient in gradients[1:]:
        np.testing.assert_allclose(gradient, gradients[0], rtol=1e-5)


def test_recomputing_keeps_the_streams_of_every_few_layers_only():
    assert _saved_streams() == 6
    assert _saved_streams(recompute_every=3) == 2
    assert _saved_streams(recompute_every=3, keep_outputs=False) == 2
    assert _saved_streams(recompute_every=6) == 1


def test_recompute_interval_is_about_the_best():
    for layers, n in ((1, 4), (7, 2), (24, 4), (60, 4), (100, 8)):
        cost = {k: n * -(-layers // k) + (n + 2) * k for k in range(1, layers + 1)}
        assert cost[nn.recompute_interval(layers, n)] <= 1.25 * min(cost.values())


@pytest.mark.again("tests/ops/mhc/test_mhc_layer.py")
def test_scan_over_layers_equals_a_loop_with_and_without_checkpoint():
    @nnx.split_rngs(splits=3)
    @nnx.vmap(in_axes=(0,), out_axes=0)
    def make(rngs):
        return nn.HyperConnection(nnx.Linear(DIM, DIM, rngs=rngs), DIM, rngs=rngs)

    layers = make(nnx.Rngs(4))

    def scanned(layers, x, wrap):
        step = wrap(lambda x, layer: layer(x))
        return nnx.scan(step, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, layers)

    graphdef, stacked = nnx.split(layers)
    looped = X
    for i in range(3):
        looped = nnx.merge(graphdef, jax.tree.map(lambda a, i=i: a[i], stacked))(looped)
    np.testing.assert_allclose(scanned(layers, X, nnx.remat), looped, rtol=1e-5, atol=1e-5)
    gradients = []
    for wrap in (lambda f: f, nnx.remat):
        total = nnx.grad(lambda layers, w=wrap: jnp.sum(scanned(layers, X, w) ** 2))
        gradients.append(total(layers))
    for a, b in zip(*map(jax.tree.leaves, gradients), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_jax_checkpoint_of_a_split_module():
    graphdef, state = nnx.split(_connection())

    def loss(state, x):
        return jnp.sum(nnx.merge(graphdef, state)(x) ** 2)

    plain = jax.jit(jax.grad(loss))(state, X)
    again = jax.jit(jax.grad(jax.checkpoint(loss)))(state, X)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_vmap_equals_leading_axes():
    connection, batch = _connection(), random_array((3, TOKENS, N, DIM), "float32", seed=5)
    np.testing.assert_allclose(jax.vmap(connection)(batch), connection(batch), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("use_scale", [False, True])
def test_head_begins_as_the_mean_of_the_streams(use_scale):
    head = nn.HyperHead(DIM, use_scale=use_scale, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(head(X), X.mean(axis=1), atol=0.05)
    assert (head.gamma is None) != use_scale


BAD = {
    "features": ({"features": 0}, "the number of features must be at least 1, got 0"),
    "num_streams": ({"num_streams": 0}, "num_streams must be at least 1, got 0"),
    "mixing": ({"mixing": "softmax"}, "mixing must be 'sinkhorn' or 'permutations', got 'softmax'"),
    "permutations": (
        {"mixing": "permutations", "num_streams": 7},
        "num_streams must be at most 6 for mixing='permutations', got 7",
    ),
    "gradient": ({"gradient": "no"}, "gradient must be 'exact' or 'implicit', got 'no'"),
    "identity": ({"identity": 0.1}, r"identity must be in \[1/4, 1\), got 0.1"),
    "convention": ({"convention": "peper"}, "convention must be .* or one of paper, .*'peper'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options_are_named(name):
    options, message = BAD[name]
    rngs = nnx.Rngs(0)
    arguments = {"layer": nnx.Linear(4, 4, rngs=rngs), "features": 4, "rngs": rngs} | options
    with pytest.raises(ValueError, match=f"HyperConnection: {message}"):
        nn.HyperConnection(**arguments)


def test_arguments_that_do_not_fit_are_named():
    connection = _connection()
    with pytest.raises(ValueError, match=r"HyperConnection: x must be of shape \[..., 4, 8\]"):
        connection(X[:, :2])
    with pytest.raises(ValueError, match=r"HyperConnection: x must be given as positional"):
        connection(x=X)
    wide = _connection(layer=nnx.Linear(DIM, 5, rngs=nnx.Rngs(0)))
    with pytest.raises(ValueError, match=r"layer's result must be of shape \(6, 8\), .*\(6, 5\)"):
        wide(X)
    with pytest.raises(ValueError, match="HyperStack: layers must be one or more HyperConnection"):
        nn.HyperStack([])
    with pytest.raises(ValueError, match=r"HyperStack: layers must be of one \(num_streams"):
        nn.HyperStack([connection, _connection(num_streams=2)])
    with pytest.raises(ValueError, match="HyperStack: recompute_every must be None, 'auto'"):
        nn.HyperStack([connection], recompute_every=0)
    with pytest.raises(ValueError, match="HyperHead: num_streams must be at least 1"):
        nn.HyperHead(4, num_streams=0, rngs=nnx.Rngs(0))
