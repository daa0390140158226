"""Generated puzzles, their solutions, and how hard they are."""

import itertools
import re

import numpy as np
import pytest

from jaxgnn.datasets import sudoku
from jaxgnn.datasets.sudoku import _generate, solving
from jaxgnn.datasets.sudoku.solving import iterate_solutions

from . import sudoku_oracle as oracle

EASY = sudoku.parse(
    "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
)


@pytest.fixture(scope="module")
def mixed():
    return sudoku.generate(32, range(19, 35), seed=7)


def test_levels_come_in_turn_and_have_one_solution(mixed):
    assert mixed.givens.tolist() == [*range(19, 35)] * 2
    found, solutions = sudoku.solve(mixed.puzzles)
    assert (found == 1).all()
    np.testing.assert_array_equal(solutions[:, 0], mixed.solutions)


def test_an_exact_cover_agrees_on_every_level(mixed):
    for puzzle, solution in zip(mixed.puzzles[:16], mixed.solutions, strict=False):
        (found,) = oracle.solutions(puzzle, 2)
        np.testing.assert_array_equal(found, solution)


def test_equal_seeds_give_equal_puzzles_and_more_puzzles_begin_alike(mixed):
    again = sudoku.generate(16, range(19, 35), seed=7, threads=1)
    np.testing.assert_array_equal(again.puzzles, mixed.puzzles[:16])
    other = sudoku.generate(16, range(19, 35), seed=8)
    assert (other.solutions != mixed.solutions[:16]).any(axis=1).all()


def test_minimal_puzzles_have_the_givens_asked_for():
    data = sudoku.generate(6, [23, 24, 28], minimal=True)
    assert data.givens.tolist() == [23, 24, 28] * 2
    for puzzle in data.puzzles:
        less = np.where(np.eye(81, dtype=bool)[puzzle > 0], np.int8(0), puzzle)
        assert (sudoku.solve(less)[0] == 2).all()


def test_without_a_number_of_givens_puzzles_are_minimal_as_they_come():
    data = sudoku.generate(200)
    assert len(data) == 200
    assert 20 <= data.givens.min() < 24 < data.givens.max() <= 30
    assert len(sudoku.generate(0)) == 0


def test_progress_is_told_up_to_the_end(monkeypatch):
    monkeypatch.setattr(_generate, "_REPORT", 0)
    told = []
    sudoku.generate(40, progress=told.append)
    assert told == [*range(2, 41, 2)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"givens": 17}, "givens: expected at least 18, got 17: puzzles with fewer can not"),
        ({"givens": range(16, 35)}, "givens: expected at least 18, got 16"),
        ({"givens": 82}, "givens: expected 18 to 81, got 82"),
        ({"givens": 29, "minimal": True}, "givens: expected 18 to 28 for minimal puzzles, got 29"),
        ({"givens": []}, "givens: expected at least one number, got []"),
        ({"minimal": True}, "minimal: expected False where givens is None"),
        ({"threads": 0}, "threads: expected at least 1, got 0"),
        ({"seed": -1}, "seed: expected at least 0, got -1"),
        ({"count": -1}, "count: expected at least 0, got -1"),
    ],
)
def test_what_can_not_be_made_is_refused(options, message):
    with pytest.raises(ValueError, match=re.escape(f"datasets.sudoku.generate: {message}")):
        sudoku.generate(**{"count": 2, **options})


def test_givens_are_added_from_the_solution_and_none_is_lost():
    data = sudoku.generate(50, seed=2)
    more = sudoku.add_givens(data, np.arange(32, 82))
    assert more.givens.tolist() == [*range(32, 82)]
    assert (more.puzzles == data.puzzles)[data.puzzles > 0].all()
    assert (more.puzzles == data.solutions)[more.puzzles > 0].all()
    assert sudoku.add_givens(data, data.givens).puzzles.tolist() == data.puzzles.tolist()
    other = sudoku.add_givens(data, np.arange(32, 82), seed=1)
    assert (other.puzzles != more.puzzles).any()


def test_every_open_cell_is_as_likely_to_be_added():
    data = sudoku.generate(1)[np.zeros(4000, int)]
    added = (sudoku.add_givens(data, 50).puzzles > 0).sum(axis=0)[data.puzzles[0] == 0]
    expected = 4000 * (50 - data.givens[0]) / (81 - data.givens[0])
    assert abs(added - expected).max() < 5 * np.sqrt(4000) / 2


@pytest.mark.parametrize("givens", [20, 82])
def test_givens_that_can_not_be_added_are_refused(givens):
    data = sudoku.generate(3, 30)
    with pytest.raises(ValueError, match=f"expected 30 to 81 for puzzle 0, got {givens}"):
        sudoku.add_givens(data, givens)


def test_puzzles_and_solutions_have_one_shape():
    board = np.zeros((2, 81), np.int8)
    for puzzles, solutions in ((board, board[:1]), (board[0], board[0]), (board[:, 1:],) * 2):
        with pytest.raises(ValueError, match=r"Puzzles: expected .* \[count, 81\]"):
            sudoku.Puzzles(puzzles, solutions)


