"""Sudoku puzzles: a generator, readers of published files, solving and rating.

Boards are arrays [..., 81] of the digits 1 to 9, row by row, with 0 where a cell is empty; int8.
"""

from jaxgnn.datasets.sudoku._boards import Conflict as Conflict
from jaxgnn.datasets.sudoku._boards import conflicts as conflicts
from jaxgnn.datasets.sudoku._boards import load as load
from jaxgnn.datasets.sudoku._boards import parse as parse
from jaxgnn.datasets.sudoku._boards import to_grid as to_grid
from jaxgnn.datasets.sudoku._boards import to_line as to_line
from jaxgnn.datasets.sudoku._files import read_kaggle as read_kaggle
from jaxgnn.datasets.sudoku._files import read_lines as read_lines
from jaxgnn.datasets.sudoku._files import read_palm as read_palm
from jaxgnn.datasets.sudoku._files import write_palm as write_palm
from jaxgnn.datasets.sudoku._generate import add_givens as add_givens
from jaxgnn.datasets.sudoku._generate import generate as generate
from jaxgnn.datasets.sudoku._puzzles import Puzzles as Puzzles
from jaxgnn.datasets.sudoku._solve import Difficulty as Difficulty
from jaxgnn.datasets.sudoku._solve import check_unique as check_unique
from jaxgnn.datasets.sudoku._solve import difficulty as difficulty
from jaxgnn.datasets.sudoku._solve import solve as solve
