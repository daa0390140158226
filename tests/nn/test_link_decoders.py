"""Decoders score pairs of nodes as their formulas say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import nn
from jaxgnn.testing import random_array

H = random_array((5, 4), "float32", seed=0)
PAIRS = jnp.array([[[0, 1], [4, 4]], [[2, 1], [0, 3]]])


def test_the_dot_decoder_multiplies_embeddings_in_float32():
    h = np.asarray(H, np.float64)
    expected = (h[PAIRS[0]] * h[PAIRS[1]]).sum(axis=-1)
    np.testing.assert_allclose(nn.DotDecoder()(H, PAIRS), expected, rtol=1e-5)
    assert jax.eval_shape(nn.DotDecoder(), H.astype(jnp.bfloat16), PAIRS).dtype == jnp.float32


def test_the_mlp_decoder_sees_the_product_of_both_embeddings():
    decoder = nn.MLPDecoder(4, 6, num_layers=3, rngs=nnx.Rngs(0))
    y = np.asarray(H, np.float64)[PAIRS[0]] * np.asarray(H, np.float64)[PAIRS[1]]
    *hidden, last = (
        [np.asarray(p[...], np.float64) for p in (layer.kernel, layer.bias)]
        for layer in decoder.mlp.layers
    )
    for kernel, bias in hidden:
        y = np.maximum(y @ kernel + bias, 0)
    expected = (y @ last[0] + last[1])[..., 0]
    actual = jax.jit(decoder)(H, PAIRS)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(jax.jit(decoder)(H, PAIRS[::-1]), actual)


@pytest.mark.parametrize("make", [nn.DotDecoder, lambda: nn.MLPDecoder(4, 6, rngs=nnx.Rngs(0))])
def test_bad_input_is_refused_by_name(make):
    decoder = make()
    name = type(decoder).__name__
    for h, pairs, message in (
        (H[0], PAIRS, rf"{name}: h must be of shape \[nodes, features\], got shape \(4,\)"),
        (H, PAIRS[0].T[:1], rf"{name}: pairs must be integers of shape \[2, ...\]"),
        (H, PAIRS.astype(jnp.float32), rf"{name}: pairs must be integers"),
    ):
        with pytest.raises(ValueError, match=message):
            decoder(h, pairs)
