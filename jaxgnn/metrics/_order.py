"""Scores of the host as numbers of the device that have the same order.

Without ``jax_enable_x64`` the device has neither integers of 64 bits nor float64, and integers
beside floats are rounded. Metrics use the order of scores alone, so scores that the device can not
hold are replaced by their ranks.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxgnn._arrays.arrays import is_concrete
from jaxgnn._errors import bad_input

_BASE = 2**32
_SMALLEST_NORMAL = np.finfo(np.float32).smallest_normal


def comparable(where: str, **scores: Any) -> list[Array]:
    """Returns scores that are compared with each other as arrays of one dtype of the device.

    The order is that of the given numbers, and so is which of them are equal. Scores that are
    traced with others can not be ranked: floats are then rounded to the common dtype. Errors name
    ``where`` and the argument.

    Raises:
      ValueError: if integers exceed the common dtype and some of the scores are traced.
    """
    arrays = [a.astype(np.uint8) if a.dtype == bool else a for a in scores.values()]
    dtype = _common_dtype(arrays)
    held = [_is_held(array, dtype) for array in arrays]
    if not all(held):
        if is_concrete(*arrays):
            return _ranked(arrays, jnp.float64 if dtype == jnp.float64 else jnp.float32)
        if jnp.issubdtype(dtype, jnp.integer):
            name, array = list(zip(scores, arrays, strict=True))[held.index(False)]
            expected = f"integers that {dtype.name} holds where others are traced"
            raise bad_input(where, name, expected, f"dtype {array.dtype}; convert both to floats")
    return [jnp.asarray(array, dtype) for array in arrays]


def _common_dtype(arrays: list[Any]) -> np.dtype:
    """The dtype of the device in which these arrays are compared."""
    dtypes = {np.dtype(array.dtype) for array in arrays}
    if len(dtypes) > 1:  # beside a float of 16 bits JAX rounds integers to 8 bits
        short = {d for d in dtypes if jnp.issubdtype(d, jnp.floating) and d.itemsize < 4}
        dtypes = dtypes - short | ({np.dtype(np.float32)} if short else set())
    with jax.numpy_dtype_promotion("standard"):
        return jax.dtypes.canonicalize_dtype(functools.reduce(jnp.promote_types, dtypes))


def _is_held(array: Any, dtype: np.dtype) -> bool:
    """Whether the dtype has all numbers of an array: of its dtype, or of its values if known."""
    if jnp.issubdtype(array.dtype, jnp.floating):
        return _are_floats_held(array, dtype)
    if jnp.issubdtype(dtype, jnp.integer):
        least, most = int(jnp.iinfo(dtype).min), int(jnp.iinfo(dtype).max)
    else:  # the integers that a float has without a gap
        most = 2 ** (jnp.finfo(dtype).nmant + 1)
        least = -most
    own = jnp.iinfo(array.dtype)
    if least <= own.min and own.max <= most:
        return True
    if not is_concrete(array):
        return False
    values = np.asarray(array)
    return not values.size or (least <= values.min() and values.max() <= most)


def _are_floats_held(array: Any, dtype: np.dtype) -> bool:
    if not jnp.issubdtype(dtype, jnp.floating):
        return False
    if not isinstance(array, np.ndarray):  # of the device, so that the common dtype has it
        return True
    with np.errstate(over="ignore", under="ignore"):
        made = array.astype(dtype)
    # Devices take numbers below the smallest normal one for zero.
    is_normal = (array == 0) | (abs(made) >= jnp.finfo(dtype).smallest_normal)
    return bool(np.all(((made == array) & is_normal) | (array != array)))


def _ranked(arrays: list[Any], dtype: Any) -> list[Array]:
    """Ranks among the numbers of all arrays, as floats; NaN in the place of what is not finite."""
    arrays = [np.asarray(array) for array in arrays]
    whole, rest = (np.concatenate(parts) for parts in zip(*map(_split, arrays), strict=True))
    order = np.lexsort((rest, whole))
    grows = (np.diff(whole[order]) != 0) | (np.diff(rest[order]) != 0)
    ranks = np.empty(len(order), np.uint32)
    ranks[order] = np.concatenate([[0], np.cumsum(grows)])[: len(order)]
    # Positive floats are in the order of their bits; the first is the smallest normal one.
    ranks = (ranks + _SMALLEST_NORMAL.view(np.uint32)).view(np.float32)
    ranks[~np.isfinite(whole)] = np.nan
    ends = np.cumsum([array.size for array in arrays])[:-1]
    parts = zip(np.split(ranks, ends), arrays, strict=True)
    return [jnp.asarray(part.reshape(array.shape), dtype) for part, array in parts]


def _split(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Multiples of 2^32 and the rest of each number, both exact in float64 for every dtype."""
    is_unsigned = array.dtype == np.uint64
    kind = np.int64 if jnp.issubdtype(array.dtype, jnp.integer) else np.float64
    values = array.ravel().astype(np.uint64 if is_unsigned else kind)
    base = values.dtype.type(_BASE)
    with np.errstate(invalid="ignore"):  # of an infinity
        rest = np.fmod(values, base)
        return (values - rest) / base, rest.astype(np.float64)
