"""Tolerances: one rule, from the dtype and the length of the longest sum."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# A sum of n float32 terms of random signs errs by about sqrt(n) roundings; four times that passes.
_SLACK = 4.0


def tolerances(
    dtype: Any, reduction_length: int, operands: Any = None, roundings: int = 1
) -> tuple[float, float]:
    """Relative error of a stored result, and of a float32 sum against the largest result.

    Args:
      dtype: dtype of the stored result.
      reduction_length: terms in the longest sum of the result.
      operands: dtype to which the terms of the sum were rounded before, or None. Their errors add
        up as the terms do.
      roundings: how many times in succession the terms were rounded to ``operands``.

    Returns:
      ``(storage, accumulation)``: a result may differ by ``storage`` times itself plus
      ``accumulation`` times the largest magnitude among the expected results.
    """
    dtype = jnp.dtype(dtype)
    accumulator = jnp.float64 if dtype == jnp.float64 else jnp.float32
    storage = float(jnp.finfo(dtype).eps)
    accumulation = float(jnp.finfo(accumulator).eps) * _SLACK * np.sqrt(max(reduction_length, 1))
    if operands is not None:
        accumulation += roundings * float(jnp.finfo(operands).eps)
    return storage, accumulation


def assert_close(
    actual: Any,
    expected: Any,
    *,
    reduction_length: int,
    operands: Any = None,
    roundings: int = 1,
    largest_term: float = 0.0,
    err_msg: str = "",
) -> None:
    """Asserts that ``actual``, of its own dtype, is ``expected`` (float64) up to rounding.

    NaN and infinities must be in the same places. The other options are those of ``tolerances``.

    Args:
      actual: array to test.
      expected: what it should be.
      reduction_length: see ``tolerances``.
      operands: see ``tolerances``.
      roundings: see ``tolerances``.
      largest_term: magnitude of the largest term of the sums, where these may cancel: an error is
        relative to this, if it is more than the largest result.
      err_msg: name of the compared array, for the message.
    """
    storage, accumulation = tolerances(actual.dtype, reduction_length, operands, roundings)
    actual64 = np.asarray(actual).astype(np.float64)
    expected64 = np.asarray(expected).astype(np.float64)
    assert actual64.shape == expected64.shape, f"{actual64.shape} != {expected64.shape} {err_msg}"
    finite = np.abs(expected64[np.isfinite(expected64)])
    largest = max(float(finite.max(initial=0.0)), largest_term)
    np.testing.assert_allclose(
        actual64, expected64, rtol=storage, atol=accumulation * largest, err_msg=err_msg
    )


def to_float64(tree: Any) -> Any:
    """The same pytree with its floating leaves in float64; needs ``jax.enable_x64``."""

    def widen(leaf):
        return leaf.astype(jnp.float64) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(widen, tree)


def random_array(shape: tuple[int, ...], dtype: Any, seed: int, scale: float = 1.0) -> jax.Array:
    """Normal entries times ``scale``, rounded to ``dtype``."""
    values = np.random.default_rng(seed).normal(size=shape) * scale
    # Rounded in NumPy, where nothing is compiled for each shape; to infinity as well, as in JAX.
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float32).astype(jnp.dtype(dtype))
    # Without the dtype, JAX would compile an identity program for each shape.
    return jnp.asarray(rounded, rounded.dtype)
