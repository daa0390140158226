"""Readers of published puzzles: what they read, and what they say about a bad line."""

import gzip
import re

import numpy as np
import pytest

from jaxgnn.datasets import sudoku
from jaxgnn.datasets.sudoku import _files, solving

DATA = sudoku.generate(5, givens=30, seed=3)


def line_of(board):
    return sudoku.to_line(board).replace(".", "0")


PAIRS = [f"{line_of(p)},{line_of(s)}" for p, s in zip(DATA.puzzles, DATA.solutions, strict=True)]
LINES = [sudoku.to_line(puzzle) for puzzle in DATA.puzzles]

TWO_EIGHTS = "........6.................7...87...9.9.......5.82....8......8.......1.7....3....."
# Without a clash, and refuted by millions of guesses of a search that guesses at cells alone.
REFUTED = "...9.................37.9.......................4...7.3972..........8.5..4.7....."

FORMATS = {
    "palm": (sudoku.read_palm, [], PAIRS),
    "kaggle": (sudoku.read_kaggle, ["quizzes,solutions"], PAIRS),
    "lines": (sudoku.read_lines, [], LINES),
}


def write(path, lines, end="\n"):
    path.write_text(end.join([*lines, ""]))
    return path


def edited(number, edit):
    """The pairs with one line changed, counted from 1."""
    return [edit(line) if i == number else line for i, line in enumerate(PAIRS, start=1)]


def put(position, text):
    return lambda line: line[:position] + text + line[position + len(text) :]


def assert_equal(data, other):
    np.testing.assert_array_equal(data.puzzles, other.puzzles)
    np.testing.assert_array_equal(data.solutions, other.solutions)
    assert data.puzzles.dtype == data.solutions.dtype == np.int8


@pytest.mark.parametrize("name", FORMATS)
def test_puzzles_come_back_from_every_format(name, tmp_path):
    read, header, lines = FORMATS[name]
    text = "\n".join([*header, *lines])
    for end in ("", "\n", "\n\n"):
        (tmp_path / "puzzles.csv").write_text(text + end)
        assert_equal(read(tmp_path / "puzzles.csv"), DATA)
    (tmp_path / "puzzles.csv").write_text(text.replace("\n", "\r\n"))
    assert_equal(read(str(tmp_path / "puzzles.csv")), DATA)
    (tmp_path / "puzzles.csv.gz").write_bytes(gzip.compress(text.encode()))
    assert_equal(read(tmp_path / "puzzles.csv.gz"), DATA)


def test_lines_may_have_zeros_for_dots(tmp_path):
    file = write(tmp_path / "lines.txt", [line.replace(".", "0") for line in LINES])
    assert_equal(sudoku.read_lines(file), DATA)


def test_what_is_written_is_read(tmp_path):
    sudoku.write_palm(tmp_path / "written.csv", DATA)
    assert (tmp_path / "written.csv").read_text().splitlines() == PAIRS
    assert_equal(sudoku.read_palm(tmp_path / "written.csv"), DATA)


def test_files_of_many_blocks_are_read_alike_and_lines_are_counted_through(tmp_path, monkeypatch):
    monkeypatch.setattr(_files, "_LINES", 2)
    assert_equal(sudoku.read_palm(write(tmp_path / "pairs.csv", PAIRS)), DATA)
    assert_equal(sudoku.read_lines(write(tmp_path / "lines.txt", LINES)), DATA)
    for lines in (edited(4, put(3, "x")), edited(4, lambda line: line[1:])):
        with pytest.raises(ValueError, match=r"pairs\.csv: line 4: "):
            sudoku.read_palm(write(tmp_path / "pairs.csv", lines))
        with pytest.raises(ValueError, match=r"pairs\.csv: line 5: "):
            sudoku.read_kaggle(write(tmp_path / "pairs.csv", ["quizzes,solutions", *lines]))


def swap_first_two_digits_of_solution(line):
    return put(82, line[83] + line[82])(line)


def repeat_a_given(line):
    """Copies a given of the first row over an empty cell of that row."""
    given = next(c for c in line[:9] if c != "0")
    return put(line[:9].index("0"), given)(line)


