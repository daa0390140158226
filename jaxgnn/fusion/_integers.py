"""Equations of integers and booleans in NumPy, which compiles nothing.

Ids go through a few such equations on their way from a list to a gather: a comparison with zero, a
sum, a selection, a reshape. JAX would compile a program for each, which took most of the time of a
first rewrite.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxgnn.fusion._integer_slices import gather, scatter

Arrays = Sequence[np.ndarray]


def _broadcast(params: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    sizes = dict(zip(params["broadcast_dimensions"], x.shape, strict=True))
    own = x.reshape([sizes.get(d, 1) for d in range(len(params["shape"]))])
    return np.broadcast_to(own, params["shape"])


def _slice(params: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    strides = params["strides"] or (1,) * x.ndim
    bounds = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return x[tuple(slice(*of_axis) for of_axis in bounds)]


def _iota(params: Mapping[str, Any]) -> np.ndarray:
    shape, axis = params["shape"], params["dimension"]
    numbers = np.arange(shape[axis]).reshape([-1 if d == axis else 1 for d in range(len(shape))])
    return np.broadcast_to(numbers, shape)


def _accumulated(ufunc: np.ufunc, params: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    axis = params["axis"]
    forward = np.flip(x, axis) if params["reverse"] else x
    made = ufunc.accumulate(forward, axis, dtype=x.dtype)
    return np.flip(made, axis) if params["reverse"] else made


# Functions of the parameters of an equation and its operands.
_FUNCTIONS: Mapping[str, Callable[..., np.ndarray]] = {
    "add": lambda _, a, b: a + b,
    "sub": lambda _, a, b: a - b,
    "mul": lambda _, a, b: a * b,
    "neg": lambda _, a: -a,
    "max": lambda _, a, b: np.maximum(a, b),
    "min": lambda _, a, b: np.minimum(a, b),
    "lt": lambda _, a, b: a < b,
    "le": lambda _, a, b: a <= b,
    "gt": lambda _, a, b: a > b,
    "ge": lambda _, a, b: a >= b,
    "eq": lambda _, a, b: a == b,
    "ne": lambda _, a, b: a != b,
    "and": lambda _, a, b: a & b,
    "or": lambda _, a, b: a | b,
    "xor": lambda _, a, b: a ^ b,
    "not": lambda _, a: ~a,
    "select_n": lambda _, which, no, yes: np.where(which, yes, no),
    "clamp": lambda _, low, x, high: np.minimum(np.maximum(x, low), high),
    "convert_element_type": lambda params, a: a.astype(params["new_dtype"]),
    "copy": lambda _, a: a,
    "stop_gradient": lambda _, a: a,
    "broadcast_in_dim": _broadcast,
    "slice": _slice,
    "iota": _iota,
    "reshape": lambda params, a: a.reshape(params["new_sizes"]),
    "squeeze": lambda params, a: np.squeeze(a, tuple(params["dimensions"])),
    "transpose": lambda params, a: a.transpose(params["permutation"]),
    "rev": lambda params, a: np.flip(a, params["dimensions"]),
    "concatenate": lambda params, *a: np.concatenate(a, params["dimension"]),
    "cumsum": functools.partial(_accumulated, np.add),
    "cummax": functools.partial(_accumulated, np.maximum),
    "cummin": functools.partial(_accumulated, np.minimum),
    "gather": gather,
    "scatter": functools.partial(scatter, None),
    "scatter-add": functools.partial(scatter, np.add),
    "reduce_max": lambda params, a: a.max(tuple(params["axes"])),
    "reduce_min": lambda params, a: a.min(tuple(params["axes"])),
    "reduce_sum": lambda params, a: a.sum(tuple(params["axes"]), dtype=a.dtype),
}


def evaluated(equation: Any, operands: Arrays) -> list[np.ndarray] | None:
    """Evaluates one equation if all of its numbers are integers or booleans.

    Integers wrap around as in JAX.

    Args:
      equation: the equation.
      operands: the values that it reads.

    Returns:
      Its results; None for other numbers, and for a primitive that is not listed.
    """
    function = _FUNCTIONS.get(equation.primitive.name)
    kinds = {np.dtype(a.aval.dtype).kind for a in (*equation.invars, *equation.outvars)}
    if function is None or not kinds <= set("iub") or len(operands) != len(equation.invars):
        return None
    if equation.primitive.name == "select_n" and len(operands) != 3:
        return None
    numbers = equation.params.get("dimension_numbers")
    if getattr(numbers, "operand_batching_dims", None):
        return None
    aval = equation.outvars[0].aval
    with np.errstate(over="ignore"):
        made = np.asarray(function(equation.params, *operands))
    return [np.ascontiguousarray(made.astype(aval.dtype, copy=False)).reshape(aval.shape)]
