"""The symmetries of Sudoku, on the device.

Relabelling the digits, permuting rows inside a band, columns inside a stack, bands and stacks, and
transposing turn a puzzle into another one with the same number of givens and solutions. There are
9! · 2 · 6⁸ = 1.2e12 of them.
"""

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

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
    boards = jnp.asarray(boards)
    return symmetry.digits.astype(boards.dtype)[boards[..., symmetry.cells]]


def invert_symmetry(symmetry: Symmetry) -> Symmetry:
    """The inverse symmetry, which maps the answer to an image back to the original."""
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


def _random_order(key: Array, count: int) -> Int[Array, "count"]:
    """A permutation: ranks of random numbers. For so few, comparing all is faster than a sort."""
    numbers = jax.random.bits(key, (count,))
    place = jnp.arange(count)
    # Equal numbers keep their order.
    below = (numbers < numbers[:, None]) | (
        (numbers == numbers[:, None]) & (place < place[:, None])
    )
    return below.sum(axis=1, dtype=jnp.int32)


def _inverse(permutation: Int[Array, "count"]) -> Int[Array, "count"]:
    return jnp.zeros_like(permutation).at[permutation].set(jnp.arange(permutation.shape[0]))


def _lines(groups: Int[Array, "3"], inside: Int[Array, "3 3"]) -> Int[Array, "9"]:
    """Order of nine lines, from the order of their groups and the order inside each group."""
    return (3 * groups[:, None] + inside).reshape(9)
