"""Boards as text, and boards that break the rules."""

import re

import numpy as np
import pytest

from jaxgnn.datasets import sudoku

LINE = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
GRID = """\
5 3 . | . 7 . | . . .
6 . . | 1 9 5 | . . .
. 9 8 | . . . | . 6 .
------+-------+------
8 . . | . 6 . | . . 3
4 . . | 8 . 3 | . . 1
7 . . | . 2 . | . . 6
------+-------+------
. 6 . | . . . | 2 8 .
. . . | 4 1 9 | . . 5
. . . | . 8 . | . 7 9"""
BOARD = sudoku.parse(LINE)
OTHERS = ["8 stands twice in column 1", "8 stands twice in box 7"]


def changed(**cells):
    """The board with digits at cells such as r1c3."""
    board = BOARD.copy()
    for name, digit in cells.items():
        row, column = map(int, re.findall(r"\d", name))
        board[9 * row + column - 10] = digit
    return board


def test_lines_grids_and_zeros_are_the_same_board():
    assert BOARD.dtype == np.int8 and BOARD.shape == (81,)
    assert BOARD[:6].tolist() == [5, 3, 0, 0, 7, 0] and BOARD[-1] == 9
    spaced = "\r\n".join(LINE[i : i + 9] for i in range(0, 81, 9))
    for text in (GRID, LINE.replace(".", "0"), spaced, f"  {LINE}\n"):
        np.testing.assert_array_equal(sudoku.parse(text), BOARD)


def test_boards_are_written_as_they_are_read():
    assert sudoku.to_line(BOARD) == LINE
    assert sudoku.to_grid(BOARD) == GRID


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LINE[1:], "must be 81 cells, got 80"),
        (LINE + "1", "must be 81 cells, got 82"),
        ("", "must be 81 cells, got 0"),
        (LINE[:20] + "x" + LINE[21:], "got 'x' at cell 21 (row 3, column 3)"),
        (LINE[:9] + "²" + LINE[10:], "got '²' at cell 10 (row 2, column 1)"),
    ],
)
def test_text_that_is_no_board_is_refused(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        sudoku.parse(text)


def test_a_board_is_loaded_from_a_file_or_from_text(tmp_path):
    file = tmp_path / "puzzle.txt"
    file.write_text(GRID + "\n")
    for source in (file, str(file), GRID, LINE):
        np.testing.assert_array_equal(sudoku.load(source), BOARD)


def test_errors_of_loading_name_the_file(tmp_path):
    file = tmp_path / "puzzle.txt"
    file.write_text(LINE + LINE)
    with pytest.raises(ValueError, match=r"puzzle\.txt must be 81 cells, got 162"):
        sudoku.load(file)
    file.write_bytes(b"\xff\xfe1")
    with pytest.raises(ValueError, match=r"puzzle\.txt must be text in utf-8"):
        sudoku.load(file)
    with pytest.raises(FileNotFoundError, match=r"no file .*other\.txt"):
        sudoku.load(tmp_path / "other.txt")
    with pytest.raises(ValueError, match=r"got 'o' .*and no file has that name"):
        sudoku.load("other.txt")


@pytest.mark.parametrize(
    ("board", "expected"),
    [
        (changed(r1c8=3), ["3 stands twice in row 1, at r1c2, r1c8"]),
        (changed(r4c3=3), ["3 stands twice in row 4, at r4c3, r4c9"]),
        (changed(r9c1=4), ["4 stands twice in column 1, at r5c1, r9c1"]),
        (changed(r8c2=4), ["4 stands twice in row 8, at r8c2, r8c4"]),
        (changed(r3c1=5), ["5 stands twice in column 1, at r1c1, r3c1", "5 stands twice in box 1"]),
        (changed(r9c7=8), ["8 stands twice in row 9", "8 stands twice in box 9, at r7c8, r9c7"]),
        (changed(r9c1=8, r9c2=8), ["8 stands three times in row 9, at r9c1, r9c2, r9c5", *OTHERS]),
    ],
)
def test_conflicts_name_unit_digit_and_cells(board, expected):
    found = [str(conflict) for conflict in sudoku.conflicts(board)]
    assert len(found) == len(expected)
    for line, start in zip(found, expected, strict=True):
        assert line.startswith(start)


def test_a_board_without_conflicts_has_none():
    assert sudoku.conflicts(BOARD) == []
    assert sudoku.conflicts(np.zeros(81, int)) == []


@pytest.mark.parametrize(
    ("board", "message"),
    [
        (BOARD[1:], "board: expected integers [count, 81], got int8 [1, 80]"),
        (BOARD * 1.0, "got float64 [1, 81]"),
        (changed(r2c2=10), "board: expected 0 to 9, got 10 at [0, 10]"),
        (changed(r2c2=-1), "got -1 at [0, 10]"),
    ],
)
def test_arrays_that_are_no_boards_are_refused(board, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        sudoku.conflicts(board)
