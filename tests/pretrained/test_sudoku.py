"""The solver: answers, the step at which they settle, and what is no puzzle."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import _command_line
from jaxgnn.datasets import sudoku
from jaxgnn.models import CandidateNetwork
from jaxgnn.pretrained import SudokuSolver, save_weights

SOLUTION = sudoku.parse(
    "534678912672195348198342567859761423426853791713924856961537284287419635345286179"
)
PUZZLE = sudoku.parse(
    "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
)
BLANK = int(np.flatnonzero(PUZZLE == 0)[0])


class Scripted(nnx.Module):
    """Gives the solution at the steps of a list, and elsewhere one with a wrong digit in it."""

    def __init__(self, right: tuple[bool, ...]):
        self.right = right

    def __call__(self, puzzles, *, num_steps):
        boards = np.stack([SOLUTION] * num_steps)
        for step, right in enumerate(self.right):
            if not right:
                boards[step, BLANK] = boards[step, BLANK] % 9 + 1
        return 9.0 * jnp.asarray(boards[..., None] == np.arange(1, 10), jnp.float32)


@pytest.mark.parametrize(
    "right, settled",
    [
        ((0, 0, 1, 1), 3),
        ((1, 0, 1, 1), 3),
        ((0, 1, 0, 1), 4),
        ((1, 1, 1, 1), 1),
        ((1, 1, 1, 0), None),
    ],
    ids=str,
)
def test_an_answer_has_settled_where_it_stays_and_breaks_no_rule(right, settled):
    answer = SudokuSolver(Scripted(tuple(map(bool, right)))).solve(PUZZLE, steps=4)
    assert answer.settled == settled
    assert (settled is None) == bool(answer.conflicts)
    last = str(answer).splitlines()[-1]
    if settled is None:
        assert last.startswith("not solved: behind step 4 the answer still has") and "twice" in last
    else:
        np.testing.assert_array_equal(answer.board, SOLUTION)
        assert last == f"settled at step {settled} of 4"


def test_givens_stay_whatever_the_network_says():
    wrong = SOLUTION % 9 + 1

    class Wrong(nnx.Module):
        def __call__(self, puzzles, *, num_steps):
            boards = jnp.broadcast_to(jnp.asarray(wrong, jnp.int32), (num_steps, 81))
            return (boards[..., None] == jnp.arange(1, 10)).astype(jnp.float32)

    answer = SudokuSolver(Wrong()).solve(PUZZLE, steps=2)
    given = PUZZLE > 0
    np.testing.assert_array_equal(answer.board[given], PUZZLE[given])
    np.testing.assert_array_equal(answer.board[~given], wrong[~given])
    assert answer.settled is None


def test_a_network_that_says_nan_has_not_solved_the_puzzle_and_the_puzzle_is_kept_as_it_was():
    class Nan(nnx.Module):
        def __call__(self, puzzles, *, num_steps):
            return jnp.full((num_steps, 81, 9), jnp.nan)

    puzzle = PUZZLE.copy()
    answer = SudokuSolver(Nan()).solve(puzzle, steps=2)
    puzzle[:] = 0
    np.testing.assert_array_equal(answer.puzzle, PUZZLE)
    np.testing.assert_array_equal(answer.board, PUZZLE)
    assert answer.settled is None
    assert str(answer).endswith(
        "not solved: behind step 2 the answer still has 51 cells without a digit"
    )


TWO_GIVEN = PUZZLE.copy()
TWO_GIVEN[1] = 5
NONE = PUZZLE.copy()
NONE[2] = 2  # the row, the column and the box have no 2, but the solution has a 4 there
BAD = {
    "too short": (sudoku.to_line(PUZZLE)[:80], "expected 81 cells, got 80"),
    "too long": (sudoku.to_line(PUZZLE) + "1", "expected 81 cells, got 82"),
    "a letter": ("x" + sudoku.to_line(PUZZLE)[1:], r"got 'x' at cell 1 \(row 1, column 1\)"),
    "a digit twice": (sudoku.to_line(TWO_GIVEN), "5 stands twice in row 1, at r1c1, r1c2"),
    "no solution": (sudoku.to_line(NONE), "it has no solution"),
    "several solutions": ("." * 81, "more than one solution: r[1-9]c[1-9] can be"),
    "empty": ("", "expected 81 cells, got 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_puzzle_is_told_so(name):
    text, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        SudokuSolver(Scripted((True,))).solve(text, steps=1)


def test_arrays_files_and_steps_are_checked(tmp_path):
    solver = SudokuSolver(Scripted((True,)))
    with pytest.raises(ValueError, match="expected 0 to 9, got 10"):
        solver.solve(np.where(PUZZLE == 5, 10, PUZZLE), steps=1)
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        solver.solve(PUZZLE, steps=0)
    with pytest.raises(FileNotFoundError, match="no file"):
        solver.solve(tmp_path / "missing.txt", steps=1)
    file = tmp_path / "puzzle.txt"
    file.write_text(sudoku.to_grid(PUZZLE))
    np.testing.assert_array_equal(solver.solve(file, steps=1).board, SOLUTION)


def test_the_command_prints_the_grid_or_one_line_of_what_is_wrong(tmp_path, capsys):
    weights = tmp_path / "weights.npz"
    options = {"features": 2}
    save_weights(weights, CandidateNetwork(**options, rngs=nnx.Rngs(0)), options)
    command = ["sudoku", "--weights", str(weights), "--steps", "2"]
    complete = sudoku.to_line(SOLUTION)
    _command_line.main([*command, complete])
    assert capsys.readouterr().out == f"{sudoku.to_grid(SOLUTION)}\nsettled at step 1 of 2\n"
    with pytest.raises(SystemExit) as unsolved:  # no network of two features solves it
        _command_line.main([*command, sudoku.to_line(PUZZLE)])
    assert unsolved.value.code == 1
    assert "not solved: behind step 2" in capsys.readouterr().out
    with pytest.raises(SystemExit) as refused:
        _command_line.main([*command, "5" + complete])
    assert str(refused.value.code).startswith("error: ") and "82" in str(refused.value.code)
