"""The ``jaxgnn`` command: lists usable implementations, and solves Sudokus."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxgnn import _info
from jaxgnn._errors import bad_input

if TYPE_CHECKING:
    from jaxgnn import pretrained


# Longer than any drawing of a board.
_LONGEST_BOARD = 1 << 20


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command; an invalid puzzle or file, or a failed output, ends it with one line."""
    status: int | str
    try:
        try:
            status = _run(_parser().parse_args(arguments))
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # else Python flushes at exit, with its own message
    except BrokenPipeError:  # the reader has closed the pipe
        _drop_output()
        status = 1
    except OSError as error:
        _drop_output()
        status = f"error: standard output: {error.strerror or error}"
    if status:
        sys.exit(status)


def _run(options: argparse.Namespace) -> int | str:
    """Runs a command and prints its output; returns the exit status or message."""
    if options.command == "info":
        print(_info.report())
        return 0
    try:
        answer = _solve(options.puzzle, options.weights, options.steps)
    except (ValueError, OSError) as error:
        return f"error: {error}"
    print(answer)
    return 0 if answer.solved else 1


def _drop_output() -> None:
    """Discards unwritable output, so that Python does not try to write it again at exit."""
    with contextlib.suppress(OSError, ValueError):  # an output without a file descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="jaxgnn", description="GNN layers for JAX")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="versions, devices, usable implementations")
    sudoku = commands.add_parser("sudoku", help="solve a Sudoku with a trained network")
    cells = "81 cells, row by row, '.' or 0 where empty; or a file with them, - for standard input"
    sudoku.add_argument("puzzle", help=cells)
    steps = "most steps of message passing, of all attempts together (default: %(default)s)"
    sudoku.add_argument("--steps", type=_count, default=2048, help=steps)
    sudoku.add_argument("--weights", help="a file of weights in the place of those that come along")
    return parser


def _count(text: str) -> int:
    """Parses an option's number; Python itself would also accept underscores."""
    if re.fullmatch("[+-]?[0-9]{1,18}", text, re.ASCII) is None:
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text[:80]!r}")
    return int(text)


def _solve(puzzle: str, weights: str | None, steps: int) -> pretrained.SudokuAnswer:
    """Runs the network on a puzzle; ``weights`` names a file, None selects those of the library."""
    # Networks take a second to import, which ``info`` avoids.
    from jaxgnn import pretrained
    from jaxgnn.datasets import sudoku

    if steps < 1:
        raise bad_input("sudoku", "--steps", "at least 1", steps)
    solver, effort = pretrained.sudoku_solver(weights), pretrained.SudokuEffort(steps)
    if puzzle != "-":
        return solver.solve(puzzle, effort)
    try:
        board = sudoku.parse("" if sys.stdin is None else sys.stdin.read(_LONGEST_BOARD))
    except ValueError as error:  # raised also if the input is not text
        raise ValueError(f"standard input: {error}") from error
    return solver.solve(board, effort)


if __name__ == "__main__":
    main()
