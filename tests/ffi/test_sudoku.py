"""The compiled Sudoku functions against solvers that share nothing with them."""

import itertools
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from jaxgnn._ffi import sudoku
from tests.datasets import sudoku_oracle as oracle

ANY = 81
UNITS = [
    *(range(9 * i, 9 * i + 9) for i in range(9)),
    *(range(i, 81, 9) for i in range(9)),
    *(
        [27 * i + 3 * j + 9 * k + m for k in range(3) for m in range(3)]
        for i, j in np.ndindex(3, 3)
    ),
]


def board(text):
    return np.array([0 if c == "." else int(c) for c in text], np.int8)


EASY = board("53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79")
EMPTY = np.zeros(81, np.int8)
CLASH = np.concatenate([np.array([5, 5], np.int8), np.zeros(79, np.int8)])
# Nothing clashes, but the last cell of the first row can be neither 9 nor anything else.
STUCK = board("12345678." + "........9" + "." * 63)


def make(count, most=ANY, exactly=False, seed=0, first=0, threads=2):
    levels = np.full(count, most, np.int8)
    return sudoku.generate(levels, exactly=exactly, seed=seed, first=first, threads=threads)


def solve(*boards, limit=2, most=10**7, patience=sudoku.PLAIN):
    return sudoku.solve(np.stack(boards), limit=limit, most=most, threads=2, patience=patience)


@pytest.fixture(scope="module")
def made():
    return make(300)


def test_an_exact_cover_finds_the_same_and_only_solution(made):
    for puzzle, solution in zip(made[0][:40], made[1], strict=False):
        (found,) = oracle.solutions(puzzle, 2)
        np.testing.assert_array_equal(found, solution)


def test_without_any_one_given_there_are_more_solutions(made):
    for puzzle in made[0][:6]:
        for cell in np.flatnonzero(puzzle):
            less = puzzle.copy()
            less[cell] = 0
            assert len(oracle.solutions(less, 2)) == 2


def test_puzzles_are_parts_of_their_solutions_and_differ(made):
    puzzles, solutions = made
    assert (puzzles[puzzles > 0] == solutions[puzzles > 0]).all()
    for unit in UNITS:
        np.testing.assert_array_equal(
            np.sort(solutions[:, unit]), np.tile(np.arange(1, 10), (300, 1))
        )
    assert len({puzzle.tobytes() for puzzle in solutions}) == 300
    givens = (puzzles > 0).sum(axis=1)
    assert 23.5 < givens.mean() < 25.5


def test_every_digit_and_every_cell_is_given_as_often_as_another():
    puzzles, solutions = make(2000)
    # Expected 2000 / 9 = 222 with a deviation of 14, and 2000 * 24.5 / 81 = 605 with one of 21.
    of_first_cell = np.bincount(solutions[:, 0], minlength=10)[1:]
    assert (abs(of_first_cell - 222) < 70).all()
    assert (abs((puzzles > 0).sum(axis=0) - 605) < 105).all()


def test_neither_threads_nor_parts_make_a_difference(made):
    for threads in (1, 3):
        np.testing.assert_array_equal(make(300, threads=threads), made)
    parts = [make(100, first=first) for first in (0, 100, 200)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), made)
    assert not np.array_equal(make(300, seed=1), made)


@pytest.mark.parametrize("most", [20, 21, 22, 26])
def test_levels_are_met_exactly_or_at_most(most):
    puzzles, solutions = make(4, most, exactly=True)
    assert ((puzzles > 0).sum(axis=1) == most).all()
    found, some, _ = solve(*puzzles)
    assert (found == 1).all()
    np.testing.assert_array_equal(some[:, 0], solutions)
    assert ((make(20, most + 2)[0] > 0).sum(axis=1) <= most + 2).all()


def test_few_givens_are_minimal_too():
    for puzzle in make(3, 20, exactly=True, seed=5)[0]:
        less = np.where(np.eye(81, dtype=bool)[puzzle > 0], np.int8(0), puzzle)
        assert (solve(*less)[0] == 2).all()


