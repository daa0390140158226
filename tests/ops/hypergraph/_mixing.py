"""Arguments for the mixing of small hypergraphs, and what it is in float64."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from jaxgnn.ops._hypergraph.reference import hypergraph_conv as reference
from jaxgnn.testing import assert_close, random_array, to_float64


def inputs(tokens, nodes, width, dtype, *, bias=True, residual=True):
    """``x, matrix, bias, residual``; the last two may be None."""
    shape = tokens, nodes, width
    return (
        random_array(shape, dtype, seed=1),
        random_array((nodes, nodes), "float32", seed=2, scale=0.5),
        random_array((width,), dtype, seed=3) if bias else None,
        random_array(shape, dtype, seed=4) if residual else None,
    )


@functools.cache
def _compiled(activation):
    def both(x, matrix, bias, residual, dy):
        y = reference.mix(x, matrix, bias, residual, activation=activation)
        return y, *reference.mix_backward(x, matrix, bias, dy, activation=activation)

    return jax.jit(both)


def exactly(activation, given, dy):
    """The value and the gradients to ``x``, the matrix and the bias, in float64."""
    with jax.enable_x64(True):
        return _compiled(activation)(*to_float64((*given, dy)))


def check(made, activation, given, dy):
    """Value and gradients are those of the formula in float64.

    Relu and its square have no place here: where the sums are about zero, their slopes are those
    of rounding.
    """
    exact = exactly(activation, given, dy)
    tokens, nodes, width = given[0].shape
    lengths = {"value": nodes, "x": nodes, "matrix": tokens * width, "bias": tokens * nodes}
    for (name, length), actual, expected in zip(lengths.items(), made, exact, strict=True):
        if expected is None:
            assert actual is None, name
        else:
            assert_close(actual, expected, reduction_length=length, err_msg=name)


def integers(tokens, nodes, width, dtype):
    """Small whole numbers, of which every sum is exact."""
    arrays = inputs(tokens, nodes, width, "float32")
    made = [jnp.round(2 * array) for array in arrays]
    x, matrix, bias, residual = made
    return x.astype(dtype), matrix, bias.astype(dtype), residual.astype(dtype)


def large_and_small():
    """One token of one node, which the matrix leaves as it is."""
    sizes = [0.0, 1e-30, 1e-4, 0.3, 1.0, 3.0, 8.0, 12.0, 15.0, 19.0, 25.0, 39.0, 60.0, 100.0, 1e4]
    sizes.append(1e18)
    x = jnp.array([*sizes, *(-size for size in sizes)], "float32").reshape(1, 1, 32)
    return x, jnp.ones((1, 1), "float32"), None, None
