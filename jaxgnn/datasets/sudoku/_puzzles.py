"""Puzzles with their solutions."""

from dataclasses import dataclass

import numpy as np

from jaxgnn._sudoku_boards import CELLS


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
