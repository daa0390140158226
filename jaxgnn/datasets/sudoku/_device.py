"""The symmetries of Sudoku, and more givens for training, on the device.

Relabelling the digits, permuting rows inside a band, columns inside a stack, bands and stacks, and
transposing turn a puzzle into another one with the same number of givens and solutions. There are
9! · 2 · 6⁸ = 1.2e12 of them.
"""

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jaxgnn._arrays.arrays import as_jax

# All orders of three things.
_ORDERS = np.array(list(itertools.permutations(range(3))), np.int32)


class Symmetry(NamedTuple):
    """A symmetry, as a pytree.

    Attributes:
      cells: for each cell of the new board, the source cell in the old one.
      digits: the new digit for each old one; 0 stays 0.
    """

    cells: Int[Array, "81"]
    digits: Int[Array, "10"]


def random_symmetry(key: Array) -> Symmetry:
    """Draws a symmetry uniformly from all symmetries.

    Args:
      key: key of ``jax.random``.

    Returns:
      The symmetry. Works under ``jit``; with many keys, under ``vmap``.
    """
    digit_key, order_key, transpose_key = jax.random.split(key, 3)
    digits = 1 + _random_order(digit_key, 9)
    orders = jnp.asarray(_ORDERS)[jax.random.randint(order_key, (8,), 0, len(_ORDERS))]
    rows, columns = _lines(orders[0], orders[1:4]), _lines(orders[4], orders[5:])
    transpose = jax.random.bernoulli(transpose_key)
    cells = jnp.where(
        transpose, 9 * columns[None, :] + rows[:, None], 9 * rows[:, None] + columns[None, :]
    )
    return Symmetry(cells.reshape(81), jnp.concatenate([jnp.zeros(1, jnp.int32), digits]))


def apply_symmetry(symmetry: Symmetry, boards: Int[Array, "*batch 81"]) -> Int[Array, "*batch 81"]:
    """Applies a symmetry to boards: puzzles, or solutions."""
    boards = as_jax("apply_symmetry", "boards", boards)
    return symmetry.digits.astype(boards.dtype)[boards[..., symmetry.cells]]


def invert_symmetry(symmetry: Symmetry) -> Symmetry:
    """Returns the inverse symmetry, which maps the answer to an image back to the original."""
    return Symmetry(_inverse(symmetry.cells), _inverse(symmetry.digits))


def augment(key: Array, *boards: Int[Array, "*batch 81"]) -> Any:
    """Applies one random symmetry to a puzzle and its solution, or to any number of boards.

    A batch needs a key for each puzzle, or all puzzles get the same symmetry:
    ``jax.vmap(augment)(jax.random.split(key, count), puzzles, solutions)``.

    Args:
      key: key of ``jax.random``.
      *boards: each [..., 81].

    Returns:
      The images of all boards, in a tuple.

    Example:
      >>> data = jnp.arange(81, dtype=jnp.int8) % 10
      >>> puzzle, solution = jax.jit(augment)(jax.random.key(0), data, data)
      >>> bool((puzzle == solution).all())
      True
    """
    symmetry = random_symmetry(key)
    return tuple(apply_symmetry(symmetry, board) for board in boards)


def reveal(
    key: Array,
    puzzle: Int[Array, "81"],
    solution: Int[Array, "81"],
    givens: Int[Array, ""] | int,
) -> Int[Array, "81"]:
    """Adds random cells of the solution as givens: ``add_givens`` for one puzzle, on the device.

    So minimal puzzles are data for all numbers of givens, and a curriculum chooses the number. A
    batch needs a key for each: `jax.vmap(reveal)(jax.random.split(key, count), puzzles, solutions,
    givens)`.

    Args:
      key: key of ``jax.random``.
      puzzle: 0 where a cell is empty.
      solution: digits from 1.
      givens: new number of givens; a puzzle that has as many or more is unchanged.

    Returns:
      The puzzle with its new givens.

    Example:
      >>> puzzle = jnp.zeros(81, jnp.int8).at[0].set(5)
      >>> solution = jnp.full(81, 5, jnp.int8)
      >>> int((reveal(jax.random.key(0), puzzle, solution, 30) > 0).sum())
      30
    """
    blank = puzzle == 0
    rank = jnp.sum(_precede(key, puzzle.size) & blank, axis=1)
    return jnp.where(blank & (rank < givens - jnp.sum(~blank)), solution, puzzle)


def _random_order(key: Array, count: int) -> Int[Array, "count"]:
    return _precede(key, count).sum(axis=1, dtype=jnp.int32)


def _precede(key: Array, count: int) -> Bool[Array, "count count"]:
    """Returns [i, j], whether entry j precedes entry i in a random order: a sort of few entries."""
    numbers = jax.random.bits(key, (count,))
    place = jnp.arange(count)
    # Equal numbers keep their order.
    return (numbers < numbers[:, None]) | ((numbers == numbers[:, None]) & (place < place[:, None]))


def _inverse(permutation: Int[Array, "count"]) -> Int[Array, "count"]:
    return jnp.zeros_like(permutation).at[permutation].set(jnp.arange(permutation.shape[0]))


def _lines(groups: Int[Array, "3"], inside: Int[Array, "3 3"]) -> Int[Array, "9"]:
    """Order of nine lines, from the order of their groups and the order inside each group."""
    return (3 * groups[:, None] + inside).reshape(9)
