"""Checking an op's values and gradients against its float64 reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn.testing.numerics import assert_close, random_array, to_float64


def check_against_float64(
    function: Callable[..., jax.Array],
    reference: Callable[..., jax.Array],
    *args: Any,
    reduction_length: int,
    gradient_length: int | None = None,
) -> None:
    """Compares value and every gradient with plain autodiff of the reference in float64.

    Args:
      function: what is tested, one array out; runs under ``jit``.
      reference: the same maths; gets the arguments in float64.
      *args: floating arrays, all differentiated.
      reduction_length: terms in the longest sum of the value.
      gradient_length: terms in the longest sum of a gradient; default ``reduction_length``.
    """
    value, pull_back = jax.vjp(jax.jit(function), *args)
    cotangent = random_array(value.shape, value.dtype, seed=99)
    gradients = pull_back(cotangent)
    with jax.enable_x64(True):
        wide_value, wide_pull_back = jax.vjp(reference, *to_float64(args))
        wide_gradients = wide_pull_back(to_float64(cotangent))
        assert wide_value.dtype == jnp.float64
    assert_close(value, wide_value, reduction_length=reduction_length, err_msg="value")
    length = reduction_length if gradient_length is None else gradient_length
    for i, (actual, expected, arg) in enumerate(zip(gradients, wide_gradients, args, strict=True)):
        assert actual.dtype == arg.dtype, f"gradient {i} is {actual.dtype} for a {arg.dtype}"
        assert_close(actual, expected, reduction_length=length, err_msg=f"gradient {i}")


def check_numerical_gradients(function: Callable[..., Any], *args: jax.Array) -> None:
    """Compares reverse-mode gradients with finite differences in float32."""
    from jax.test_util import check_grads

    check_grads(function, args, order=1, modes=("rev",), atol=2e-2, rtol=2e-2, eps=1e-2)


def assert_bit_equal(first: Any, second: Any) -> None:
    """Asserts that two pytrees of arrays are equal to the last bit, NaN payloads included."""
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert a.dtype == b.dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
