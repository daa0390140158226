"""Gathers and scatters in NumPy, by the parameters of their equations.

Axes that batch a gather or a scatter are not supported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.lax import GatherScatterMode


def gather(params: Mapping[str, Any], x: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The slices of an array that begin at ``starts``."""
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    entries = _entries(
        x.shape,
        sizes,
        starts,
        numbers.start_index_map,
        numbers.collapsed_slice_dims,
        params["mode"],
    )
    taken = x[entries.of]
    if entries.exist is not None:
        fill = params["fill_value"]
        taken = np.where(entries.exist, taken, _outside(x.dtype) if fill is None else fill)
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
    """The array with slices of it replaced by ``updates``, or combined with them by ``ufunc``."""
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
    made = x.copy()
    if ufunc is None:
        made[tuple(index)] = updates
    else:
        ufunc.at(made, tuple(index), updates)
    return made


class _Entries(NamedTuple):
    """The entries of an array that slices cover, axes of the starts before those of a slice.

    Attributes:
      of: an index for each axis of the array.
      exist: whether the slice of an entry lies inside the array; None if all do.
    """

    of: tuple[np.ndarray, ...]
    exist: np.ndarray | None


def _entries(
    shape: Sequence[int],
    sizes: Sequence[int],
    starts: np.ndarray,
    started: Sequence[int],
    dropped: Sequence[int],
    mode: GatherScatterMode,
) -> _Entries:
    """Finds the entries that a gather reads, or a scatter writes.

    Args:
      shape: shape of the array.
      sizes: the size of a slice along each axis.
      starts: [..., axes], where each slice starts along the axes ``started``.
      started: the axes with starts; the others start at zero.
      dropped: axes of one entry that are no axes of a slice.
      mode: treatment of slices that are not inside.
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


def _outside(dtype: np.dtype) -> Any:
    """The value that JAX reads where no entry is: the largest, or the least if there is a sign."""
    if dtype.kind == "b":
        return True
    return np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max
