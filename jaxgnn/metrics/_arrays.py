"""Shared parts of the scores: checks of their arguments, and means with few roundings."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Num

from jaxgnn._arrays.arrays import in_native_order
from jaxgnn._errors import bad_input

# Number of terms that are added sequentially.
_MOST_IN_TURN = 32


def as_numbers(where: str, argument: str, values: Any) -> Any:
    """Returns numbers or flags as an array of NumPy or of JAX of at least one axis, unrounded."""
    array = in_native_order(
        values if hasattr(values, "dtype") else _of_list(where, argument, values)
    )
    kinds = (jnp.floating, jnp.integer, jnp.bool_)
    if not any(jnp.issubdtype(array.dtype, kind) for kind in kinds):
        raise bad_input(where, argument, "an array of real numbers", f"dtype {array.dtype}")
    if array.ndim == 0:
        raise bad_input(where, argument, "an array of at least one axis", "a single number")
    return array


def as_classes(labels: Any) -> Num[Array, "*shape"]:
    """Returns labels as an array of the device: 0 and 1, below zero or NaN for none, or others.

    Known ones become int8: labels of more bits could become 0 or 1 on the device.
    """
    if not isinstance(labels, np.ndarray):
        return labels.astype(jnp.int8) if labels.dtype == bool else jnp.asarray(labels)
    others = np.where(labels > 0, 2, -1)
    return jnp.asarray(np.where((labels == 0) | (labels == 1), labels, others), jnp.int8)


def as_mask(where: str, argument: str, mask: Any, shape: tuple[int, ...]) -> Bool[Array, "*shape"]:
    """The mask, checked and broadcast to the shape; None selects all."""
    if mask is None:
        return jnp.ones(shape, bool)
    mask = mask if hasattr(mask, "dtype") else np.asarray(mask)
    if mask.dtype != bool or not _broadcasts(mask.shape, shape):
        expected = f"None, or of dtype bool and of a shape that broadcasts to {shape}"
        raise bad_input(where, argument, expected, f"{mask.dtype} of shape {mask.shape}")
    return jnp.broadcast_to(jnp.asarray(mask), shape)


def mean_where(
    values: Float[Array, "*batch n"], counted: Bool[Array, "*batch n"]
) -> Float[Array, "*batch"]:
    """The mean of the selected values; NaN if there are none."""
    return _sum(jnp.where(counted, values, 0)) / jnp.sum(counted, -1).astype(values.dtype)


def all_finite(
    values: Num[Array, "*batch n"], counted: Bool[Array, "*batch n"]
) -> Bool[Array, "*batch"]:
    """Whether all selected values are finite."""
    return jnp.all(jnp.isfinite(values) | ~counted, -1)


def result_dtype(*arrays: Array) -> Any:
    """float64 for scores of float64, else float32."""
    is_wide = jnp.result_type(*arrays) == jnp.float64
    return jnp.float64 if is_wide else jnp.float32


def _sum(values: Float[Array, "*batch n"]) -> Float[Array, "*batch"]:
    """The sum over the last axis, in parts of 32, whose error does not grow with their number.

    A CPU compiler may add all terms sequentially, and lose three digits with a million terms in
    float32.
    """
    while values.shape[-1] > _MOST_IN_TURN:
        missing = -values.shape[-1] % _MOST_IN_TURN
        padding = [(0, 0)] * (values.ndim - 1) + [(0, missing)]
        parts = jnp.pad(values, padding).reshape(*values.shape[:-1], -1, _MOST_IN_TURN)
        values = jnp.sum(parts, -1)
    return jnp.sum(values, -1)


def _of_list(where: str, argument: str, values: Any) -> np.ndarray:
    """The array of a list; NumPy rounds integers beside others to float64."""
    array = np.asarray(values)
    if array.dtype == np.float64 and np.any(np.abs(array) >= 2.0**53):
        given = np.asarray(values, object)
        for number, read in zip(given.flat, array.flat, strict=True):
            if isinstance(number, int) and number != float(read):
                raise bad_input(where, argument, "numbers that one dtype holds", number)
    return array


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    try:
        return jnp.broadcast_shapes(shape, to) == to
    except ValueError:
        return False
