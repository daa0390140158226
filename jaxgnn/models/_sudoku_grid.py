"""Graphs and positions of the cells of a Sudoku of any box size."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxgnn._arrays.arrays import ids_in_range, is_concrete
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph

KINDS = 3  # kinds of candidate_kinds


def sudoku_positions(box: int = 3) -> np.ndarray:
    """Row, column and box of each cell.

    Args:
      box: number of cells on a side of a box: 2 for 4×4, 3 for 9×9, 4 for 16×16.

    Returns:
      int32 [cells, 3], row by row, each from 0 to box² - 1.

    Raises:
      ValueError: if ``box`` is not an int of at least 2.

    Example:
      >>> from jaxgnn.models import sudoku_positions
      >>> sudoku_positions(3)[10].tolist()
      [1, 1, 0]
    """
    is_integer = isinstance(box, int | np.integer) and not isinstance(box, bool)
    if not is_integer or box < 2:
        raise bad_input("sudoku_positions", "box", "an int of at least 2", repr(box))
    side = box * box
    rows, columns = np.divmod(np.arange(side * side, dtype=np.int32), np.int32(side))
    return np.stack([rows, columns, rows // box * box + columns // box], axis=-1)


@functools.lru_cache(maxsize=8)
def sudoku_graph(box: int = 3) -> CSRGraph:
    """Graph of the cells, each with edges from all other cells in its row, column and box.

    81 cells and 1,620 edges for ``box=3``; every cell has ``3 side - 2 box - 1`` neighbours.

    Args:
      box: number of cells on a side of a box: 2 for 4×4, 3 for 9×9, 4 for 16×16.

    Example:
      >>> from jaxgnn.models import sudoku_graph
      >>> sudoku_graph(3).uniform_degrees()
      (20, 20)
    """
    senders, receivers = _peers(box)
    return CSRGraph.from_edges(senders, receivers, box**4)


@functools.lru_cache(maxsize=8)
def sudoku_relations(box: int = 3) -> np.ndarray:
    """Two flags for each edge of ``sudoku_graph``, float32 [edges, 2]: same line, same box.

    A line is a row or a column, so that the flags are invariant to all symmetries of a Sudoku.
    """
    senders, receivers = _peers(box)
    same = (positions := sudoku_positions(box))[senders] == positions[receivers]
    return np.stack([same[:, 0] | same[:, 1], same[:, 2]], axis=-1).astype(np.float32)


@functools.lru_cache(maxsize=8)
def sudoku_constraint_graph(box: int = 3) -> CSRGraph:
    """Graph of cells, rows, columns and boxes; edges join cells with their units, both ways.

    108 nodes and 486 directed edges for ``box=3``.

    Args:
      box: number of cells on a side of a box: 2 for 4×4, 3 for 9×9, 4 for 16×16.

    Example:
      >>> from jaxgnn.models import sudoku_constraint_graph
      >>> graph = sudoku_constraint_graph(3)
      >>> graph.num_rows, graph.num_edges
      (108, 486)
    """
    positions, side = sudoku_positions(box), box * box
    cells = np.repeat(np.arange(side * side), 3)
    units = (side * side + positions + side * np.arange(3)).ravel()
    ends = np.concatenate([cells, units]), np.concatenate([units, cells])
    return CSRGraph.from_edges(*ends, side * side + 3 * side)


def candidate_kinds(
    cells: Int[Array, "*batch cells"], box: int
) -> Int[Array, "*batch digits cells"]:
    """Kind of each cell for each digit: 0 if blank, 1 if given as that digit, 2 if as another."""
    digits = np.arange(1, box * box + 1, dtype=np.int32)[:, None]
    cells = cells[..., None, :]
    return jnp.where(cells == 0, 0, jnp.where(cells == digits, 1, 2))


def _peers(box: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the senders and receivers of ``sudoku_graph``, ordered by receiver."""
    positions = sudoku_positions(box)
    shared = (positions[:, None] == positions).any(axis=-1)
    np.fill_diagonal(shared, False)
    receivers, senders = np.nonzero(shared)
    return senders, receivers


def box_of(where: str, argument: str, boards: Any, box: int | None = None) -> int:
    """Returns the box size of boards [..., cells].

    Raises:
      ValueError: unless they are integers, of as many cells as a Sudoku has: of ``box``, if given.
    """
    if not hasattr(boards, "dtype") or not jnp.issubdtype(boards.dtype, jnp.integer):
        expected = "digits, an array of integers"
        raise bad_input(where, argument, expected, getattr(boards, "dtype", type(boards).__name__))
    cells = boards.shape[-1] if boards.ndim else 0
    found = math.isqrt(math.isqrt(cells))
    if found < 2 or found**4 != cells or box not in (None, found):
        expected = f"{box**4} cells" if box is not None else "16, 81, 256, ... cells"
        raise bad_input(where, argument, f"of shape [..., {expected}]", f"shape {boards.shape}")
    return found


def check_digits(where: str, argument: str, boards: Any, box: int, least: int = 0) -> None:
    """Raises if boards [..., cells] with known values hold anything other than digits.

    Values are unknown under a transformation; ``nan_without_digits`` then marks the result.

    Raises:
      ValueError: if a cell is not in ``least .. box²``.
    """
    if not is_concrete(boards):
        return
    values = np.asarray(boards)
    good = _are_digits(values, box, least)
    if not good.all():
        place = np.unravel_index(int(np.argmin(good)), good.shape)
        expected = f"digits from {least} to {box * box}"
        raise bad_input(where, argument, expected, f"{values[place]} at {[int(i) for i in place]}")


def nan_without_digits(
    logits: Float[Array, "*steps cells classes"],
    boards: Int[Array, "*batch cells"],
    box: int,
    least: int = 0,
) -> Float[Array, "*steps cells classes"]:
    """Replaces the logits by NaN for boards with a cell that is not in ``least .. box²``.

    The NaN replace an error under ``jit``, where none can be raised.
    """
    if is_concrete(boards):  # checked by check_digits
        return logits
    good = _are_digits(boards, box, least).all(axis=-1)[..., None, None]
    return jnp.where(good, logits, jnp.asarray(jnp.nan, logits.dtype))


def _are_digits(boards: Any, box: int, least: int) -> Any:
    return ids_in_range(boards, box * box + 1) & (boards >= least)