def contradict_a_given(line):
    """Swaps two digits all over the solution: it obeys the rules, but not the puzzle."""
    return line[:82] + line[82:].translate(str.maketrans("12", "21"))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            edited(2, lambda line: line[1:]),
            "line 2: expected 81 digits, a comma and 81 digits, got",
        ),
        (edited(3, lambda line: ""), "line 3: expected 81 digits, a comma and 81 digits, got 0"),
        (edited(1, put(17, "x")), "line 1: expected a digit or '.' at column 18, got 'x'"),
        (edited(5, put(81, ";")), "line 5: expected ',' at column 82, got ';'"),
        (edited(2, put(90, "-")), "line 2: expected a digit or '.' at column 91, got '-'"),
        (edited(4, repeat_a_given), "line 4: "),
        (edited(2, put(82, "0")), "line 2: the solution is empty at r1c1"),
        (edited(3, swap_first_two_digits_of_solution), "line 3: the solution breaks the rules: "),
        (edited(4, contradict_a_given), "line 4: the solution has "),
        (["quizzes,solutions", *PAIRS], "line 1: expected 81 digits"),
        ([], "it holds no puzzles"),
        # The first bad line counts, whatever is wrong with a later one.
        ([*edited(2, put(82, "0")), "x"], "line 2: the solution is empty"),
        ([*edited(3, put(9, "?")), "x"], "line 3: expected a digit or '.' at column 10"),
    ],
)
def test_a_bad_line_of_pairs_is_named(lines, message, tmp_path):
    file = write(tmp_path / "pairs.csv", lines)
    with pytest.raises(ValueError, match=re.escape(f"pairs.csv: {message}")):
        sudoku.read_palm(file)


def test_conflicts_and_contradictions_name_cells(tmp_path):
    file = write(tmp_path / "pairs.csv", edited(4, repeat_a_given))
    with pytest.raises(ValueError, match=r"line 4: \d stands twice in row 1, at r1c\d, r1c\d$"):
        sudoku.read_palm(file)
    file = write(tmp_path / "pairs.csv", edited(4, contradict_a_given))
    with pytest.raises(ValueError, match=r"has [12] at r\dc\d, where the puzzle has [12]$"):
        sudoku.read_palm(file)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([*LINES[:2], LINES[2] + "1"], "line 3: expected 81 digits, got 82 characters: '"),
        ([LINES[0], LINES[1][:80] + "A"], "line 2: expected a digit or '.' at column 81, got 'A'"),
        ([LINES[0], "55" + 79 * "."], "line 2: 5 stands twice in row 1, at r1c1, r1c2"),
        ([LINES[0], "1234" + 77 * "."], "line 2: it has more than one solution: r"),
        ([*LINES, "12345678." + 8 * "." + "9" + 63 * "."], "line 6: it has no solution"),
        # A clash behind a line without a solution, and before one that takes long to refute.
        (["12345678." + 8 * "." + "9" + 63 * ".", TWO_EIGHTS], "line 1: it has no solution"),
        ([LINES[0], TWO_EIGHTS, REFUTED], "line 2: 8 stands twice in row 6, at r6c3, r6c9"),
        ([LINES[0], REFUTED], "line 2: it has no solution"),
    ],
)
def test_a_bad_line_of_puzzles_is_named(lines, message, tmp_path):
    file = write(tmp_path / "lines.txt", lines)
    with pytest.raises(ValueError, match=re.escape(f"lines.txt: {message}")):
        sudoku.read_lines(file)


def test_a_line_that_takes_too_long_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(_files, "_SOLVED_AT_ONCE", 2)
    monkeypatch.setattr(solving, "MOST_GUESSES", 500)
    file = write(tmp_path / "lines.txt", [*LINES, REFUTED])
    message = "line 6: it is neither solved nor refuted after 500 guesses"
    with pytest.raises(ValueError, match=re.escape(f"lines.txt: {message}")):
        sudoku.read_lines(file)
    assert_equal(sudoku.read_lines(write(tmp_path / "lines.txt", LINES)), DATA)


def test_kaggles_header_is_asked_for(tmp_path):
    for lines, got in (
        (PAIRS, "'"),
        (["puzzle,solution", *PAIRS], "'puzzle,solution'"),
        ([], "no"),
    ):
        file = write(tmp_path / "kaggle.csv", lines)
        with pytest.raises(ValueError, match=f"line 1: expected 'quizzes,solutions', got {got}"):
            sudoku.read_kaggle(file)


@pytest.mark.parametrize("name", FORMATS)
def test_files_that_are_missing_or_broken_are_named(name, tmp_path):
    read, header, lines = FORMATS[name]
    with pytest.raises(FileNotFoundError, match=r"no file .*none\.csv: expected"):
        read(tmp_path / "none.csv")
    whole = gzip.compress("\n".join([*header, *lines]).encode())
    (tmp_path / "cut.csv.gz").write_bytes(whole[:-20])
    with pytest.raises(ValueError, match=r"cut\.csv\.gz: cannot be read"):
        read(tmp_path / "cut.csv.gz")


@pytest.mark.parametrize("field", ["puzzles", "solutions"])
def test_what_are_no_digits_is_not_written(tmp_path, field):
    boards = {"puzzles": DATA.puzzles.copy(), "solutions": DATA.solutions.copy()}
    boards[field][2, 7] = 10
    message = rf"write_palm: {field}: expected 0 to 9, got 10 at \[2, 7\]"
    with pytest.raises(ValueError, match=message):
        sudoku.write_palm(tmp_path / "bad.csv", sudoku.Puzzles(**boards))
    assert not (tmp_path / "bad.csv").exists()