def test_solutions_are_counted_up_to_the_limit():
    found, some, _ = solve(EASY, EMPTY, CLASH, STUCK)
    assert found.tolist() == [1, 2, 0, 0]
    assert not some[0, 1].any() and not some[2:].any()
    assert (some[1, 0] != some[1, 1]).any()


def test_all_solutions_of_a_board_with_many_are_found():
    open_cells = EASY.copy()
    open_cells[[0, 4, 12, 40]] = 0
    expected = {s.tobytes() for s in oracle.solutions(open_cells, 1000)}
    found, some, _ = solve(open_cells, limit=1000)
    assert 1 < len(expected) < 1000
    assert {s.tobytes() for s in some[0, : found[0]]} == expected


# Boards that take the plain search millions of guesses, with the number of solutions up to two.
HARD = {
    # Two eights in a row.
    "........6.................7...87...9.9.......5.82....8......8.......1.7....3.....": 0,
    # Nothing clashes, and digits have no places left in a box after any few guesses.
    ".....5.8....6.1.43..........1.5........1.6...3.......553.....61........4.........": 0,
    ".......3.....8...5.............495.8....5.9...2....67.....................7.....4": 0,
    "...9.................37.9.......................4...7.3972..........8.5..4.7.....": 0,
    # Many solutions, none of which begins as the first guesses do.
    "............7..............9.5.2.8..21...9.........3....4.........6..1....3......": 2,
    "...........6.................9.....7....2...6.837.5..2......73.......928.........": 2,
}


def test_boards_that_are_hard_for_the_plain_search_end_soon():
    count, some, guesses = solve(*map(board, HARD), most=40_000, patience=sudoku.PATIENCE)
    assert count.tolist() == list(HARD.values())
    assert guesses.max() < 2 * sudoku.PATIENCE
    for text, solutions in zip(HARD, some, strict=True):
        for solution in solutions[: HARD[text]]:
            assert (solution == board(text))[board(text) > 0].all()
            assert all(len({solution[cell] for cell in unit}) == 9 for unit in UNITS)


def test_patience_changes_no_solution_and_not_their_order(made):
    rng = np.random.default_rng(0)
    # Of a minimal puzzle three givens less, and two digits that may contradict the others.
    boards = np.where(rng.random(made[0].shape) < 0.12, np.int8(0), made[0])[:80]
    some = rng.integers(0, 81, (80, 2))
    boards[np.arange(40)[:, None], some[:40]] = rng.integers(1, 10, (40, 2))
    plain = solve(*boards, limit=30)
    assert {0, 30} < set(plain[0].tolist())
    for patience in (0, 1, 7):
        found, solutions, _ = solve(*boards, limit=30, patience=patience)
        np.testing.assert_array_equal(found, plain[0])
        np.testing.assert_array_equal(solutions, plain[1])


def test_a_board_that_takes_too_long_is_given_up():
    hard = board(list(HARD)[1])
    for patience in (0, sudoku.PLAIN):
        count, _, guesses = solve(EASY, hard, EASY, most=1000, patience=patience)
        assert count.tolist() == [1, -1, 1]
        assert guesses[1] <= 1001


def call_forever(call):
    """Runs a call that a signal of this process ends, and the seconds until it did."""
    main, sent = threading.get_ident(), []

    def interrupt():
        sent.append(time.monotonic())
        signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.3, interrupt)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            call()
        return time.monotonic() - sent[0]
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)


ENDLESS = {
    "solve": lambda: solve(*[board(list(HARD)[2])] * 3, most=sudoku.PLAIN),
    "generate": lambda: make(200, 18, exactly=True),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_signal_ends_a_call_at_once(name):
    # Milliseconds; the limit is for machines that do much else.
    assert call_forever(ENDLESS[name]) < 5
    assert solve(EASY)[0].tolist() == [1]


def test_calls_in_other_threads_return(made):
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(solve, *made[0][:20]) for _ in range(4)]
        assert all((call.result()[0] == 1).all() for call in calls)


def candidates_of(puzzle):
    return [{int(d)} if d else set(range(1, 10)) for d in puzzle]


