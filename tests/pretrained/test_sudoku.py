"""The solver: when it stops, how it begins again, and what is no puzzle."""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import _command_line
from jaxgnn.datasets import sudoku
from jaxgnn.models import CandidateNetwork
from jaxgnn.nn import LSTMState
from jaxgnn.pretrained import SudokuEffort, SudokuSolver, save_weights, solve_sudokus

SOLUTION = sudoku.parse(
    "534678912672195348198342567859761423426853791713924856961537284287419635345286179"
)
PUZZLE = sudoku.parse(
    "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
)
BLANK, *_, LAST = np.flatnonzero(PUZZLE == 0).tolist()
WRONG = SOLUTION.copy()
WRONG[[BLANK, LAST]] = SOLUTION[[BLANK, LAST]] % 9 + 1


class Scripted(nnx.Module):
    """Answers with the solution where a rule says so, and elsewhere with two wrong digits.

    Args:
      rule: from the steps that are made, the noise that the attempt began with, and the puzzles, to
        [*batch] bool.
    """

    def __init__(self, rule: Callable):
        self.rule = rule

    def recurrence(self, puzzles):
        return _Steps(self.rule, puzzles)


class _Steps:
    def __init__(self, rule, puzzles):
        self._rule, self._puzzles = rule, puzzles

    def start(self):
        num_steps = jnp.zeros(self._puzzles.shape[:-1], jnp.int32)
        return LSTMState(num_steps, jnp.zeros(num_steps.shape), jnp.array(True))

    def step(self, state):
        state = state._replace(hidden=state.hidden + 1)
        right = self._rule(state.hidden, state.cell, self._puzzles)
        digits = jnp.where(right[..., None], jnp.asarray(SOLUTION), jnp.asarray(WRONG))
        logits = 9.0 * jax.nn.one_hot(digits - 1, 9)
        # In the first blank cell both digits are about as likely.
        two = jnp.zeros(9).at[jnp.array([SOLUTION[BLANK], WRONG[BLANK]]) - 1].set(8.9)
        return state, logits.at[..., BLANK, :].set(jnp.maximum(logits[..., BLANK, :], two))


def solve_at(*steps):
    return Scripted(
        lambda num_steps, noise, puzzles: (num_steps[..., None] == jnp.array(steps)).any(axis=-1)
    )


@pytest.mark.parametrize(
    "right, limit, solved_at", [((3, 4), 8, 3), ((1, 5), 8, 1), ((4,), 4, 4), ((5,), 4, 0)], ids=str
)
def test_an_attempt_ends_with_the_first_answer_that_obeys_the_rules(right, limit, solved_at):
    answer = SudokuSolver(solve_at(*right)).solve(PUZZLE, SudokuEffort(limit, limit))
    assert (answer.solved, answer.steps, answer.restarts) == (solved_at > 0, solved_at, 0)
    assert bool(answer.conflicts) != answer.solved
    last = str(answer).splitlines()[-1]
    if answer.solved:
        np.testing.assert_array_equal(answer.board, SOLUTION)
        assert last.startswith(f"solved at step {solved_at} (0 restarts, ")
    else:
        np.testing.assert_array_equal(answer.board, WRONG)
        assert last.startswith("not solved (0 restarts, ") and "twice" in last


def test_new_attempts_begin_with_noise_that_the_seed_decides():
    lucky = Scripted(lambda num_steps, noise, puzzles: (noise > 1.0) & (num_steps == 2))
    efforts = [SudokuEffort(10_000, 3, attempts=2, seed=seed) for seed in range(6)]
    solver = SudokuSolver(lucky)
    answers = [solver.solve(PUZZLE, effort) for effort in efforts]
    assert all(answer.solved and answer.steps == 2 for answer in answers)
    # Every round has two attempts, of which one in six is lucky.
    restarts = [answer.restarts for answer in answers]
    assert min(restarts) >= 2 and len(set(restarts)) > 1 and all(r % 2 == 0 for r in restarts)
    assert solver.solve(PUZZLE, efforts[3]).restarts == restarts[3]


