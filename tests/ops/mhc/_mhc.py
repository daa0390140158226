"""Inputs of the ops of hyper-connections, away from every value at which a mistake hides."""

import jax
import jax.numpy as jnp

from jaxgnn.testing import random_array, to_float64

# (leading axes, n, dim): widths that no kernel tiles evenly, one stream, one token, no token.
SHAPES = (
    ((5,), 1, 7),
    ((1,), 2, 1),
    ((3,), 3, 64),
    ((2, 3), 4, 70),
    ((), 4, 16),
    ((4,), 8, 24),
    ((0,), 4, 16),
)


def width(implementation):
    """Of streams: the least that GPU kernels take, and for the others one that they do not."""
    return 64 if implementation == "pallas" else 24


def streams(batch, n, dim, dtype="float32", scale=1.0):
    """The streams x [*batch, n, dim]."""
    return random_array((*batch, n, dim), dtype, seed=1, scale=scale)


def parameters(n, dim, rows=None):
    """phi, alpha, bias and gamma: gamma is not one, nor alpha, nor bias zero."""
    rows = n * n + 2 * n if rows is None else rows
    phi = random_array((rows, n * dim), "float32", seed=2, scale=1.5 / (n * dim) ** 0.5)
    alpha = jnp.array([0.7, -1.3, 0.6])
    bias = random_array((rows,), "float32", seed=3, scale=0.5)
    gamma = 1.5 + random_array((n, dim), "float32", seed=4, scale=0.3)
    return phi, alpha, bias, gamma


def outputs(batch, n, dim, dtype="float32", scale=1.0):
    """The layer's output f [*batch, dim], h_post [*batch, n] and h_res [*batch, n, n]."""
    return (
        random_array((*batch, dim), dtype, seed=5, scale=scale),
        random_array((*batch, n), "float32", seed=6),
        random_array((*batch, n, n), "float32", seed=7),
    )


def streams_gradients(x, dh_in, dx, weight, h_pre, scale, dh_mix):
    """To phi, and to the streams: ``dx`` or None plus all that the other arguments make."""
    total = h_pre[:, :, None] * dh_in[:, None] + scale[:, None, None] * x
    total = total + (dh_mix @ weight).reshape(x.shape)
    return dh_mix.T @ x.reshape(x.shape[0], -1), total if dx is None else total + dx


def length(batch, n, dim):
    """Terms in the longest sum of a value or a gradient."""
    tokens = 1
    for size in batch:
        tokens *= size
    return max(n * dim, tokens * dim, (n * n + 2 * n), 1)


def rounded(a, dtype):
    """``a`` at the precision of ``dtype``; compilers may leave out a conversion there and back."""
    kept = jnp.finfo(dtype)
    return jax.lax.reduce_precision(a, kept.nexp, kept.nmant)


def exactly(function, *arguments, **options):
    """What a reference makes of these in float64, as arrays of the host.

    The arguments become float64 within the compiled program, and the results leave the device: the
    widest of them are 550 MB each, and several processes share a GPU.
    """

    @jax.jit
    def widened(arguments):
        return function(*to_float64(arguments), **options)

    with jax.enable_x64(True):
        return jax.device_get(widened(arguments))
