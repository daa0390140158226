"""Checks of the arguments of ops at trace time."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn._arrays.arrays import put_copy
from jaxgnn._errors import bad_input
from jaxgnn.graph import CBSR, column_dtype
from jaxgnn.graph.csr.cbsr import bounded_rows


def from_numpy[*Trees](*trees: *Trees) -> tuple[*Trees]:
    """Converts floating NumPy arrays to JAX arrays: float64 to float32 unless x64 is enabled."""

    def convert(leaf):
        is_numpy = isinstance(leaf, np.ndarray) and np.issubdtype(leaf.dtype, np.floating)
        return put_copy(leaf) if is_numpy else leaf

    return jax.tree.map(convert, trees)


def check_float(
    op: str, argument: str, array: Any, min_ndim: int, *, may_be_empty: bool = False
) -> None:
    """Raises ValueError unless ``array`` is a floating array with enough, nonempty, axes."""
    if not isinstance(array, jax.Array) and not hasattr(array, "dtype"):
        raise bad_input(op, argument, "an array", type(array).__name__)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise bad_input(op, argument, "of a floating dtype", array.dtype)
    if array.ndim < min_ndim:
        raise bad_input(op, argument, f"of at least {min_ndim} axes", f"shape {array.shape}")
    if array.shape[-1] == 0 and not may_be_empty:
        raise bad_input(op, argument, "of at least one feature", f"shape {array.shape}")


def check_rows(op: str, argument: str, array: Any, rows: int, what: str) -> None:
    """Raises ValueError unless ``array`` [..., rows, features] has one row for each ``what``."""
    check_float(op, argument, array, 2)
    if array.shape[-2] != rows:
        expected = f"of shape [..., {rows}, features], one row for each {what} of the graph"
        raise bad_input(op, argument, expected, f"shape {array.shape}")


def check_cbsr(op: str, cbsr: Any) -> CBSR:
    """The compressed rows, with their columns in range.

    Raises:
      ValueError: unless ``cbsr`` is a CBSR of valid shapes and dtypes.
    """
    if not isinstance(cbsr, CBSR):
        raise bad_input(op, "cbsr", "a jaxgnn.graph.CBSR, as ops.maxk gives", type(cbsr).__name__)
    check_float(op, "cbsr.values", cbsr.values, 2)
    if not isinstance(cbsr.dim, int):
        raise bad_input(op, "cbsr.dim", "an int", repr(cbsr.dim))
    if cbsr.indices.shape != cbsr.values.shape:
        expected = f"of the shape of the values, {cbsr.values.shape}"
        raise bad_input(op, "cbsr.indices", expected, cbsr.indices.shape)
    if not 0 < cbsr.k <= cbsr.dim:
        raise bad_input(op, "cbsr.values", f"of 1 to dim = {cbsr.dim} columns", cbsr.k)
    if cbsr.indices.dtype != column_dtype(cbsr.dim):
        expected = f"{column_dtype(cbsr.dim)} for dim = {cbsr.dim}"
        raise bad_input(op, "cbsr.indices", expected, cbsr.indices.dtype)
    return bounded_rows(cbsr)


def check_choice(op: str, argument: str, value: Any, *choices: str | bool | None) -> None:
    """Raises ValueError unless ``value`` is one of ``choices``."""
    if not any(value is c or (isinstance(c, str) and value == c) for c in choices):
        raise bad_input(op, argument, " or ".join(map(repr, choices)), repr(value))
