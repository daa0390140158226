"""Sudoku puzzles: a generator, readers of published files, solving and rating, symmetries.

Boards are arrays [..., 81] of the digits 1 to 9, row by row, with 0 where a cell is empty: int8 on
the host. Only the symmetries and ``reveal`` run on the device.
"""

from jaxgnn._sudoku import Conflict as Conflict
from jaxgnn._sudoku import conflicts as conflicts
from jaxgnn._sudoku import load as load
from jaxgnn._sudoku import parse as parse
from jaxgnn._sudoku import to_grid as to_grid
from jaxgnn._sudoku import to_line as to_line
from jaxgnn.datasets.sudoku._device import Symmetry as Symmetry
from jaxgnn.datasets.sudoku._device import apply_symmetry as apply_symmetry
from jaxgnn.datasets.sudoku._device import augment as augment
from jaxgnn.datasets.sudoku._device import invert_symmetry as invert_symmetry
from jaxgnn.datasets.sudoku._device import random_symmetry as random_symmetry
from jaxgnn.datasets.sudoku._device import reveal as reveal
from jaxgnn.datasets.sudoku._files import read_kaggle as read_kaggle
from jaxgnn.datasets.sudoku._files import read_lines as read_lines
from jaxgnn.datasets.sudoku._files import read_palm as read_palm
from jaxgnn.datasets.sudoku._files import write_palm as write_palm
from jaxgnn.datasets.sudoku._generate import Puzzles as Puzzles
from jaxgnn.datasets.sudoku._generate import add_givens as add_givens
from jaxgnn.datasets.sudoku._generate import generate as generate
from jaxgnn.datasets.sudoku.solving import Difficulty as Difficulty
from jaxgnn.datasets.sudoku.solving import check_unique as check_unique
from jaxgnn.datasets.sudoku.solving import difficulty as difficulty
from jaxgnn.datasets.sudoku.solving import solve as solve
