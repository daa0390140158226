"""Couplers: their formulae, that tokens stay apart, and that the layers are no linear map."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxgnn
from jaxgnn import Incidence, nn, ops
from jaxgnn.ops._graph.spmm import SPMM
from jaxgnn.testing import check_forward_mode, random_array
from tests.ops._table import usable
from tests.ops.hypergraph._hypergraph import formula

EXPERTS, FEATURES = 4, 6
BATCH, TIME = 2, 5
X = random_array((BATCH, TIME, EXPERTS, FEATURES), "float32", seed=0)
GIVEN = [{0, 1}, {1, 2, 3}, {3}]
STRATEGIES = {"all_pairs": "all_pairs", "all_triples": "all_triples", "all": "all", "given": GIVEN}
WAYS = {
    "mixing": {"path": "mixing"},
    "sums": {"path": "sums"},
    **{name: {"implementation": name} for name in usable(SPMM)},
}


def coupler(strategy="all_pairs", **options):
    """With parameters that are all random: what is zero at first would hide a leak."""
    layer = nn.ExpertCoupler(FEATURES, EXPERTS, strategy=strategy, rngs=nnx.Rngs(0), **options)
    return _randomised(layer)


def pairwise(**options):
    return _randomised(nn.PairwiseExpertCoupler(FEATURES, EXPERTS, rngs=nnx.Rngs(0), **options))


def _randomised(module):
    leaves, structure = jax.tree.flatten(nnx.state(module, nnx.Param))
    noisy = [p + random_array(p.shape, p.dtype, i, scale=0.5) for i, p in enumerate(leaves)]
    nnx.update(module, jax.tree.unflatten(structure, noisy))
    return module


def _numbers(module):
    numbers = nnx.to_pure_dict(nnx.state(module, nnx.Param))
    return jax.tree.map(lambda p: np.asarray(p, np.float64), numbers)


def _gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _combined(p, h):
    z = _gelu(h.mean(axis=-2) @ p["linear"]["kernel"] + p["linear"]["bias"])
    centred = z - z.mean(axis=-1, keepdims=True)
    z = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-6)
    return z * p["norm"]["scale"] + p["norm"]["bias"]


class TestFormula:
    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_of_the_hypergraph_coupler(self, strategy):
        layer = coupler(STRATEGIES[strategy])
        p = _numbers(layer)
        token = np.asarray(X, np.float64)[1, 2]
        h = token
        for part in p["layers"].values():
            weight = np.log1p(np.exp(part["weights"]["logits"]))
            h = h + _gelu(formula(layer.incidence, h, part["kernel"], part["bias"], weight))
        y = jax.jit(lambda x: layer(x))(X)
        np.testing.assert_allclose(y[1, 2], _combined(p["combiner"], h), rtol=1e-4, atol=1e-4)

    def test_of_the_pairwise_coupler(self):
        layer = pairwise()
        p = _numbers(layer)
        x = np.asarray(X, np.float64)[1, 2]
        for part in p["layers"].values():
            receiver, sender = part["gate_of_receiver"], part["gate_of_sender"]
            messages = np.zeros_like(x)
            for i in range(EXPERTS):
                for j in set(range(EXPERTS)) - {i}:
                    logit = x[i] @ receiver["kernel"] + receiver["bias"] + x[j] @ sender["kernel"]
                    gate = 1 / (1 + np.exp(-logit)) / (1 + np.exp(-part["adjacency"][i, j]))
                    messages[i] += gate * x[j]
            self_terms = x @ part["own"]["kernel"] + part["own"]["bias"]
            x = x + _gelu(self_terms + messages @ part["messages"]["kernel"])
        y = jax.jit(lambda x: layer(x))(X)
        np.testing.assert_allclose(y[1, 2], _combined(p["combiner"], x), rtol=1e-4, atol=1e-4)

    def test_strategies_have_the_hyperedges_that_they_say(self):
        sizes = {s: coupler(g).incidence.hyperedge_sizes().tolist() for s, g in STRATEGIES.items()}
        assert sizes == {
            "all_pairs": [2] * 6,
            "all_triples": [3] * 4,
            "all": [4],
            "given": [2, 3, 1],
        }
        incidence = Incidence.from_hyperedges(GIVEN, EXPERTS).padded(num_incidences=9)
        assert coupler(incidence).hyperedges == coupler(GIVEN).hyperedges

    @pytest.mark.parametrize("strategy", ["all_pairs", "all_triples", "all"])
    def test_one_expert_stays_by_itself(self, strategy):
        layer = nn.ExpertCoupler(FEATURES, 1, strategy=strategy, rngs=nnx.Rngs(0))
        h = layer.couple(X[..., :1, :])
        assert h.shape == (BATCH, TIME, 1, FEATURES) and np.isfinite(h).all()
        if strategy != "all":  # the initial bias is zero
            np.testing.assert_array_equal(h, X[..., :1, :])


def tokens_that_move(function, batch, time):
    """Returns a mask of the outputs [batch, time] that change with the experts of one token."""
    other = random_array(X.shape[2:], "float32", seed=9, scale=3.0)
    before, after = (np.asarray(function(x)) for x in (X, X.at[batch, time].set(other)))
    return np.any(np.abs(before - after) > 1e-5, axis=tuple(range(2, before.ndim)))


class TestTokensStayApart:
    """Causality: no output before a token moves with it, whatever else is in the batch."""

    @pytest.mark.costly
    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("strategy", STRATEGIES)
    def test_only_the_output_of_a_token_moves_with_it(self, strategy, way):
        layer = coupler(STRATEGIES[strategy], **WAYS[way])
        self.check(jax.jit(lambda x: layer(x)))

    def test_of_the_pairwise_coupler_too(self):
        layer = pairwise()
        self.check(jax.jit(lambda x: layer(x)))

    def test_under_vmap_over_batch_and_time(self):
        layer = coupler()
        self.check(jax.jit(jax.vmap(jax.vmap(lambda x: layer(x)))))

    def check(self, function):
        for batch, time in ((0, 3), (1, 0), (1, TIME - 1)):
            moved = tokens_that_move(function, batch, time)
            expected = np.zeros((BATCH, TIME), bool)
            expected[batch, time] = True
            np.testing.assert_array_equal(moved, expected)

    def test_the_check_finds_hyperedges_that_were_counted_on_by_nodes(self):
        """As when one offset is used for both ids of a batch: six hyperedges, four experts."""
        pairs = coupler().incidence
        tokens = np.arange(BATCH * TIME)[:, None]
        nodes = np.asarray(pairs.node_ids) + EXPERTS * tokens
        collided = np.asarray(pairs.hyperedge_ids) + EXPERTS * tokens
        apart = np.asarray(pairs.hyperedge_ids) + pairs.num_hyperedges * tokens

        def function(hyperedges, x):
            index = np.stack([nodes.ravel(), hyperedges.ravel()])
            wrong = Incidence.from_hyperedge_index(index, X.size // FEATURES)
            y = ops.hypergraph_conv(x.reshape(-1, FEATURES), wrong)
            return y.reshape(X.shape)

        assert tokens_that_move(functools.partial(function, collided), 0, 3)[0, 2]
        self.check(functools.partial(function, apart))

    @pytest.mark.parametrize("way", WAYS)
    def test_a_token_has_the_same_output_alone_and_in_any_batch(self, way):
        layer = coupler("all_triples", **WAYS[way])
        apply = jax.jit(lambda x: layer(x))
        together = apply(X)
        others = random_array(X.shape, "float32", seed=3).at[1, 2].set(X[1, 2])
        np.testing.assert_allclose(apply(others)[1, 2], together[1, 2], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(apply(X[1, 2]), together[1, 2], rtol=1e-5, atol=1e-5)


class TestLayersAreNoLinearMap:
    """Two outputs of experts with the same mean, and what the stack makes of them."""

    spread = jnp.array([1.0, -1.0, 2.0, -2.0])[:, None] * random_array((FEATURES,), "float32", 5)
    same_mean = X + spread

    def coupled(self, strategy, x, **options):
        layer = nn.ExpertCoupler(
            FEATURES,
            EXPERTS,
            strategy=strategy,
            combiner=lambda h: jnp.mean(h, axis=-2),
            rngs=nnx.Rngs(0),
            **options,
        )
        return layer(x)

    def test_without_activation_and_residual_nothing_but_the_mean_is_left(self):
        linear = functools.partial(self.coupled, activation=None, residual=False)
        y = linear("all_pairs", X)
        for strategy in ("all_pairs", "all_triples", "all"):
            np.testing.assert_allclose(linear(strategy, self.same_mean), y, rtol=1e-3, atol=1e-4)

    def test_ours_tells_them_apart_and_so_does_its_hypergraph(self):
        y = self.coupled("all_pairs", X)
        assert float(jnp.abs(self.coupled("all_pairs", self.same_mean) - y).max()) > 0.1
        assert float(jnp.abs(self.coupled("all", X) - y).max()) > 0.1

    def test_ours_is_not_additive(self):
        f = functools.partial(self.coupled, "all_pairs")
        assert float(jnp.abs(f(X + self.same_mean) - f(X) - f(self.same_mean)).max()) > 0.1

    def test_weights_of_hyperedges_have_a_gradient(self):
        layer = coupler()
        gradients = nnx.jit(nnx.grad(lambda m: jnp.sum(m(X) ** 2 * X[..., 0, :])))(layer)
        for part in gradients["layers"].values():
            assert float(jnp.abs(part["weights"]["logits"][...]).min()) > 1e-5


def test_an_activation_may_have_parameters_of_its_own():
    def loss(slope, x):
        layer = coupler(activation=lambda h: jnp.where(h > 0, h, slope * h))
        return jnp.sum(layer(x) ** 2 * x[..., 0, :])

    slope = jnp.float32(0.3)
    got = jax.jit(jax.grad(loss, argnums=(0, 1)))(slope, X)
    step = 1e-2
    expected = (loss(slope + step, X) - loss(slope - step, X)) / (2 * step)
    np.testing.assert_allclose(got[0], expected, rtol=2e-2)
    assert np.isfinite(got[1]).all()


# As a function that the op has under a name, by the name, and as a function that it has not.
@pytest.mark.again("tests/nn/test_hyper_connection.py")
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("activation", [jax.nn.gelu, "gelu", lambda h: jax.nn.gelu(h)])
def test_gradients_are_those_of_the_same_layers_without_recomputation(activation, residual):
    layer = coupler(activation=activation, residual=residual)
    linear = coupler(activation=None, residual=False)
    weights = random_array(X.shape, "float32", seed=7)

    def plain(x):
        for part in linear.layers:
            update = jax.nn.gelu(part(linear.incidence, x))
            x = x + update if residual else update
        return x

    got, expected = (
        jax.jit(jax.grad(lambda x, f=f: jnp.sum(weights * f(x))))(X) for f in (layer.couple, plain)
    )
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.again("tests/ops/test_forward_mode.py")
@pytest.mark.parametrize("by_default", [False, True], ids=["argument", "session default"])
@pytest.mark.parametrize(
    "activation", [jax.nn.gelu, lambda h: jax.nn.gelu(h)], ids=["named", "not"]
)
def test_the_reference_by_name_has_forward_mode_gradients(activation, by_default):
    layer = coupler(activation=activation, implementation=None if by_default else "xla")
    with jaxgnn.default_implementation("xla" if by_default else None):
        check_forward_mode(lambda x: layer(x), X)


@pytest.mark.parametrize("make", [coupler, pairwise])
def test_bfloat16_computation_with_float32_parameters(make):
    layers = make(), make(dtype=jnp.bfloat16)
    exact, y = (jax.jit(lambda x, layer=layer: layer(x))(X) for layer in layers)
    assert y.dtype == jnp.bfloat16
    assert float(jnp.mean(jnp.abs(y.astype(jnp.float32) - exact))) < 0.05


def _maker(cls=nn.ExpertCoupler, features=FEATURES, experts=EXPERTS, **options):
    return lambda: cls(features, experts, rngs=nnx.Rngs(0), **options)


BAD = {
    "features": (_maker(features=0), ["ExpertCoupler", "at least 1", "0"]),
    "experts": (_maker(experts=0), ["ExpertCoupler: num_experts", "at least 1", "0"]),
    "layers": (_maker(layers=0), ["ExpertCoupler: layers", "at least 1", "0"]),
    "no messages": (_maker(nn.PairwiseExpertCoupler, layers=0), ["PairwiseExpertCoupler: layers"]),
    "strategy": (_maker(strategy="pairs"), ["strategy", "'all_pairs', 'all_triples'", "'pairs'"]),
    "an expert that is not there": (
        _maker(strategy=[{0, 1}, {2, 4}]),
        ["node_ids[3]", "in [0, 4), as num_nodes is 4", "got 4"],
    ),
    "hypergraph of others": (
        _maker(strategy=Incidence.from_hyperedges([{0, 1}], 3)),
        ["ExpertCoupler: strategy", "of 4 nodes", "got 3"],
    ),
    "x experts": (
        lambda: coupler()(X[..., :3, :]),
        ["ExpertCoupler: x", "[..., 4, 6], experts by features", "(2, 5, 3, 6)"],
    ),
    "x features": (
        lambda: pairwise()(X[..., :5]),
        ["PairwiseExpertCoupler: x", "[..., 4, 6]", "(2, 5, 4, 5)"],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name):
    call, fragments = BAD[name]
    with pytest.raises(ValueError) as error:
        call()
    for fragment in fragments:
        assert fragment in str(error.value), f"{fragment!r} not in: {error.value}"
