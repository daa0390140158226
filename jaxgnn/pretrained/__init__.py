"""Trained weights that come with the library, and solvers that use them.

Experiments train and export them; this package loads and runs them. The log of a training run is
stored beside its weights.
"""

from jaxgnn._sudoku import SudokuEffort as SudokuEffort
from jaxgnn._suggestions import suggest_names as _suggest_names
from jaxgnn.pretrained._model_file import load_model as load_model
from jaxgnn.pretrained._model_file import load_weights as load_weights
from jaxgnn.pretrained._model_file import save_model as save_model
from jaxgnn.pretrained._model_file import save_weights as save_weights
from jaxgnn.pretrained._sudoku import SudokuAnswer as SudokuAnswer
from jaxgnn.pretrained._sudoku import SudokuSolutions as SudokuSolutions
from jaxgnn.pretrained._sudoku import SudokuSolver as SudokuSolver
from jaxgnn.pretrained._sudoku import solve_sudokus as solve_sudokus
from jaxgnn.pretrained._sudoku import sudoku_solver as sudoku_solver
from jaxgnn.pretrained._sudoku import sudoku_weights as sudoku_weights

_suggest_names(__name__)
