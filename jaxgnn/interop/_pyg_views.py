"""Views of an array of a state dict: a parameter, a part of one, several, or a number.

A ``View`` reads and sets any of these as one array.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx


class View(NamedTuple):
    """An array of a layer.

    Attributes:
      key: equal for views of the same numbers.
      pieces: the variables that it sets: their identity, and the part of the first axis or None.
      shape: the shape of the array.
      read: returns a copy of the array.
      write: sets the array, of any dtype.
    """

    key: Hashable
    pieces: frozenset[tuple[int, int | None]]
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]
    write: Callable[[np.ndarray], None]


def whole(variable: nnx.Variable) -> View:
    """All of a variable."""

    def write(array: np.ndarray) -> None:
        variable[...] = jnp.array(array, variable.dtype)  # a copy of the caller's array

    piece = id(variable), None
    return View(
        piece, frozenset({piece}), variable.shape, lambda: np.array(variable[...], order="C"), write
    )


def part(variable: nnx.Variable, place: int) -> View:
    """One index on the first axis of a variable."""

    def write(array: np.ndarray) -> None:
        variable[...] = variable[...].at[place].set(jnp.array(array, variable.dtype))

    piece = id(variable), place
    shape = variable.shape[1:]
    return View(piece, frozenset({piece}), shape, lambda: np.array(variable[...][place]), write)


def stack(variables: Sequence[nnx.Variable]) -> View:
    """Several variables of one shape, along a new first axis."""
    views = [whole(variable) for variable in variables]

    def write(array: np.ndarray) -> None:
        for view, own in zip(views, array, strict=True):
            view.write(own)

    key = tuple(view.key for view in views)
    shape = len(views), *views[0].shape
    pieces = frozenset().union(*(view.pieces for view in views))
    return View(key, pieces, shape, lambda: np.stack([view.read() for view in views]), write)


def field(layer: nnx.Module, attribute: str, name: str) -> View:
    """A number in a record that is an attribute of a layer, not a variable, as an array [1]."""
    record: Any = getattr(layer, attribute)

    def read() -> np.ndarray:
        return np.array([getattr(getattr(layer, attribute), name)], np.float32)

    def write(array: np.ndarray) -> None:
        now = getattr(layer, attribute)
        setattr(layer, attribute, now._replace(**{name: float(array[0])}))

    assert hasattr(record, name)
    return View((id(layer), attribute, name), frozenset(), (1,), read, write)
