"""The weights that come with the library solve what they are said to solve."""

import numpy as np

from jaxgnn import _command_line
from jaxgnn.datasets import sudoku
from jaxgnn.pretrained import load_weights, solve_sudokus, sudoku_solver, sudoku_weights
from jaxgnn.training import read_rows


def test_the_command_solves_a_puzzle_without_more(capsys):
    _command_line.main(
        [
            "sudoku",
            "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79",
        ]
    )
    out = capsys.readouterr().out
    assert out.startswith("5 3 4 | 6 7 8 | 9 1 2\n") and "solved at step" in out


# Arto Inkala's puzzle of 2010, which takes new attempts.
INKALA = "..53.....8......2..7..1.5..4....53...1..7...6..32...8..6.5....9..4....3......97.."


def test_hard_puzzles_are_solved():
    puzzles = sudoku.generate(6, [22, 23, 24], minimal=True, seed=77)
    solutions = solve_sudokus(load_weights(sudoku_weights()), puzzles.puzzles, batch_size=6)
    assert solutions.solved.all()
    np.testing.assert_array_equal(solutions.digits, puzzles.solutions)
    answer = sudoku_solver().solve(INKALA)
    assert answer.solved and answer.restarts > 0
    np.testing.assert_array_equal(answer.board, sudoku.check_unique(sudoku.parse(INKALA)))


def test_the_log_of_their_training_lies_beside_them():
    about, *rows = read_rows(sudoku_weights().with_name("sudoku_training.jsonl"))
    assert rows[-1]["step"] == about["result"]["steps"]
    first, *first_rows = about["earlier"][0]["earlier"]  # two runs before
    assert first["result"]["finished"] and first_rows[-1]["loss"] < first_rows[0]["loss"]
    assert about["result"]["minimal puzzles"] > first["result"]["minimal puzzles"] > 0.9
    overall = {
        row["kind"]: row["solved"] for row in about["evaluation"]["rows"] if row["level"] == "all"
    }
    assert round(overall["minimal"], 3) == 0.989 and round(overall["mixed"], 4) == 0.9966