def test_every_other_new_attempt_takes_a_digit_that_the_network_doubts_for_given():
    helped = Scripted(lambda num_steps, noise, puzzles: puzzles[..., BLANK] == int(SOLUTION[BLANK]))
    assert not SudokuSolver(helped).solve(PUZZLE, SudokuEffort(2, 2)).solved
    # The first attempt of a round has no guess, so one at a time never has.
    assert not SudokuSolver(helped).solve(PUZZLE, SudokuEffort(100, 2, attempts=1)).solved
    answer = SudokuSolver(helped).solve(PUZZLE, SudokuEffort(100, 2, attempts=8))
    assert answer.solved and answer.steps == 1 and answer.restarts == 8
    np.testing.assert_array_equal(answer.puzzle, PUZZLE)


@pytest.mark.parametrize(
    "effort, restarts",
    [
        (SudokuEffort(20, 4, 3), 6),  # 4 + 3·4, then 3·1 of the 4 that are left
        (SudokuEffort(8, 4, 8), 0),  # what is left is not one step for each attempt
        (SudokuEffort(3, 4, 8), 0),
        (SudokuEffort(12, 4, 8), 8),
    ],
    ids=str,
)
def test_no_more_steps_are_made_than_allowed(effort, restarts):
    answer = SudokuSolver(solve_at(100)).solve(PUZZLE, effort)
    assert not answer.solved and (answer.steps, answer.restarts) == (0, restarts)


def test_seconds_are_those_of_the_whole_call_and_compilation_is_apart():
    begin = time.perf_counter()
    answer = SudokuSolver(solve_at(100)).solve(PUZZLE, SudokuEffort(12, 4, 8))
    whole = time.perf_counter() - begin
    assert answer.seconds > 0 and answer.compile_seconds > 0
    assert whole / 2 < answer.seconds + answer.compile_seconds <= whole
    compiled = f"{answer.seconds:.2f} s and {answer.compile_seconds:.2f} s of compilation"
    assert f"not solved (8 restarts, {compiled})" in str(answer)


def test_puzzles_of_a_batch_are_solved_each_on_its_own_and_progress_is_told():
    turned = np.roll(PUZZLE.reshape(3, 3, 9), 1, axis=1).reshape(81)  # rows inside the bands
    by_first_row = Scripted(
        lambda num_steps, noise, puzzles: (num_steps >= 3) & (puzzles[..., 0] == int(PUZZLE[0]))
    )
    puzzles, told = np.stack([PUZZLE, turned, PUZZLE, turned, PUZZLE]), []
    solutions = solve_sudokus(
        by_first_row, puzzles, SudokuEffort(4, 4), batch_size=2, progress=told.append
    )
    np.testing.assert_array_equal(solutions.solved, [True, False, True, False, True])
    np.testing.assert_array_equal(solutions.steps, [3, 0, 3, 0, 3])
    assert told == sorted(told) and told[-1] == 5 and solutions.seconds > 0
    is_clue = puzzles > 0
    np.testing.assert_array_equal(solutions.digits[is_clue], puzzles[is_clue])
    assert len(solve_sudokus(by_first_row, puzzles[:0]).digits) == 0


@pytest.mark.parametrize(
    "puzzles, message",
    [
        (np.full((1, 81), 10), r"digits from 0 to 9, got 10 at \[0, 0\]"),
        (np.full((1, 81), -1), r"digits from 0 to 9, got -1 at \[0, 0\]"),
        (np.zeros((1, 81)), r"integers \[count, 81\], got float64 \[1, 81\]"),
        (np.zeros(81, np.int8), r"integers \[count, 81\], got int8 \[81\]"),
        (np.zeros((1, 80), np.int8), r"got int8 \[1, 80\]"),
    ],
)
def test_what_are_no_digits_is_told_so(puzzles, message):
    with pytest.raises(ValueError, match=f"solve_sudokus: puzzles must be .*{message}"):
        solve_sudokus(solve_at(1), puzzles)


@pytest.mark.parametrize("name", ["steps", "attempt_steps", "attempts", "seed"])
def test_an_effort_is_checked(name):
    with pytest.raises(ValueError, match=f"SudokuEffort: {name} must be at least"):
        SudokuEffort(**{name: -1})


