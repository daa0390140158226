"""Equations of integers and booleans in NumPy, which compiles nothing.

Ids go through a few such equations on their way from a list to a gather: a comparison with zero, a
sum, a selection, a reshape. JAX would compile a program for each, which took most of the time of a
first rewrite.

Axes that batch a gather or a scatter are not supported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.lax import GatherScatterMode

Arrays = Sequence[np.ndarray]


def _broadcast(params: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    sizes = dict(zip(params["broadcast_dimensions"], x.shape, strict=True))
    spread = x.reshape([sizes.get(d, 1) for d in range(len(params["shape"]))])
    return np.broadcast_to(spread, params["shape"])


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
    totals = ufunc.accumulate(forward, axis, dtype=x.dtype)
    return np.flip(totals, axis) if params["reverse"] else totals


def gather(params: Mapping[str, Any], x: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Gathers the slices of an array that begin at ``starts``."""
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    axes = numbers.start_index_map, numbers.collapsed_slice_dims
    entries = _entries(x.shape, sizes, starts, *axes, params["mode"])
    taken = x[entries.of]
    if entries.exist is not None:
        fill = params["fill_value"]
        taken = np.where(entries.exist, taken, _fill_value(x.dtype) if fill is None else fill)
    # The axes of a slice come last; JAX names the places where they belong.
    first_of_slice = taken.ndim - len(numbers.offset_dims)
    return np.moveaxis(taken, range(first_of_slice, taken.ndim), numbers.offset_dims)


def scatter(
    ufunc: np.ufunc | None,
    params: Mapping[str, Any],
    x: np.ndarray,
    starts: np.ndarray,
    updates: np.ndarray,
) -> np.ndarray:
    """Replaces slices of an array by ``updates``, or combines them by ``ufunc``."""
    numbers = params["dimension_numbers"]
    window = numbers.update_window_dims
    updates = np.moveaxis(updates, window, range(updates.ndim - len(window), updates.ndim))
    of_window = iter(updates.shape[updates.ndim - len(window) :])
    inserted = numbers.inserted_window_dims
    sizes = [1 if d in inserted else next(of_window) for d in range(x.ndim)]
    entries = _entries(
        x.shape, sizes, starts, numbers.scatter_dims_to_operand_dims, inserted, params["mode"]
    )
    index = np.broadcast_arrays(*entries.of, updates)[:-1] if entries.of else ()
    if entries.exist is not None:
        exist = np.broadcast_to(entries.exist, updates.shape)
        index, updates = tuple(i[exist] for i in index), updates[exist]
    result = x.copy()
    if ufunc is None:
        result[tuple(index)] = updates
    else:
        ufunc.at(result, tuple(index), updates)
    return result


class _Entries(NamedTuple):
    """Entries of an array that slices cover; axes of the starts come first."""

    of: tuple[np.ndarray, ...]  # Index arrays, one for each axis.
    exist: np.ndarray | None  # Mask of entries whose slice is inside the array; None for all.


def _entries(
    shape: Sequence[int],
    sizes: Sequence[int],
    starts: np.ndarray,
    started: Sequence[int],
    dropped: Sequence[int],
    mode: GatherScatterMode,
) -> _Entries:
    """Finds the entries that a gather reads, or a scatter writes.

    Slices of these ``sizes`` start at ``starts``, [..., axes], along the axes ``started``, and at
    zero along others. ``dropped`` are the axes of one entry that are no axes of a slice.
    """
    kept = [d for d in range(len(shape)) if d not in dropped]
    lasts = np.array([shape[d] - sizes[d] for d in started], np.int64)
    starts = starts.astype(np.int64)
    exist = None
    if mode == GatherScatterMode.FILL_OR_DROP:
        exist = ((starts >= 0) & (starts <= lasts)).all(-1)
        exist = exist.reshape(exist.shape + (1,) * len(kept))
    starts = np.clip(starts, 0, np.maximum(lasts, 0))
    of = []
    for d in range(len(shape)):
        offsets = np.zeros((1,) * len(kept), np.int64)
        if d in kept:
            offsets = np.arange(sizes[d]).reshape([-1 if k == d else 1 for k in kept])
        at = starts[..., list(started).index(d)] if d in started else np.zeros(1, np.int64)
        of.append(at.reshape(at.shape + (1,) * len(kept)) + offsets)
    return _Entries(tuple(np.broadcast_arrays(*of)), exist)


def _fill_value(dtype: np.dtype) -> Any:
    """Fill value of out-of-range reads: the minimum of signed, the maximum of unsigned dtypes."""
    if dtype.kind == "b":
        return True
    return np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max


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
    """Evaluates one equation if all of its numbers are integers or booleans, and it is listed.

    Integers wrap around as in JAX. For other equations the result is None.
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
        result = np.asarray(function(equation.params, *operands))
    return [np.ascontiguousarray(result.astype(aval.dtype, copy=False)).reshape(aval.shape)]
