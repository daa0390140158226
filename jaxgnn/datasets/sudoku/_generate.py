"""Puzzles with their solutions, and random ones by the number of their givens."""

import operator
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from jaxgnn._ffi import sudoku as native
from jaxgnn._sudoku import CELLS

# Minimal puzzles outside these bounds are too rare to be found at random.
FEWEST, MOST_MINIMAL = 18, 28

# Seconds between two reports of progress; an interrupt also takes effect then.
_REPORT = 0.5


@dataclass(frozen=True)
class Puzzles:
    """Puzzles and their solutions, row by row.

    Attributes:
      puzzles: [count, 81] int8, 0 where a cell is empty.
      solutions: [count, 81] int8 of 1 to 9.
    """

    puzzles: np.ndarray
    solutions: np.ndarray

    def __post_init__(self) -> None:
        """Checks the shapes of both arrays."""
        shapes = self.puzzles.shape, self.solutions.shape
        if shapes[0] != shapes[1] or len(shapes[0]) != 2 or shapes[0][1] != CELLS:
            raise ValueError(
                f"datasets.sudoku.Puzzles: expected puzzles and solutions [count, {CELLS}], "
                f"got {list(shapes[0])} and {list(shapes[1])}"
            )

    def __len__(self) -> int:
        """Returns the number of puzzles."""
        return self.puzzles.shape[0]

    def __getitem__(self, index: slice | np.ndarray) -> "Puzzles":
        """Returns the puzzles of a slice, or of an array of positions or flags."""
        return Puzzles(self.puzzles[index], self.solutions[index])

    @property
    def givens(self) -> np.ndarray:
        """Number of givens of each puzzle, [count] int32."""
        return np.count_nonzero(self.puzzles, axis=1).astype(np.int32)


def generate(
    count: int,
    givens: int | Iterable[int] | None = None,
    *,
    minimal: bool = False,
    seed: int = 0,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Puzzles:
    """Generates random puzzles that have exactly one solution.

    A random grid loses givens in random order until each one left is needed. Such a puzzle is
    minimal, and usually has 24 or 25 givens. For a given number, puzzles with more givens are
    discarded, and random cells of the solution are added to those with fewer. Below 22, givens are
    exchanged for others until some become superfluous.

    Puzzle i has its own random numbers. It depends only on the seed, its level and i, not on the
    number of threads and of puzzles. At different levels one seed may generate the same grids, so
    held-out puzzles need another seed.

    Args:
      count: number of puzzles.
      givens: number of givens, 18 to 81; or several numbers, such as ``range(19, 35)``, that the
        puzzles take in turn; or None for minimal puzzles with any number. One with 18 takes a core
        a minute or two. Puzzles with 17 exist, but are too rare to be found in this way.
      minimal: whether puzzles must be minimal at their number of givens, 18 to 28; none are then
        added.
      seed: seed of all random choices.
      threads: number of threads; None for all CPUs that the process may use.
      progress: called at intervals with the number of puzzles generated so far.

    Returns:
      The puzzles and their solutions.

    Raises:
      ValueError: an invalid number of puzzles, givens or threads, or a negative seed.
      NotImplementedError: the compiled library is missing.

    Example:
      >>> generate(4, givens=[22, 30], seed=1).givens.tolist()
      [22, 30, 22, 30]
    """
    _require("count", "at least 0", count, count >= 0)
    _require("seed", "at least 0", seed, seed >= 0)
    _require("threads", "at least 1", threads, threads is None or threads >= 1)
    levels = _levels(count, givens, minimal)
    reason = native.why_missing()
    if reason is not None:
        raise NotImplementedError(f"datasets.sudoku.generate: {reason}")
    generated = Puzzles(*np.empty((2, count, CELLS), np.int8))
    done, step = 0, 2
    while done < count:
        start = time.monotonic()
        part = slice(done, min(done + step, count))
        generated.puzzles[part], generated.solutions[part] = native.generate(
            levels[part], exactly=minimal, seed=seed, first=done, threads=threads
        )
        done = part.stop
        if progress is not None:
            progress(done)
        step = 2 * step if time.monotonic() - start < _REPORT / 2 else step
    return generated if givens is None or minimal else add_givens(generated, levels, seed=seed)


def add_givens(data: Puzzles, givens: int | np.ndarray, *, seed: int = 0) -> Puzzles:
    """Adds random cells of the solution as givens.

    Args:
      data: puzzles with their solutions.
      givens: new number of givens of each puzzle, one number or [count].
      seed: seed of the choice of cells.

    Returns:
      The puzzles with their new givens.

    Raises:
      ValueError: the number is more than 81, or less than a puzzle already has.
    """
    wanted = np.broadcast_to(np.asarray(givens), (len(data),))
    bad = (wanted < data.givens) | (wanted > CELLS)
    if bad.any():
        i = int(np.argmax(bad))
        raise ValueError(
            f"datasets.sudoku.add_givens: givens: expected {data.givens[i]} to {CELLS} for "
            f"puzzle {i}, got {wanted[i]}"
        )
    # A random key for each cell, all different in a puzzle: the lowest bits are the cell's number.
    # Givens come first.
    cells = np.arange(CELLS, dtype=np.uint32)
    keys = np.random.default_rng(seed).integers(1, 2**25, data.puzzles.shape, np.uint32)
    keys = np.where(data.puzzles > 0, cells, (keys << np.uint32(7)) | cells)
    last = np.take_along_axis(np.sort(keys, axis=1), wanted[:, None].astype(np.int64) - 1, axis=1)
    puzzles = np.where(keys <= last, data.solutions, np.int8(0))
    return Puzzles(puzzles, data.solutions)


def _levels(count: int, givens: int | Iterable[int] | None, minimal: bool) -> np.ndarray:
    """Required number of givens of each puzzle, [count] int8; 81 if any number is valid."""
    if givens is None:
        _require("minimal", "False where givens is None: all are minimal", minimal, not minimal)
        return np.full(count, CELLS, np.int8)
    several = givens if isinstance(givens, Iterable) else [givens]
    levels = [operator.index(level) for level in several]
    _require("givens", "at least one number", levels, bool(levels))
    most = MOST_MINIMAL if minimal else CELLS
    for level in levels:
        if level < FEWEST:
            raise ValueError(
                f"datasets.sudoku.generate: givens: expected at least {FEWEST}, got {level}: "
                "puzzles with fewer can not be found by chance; read a published list of them "
                "with read_lines"
            )
        kind = " for minimal puzzles" if minimal else ""
        _require("givens", f"{FEWEST} to {most}{kind}", level, level <= most)
    return np.resize(np.array(levels, np.int8), count)


def _require(argument: str, expected: str, got: object, met: bool) -> None:
    if not met:
        raise ValueError(f"datasets.sudoku.generate: {argument}: expected {expected}, got {got}")
