"""Periodic directions of a box, of any shape: coordinates along them, and distances across it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn._arrays.arrays import is_concrete
from jaxgnn._errors import bad_input

# Cell vectors of length one must span at least this much, or they count as dependent.
_LEAST_SPAN = 1e-6


@dataclass(frozen=True)
class Lattice:
    """The periodic cell vectors, as arrays of numpy or of JAX.

    Attributes:
      vectors: the periodic rows of the box, [periodic, dimensions].
      dual: inverse of ``vectors`` on their span, [dimensions, periodic]; ``points @ dual`` are the
        coordinates of points in units of the vectors.
      axes: which row of the box each vector is.
    """

    vectors: Any
    dual: Any
    axes: tuple[int, ...]

    @classmethod
    def of_box(cls, box: Any, periodic: tuple[bool, ...], dtype: Any) -> Lattice:
        """Returns the periodic rows of a checked box; ``box`` is None if no axis is periodic."""
        axes = tuple(np.flatnonzero(periodic).tolist())
        if box is None or not axes:
            empty = np.zeros((0, len(periodic)), dtype)
            return cls(empty, empty.T, ())
        if is_concrete(box):
            vectors = np.asarray(box).astype(np.float64)[list(axes)]
            return cls(vectors.astype(dtype), _inverse(np, vectors).astype(dtype), axes)
        vectors = jax.lax.stop_gradient(box)[np.array(axes)].astype(dtype)
        return cls(vectors, _inverse(jnp, vectors), axes)

    def heights(self, xp: Any) -> Any:
        """Returns the distance between opposite faces of the box along each vector, [periodic]."""
        return 1 / xp.sqrt(xp.square(self.dual).sum(0))


def product(xp: Any, rows: Any, matrix: Any) -> Any:
    """The product of two matrices; on a device in full precision, which is not the default."""
    return rows @ matrix if xp is np else jnp.matmul(rows, matrix, precision="highest")


def _inverse(xp: Any, vectors: Any) -> Any:
    if vectors.shape[0] == vectors.shape[1]:
        return xp.linalg.inv(vectors)
    square = product(xp, vectors, vectors.T)
    return product(xp, vectors.T, xp.linalg.inv(square))


def check_periodic(where: str, periodic: Any, box: Any, dimensions: int) -> tuple[bool, ...]:
    """Returns whether each axis is periodic; all are if ``periodic`` is None."""
    choice = (box is not None) if periodic is None else periodic
    flags = np.asarray(choice)
    if flags.dtype != bool or flags.shape not in ((), (dimensions,)):
        expected = f"True, False, or {dimensions} of them, one for each axis"
        raise bad_input(where, "periodic", expected, repr(periodic))
    flags = np.broadcast_to(flags, dimensions)
    if box is None and flags.any():
        raise bad_input(where, "periodic", "False without a box", repr(periodic))
    return tuple(flags.tolist())


def check_cell(where: str, box: Any, periodic: tuple[bool, ...]) -> Any:
    """Checks cell vectors, the rows of ``box``; their values where they are concrete."""
    if box is None:
        return None
    box = np.asarray(box) if is_concrete(*jax.tree.leaves(box)) else jnp.asarray(box)
    dimensions = len(periodic)
    if box.shape != (dimensions, dimensions):
        expected = f"of shape ({dimensions}, {dimensions}), with the cell vectors as rows"
        raise bad_input(where, "box", expected, f"shape {box.shape}")
    if not is_concrete(box):
        return box
    box = box.astype(np.float64)
    rows = box[np.array(periodic, bool)]
    lengths = np.sqrt(np.square(rows).sum(-1, keepdims=True))
    expected = "finite, with linearly independent cell vectors along periodic axes"
    if not np.isfinite(box).all() or not (lengths > 0).all():
        raise bad_input(where, "box", expected, box.tolist())
    if len(rows) and np.linalg.svd(rows / lengths, compute_uv=False)[-1] < _LEAST_SPAN:
        raise bad_input(where, "box", expected, box.tolist())
    return box
