"""Boards of a Sudoku of any box size: graphs and positions of the cells, and losses of networks.

Logits are [*steps, *batch, cells, classes]: the last ``side`` classes are the digits from 1. Boards
are [*batch, cells] of digits, 0 where a cell is blank; leading axes that boards lack are steps.
Invalid digits raise an error where values are known; under ``jit`` the loss is NaN.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxgnn._arrays.arrays import ids_in_range, is_concrete
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph
from jaxgnn.nn.shared.options import is_integer

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
    if not is_integer(box) or box < 2:
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
    """Returns the box size of boards [..., cells] of integers, which is ``box``, if given."""
    if not hasattr(boards, "dtype") or not jnp.issubdtype(boards.dtype, jnp.integer):
        expected = "digits, an array of integers"
        raise bad_input(where, argument, expected, getattr(boards, "dtype", type(boards).__name__))
    cells = boards.shape[-1] if boards.ndim else 0
    size = math.isqrt(math.isqrt(cells))
    if size < 2 or size**4 != cells or box not in (None, size):
        expected = f"{box**4} cells" if box is not None else "16, 81, 256, ... cells"
        raise bad_input(where, argument, f"of shape [..., {expected}]", f"shape {boards.shape}")
    return size


def checked_box(where: str, puzzles: Any, box: int | None = None) -> int:
    """Returns the box size of puzzles, after checking that they are digits, or 0 where blank."""
    size = box_of(where, "puzzles", puzzles, box)
    check_digits(where, "puzzles", puzzles, size)
    return size


def check_digits(where: str, argument: str, boards: Any, box: int, least: int = 0) -> None:
    """Raises ValueError if boards with known values have a cell that is not in ``least .. box²``.

    Values are unknown under a transformation; ``nan_without_digits`` then marks the result.
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
    """Replaces logits by NaN for invalid boards under ``jit``, where no error can be raised."""
    if is_concrete(boards):  # checked by check_digits
        return logits
    good = _are_digits(boards, box, least).all(axis=-1)[..., None, None]
    return jnp.where(good, logits, jnp.asarray(jnp.nan, logits.dtype))


def _are_digits(boards: Any, box: int, least: int) -> Any:
    return ids_in_range(boards, box * box + 1) & (boards >= least)


def sudoku_digits(logits: Float[Array, "*batch cells classes"]) -> Int[Array, "*batch cells"]:
    """Returns the likeliest digit of each cell, from 1, ignoring a class for no digit.

    The result is 0, which is no digit, where the largest of a cell's logits is NaN or infinite.

    Raises:
      ValueError: if the cells are not those of a Sudoku, or the classes not its digits.

    Example:
      >>> import jax
      >>> from jaxgnn.models import sudoku_digits
      >>> sudoku_digits(jax.nn.one_hot([3, 0] * 8, 5)).tolist()[:2]  # the fifth class is digit 4
      [3, 1]
    """
    side = _side("sudoku_digits", logits)
    digits = logits[..., -side:]
    likeliest = 1 + jnp.argmax(digits, axis=-1).astype(jnp.int32)
    # The maximum of values that include a NaN is NaN.
    return jnp.where(jnp.isfinite(digits.max(axis=-1)), likeliest, 0)


def sudoku_cross_entropy(
    logits: Float[Array, "*steps cells classes"], solutions: Int[Array, "*batch cells"]
) -> Float[Array, ""]:
    """Mean cross entropy over steps, boards and all cells, including given ones.

    Args:
      logits: logits of every step, or of one.
      solutions: the right digits, from 1.

    Raises:
      ValueError: if shapes do not fit, or boards contain other values than digits.
    """
    side = _side("sudoku_cross_entropy", logits, solutions=solutions)
    return -jnp.mean(_select_digit(jax.nn.log_softmax(_wide(logits)), solutions, side))


def sudoku_focal_loss(
    logits: Float[Array, "*steps cells classes"],
    solutions: Int[Array, "*batch cells"],
    puzzles: Int[Array, "*batch cells"],
    *,
    gamma: float = 2.0,
    constraint_weight: float = 0.5,
) -> Float[Array, ""]:
    """Focal loss of blank cells, ``mean (1 - p)^gamma (-log p)``, plus a loss of constraints.

    Here p is the probability of the right digit (https://arxiv.org/abs/1708.02002). The second term
    is ``sudoku_constraint_loss``.

    Args:
      logits: logits of every step, or of one.
      solutions: the right digits, from 1.
      puzzles: digits, 0 where blank.
      gamma: exponent; the larger it is, the less easy cells count.
      constraint_weight: weight of the loss of constraints.

    Raises:
      ValueError: if shapes do not fit, or boards contain other values than digits.
    """
    side = _side("sudoku_focal_loss", logits, solutions=solutions, puzzles=puzzles)
    log_p = _select_digit(jax.nn.log_softmax(_wide(logits)), solutions, side)
    # Kept away from zero, where powers below one have no derivative.
    left = jnp.maximum(-jnp.expm1(log_p), jnp.finfo(log_p.dtype).tiny)
    focal = _mean_of_blanks(-(left**gamma) * log_p, puzzles)
    return focal + constraint_weight * sudoku_constraint_loss(logits, puzzles)


