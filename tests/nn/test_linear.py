"""FusedLinear and FusedMLP in the place of nnx.Linear: values, parameters, conversion."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import nn, ops
from jaxgnn.testing import random_array

X = random_array((5, 8), "float32", seed=0)
WIDTHS = (8, 16, 12, 4)


class _MLP(nnx.Module):
    """The layers that FusedMLP replaces."""

    def __init__(self, widths, rngs, **options):
        pairs = itertools.pairwise(widths)
        self.layers = nnx.List([nnx.Linear(*pair, **options, rngs=rngs) for pair in pairs])

    def __call__(self, x):
        *hidden, last = self.layers
        for layer in hidden:
            x = jax.nn.gelu(layer(x))
        return last(x)


PLAIN = {
    "linear": lambda **o: nnx.Linear(8, 4, rngs=nnx.Rngs(0), **o),
    "mlp": lambda **o: _MLP(WIDTHS, nnx.Rngs(0), **o),
}
FUSED = {
    "linear": lambda seed=0, **o: nn.FusedLinear(8, 4, rngs=nnx.Rngs(seed), **o),
    "mlp": lambda seed=0, **o: nn.FusedMLP(WIDTHS, activation="gelu", rngs=nnx.Rngs(seed), **o),
}
CONVERT = {
    "linear": nn.FusedLinear.from_linear,
    "mlp": lambda mlp: nn.FusedMLP.from_linears(mlp.layers, activation="gelu"),
}
OPTIONS = {
    "default": {},
    "no bias": {"use_bias": False},
    "bfloat16": {"dtype": jnp.bfloat16},
    "bfloat16 parameters": {"param_dtype": jnp.bfloat16, "dtype": jnp.bfloat16},
}


def _assert_same(actual, expected):
    # The plain layers round behind the product as well as behind the bias.
    tolerance = 1e-6 if actual.dtype == jnp.float32 else 2e-2
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(
        actual.astype(jnp.float32), expected.astype(jnp.float32), rtol=tolerance, atol=tolerance
    )


@pytest.mark.costly
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("kind", PLAIN)
def test_parameters_names_and_values_are_those_of_nnx_linear(kind, options):
    plain, fused = PLAIN[kind](**options), FUSED[kind](**options)
    expected, actual = nnx.state(plain), nnx.state(fused)
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)
    _assert_same(fused(X), plain(X))


@pytest.mark.parametrize("kind", PLAIN)
def test_a_checkpoint_of_one_is_read_by_the_other(kind):
    plain, fused = PLAIN[kind](), FUSED[kind](seed=1)
    assert float(jnp.abs(fused(X) - plain(X)).max()) > 0.1
    saved = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(plain)))
    state = nnx.state(fused)
    nnx.replace_by_pure_dict(state, saved)
    nnx.update(fused, state)
    _assert_same(fused(X), plain(X))
    nnx.update(plain, nnx.state(FUSED[kind](seed=2)))
    _assert_same(FUSED[kind](seed=2)(X), plain(X))


@pytest.mark.again("tests/ops/dense/test_fused_linear.py")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("kind", PLAIN)
def test_a_converted_layer_computes_the_same_and_shares_its_parameters(kind, options):
    plain = PLAIN[kind](**options)
    fused = CONVERT[kind](plain)
    # As programs, of which the op is one by itself: what is fused rounds less.
    run = nnx.jit(lambda layer: layer(X))
    _assert_same(run(fused), run(plain))
    nnx.update(plain, jax.tree.map(lambda p: 2 * p, nnx.state(plain)))
    _assert_same(run(fused), run(plain))


@pytest.mark.parametrize("kind", PLAIN)
def test_under_jit_gradients_are_those_of_the_plain_layers(kind):
    @nnx.jit
    def gradients(layer, x):
        return nnx.value_and_grad(lambda layer: jnp.mean(layer(x) ** 2))(layer)

    pairs = (gradients(kinds[kind](), X) for kinds in (FUSED, PLAIN))
    for actual, expected in zip(*map(jax.tree.leaves, pairs), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_activation_and_precision_reach_the_op():
    plain = nnx.Linear(8, 4, rngs=nnx.Rngs(0))
    for activation, expected in {"relu": jax.nn.relu, "silu": jax.nn.silu}.items():
        fused = nn.FusedLinear.from_linear(plain, activation=activation, precision="highest")
        _assert_same(fused(X), expected(plain(X)))
        assert "HIGHEST" in str(jax.make_jaxpr(fused)(X))


def test_maxk_gives_compressed_rows():
    fused = nn.FusedLinear(8, 16, activation=ops.MaxK(3), rngs=nnx.Rngs(0))
    dense = nn.FusedLinear(8, 16, rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(fused(X).todense(), nn.MaxK(3)(dense(X)).todense())


def _linear(**options):
    return nnx.Linear(8, 4, rngs=nnx.Rngs(0), **options)


BAD = {
    "width": (
        lambda: nn.FusedLinear(0, 4, rngs=nnx.Rngs(0)),
        ["FusedLinear: the number of features", "at least 1", "got 0"],
    ),
    "not a linear layer": (
        lambda: nn.FusedLinear.from_linear(nnx.Einsum("ab,bc->ac", (2, 3), rngs=nnx.Rngs(0))),
        ["FusedLinear.from_linear: linear", "nnx.Linear", "Einsum"],
    ),
    "adapters": (
        lambda: nn.FusedLinear.from_linear(nnx.LoRALinear(8, 4, lora_rank=2, rngs=nnx.Rngs(0))),
        ["FusedLinear.from_linear: linear", "nnx.Linear", "LoRALinear"],
    ),
    "own product": (
        lambda: nn.FusedLinear.from_linear(_linear(dot_general=print, precision="highest")),
        ["FusedLinear.from_linear: linear", "of its own", "with precision, dot_general"],
    ),
    "input": (
        lambda: nn.FusedLinear(4, 4, rngs=nnx.Rngs(0))(X),
        ["fused_linear: kernel", "(8, features)", "(4, 4)"],
    ),
    "activation": (
        lambda: FUSED["linear"](activation="softplus")(X),
        ["FusedLinear: activation", "'softplus'"],
    ),
    "one width": (
        lambda: nn.FusedMLP([8], activation=None, rngs=nnx.Rngs(0)),
        ["FusedMLP: features", "at least two", "[8]"],
    ),
    "a width": (
        lambda: nn.FusedMLP([8, 0, 2], activation=None, rngs=nnx.Rngs(0)),
        ["FusedMLP: the number of features", "got 0"],
    ),
    "no layers": (
        lambda: nn.FusedMLP.from_linears([], activation=None),
        ["FusedMLP.from_linears: linears", "one layer", "none"],
    ),
    "layers": (
        lambda: nn.FusedMLP.from_linears([_linear(), _linear()], activation=None),
        ["FusedMLP.from_linears: linears[1]", "in_features 4", "got 8"],
    ),
    "dtypes": (
        lambda: nn.FusedMLP.from_linears([_linear(), _linear(dtype="float16")], activation=None),
        ["FusedMLP.from_linears: linears[1]", "dtype None", "float16"],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options_are_named(name):
    call, fragments = BAD[name]
    with pytest.raises(ValueError) as error:
        call()
    for fragment in fragments:
        assert fragment in str(error.value), f"{fragment!r} not in: {error.value}"