def is_broken(cells):
    return not all(cells) or any(len(set().union(*(cells[c] for c in unit))) < 9 for unit in UNITS)


def conclude(cells):
    """Singles and locked candidates as textbooks have them, until nothing changes."""
    before = None
    while before != cells:
        before = [set(c) for c in cells]
        for unit, cell in ((u, c) for u in UNITS for c in u):
            if len(cells[cell]) == 1:
                for other in set(unit) - {cell}:
                    cells[other] -= cells[cell]
        for unit, digit in itertools.product(UNITS, range(1, 10)):
            places = {c for c in unit if digit in cells[c]}
            if len(places) == 1:
                cells[places.pop()] &= {digit}
            for other in UNITS:
                if places and places < set(other) != set(unit):
                    for cell in set(other) - set(unit):
                        cells[cell] -= {digit}


def count_guesses(cells):
    """Guesses of the documented search through all that is possible."""
    conclude(cells)
    if is_broken(cells):
        return 0
    sizes = [min(len(c), 4) for c in cells]
    if max(sizes) == 1:
        return 0
    cell = sizes.index(min(size for size in sizes if size > 1))
    guesses = 1
    for digit in sorted(cells[cell]):
        guess = [set(c) for c in cells]
        guess[cell] = {digit}
        guesses += count_guesses(guess)
    return guesses


def count_rounds(puzzle):
    """Rounds of singles, and the cells that are open then."""
    puzzle = puzzle.copy()
    for rounds in itertools.count():
        cells = candidates_of(puzzle)
        for unit, cell in ((u, c) for u in UNITS for c in u):
            if puzzle[cell] == 0:
                cells[cell] -= {int(puzzle[other]) for other in unit}
        found = {c: min(cells[c]) for c in range(81) if puzzle[c] == 0 and len(cells[c]) == 1}
        for unit, digit in itertools.product(UNITS, range(1, 10)):
            places = [c for c in unit if digit in cells[c]]
            if len(places) == 1 and puzzle[places[0]] == 0:
                found[places[0]] = digit
        if not found:
            return rounds, int((puzzle == 0).sum())
        for cell, digit in found.items():
            puzzle[cell] = digit


def test_guesses_are_those_of_the_search_that_is_documented(made):
    *_, guesses = solve(*made[0])
    order = np.argsort(guesses, kind="stable")
    chosen = [*order[:3], *np.flatnonzero(guesses == 1)[:2], *np.flatnonzero(guesses == 3)[:2]]
    assert len(chosen) == 7
    for i in chosen:
        assert count_guesses(candidates_of(made[0][i])) == guesses[i]


def test_rounds_of_singles_are_those_of_sets(made):
    rounds, still_open = sudoku.singles(made[0][:60], threads=2)
    assert (still_open == 0).any() and (still_open > 0).any()
    for i, puzzle in enumerate(made[0][:60]):
        assert count_rounds(puzzle) == (rounds[i], still_open[i])


def test_rounds_of_no_puzzle_and_of_a_solved_one(made):
    rounds, still_open = sudoku.singles(np.stack([EMPTY, made[1][0], EASY]), threads=1)
    assert rounds.tolist()[:2] == [0, 0]
    assert still_open.tolist() == [81, 0, 0]


def test_no_boards_are_no_work():
    none = np.zeros((0, 81), np.int8)
    assert [a.shape for a in make(0)] == [(0, 81), (0, 81)]
    assert sudoku.solve(none, limit=2, most=1, threads=4)[1].shape == (0, 2, 81)
    assert sudoku.singles(none, threads=None)[0].shape == (0,)


@pytest.fixture
def without_library(monkeypatch):
    sudoku._functions.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(sudoku, "open_library", lambda platform: None)
        yield
    sudoku._functions.cache_clear()


def test_without_the_library_a_call_says_so(without_library):
    assert "needs the compiled library libjaxgnn_cpu.so" in str(sudoku.why_missing())
    with pytest.raises(NotImplementedError, match=r"sudoku\.solve: needs the compiled library"):
        solve(EASY)


def test_with_the_library_nothing_is_missing():
    assert sudoku.why_missing() is None
