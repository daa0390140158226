"""Byte order of arrays of NumPy: files have both, JAX takes that of the machine."""

from __future__ import annotations

from typing import Any

import numpy as np


def in_native_order(array: Any) -> Any:
    """Returns the array in the byte order of the machine; anything but NumPy's is unchanged.

    Arrays of the other byte order come from files, such as FITS, netCDF and big-endian ``.npy``.
    NumPy computes with them; ``jax.numpy`` refuses them.
    """
    if not isinstance(array, np.ndarray) or array.dtype.isnative:
        return array
    return array.astype(array.dtype.newbyteorder("="))
