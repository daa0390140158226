"""Results of a network, singles and an exact search on puzzles, by givens and by difficulty."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from jaxgnn.datasets import sudoku
from jaxgnn.datasets.sudoku import Puzzles
from jaxgnn.pretrained import SudokuSolutions

# Levels of difficulty: smallest and largest number of guesses of a search. Puzzles without guesses
# are divided by whether singles suffice.
_GUESSES = {
    "no guess": (0, 0),
    "1-2 guesses": (1, 2),
    "3-5 guesses": (3, 5),
    "6-10 guesses": (6, 10),
    "11+ guesses": (11, 10**9),
}
DIFFICULTIES = ("singles", *_GUESSES)


@dataclass(frozen=True)
class Row:
    """A line of the table: one kind and level of puzzles.

    Shares are of all puzzles of the line, from 0 to 1.

    Attributes:
      kind: kind of the puzzles.
      level: their number of givens, or their difficulty.
      count: number of puzzles.
      singles: share solved by filling in cells with one candidate and only places of digits.
      search: share for which an exact search proves that the solution is the only one.
      first: share that the first attempt of the network solves.
      solved: share that some attempt of the network solves.
      cells: share of the blank cells that is right in the end.
      steps: median step of its attempt after which a solved puzzle was solved; NaN if none is.
      restarts: mean number of new attempts.
      most_restarts: the largest number of new attempts at a puzzle.
      seconds: seconds of network steps for all puzzles of the kind, without compilation.
    """

    kind: str
    level: str
    count: int
    singles: float
    search: float
    first: float
    solved: float
    cells: float
    steps: float
    restarts: float
    most_restarts: int
    seconds: float


class Others:
    """Results of the trivial baseline and of the exact search, the ceiling, on the same puzzles."""

    def __init__(self, puzzles: Puzzles):
        self.rating = sudoku.difficulty(puzzles.puzzles)
        self.singles = self.rating.open == 0
        found, solutions = sudoku.solve(puzzles.puzzles)
        self.solutions = solutions[:, 0]
        self.search = found == 1

    def by_difficulty(self) -> dict[str, np.ndarray]:
        """Masks of puzzles by difficulty: singles, no guess, or numbers of guesses; none empty."""
        levels = {"singles": self.singles}
        for name, (low, high) in _GUESSES.items():
            guesses = self.rating.guesses
            levels[name] = ~self.singles & (guesses >= low) & (guesses <= high)
        return {name: chosen for name, chosen in levels.items() if chosen.any()}


class Outcome:
    """The network's answers to puzzles of a kind, checked against the exact search."""

    def __init__(self, kind: str, puzzles: Puzzles, found: SudokuSolutions, others: Others):
        self.kind, self.puzzles, self.found, self._others = kind, puzzles, found, others
        # Any solution counts for a puzzle with several.
        agrees = (found.digits == others.solutions).all(axis=1) | ~others.search
        kept = ((puzzles.puzzles == 0) | (puzzles.puzzles == found.digits)).all(axis=1)
        without_conflict = [not sudoku.conflicts(board) for board in found.digits]
        full = (found.digits > 0).all(axis=1)
        self.solved = found.solved & agrees & kept & full & np.array(without_conflict, bool)

    def rows(self) -> list[Row]:
        """The lines of all puzzles, of each number of givens, and of each difficulty."""
        givens = self.puzzles.givens
        levels = {"all": np.ones(len(givens), bool)}
        levels |= {f"{count} givens": givens == count for count in np.unique(givens)}
        levels |= self._others.by_difficulty()
        return [self._row(level, chosen) for level, chosen in levels.items()]

    def _row(self, level: str, chosen: np.ndarray) -> Row:
        """The line of the selected puzzles, [count] bool."""
        found, puzzles = self.found, self.puzzles[chosen]
        solved, steps = self.solved[chosen], found.steps[chosen]
        restarts = found.restarts[chosen]
        blank = puzzles.puzzles == 0
        right = (found.digits[chosen] == puzzles.solutions) & blank
        return Row(
            kind=self.kind,
            level=level,
            count=len(puzzles),
            singles=float(self._others.singles[chosen].mean()),
            search=float(self._others.search[chosen].mean()),
            first=float((solved & (restarts == 0)).mean()),
            solved=float(solved.mean()),
            cells=float(right.sum() / max(1, blank.sum())),
            steps=float(np.median(steps[solved])) if solved.any() else math.nan,
            restarts=float(restarts.mean()),
            most_restarts=int(restarts.max()),
            seconds=found.seconds,
        )


def by_line(by_seed: list[list[Row]]) -> list[list[Row]]:
    """The rows of each line of the table, one for each seed that has such puzzles."""
    lines: dict[tuple[str, str], list[Row]] = {}
    for row in (row for rows in by_seed for row in rows):
        lines.setdefault((row.kind, row.level), []).append(row)
    return list(lines.values())


def mean_row(rows: list[Row]) -> Row:
    """One row that averages those of several seeds, whose puzzle counts may differ."""
    numbers = [field.name for field in fields(Row) if field.type == "float"]
    means: dict[str, Any] = {
        name: float(np.mean([getattr(row, name) for row in rows])) for name in numbers
    }
    most = max(row.most_restarts for row in rows)
    return replace(rows[0], **means, count=sum(row.count for row in rows), most_restarts=most)