def sudoku_constraint_loss(
    logits: Float[Array, "*steps cells classes"], puzzles: Int[Array, "*batch cells"]
) -> Float[Array, ""]:
    """Penalises units without one of each digit, and blank cells without one clear digit.

    P are the probabilities of a blank cell, and one-hot for a given cell, so that a given digit is
    not required a second time. With these the loss is a fifth of::

        mean over units of (Σ_cells P - 1)², of rows, of columns and of boxes, added up
        + 0.1 mean over blanks of the entropy + 0.1 mean over blanks of (1 - (p_first - p_second))

    It is zero for a solution.

    Args:
      logits: logits of every step, or of one.
      puzzles: digits, 0 where blank.

    Raises:
      ValueError: if shapes do not fit, or boards contain other values than digits.
    """
    side = _side("sudoku_constraint_loss", logits, puzzles=puzzles)
    log_p = jax.nn.log_softmax(_wide(logits)[..., -side:])
    p = jnp.exp(log_p)
    one_hot = jax.nn.one_hot(puzzles.astype(jnp.int32) - 1, side, dtype=p.dtype)
    probabilities = jnp.where((puzzles > 0)[..., None], one_hot, p)
    probabilities = nan_without_digits(probabilities, puzzles, math.isqrt(side))
    units = sum(jnp.mean((sums - 1) ** 2) for sums in _unit_sums(probabilities, side))
    first, second = jnp.moveaxis(lax.top_k(p, 2)[0], -1, 0)
    entropy = -jnp.sum(p * log_p, axis=-1)
    return 0.2 * (units + 0.1 * _mean_of_blanks(entropy + 1 - (first - second), puzzles))


def fulfils_rules(boards: Int[Array, "*batch cells"]) -> Bool[Array, "*batch"]:
    """Returns whether each row, column and box of boards has every digit once."""
    side = math.isqrt(boards.shape[-1])
    one_hot = jax.nn.one_hot(boards - 1, side, dtype=jnp.int32)
    once = [(sums == 1).reshape(*boards.shape[:-1], -1) for sums in _unit_sums(one_hot, side)]
    return jnp.concatenate(once, axis=-1).all(axis=-1)


def _unit_sums(p: Array, side: int) -> list[Array]:
    """Sums [*steps, cells, digits] over the cells of each row, of each column and of each box."""
    box = round(side**0.5)
    leading = p.shape[:-2]
    grid = p.reshape(*leading, box, box, box, box, side)
    lines = grid.reshape(*leading, side, side, side)
    return [lines.sum(axis=-2), lines.sum(axis=-3), grid.sum(axis=(-4, -2))]


def _select_digit(values: Array, solutions: Array, side: int) -> Array:
    """Selects the entry of each cell's right digit."""
    classes = solutions.astype(jnp.int32) + (values.shape[-1] - side - 1)
    # A selection among few entries, whose gradient needs no scatter.
    right = classes[..., None] == jnp.arange(values.shape[-1])
    selected = jnp.sum(jnp.where(right, values, 0), axis=-1, keepdims=True)
    return nan_without_digits(selected, solutions, math.isqrt(side), least=1)[..., 0]


def _mean_of_blanks(values: Array, puzzles: Array) -> Array:
    blank = jnp.broadcast_to(puzzles == 0, values.shape)
    return jnp.sum(jnp.where(blank, values, 0)) / jnp.maximum(jnp.sum(blank), 1).astype(
        values.dtype
    )


def _wide(logits: Array) -> Array:
    return logits.astype(jnp.float64 if logits.dtype == jnp.float64 else jnp.float32)


def _side(where: str, logits: Array, **boards: Array) -> int:
    """Returns the number of digits, after checking the shapes and the digits of the boards."""
    cells = jax.ShapeDtypeStruct(logits.shape[:-1], jnp.int32)
    box = box_of(where, "logits without classes", cells)
    side = box**2
    if logits.shape[-1] not in (side, side + 1):
        expected = f"of {side} classes, or of {side + 1} with one for no digit"
        raise bad_input(where, "logits", expected, f"shape {logits.shape}")
    for board in boards.values():
        box_of(where, "a board", board)
        if logits.shape[logits.ndim - 1 - board.ndim : -1] != board.shape:
            expected = f"the last axes of logits without classes, {logits.shape[:-1]}"
            raise bad_input(where, "a board", expected, f"shape {board.shape}")
    for name, board in boards.items():
        check_digits(where, name, board, box, least=1 if name == "solutions" else 0)
    return side
