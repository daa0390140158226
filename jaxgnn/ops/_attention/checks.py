"""Checks of the arguments of attention, and their conversion to ``Operands``."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from jaxgnn._errors import bad_input
from jaxgnn.graph import CBSR, CSRGraph
from jaxgnn.ops._maxk.maxk import todense
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.arguments import Arrays
from jaxgnn.ops.core.checks import check_cbsr, check_float, from_numpy

INSTEAD_OF_WEIGHTS = "give their logarithms as edge_logits"


@dataclass(frozen=True)
class Checker(Arrays):
    """Reads the arguments of one call, and raises errors in the name of the op.

    Attributes:
      dtype: dtype of the values; other arrays have it too, unless they are float32.
    """

    dtype: Any

    @classmethod
    def start(
        cls, op: str, graph: CSRGraph, argument: str, rows: Any, axes: int, dtype: Any
    ) -> Checker:
        """The checks of a call with this graph and this array of the receivers.

        Args:
          op: name of the op.
          graph: graph of ``open_graph``.
          argument: name of ``rows``.
          rows: array of the receivers, [*batch, N, heads], with another axis for ``axes`` 3.
          axes: number of axes after the batch axes.
          dtype: dtype of the values.
        """
        check_float(op, argument, rows, axes)
        return cls(op, graph, tuple(rows.shape[: rows.ndim - axes]), jnp.dtype(dtype))

    def edges(self, argument: str, array: Any, *tail: int | None, dtype: Any = None) -> None:
        """Raises ValueError unless ``array`` is None, or [*batch, E, *tail] or [E, *tail]."""
        super().edges(argument, array, *tail, dtype=dtype)
        if array is not None:
            self.same_dtype(argument, array, or_float32=True)

    def shared(self, argument: str, array: Any, *shape: int | None) -> None:
        """Raises ValueError unless ``array`` is of this shape, without batch axes."""
        super().shared(argument, array, *shape)
        self.same_dtype(argument, array, or_float32=True)

    def projected_edges(self, features: Any, kernel: Any, heads: int, dim: int) -> None:
        """Raises ValueError unless both are None, or features of edges and a map to all heads.

        The features may have batch axes or not, [..., E, F]; the map is [F, heads, dim].
        """
        if (features is None) != (kernel is None):
            missing = "edge_features" if features is None else "edge_kernel"
            expected = "given with the other of edge_features, edge_kernel"
            raise bad_input(self.op, missing, expected, None)
        self.edges("edge_features", features, None)
        if features is not None:
            self.shared("edge_kernel", kernel, features.shape[-1], heads, dim)

    def same_dtype(self, argument: str, array: Any, *, or_float32: bool = False) -> None:
        """Raises ValueError unless the dtype is that of the values."""
        if array.dtype != self.dtype and not (or_float32 and array.dtype == jnp.float32):
            other = " or float32" if or_float32 and self.dtype != jnp.float32 else ""
            raise bad_input(self.op, argument, f"{self.dtype}{other}, as the values", array.dtype)

    def dropout(
        self, dropout: Any, key: jax.Array | None
    ) -> tuple[float, UInt32[Array, "*batch 2"] | None]:
        """The probability, and the two words of each member of the batch for the dropout.

        Raises:
          ValueError: unless ``dropout`` is in [0, 1), with a key if and only if it is not zero.
        """
        self.number("dropout", dropout)
        if not 0 <= dropout < 1:
            raise bad_input(self.op, "dropout", "in [0, 1)", repr(dropout))
        if dropout and key is None:
            raise bad_input(self.op, "key", f"a random key for dropout = {dropout}", None)
        if key is not None and not dropout:
            raise bad_input(self.op, "key", "None where dropout is 0", type(key).__name__)
        if key is None:
            return 0.0, None
        return float(dropout), jax.random.bits(key, (*self.batch, 2), jnp.uint32)

    def number(self, argument: str, value: Any) -> float:
        """The static real number ``value``, which must be finite."""
        is_real = isinstance(value, numbers.Real | np.floating) and not isinstance(value, bool)
        if not is_real or not math.isfinite(value):
            raise bad_input(self.op, argument, "a finite number, static under jit", repr(value))
        return float(value)


def checked_senders(op: str, argument: str, given: Any) -> Array | CBSR:
    """The values of the senders, a floating array of three axes or more, or k-sparse rows."""
    if not isinstance(given, CBSR):
        (given,) = from_numpy(given)
        check_float(op, argument, given, 3)
        return given
    given = check_cbsr(op, given)
    check_float(op, f"{argument}.values", given.values, 3)
    return given


def expanded(rows: Array | CBSR, implementation: dispatch.Name | None) -> Array:
    """The rows as a dense array."""
    if not isinstance(rows, CBSR):
        return rows
    name = dispatch.requested_implementation(implementation)
    return todense(rows, implementation="xla" if name == "xla" else None)