def test_a_board_with_one_solution_is_solved():
    (expected,) = oracle.solutions(EASY, 2)
    np.testing.assert_array_equal(sudoku.check_unique(EASY), expected)


def without(board, *cells):
    board = board.copy()
    board[list(cells)] = 0
    return board


def test_boards_without_exactly_one_solution_are_explained():
    clash = EASY.copy()
    clash[2] = 5
    with pytest.raises(ValueError, match=r"but 5 stands twice in row 1, at r1c1, r1c3 \(and 1 "):
        sudoku.check_unique(clash)
    stuck = sudoku.parse("12345678." + 8 * "." + "9" + 63 * ".")
    assert sudoku.conflicts(stuck) == []
    with pytest.raises(ValueError, match=r"but it has no solution$"):
        sudoku.check_unique(stuck)
    open_board = without(EASY, 0, 4, 12)
    with pytest.raises(
        ValueError, match=r"more than one solution: r\dc\d can be \d or \d"
    ) as caught:
        sudoku.check_unique(open_board)
    row, column, one, other = map(int, re.findall(r"\d", str(caught.value)))
    for digit in (one, other):
        board = open_board.copy()
        board[9 * row + column - 10] = digit
        assert oracle.solutions(board, 1)


def test_solving_refuses_what_is_no_board():
    with pytest.raises(ValueError, match=r"solve: boards: expected integers \[count, 81\]"):
        sudoku.solve(EASY)
    with pytest.raises(ValueError, match="solve: limit: expected at least 1, got 0"):
        sudoku.solve(EASY[None], limit=0)


# Without a clash, and refuted by millions of guesses of a search that guesses at cells alone.
REFUTED = sudoku.parse(
    "...9.................37.9.......................4...7.3972..........8.5..4.7....."
)


def test_a_board_that_takes_too_long_is_named(monkeypatch):
    boards = np.stack([EASY, REFUTED])
    assert sudoku.solve(boards)[0].tolist() == [1, 0]
    with pytest.raises(ValueError, match="must have exactly one solution, but it has no solution"):
        sudoku.check_unique(REFUTED)
    for name in ("MOST_GUESSES", "MOST_COUNTED_GUESSES"):
        monkeypatch.setattr(solving, name, 500)
    for function in (sudoku.solve, sudoku.difficulty):
        message = f"{function.__name__}: boards: expected boards that take at most 500 guesses, got"
        with pytest.raises(ValueError, match=f"sudoku.{message} more for board 1$"):
            function(boards)
    message = "but it is neither solved nor refuted after 500 guesses"
    with pytest.raises(ValueError, match=f"check_unique: board must have .* {message}$"):
        sudoku.check_unique(REFUTED)


def test_more_givens_make_puzzles_easier(mixed):
    rating = sudoku.difficulty(mixed.puzzles)
    assert all(part.shape == (32,) for part in rating)
    hard, easy = mixed.givens < 24, mixed.givens > 29
    assert rating.open[hard].mean() > rating.open[easy].mean()
    assert rating.guesses[hard].mean() > rating.guesses[easy].mean() + 0.5
    solved = sudoku.difficulty(mixed.solutions)
    assert not any(part.any() for part in solved)


def test_the_solver_in_numpy_finds_all_solutions_and_no_others(mixed):
    for puzzle, solution in zip(mixed.puzzles[:6], mixed.solutions, strict=False):
        (found,) = iterate_solutions(puzzle)
        np.testing.assert_array_equal(found, solution)
    board = without(EASY, 0, 4, 12, 40)
    every = [solution.tobytes() for solution in iterate_solutions(board)]
    assert sorted(every) == sorted(s.tobytes() for s in oracle.solutions(board, 1000))
    assert len(list(itertools.islice(iterate_solutions(0 * EASY), 5))) == 5


def test_without_the_library_boards_are_solved_slowly_and_puzzles_refused(monkeypatch):
    monkeypatch.setattr(solving.native, "why_missing", lambda: "needs a library")
    with pytest.warns(UserWarning, match="slow path: needs a library"):
        found, solutions = sudoku.solve(np.stack([EASY, 0 * EASY]))
    assert found.tolist() == [1, 2] and solutions.shape == (2, 2, 81)
    np.testing.assert_array_equal(solutions[0, 0], oracle.solutions(EASY, 1)[0])
    monkeypatch.setattr(solving, "MOST_PLACEMENTS", 100)
    with (
        pytest.warns(UserWarning, match="slow path"),
        pytest.raises(ValueError, match=r"solve: .* at most 100 guesses, got more for board 2$"),
    ):
        sudoku.solve(np.stack([EASY, 0 * EASY, REFUTED]))
    for function in (sudoku.difficulty, lambda boards: sudoku.generate(len(boards))):
        with pytest.raises(NotImplementedError, match="needs a library"):
            function(EASY[None])
