"""Dtypes of sums and of stored arrays, shared by the references."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array, lax


def accumulation_dtype(*dtypes) -> jnp.dtype:
    """float64 if any dtype is float64, else float32."""
    is_double = any(jnp.dtype(d) == jnp.float64 for d in dtypes)
    return jnp.dtype(jnp.float64 if is_double else jnp.float32)


def stored(value: Array, dtype: Any) -> Array:
    """Rounds ``value`` to ``dtype``, even where no array is stored.

    XLA for GPUs removes a cast between fused operations, but not an explicit rounding of bits.
    """
    info = jnp.finfo(dtype)
    if info.bits < jnp.finfo(value.dtype).bits:
        value = lax.reduce_precision(value, exponent_bits=info.nexp, mantissa_bits=info.nmant)
    return value.astype(dtype)
