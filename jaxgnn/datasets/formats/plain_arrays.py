"""Converts bytes of a file to arrays of plain numbers and strings only.

A dtype with fields, objects or subarrays can turn bytes into addresses, and a shape that does not
fit its bytes reads past them. Here dtypes have no parts, and every byte is accounted for.
"""

import math
import re
from typing import Any

import numpy as np

_PLAIN = re.compile(r"[<>=|]?(b1|[iu][1248]|f[248]|[SU][1-9][0-9]{0,8})", re.ASCII)
# Numpy's notation of floats that it does not support itself, such as bfloat16: by their size.
_SHORT_FLOAT = re.compile(r"[<>=|]?V[12]", re.ASCII)
_MOST_AXES = 32
_LAST_INT32 = np.iinfo(np.int32).max
_LAST_CODE_POINT = 0x10FFFF


def plain_dtype(text: Any, *, short_floats: bool = False) -> np.dtype:
    """The dtype of a name such as "<f8".

    Args:
      text: bools, integers and floats of at most eight bytes, or strings, in numpy's notation.
      short_floats: whether floats of one or two bytes that numpy does not support are read too, as
        bytes.

    Raises:
      ValueError: the dtype is of any other kind.
    """
    names = [_PLAIN, _SHORT_FLOAT] if short_floats else [_PLAIN]
    if not isinstance(text, str) or not any(name.fullmatch(text) for name in names):
        raise ValueError(f"expected a dtype of plain numbers or strings, got {_quote(text)}")
    return np.dtype(text)


def array_size(dtype: np.dtype, shape: Any) -> int:
    """Number of bytes of an array.

    Raises:
      ValueError: ``shape`` is not a tuple of sizes.
    """
    sizes: tuple[Any, ...] = (None,)
    if isinstance(shape, tuple) and len(shape) <= _MOST_AXES:
        sizes = shape
    if not all(type(size) is int and size >= 0 for size in sizes):
        raise ValueError(f"expected a shape of at most {_MOST_AXES} sizes, got {_quote(shape)}")
    count = math.prod(sizes)
    if count == 0 and max(sizes, default=0) > _LAST_INT32:
        raise ValueError(f"expected a shape that numpy can have, got {_quote(shape)}")
    return count * dtype.itemsize


def array_of(data: Any, dtype: np.dtype, shape: Any, *, columns_first: bool) -> np.ndarray:
    """The array of all of ``data``, in the byte order of this machine.

    Args:
      data: bytes, which the array uses without a copy if they are already in this order.
      dtype: a dtype without fields, objects or subarrays.
      shape: shape of the array.
      columns_first: whether the first axis varies fastest, in Fortran order.

    Raises:
      ValueError: there are too many or too few bytes, or invalid values.
    """
    size = array_size(dtype, shape)
    if size != len(data):
        raise ValueError(f"expected {size} bytes for {dtype}{list(shape)}, got {len(data)}")
    if not size:
        return np.zeros(shape, dtype.newbyteorder("="))
    values = np.frombuffer(data, dtype).reshape(shape, order="F" if columns_first else "C")
    _require_values(values)
    return values.astype(dtype.newbyteorder("="), order="K", copy=False)


def _require_values(values: np.ndarray) -> None:
    """Raises if bytes are not valid values of their dtype, which numpy does not check."""
    kind, flat = values.dtype.kind, values.ravel(order="K")
    if kind == "b" and flat.view(np.uint8).max() > 1:
        raise ValueError("expected truth values 0 or 1")
    if kind == "U" and flat.view(values.dtype.str[0] + "u4").max() > _LAST_CODE_POINT:
        raise ValueError("expected characters of Unicode")


def _quote(value: Any) -> str:
    text = repr(value) if isinstance(value, str | int | tuple) else f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:80] + "..."
