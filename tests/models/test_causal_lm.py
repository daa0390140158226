"""CausalLM: causality, positions, gradients, and what hyper-connections add."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxgnn
from jaxgnn.models import CausalLM
from jaxgnn.models._causal_lm import rotate
from jaxgnn.testing import check_forward_mode, random_array

VOCABULARY, TIME = 17, 9
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, VOCABULARY, (2, TIME)), jnp.int32)
VARIANTS = {
    "residuals": {},
    "hyper-connections": {"hyper_connections": 4},
    "recomputed": {"hyper_connections": 2, "recompute_every": 1},
}


def _model(**options) -> CausalLM:
    defaults = {"num_layers": 1, "num_heads": 2, "rngs": nnx.Rngs(0)}
    return CausalLM(VOCABULARY, 8, **(defaults | options))


@nnx.jit
def _apply(model, tokens):
    return model(tokens)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_token_moves_its_own_logits_and_later_ones_and_no_earlier_one(name):
    model = _model(**VARIANTS[name])
    before = _apply(model, TOKENS)
    assert before.shape == (2, TIME, VOCABULARY)
    for place in (0, 4, TIME - 1):
        after = _apply(model, TOKENS.at[0, place].set((TOKENS[0, place] + 1) % VOCABULARY))
        np.testing.assert_array_equal(after[0, :place], before[0, :place])
        np.testing.assert_array_equal(after[1], before[1], "another text of the batch")
        moved = np.abs(after[0] - before[0]).max(axis=-1)
        assert (moved[place:] > 0).all()


def test_a_prefix_has_the_logits_that_it_has_in_the_whole():
    model = _model(hyper_connections=2)
    whole = _apply(model, TOKENS)
    np.testing.assert_allclose(_apply(model, TOKENS[1, :5]), whole[1, :5], rtol=1e-4, atol=1e-5)


def test_any_leading_axes_are_texts_beside_each_other():
    model = _model(hyper_connections=2)
    tokens = jnp.stack([TOKENS, TOKENS[::-1], TOKENS % 3])
    together = _apply(model, tokens)
    assert together.shape == (3, 2, TIME, VOCABULARY)
    for i, texts in enumerate(tokens):
        np.testing.assert_allclose(together[i], _apply(model, texts), rtol=1e-4, atol=1e-5)


@pytest.mark.costly
@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (0,), (2, 0, 5)], ids=str)
@pytest.mark.parametrize("name", ["residuals", "hyper-connections"])
def test_without_texts_or_tokens_there_are_no_logits_and_no_gradients(name, shape):
    tokens = jnp.zeros(shape, jnp.int32)

    @nnx.jit
    def run(model):
        gradients = nnx.grad(lambda model: jnp.sum(model(tokens) ** 2))(model)
        return model(tokens), gradients

    logits, gradients = run(_model(**VARIANTS[name]))
    assert logits.shape == (*shape, VOCABULARY)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradients))


@pytest.mark.again("tests/ops/test_forward_mode.py")
@pytest.mark.costly
@pytest.mark.parametrize("by_default", [False, True], ids=["argument", "session default"])
@pytest.mark.parametrize("name", VARIANTS)
def test_the_reference_by_name_has_forward_mode_gradients(name, by_default):
    model = _model(**VARIANTS[name], implementation=None if by_default else "xla")
    graphdef, state = nnx.split(model)
    with jaxgnn.default_implementation("xla" if by_default else None):
        check_forward_mode(lambda p: nnx.merge(graphdef, p)(TOKENS), nnx.to_pure_dict(state))


@pytest.mark.parametrize("by_default", [False, True], ids=["argument", "session default"])
@pytest.mark.parametrize("name, needs", [("ffi", "one of"), ("pallas", "platform cuda")])
def test_names_of_kernels_are_for_hyper_connections_that_have_them(name, needs, by_default):
    """Not for what begins and ends the streams, which has nothing to choose from."""
    if name == "pallas" and jax.default_backend() != "cpu":
        pytest.skip("reason: needs a CPU, where that name runs nothing")
    model = _model(hyper_connections=2, implementation=None if by_default else name)
    refused = pytest.raises(NotImplementedError, match=rf"mhc_pre\[{name}\]: needs {needs}")
    with jaxgnn.default_implementation(name if by_default else None), refused:
        jax.eval_shape(lambda: model(TOKENS))


@pytest.mark.parametrize("name", ["residuals", "recomputed"])
def test_every_parameter_gets_a_gradient(name):
    weights = random_array((2, TIME, VOCABULARY), "float32", seed=1)

    @nnx.jit
    def gradients(model):
        return nnx.grad(lambda model: jnp.sum(weights * model(TOKENS)))(model)

    for path, gradient in nnx.to_flat_state(gradients(_model(**VARIANTS[name]))):
        assert np.abs(gradient[...]).max() > 0, path


def test_begins_with_a_uniform_guess_whatever_the_connections():
    for options in ({}, {"hyper_connections": 4}):
        log_p = jax.nn.log_softmax(_apply(_model(**options), TOKENS))
        loss = -jnp.mean(jnp.take_along_axis(log_p, TOKENS[..., None], axis=-1))
        np.testing.assert_allclose(loss, np.log(VOCABULARY), atol=1.0)


def test_hyper_connections_leave_the_branches_as_they_are():
    plain, hyper = _model(), _model(hyper_connections=2)
    connections = hyper.body.stack.layers
    assert [type(c.layer) for c in connections] == [type(b) for b in plain.body.branches]
    state = nnx.state(plain, nnx.Param)
    for i, connection in enumerate(connections):
        branch = nnx.state(connection.layer, nnx.Param)
        assert jax.tree.map(jnp.shape, branch) == jax.tree.map(jnp.shape, state.body.branches[i])


def test_inner_products_of_rotated_vectors_depend_on_the_distance_alone():
    a, b = (random_array((1, 1, 8), "float32", seed=s) for s in (1, 2))
    at = [rotate(jnp.broadcast_to(v, (12, 1, 8))) for v in (a, b)]
    products = np.asarray(jnp.einsum("thd,shd->ts", *at))
    for distance in (0, 3):
        diagonal = np.diagonal(products, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], rtol=1e-4, atol=1e-5)
    assert abs(products[0, 0] - products[0, 3]) > 1e-3
    np.testing.assert_allclose(jnp.linalg.norm(at[0], axis=-1), jnp.linalg.norm(a), rtol=1e-5)


def test_bfloat16():
    with jax.numpy_dtype_promotion("standard"):  # flax's RMSNorm promotes by itself
        logits = _apply(_model(dtype=jnp.bfloat16), TOKENS)
    assert logits.dtype == jnp.bfloat16
    np.testing.assert_allclose(logits.astype(jnp.float32), _apply(_model(), TOKENS), atol=0.1)


BAD = {
    "layers": ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
    "heads": ({"num_heads": 3}, "num_heads must be a divisor of 8"),
    "odd heads": ({"num_heads": 8}, "num_heads must be a divisor of 8 .* even width, got 8"),
    "no heads": ({"num_heads": 0}, "num_heads must be a divisor of 8"),
    "width": ({"hidden_features": 0}, "the number of features must be at least 1, got 0"),
    "streams": ({"hyper_connections": 0}, "num_streams must be at least 1, got 0"),
    "recompute": ({"recompute_every": 2}, "recompute_every must be None without hyper_connections"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options_are_named(name):
    options, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        _model(**options)
