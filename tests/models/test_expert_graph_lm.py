"""ExpertGraphLM: causality in every form, experts apart from each other, gradients, losses."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxgnn
from jaxgnn.models import ExpertGraphLM, expert_output_orthogonality, expert_weight_orthogonality
from jaxgnn.ops._graph.spmm import SPMM
from jaxgnn.testing import check_forward_mode, random_array
from tests.ops._table import usable

VOCABULARY, TIME, EXPERTS, FEATURES = 11, 6, 4, 8
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, VOCABULARY, (2, TIME)), jnp.int32)
STRATEGIES = {
    "all_pairs": "all_pairs",
    "all_triples": "all_triples",
    "all": "all",
    "alone": "alone",
    "given": [{0, 1}, {1, 2, 3}, {3}],
}
WAYS = {
    "mixing": {"path": "mixing"},
    "sums": {"path": "sums"},
    **{name: {"implementation": name} for name in usable(SPMM)},
}
# Every strategy in every implementation; then the other couplings.
COUPLINGS = {
    **{
        f"{strategy} by {way}": {"strategy": hyperedges, **options}
        for strategy, hyperedges in STRATEGIES.items()
        for way, options in WAYS.items()
    },
    "pairwise": {"coupling": "pairwise"},
    "mean": {"coupling": "mean"},
}


def _model(**options) -> ExpertGraphLM:
    """Makes a model whose parameters are all random: initial zeros would hide a leak."""
    defaults = {"num_layers": 1, "num_heads": 2, "num_experts": EXPERTS} | options
    model = nnx.eval_shape(lambda: _initial(**defaults))
    leaves, structure = jax.tree.flatten(nnx.state(model, nnx.Param))
    random = [random_array(p.shape, p.dtype, i, scale=0.4) for i, p in enumerate(leaves)]
    nnx.update(model, jax.tree.unflatten(structure, random))
    return model


def _initial(**options) -> ExpertGraphLM:
    return ExpertGraphLM(VOCABULARY, FEATURES, rngs=nnx.Rngs(0), **options)


@nnx.jit
def _apply(model, tokens):
    return model(tokens)


@nnx.jit
def _apply_all(model, tokens):
    return model(tokens, return_experts=True)


def _other(tokens, text, place):
    return tokens.at[text, place].set((tokens[text, place] + 1) % VOCABULARY)


def _roundings(name: str, logits) -> float:
    """Tolerance for sums in another order: zero, except for XLA's scatters on a GPU.

    Those add in another order each time (2e-7 were seen).
    """
    has_an_order = jax.default_backend() == "cpu" or not name.endswith(" by xla")
    return 0.0 if has_an_order else 4 * jnp.finfo(logits.dtype).eps * float(jnp.abs(logits).max())


@pytest.mark.costly
@pytest.mark.parametrize("name", COUPLINGS)
def test_a_token_moves_its_own_logits_and_later_ones_and_no_earlier_one(name):
    model = _model(**COUPLINGS[name])
    before = _apply(model, TOKENS)
    assert before.shape == (2, TIME, VOCABULARY)
    assert_same = partial(np.testing.assert_allclose, rtol=0, atol=_roundings(name, before))
    for text, place in ((0, 0), (1, 3), (0, TIME - 1)):
        after = _apply(model, _other(TOKENS, text, place))
        assert_same(after[text, :place], before[text, :place])
        assert_same(after[1 - text], before[1 - text], err_msg="another text")
        moved = np.abs(after[text] - before[text]).max(axis=-1)
        assert (moved[place:] > 1e-6).all()


@pytest.mark.parametrize("name", ["all_pairs by mixing", "all_triples by sums", "pairwise"])
def test_a_token_has_the_same_logits_alone_cut_off_and_in_any_batch(name):
    model = _model(**COUPLINGS[name])
    together = _apply(model, TOKENS)
    others = jnp.stack([(TOKENS[0] + 5) % VOCABULARY, TOKENS[1]])
    close = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(_apply(model, others)[1], together[1], **close)
    np.testing.assert_allclose(_apply(model, TOKENS[1, :4]), together[1, :4], **close)


@pytest.mark.parametrize("name", ["all_pairs by mixing", "all_triples by sums", "pairwise"])
def test_any_leading_axes_are_texts_beside_each_other(name):
    model = _model(**COUPLINGS[name])
    tokens = jnp.stack([TOKENS, TOKENS[::-1], TOKENS % 3])
    together = _apply(model, tokens)
    assert together.shape == (3, 2, TIME, VOCABULARY)
    for i, texts in enumerate(tokens):
        np.testing.assert_allclose(together[i], _apply(model, texts), rtol=1e-4, atol=1e-5)


@pytest.mark.costly
@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (0,), (2, 0, 5)], ids=str)
@pytest.mark.parametrize("name", ["all_pairs by mixing", "all_triples by sums", "pairwise"])
def test_without_texts_or_tokens_there_are_no_logits_and_no_gradients(name, shape):
    tokens = jnp.zeros(shape, jnp.int32)

    @nnx.jit
    def run(model):
        gradients = nnx.grad(lambda model: jnp.sum(model(tokens) ** 2))(model)
        return model(tokens, return_experts=True), gradients

    (logits, experts), gradients = run(_model(**COUPLINGS[name]))
    assert logits.shape == (*shape, VOCABULARY)
    assert experts.shape == (1, *shape, EXPERTS, FEATURES)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradients))


@pytest.mark.again("tests/ops/test_forward_mode.py")
@pytest.mark.costly
@pytest.mark.parametrize("by_default", [False, True], ids=["argument", "session default"])
@pytest.mark.parametrize("coupling", ["hypergraph", "pairwise", "mean"])
def test_the_reference_by_name_has_forward_mode_gradients(coupling, by_default):
    model = _model(coupling=coupling, implementation=None if by_default else "xla")
    graphdef, state = nnx.split(model)
    with jaxgnn.default_implementation("xla" if by_default else None):
        check_forward_mode(lambda p: nnx.merge(graphdef, p)(TOKENS), nnx.to_pure_dict(state))


def test_experts_do_what_each_would_do_by_itself():
    model = _model(num_layers=2)
    result = _apply_all(model, TOKENS)
    assert result.experts.shape == (2, 2, TIME, EXPERTS, FEATURES)
    np.testing.assert_allclose(
        result.logits, jax.jit(lambda t: model(t))(TOKENS), rtol=1e-4, atol=1e-5
    )
    x = model.embedding(TOKENS)
    graphdef, state = nnx.split(model.layers[0].experts)
    for expert in range(EXPERTS):
        block = nnx.merge(graphdef, jax.tree.map(lambda p, i=expert: p[i], state))
        expected = jax.jit(block)(x)
        np.testing.assert_allclose(
            result.experts[0, ..., expert, :], expected, rtol=1e-4, atol=1e-5
        )


def test_experts_begin_different():
    kernel = (
        ExpertGraphLM(
            VOCABULARY, FEATURES, num_layers=1, num_heads=2, num_experts=3, rngs=nnx.Rngs(0)
        )
        .layers[0]
        .experts.mlp_in.kernel[...]
    )
    assert kernel.shape == (3, FEATURES, 4 * FEATURES)
    assert float(jnp.abs(kernel[0] - kernel[1]).max()) > 0.1


def test_a_layer_is_one_program_however_many_experts_there_are():
    def equations(experts):
        model = _model(num_experts=experts)
        return str(jax.make_jaxpr(model.layers[0].experts_of)(X)).count("dot_general")

    assert equations(2) == equations(7) > 0


X = random_array((2, TIME, FEATURES), "float32", seed=3)


@pytest.mark.parametrize("name", ["all_pairs by mixing", "pairwise", "mean"])
def test_every_parameter_gets_a_gradient(name):
    weights = random_array((2, TIME, VOCABULARY), "float32", seed=1)

    @nnx.jit
    def gradients(model):
        return nnx.grad(lambda model: jnp.sum(weights * model(TOKENS)))(model)

    for path, gradient in nnx.to_flat_state(gradients(_model(**COUPLINGS[name]))):
        assert np.abs(gradient[...]).max() > 0, path


def test_one_expert_alone():
    model = _model(num_experts=1)
    logits, outputs = _apply_all(model, TOKENS)
    assert np.isfinite(logits).all()
    assert float(expert_output_orthogonality(outputs, "cosine")) == 0
    assert float(jax.jit(expert_weight_orthogonality)(model)) == 0


def test_bfloat16():
    with jax.numpy_dtype_promotion("standard"):  # attention in jax.nn promotes by itself
        logits = _apply(_model(dtype=jnp.bfloat16), TOKENS)
    assert logits.dtype == jnp.bfloat16
    exact = _apply(_model(), TOKENS)
    assert float(jnp.mean(jnp.abs(logits.astype(jnp.float32) - exact))) < 0.1


class TestOrthogonality:
    outputs = random_array((2, 3, 5, EXPERTS, FEATURES), "float32", seed=4)

    def test_of_outputs_is_that_of_their_means(self):
        means = np.asarray(self.outputs, np.float64).mean(axis=(1, 2))
        gram = means @ means.transpose(0, 2, 1)
        expected = np.mean((gram - np.eye(EXPERTS)) ** 2)
        np.testing.assert_allclose(expert_output_orthogonality(self.outputs), expected, rtol=1e-4)
        lengths = np.linalg.norm(means, axis=-1)
        cosines = gram / lengths[:, :, None] / lengths[:, None, :]
        expected = np.mean(cosines[:, ~np.eye(EXPERTS, dtype=bool)] ** 2)
        got = expert_output_orthogonality(self.outputs, "cosine")
        np.testing.assert_allclose(got, expected, rtol=1e-4)

    def test_of_weights_is_that_of_the_experts_copies(self):
        model = _model()
        block = model.layers[0].experts
        squares, largest = [], []
        for linear in (block.query_key_value, block.attention_out, block.mlp_in, block.mlp_out):
            flat = np.asarray(linear.kernel[...], np.float64).reshape(EXPERTS, -1)
            flat /= np.linalg.norm(flat, axis=1, keepdims=True)
            off = flat @ flat.T - np.eye(EXPERTS)
            squares.append((off**2).sum() / (EXPERTS * (EXPERTS - 1)))
            largest.append(np.linalg.svd(off, compute_uv=False).max())
        got = expert_weight_orthogonality(model)
        np.testing.assert_allclose(got, np.mean(squares), rtol=1e-3)
        got = expert_weight_orthogonality(model, "spectral")
        np.testing.assert_allclose(got, np.mean(largest), rtol=1e-3)

    @pytest.mark.parametrize("form", ["frobenius", "spectral"])
    def test_descent_makes_equal_weights_different(self, form):
        model = _model()
        for linear in (model.layers[0].experts.mlp_in, model.layers[0].experts.mlp_out):
            kernel = linear.kernel[...]
            alike = 0.05 * random_array(kernel.shape, "float32", seed=5) + kernel[:1]
            linear.kernel[...] = alike
        before = float(expert_weight_orthogonality(model, form))

        graphdef, state = nnx.split(model)

        @jax.jit
        def descend(state):
            gradient = jax.grad(lambda s: expert_weight_orthogonality(nnx.merge(graphdef, s), form))
            return jax.lax.fori_loop(
                0, 30, lambda _, s: jax.tree.map(lambda p, g: p - 20 * g, s, gradient(s)), state
            )

        nnx.update(model, descend(state))
        assert before > 0.3
        assert float(expert_weight_orthogonality(model, form)) < 0.5 * before

    def test_gradients_are_finite_where_outputs_are_zero_or_equal(self):
        for outputs in (jnp.zeros((1, 3, 2, 4)), jnp.ones((1, 3, 2, 4))):
            for form in ("gram", "cosine"):
                gradient = jax.grad(expert_output_orthogonality)(outputs, form)
                assert np.isfinite(gradient).all()


BAD = {
    "layers": (lambda: _model(num_layers=0), "num_layers must be at least 1, got 0"),
    "experts": (lambda: _model(num_experts=0), "num_experts must be at least 1, got 0"),
    "heads": (lambda: _model(num_heads=3), "num_heads must be a divisor of 8"),
    "odd heads": (lambda: _model(num_heads=8), "of even width, got 8"),
    "width": (lambda: _model(hidden_features=0), "number of features must be at least 1, got 0"),
    "coupling": (lambda: _model(coupling="none"), "'hypergraph' or 'pairwise' or 'mean', got 'no"),
    "strategy": (lambda: _model(strategy="pairs"), "strategy must be 'all_pairs'"),
    "an expert that is not there": (lambda: _model(strategy=[{0, 4}]), "got 4"),
    "form of outputs": (
        lambda: expert_output_orthogonality(X, "frobenius"),
        "form must be 'gram' or 'cosine', got 'frobenius'",
    ),
    "shape of outputs": (
        lambda: expert_output_orthogonality(X[0]),
        r"experts must be of shape \[layers, ..., experts, features\], got shape \(6, 8\)",
    ),
    "form of weights": (
        lambda: expert_weight_orthogonality(_model(), "gram"),
        "form must be 'frobenius' or 'spectral', got 'gram'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options_are_named(name):
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        call()
