"""Accumulation dtype shared by the references."""

from __future__ import annotations

import jax.numpy as jnp


def accumulation_dtype(*dtypes) -> jnp.dtype:
    """float64 if any dtype is float64, else float32."""
    is_double = any(jnp.dtype(d) == jnp.float64 for d in dtypes)
    return jnp.dtype(jnp.float64 if is_double else jnp.float32)