class Constant(nnx.Module):
    """Says the same logits at each step."""

    def __init__(self, logits):
        self.logits = nnx.Variable(jnp.asarray(logits, jnp.float32))

    def recurrence(self, puzzles):
        steps = _Steps(None, puzzles)
        logits = jnp.broadcast_to(self.logits[...], (*puzzles.shape, 9))
        steps.step = lambda state: (state, logits)
        return steps


def test_givens_stay_whatever_the_network_says():
    wrong = SOLUTION % 9 + 1
    answer = SudokuSolver(Constant(jax.nn.one_hot(wrong - 1, 9))).solve(PUZZLE, SudokuEffort(2, 2))
    is_clue = PUZZLE > 0
    np.testing.assert_array_equal(answer.board[is_clue], PUZZLE[is_clue])
    np.testing.assert_array_equal(answer.board[~is_clue], wrong[~is_clue])
    assert not answer.solved


def test_a_network_that_says_nan_has_not_solved_the_puzzle_and_the_puzzle_is_kept_as_it_was():
    puzzle = PUZZLE.copy()
    nan = Constant(jnp.full((81, 9), jnp.nan))
    answer = SudokuSolver(nan).solve(puzzle, SudokuEffort(30, 2, attempts=4))
    puzzle[:] = 0
    np.testing.assert_array_equal(answer.puzzle, PUZZLE)
    np.testing.assert_array_equal(answer.board, PUZZLE)
    assert not answer.solved and answer.restarts == 16
    assert str(answer).endswith("the answer of the first attempt has 51 cells without a digit")


TWO_GIVEN = PUZZLE.copy()
TWO_GIVEN[1] = 5
NONE = PUZZLE.copy()
NONE[2] = 2  # the row, the column and the box have no 2, but the solution has a 4 there
BAD = {
    "too short": (sudoku.to_line(PUZZLE)[:80], "must be 81 cells, got 80"),
    "too long": (sudoku.to_line(PUZZLE) + "1", "must be 81 cells, got 82"),
    "a letter": ("x" + sudoku.to_line(PUZZLE)[1:], r"got 'x' at cell 1 \(row 1, column 1\)"),
    "a digit twice": (sudoku.to_line(TWO_GIVEN), "5 stands twice in row 1, at r1c1, r1c2"),
    "no solution": (sudoku.to_line(NONE), "it has no solution"),
    "several solutions": ("." * 81, "more than one solution: r[1-9]c[1-9] can be"),
    "empty": ("", "must be 81 cells, got 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_puzzle_is_told_so(name):
    text, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        SudokuSolver(solve_at(1)).solve(text)


def test_arrays_and_files_are_checked(tmp_path):
    solver = SudokuSolver(solve_at(1))
    with pytest.raises(ValueError, match="expected 0 to 9, got 10"):
        solver.solve(np.where(PUZZLE == 5, 10, PUZZLE))
    with pytest.raises(FileNotFoundError, match="no file"):
        solver.solve(tmp_path / "missing.txt")
    file = tmp_path / "puzzle.txt"
    file.write_text(sudoku.to_grid(PUZZLE))
    np.testing.assert_array_equal(solver.solve(file).board, SOLUTION)


def test_the_command_prints_the_grid_or_one_line_of_what_is_wrong(tmp_path, capsys):
    weights = tmp_path / "weights.npz"
    options = {"features": 2}
    save_weights(weights, CandidateNetwork(**options, rngs=nnx.Rngs(0)), options)
    command = ["sudoku", "--weights", str(weights), "--steps", "2"]
    complete = sudoku.to_line(SOLUTION)
    _command_line.main([*command, complete])
    printed = capsys.readouterr().out
    assert printed.startswith(f"{sudoku.to_grid(SOLUTION)}\nsolved at step 1 (0 restarts, ")
    with pytest.raises(SystemExit) as unsolved:  # no network of two features solves it
        _command_line.main([*command, sudoku.to_line(PUZZLE)])
    assert unsolved.value.code == 1
    assert "not solved (0 restarts, " in capsys.readouterr().out
    with pytest.raises(SystemExit) as refused:
        _command_line.main([*command, "5" + complete])
    assert str(refused.value.code).startswith("jaxgnn sudoku: ") and "82" in str(refused.value.code)
