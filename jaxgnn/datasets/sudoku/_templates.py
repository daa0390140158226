"""A solver in NumPy, for installs without the compiled one; it places digit by digit."""

import functools
import itertools
from collections.abc import Iterator

import numpy as np

_EVERY = np.array([2**64 - 1, 2**17 - 1], np.uint64)


def iterate_solutions(board: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the solutions of a [81] board, 0 where a cell is empty; each [81] int8."""
    given = [_as_bits(np.flatnonzero(board == digit)[None])[0] for digit in range(1, 10)]
    taken = np.bitwise_or.reduce(given)
    ways = {}
    for digit, own in enumerate(given, start=1):
        ways[digit] = _templates()[((_templates() & taken) == own).all(axis=1)]
    yield from _place(ways, np.zeros(81, np.int8), np.zeros(2, np.uint64))


def _place(
    ways: dict[int, np.ndarray], board: np.ndarray, filled: np.ndarray
) -> Iterator[np.ndarray]:
    """Places the digit with the fewest remaining ways, in each of them, and then the other digits.

    Args:
      ways: for each remaining digit, the sets of nine cells that can hold it, [ways, 2].
      board: [81], without those digits.
      filled: its cells, [2].
    """
    if not ways:
        yield board
        return
    reached = [np.bitwise_or.reduce(way, axis=0) for way in ways.values()]
    if (np.bitwise_or.reduce([filled, *reached]) != _EVERY).any():
        return
    digit = min(ways, key=lambda d: len(ways[d]))
    for way in ways[digit]:
        others = {d: w[((w & way) == 0).all(axis=1)] for d, w in ways.items() if d != digit}
        yield from _place(others, np.where(_as_cells(way), np.int8(digit), board), filled | way)


@functools.cache
def _templates() -> np.ndarray:
    """The 46,656 ways to place a digit once in every row, column and box, [46656, 2]."""
    columns = np.array(list(itertools.permutations(range(9))))
    boxes_of_bands = np.sort(columns.reshape(-1, 3, 3) // 3, axis=2)
    columns = columns[(boxes_of_bands == np.arange(3)).all(axis=(1, 2))]
    return _as_bits(np.arange(9) * 9 + columns)


def _as_bits(cells: np.ndarray) -> np.ndarray:
    """Cells, [sets, size], as bits of two words, [sets, 2] uint64."""
    flags = np.zeros((cells.shape[0], 128), bool)
    np.put_along_axis(flags, cells, True, axis=1)
    return np.packbits(flags, axis=1, bitorder="little").view("<u8").astype(np.uint64)


def _as_cells(bits: np.ndarray) -> np.ndarray:
    """One set of cells, [2] uint64, as flags, [81] bool."""
    flags = np.unpackbits(bits.astype("<u8").view(np.uint8), bitorder="little")
    return flags[:81].astype(bool)
