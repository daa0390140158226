"""Adds givens on the device, to set the difficulty of puzzles during training."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int


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
    numbers = jax.random.bits(key, puzzle.shape)
    place = jnp.arange(puzzle.shape[0])
    # Number of blank cells before each, in a random order; equal numbers keep their order.
    before = (numbers < numbers[:, None]) | (
        (numbers == numbers[:, None]) & (place < place[:, None])
    )
    rank = jnp.sum(before & blank, axis=1)
    return jnp.where(blank & (rank < givens - jnp.sum(~blank)), solution, puzzle)
