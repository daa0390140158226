"""Each preset against its own formula, written down for one token in float64.

The formulae share nothing with the library, nor with each other.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import ops
from jaxgnn.testing import random_array
from tests.ops.mhc._mhc import parameters, streams

N, DIM, TOKENS = 4, 12, 5


def _sigmoid(z):
    return 1 / (1 + np.exp(-z))


def _paper(x, phi, alpha, b):
    """From https://arxiv.org/abs/2512.24880: exp, then columns and rows normalised, 20 times."""
    flat = x.reshape(-1)
    r = np.linalg.norm(flat) / np.sqrt(flat.size)
    pre, post, res = np.split(phi @ flat / r, [N, 2 * N])
    h_pre = _sigmoid(alpha[0] * pre + b[:N])
    h_post = 2 * _sigmoid(alpha[1] * post + b[N : 2 * N])
    m = np.exp((alpha[2] * res + b[2 * N :]).reshape(N, N))
    for _ in range(20):
        m = m / m.sum(axis=0)
        m = m / m.sum(axis=1)[:, None]
    return h_pre @ x, lambda f: m @ x + np.outer(h_post, f)


def _seed(x, phi, alpha, b, gamma):
    """Ascend's MhcPre, MhcSinkhorn and MhcPost; logits in its first result."""
    v = x.reshape(-1)
    inv_rms = 1 / np.sqrt((v**2).mean() + 1e-6)
    h = (phi @ (v * gamma.reshape(-1))) * inv_rms
    h_pre = _sigmoid(alpha[0] * h[:4] + b[:4]) + 1e-6
    h_post = 2.0 * _sigmoid(alpha[1] * h[4:8] + b[4:8])
    logits = alpha[2] * h[8:].reshape(4, 4) + b[8:].reshape(4, 4)
    y = _softmax_rows_first(logits, 1e-6, 20)
    return (h_pre[:, None] * x).sum(axis=0), lambda f: y.T @ x + h_post[:, None] * f


def _tilekernels(x, phi, alpha, b, gamma):
    """Gamma folded into the projection, post not doubled, ten iterations, Hᵀ x applied."""
    folded = phi * gamma.reshape(1, -1)
    mixes = folded @ x.reshape(-1) / np.sqrt(np.mean(np.square(x)) + 1e-6)
    mixes = mixes * np.concatenate([[a] * k for a, k in zip(alpha, (N, N, N * N), strict=True)]) + b
    pre, post = _sigmoid(mixes[:N]) + 1e-6, _sigmoid(mixes[N : 2 * N])
    comb = _softmax_rows_first(mixes[2 * N :].reshape(N, N), 1e-6, 10)
    return np.einsum(
        "n,nd->d", pre, x
    ), lambda f: np.einsum("io,id->od", comb, x) + np.outer(post, f)


def _liger(x, phi, alpha, b):
    """No gamma, no eps in pre; columns exact though H x is applied."""
    logits = phi @ x.ravel() * (np.mean(x.ravel() ** 2) + 1e-6) ** -0.5
    pre = _sigmoid(alpha[0] * logits[:N] + b[:N])
    post = 2 * _sigmoid(alpha[1] * logits[N : 2 * N] + b[N : 2 * N])
    res = _softmax_rows_first((alpha[2] * logits[2 * N :] + b[2 * N :]).reshape(N, N), 1e-6, 20)
    return pre @ x, lambda f: res @ x + post[:, None] * f[None]


def _softmax_rows_first(logits, eps, repeat):
    y = np.exp(logits - logits.max(axis=1, keepdims=True))
    y = y / y.sum(axis=1, keepdims=True) + eps
    y = y / (y.sum(axis=0, keepdims=True) + eps)
    for _ in range(repeat - 1):
        y = y / (y.sum(axis=1, keepdims=True) + eps)
        y = y / (y.sum(axis=0, keepdims=True) + eps)
    return y


FORMULAE = {"paper": _paper, "seed": _seed, "tilekernels": _tilekernels, "liger": _liger}
HAVE_GAMMA = ("seed", "tilekernels")


@pytest.mark.parametrize("scale", [0.1, 3.0])
@pytest.mark.parametrize("preset", FORMULAE)
def test_a_preset_reproduces_its_formula(preset, scale):
    convention = ops.MHC_PRESETS[preset]
    x, params = streams((TOKENS,), N, DIM, scale=scale), parameters(N, DIM)
    params = params if preset in HAVE_GAMMA else params[:3]
    f = random_array((TOKENS, DIM), "float32", seed=8)
    h_in, h_post, logits = ops.mhc_pre(x, *params, **convention.pre)
    h_res = ops.sinkhorn(logits, **convention.sinkhorn)
    y = ops.mhc_post(x, f, h_post, h_res, **convention.post)
    wide = [np.asarray(p, np.float64) for p in params]
    for token in range(TOKENS):
        expected_in, post = FORMULAE[preset](np.asarray(x[token], np.float64), *wide)
        np.testing.assert_allclose(h_in[token], expected_in, rtol=1e-4, atol=1e-5 * scale)
        expected = post(np.asarray(f[token], np.float64))
        np.testing.assert_allclose(y[token], expected, rtol=1e-4, atol=1e-5)


def test_defaults_of_the_ops_are_the_default_convention():
    x, params = streams((TOKENS,), N, DIM), parameters(N, DIM)
    convention = ops.MHCConvention()
    default = ops.mhc_pre(x, *params)
    jax.tree.map(np.testing.assert_array_equal, default, ops.mhc_pre(x, *params, **convention.pre))
    h = ops.sinkhorn(default[2])
    np.testing.assert_array_equal(h, ops.sinkhorn(default[2], **convention.sinkhorn))
    f = x[:, 0]
    np.testing.assert_array_equal(
        ops.mhc_post(x, f, default[1], h),
        ops.mhc_post(x, f, default[1], h, **convention.post),
    )


def test_presets_can_not_be_changed_by_accident():
    with pytest.raises(TypeError):
        ops.MHC_PRESETS["paper"] = ops.MHCConvention()
    with pytest.raises(AttributeError):
        ops.MHC_PRESETS["paper"].eps = 1.0


def test_row_last_mixing_keeps_equal_streams_equal_and_column_last_only_about():
    x = jnp.broadcast_to(random_array((DIM,), "float32", seed=3), (N, DIM))
    logits = random_array((N, N), "float32", seed=4, scale=3.0)
    for preset in ("paper", "tilekernels", "seed"):
        convention = ops.MHC_PRESETS[preset]
        h = ops.sinkhorn(logits, **convention.sinkhorn)
        y = ops.mhc_post(x, jnp.zeros(DIM), jnp.zeros(N), h, **convention.post)
        np.testing.assert_allclose(y, x, rtol=1e-5, atol=1e-5)
