"""The ``jaxgnn`` command: describes the installation, runs experiments, and solves Sudokus."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxgnn import _sudoku
from jaxgnn._errors import bad_input
from jaxgnn._sudoku import SudokuEffort

if TYPE_CHECKING:
    from jaxgnn import pretrained

# Begins the message of every error of the command.
_SUDOKU = "jaxgnn sudoku"
_INTERRUPTED = 130  # exit status of a command that Ctrl-C has ended, as shells have it


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command; an invalid input, a failed output or Ctrl-C ends it with one line."""
    status: int | str
    try:
        try:
            status = _run(_parser().parse_args(arguments))
        finally:
            if sys.stdout is not None:
                # At exit, Python would print its own message for an error of the flush.
                sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe
        _drop_output()
        status = 1
    except OSError as error:
        _drop_output()
        status = f"jaxgnn: standard output: {error.strerror or error}"
    except KeyboardInterrupt:
        print("jaxgnn: interrupted", file=sys.stderr, flush=True)
        status = _INTERRUPTED
    if status:
        sys.exit(status)


def _run(options: argparse.Namespace) -> int | str:
    """Runs a command and prints its output; returns the exit status or message."""
    if options.command == "info":
        from jaxgnn import _info  # Errors of the command line need not wait for JAX.

        print(_info.report() if options.all else _info.summary())
        return 0
    if options.command == "experiments":
        return _experiment(options.arguments)
    try:
        answer = _solve(options.puzzle, options.weights, options.steps)
    except (ValueError, OSError) as error:
        text = str(error)
        return text if text.startswith(_SUDOKU) else f"{_SUDOKU}: {text}"
    print(answer)
    return 0 if answer.solved else 1


def _drop_output() -> None:
    """Discards unwritable output, so that Python does not try to write it again at exit."""
    with contextlib.suppress(OSError, ValueError):  # an output without a file descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="jaxgnn", description="GNN layers for JAX")
    commands = parser.add_subparsers(dest="command", required=True)
    info = commands.add_parser("info", help="versions, devices, which ops have kernels here")
    info.add_argument("--all", action="store_true", help="also all implementations of all ops")
    experiments = commands.add_parser(
        "experiments", help="run an experiment, for example: experiments maxk train --help"
    )
    experiments.add_argument("arguments", nargs=argparse.REMAINDER, help="its name and arguments")
    sudoku = commands.add_parser("sudoku", help="solve a Sudoku with a trained network")
    cells = "81 cells, row by row, '.' or 0 where empty; or a file with them, - for standard input"
    sudoku.add_argument("puzzle", help=cells)
    steps = "most steps of message passing, of all attempts together (default: %(default)s)"
    sudoku.add_argument("--steps", type=_count, default=SudokuEffort.steps, help=steps)
    sudoku.add_argument("--weights", help="a file of weights in the place of those that come along")
    return parser


def _experiment(arguments: Sequence[str]) -> int | str:
    """Runs an experiment in a process of its own, and returns its exit status."""
    folder = _folder_of_experiments()
    if folder is None:
        return "jaxgnn experiments: this installation has no experiments; install a wheel of jaxgnn"
    module, rest = "experiments", list(arguments)
    if rest and (folder / "experiments" / rest[0] / "__main__.py").is_file():
        module = f"experiments.{rest.pop(0)}"
    paths = [os.fspath(folder), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    process = subprocess.Popen([sys.executable, "-m", module, *rest], env=environment)
    while True:
        # Ctrl-C also reaches the experiment, which ends by itself, with its own line.
        with contextlib.suppress(KeyboardInterrupt):
            status = process.wait()
            # Shells number the end by a signal from 128.
            return status if status >= 0 else 128 - status


def _folder_of_experiments() -> Path | None:
    """The folder that holds the package ``experiments``: beside this one, or in a checkout."""
    beside = Path(__file__).resolve().parent.parent
    for folder in (beside / "jaxgnn_experiments", beside):
        if (folder / "experiments" / "maxk" / "__main__.py").is_file():
            return folder
    return None


def _count(text: str) -> int:
    """Parses an option's number; Python itself would also accept underscores."""
    if re.fullmatch("[+-]?[0-9]{1,18}", text, re.ASCII) is None:
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text[:80]!r}")
    return int(text)


def _solve(puzzle: str, weights: str | None, steps: int) -> pretrained.SudokuAnswer:
    """Returns the network's answer; ``weights`` names a file, None means those of the library.

    All that can be checked without JAX and Flax, which take seconds to import, is checked first.
    """
    if steps < 1:
        raise bad_input(_SUDOKU, "--steps", "at least 1", steps)
    if weights is not None and not os.path.isfile(weights):
        raise bad_input(_SUDOKU, "--weights", "a file that exists", weights)
    if puzzle == "-":
        stream = io.StringIO() if sys.stdin is None else sys.stdin
        board = _sudoku.board_of_file(_SUDOKU, "standard input", stream)
    else:
        board = _sudoku.board_of(_SUDOKU, "puzzle", puzzle)
    clashes = _sudoku.conflicts(board)
    if clashes:
        raise ValueError(f"{_SUDOKU}: puzzle must obey the rules, but {clashes[0]}")

    from jaxgnn.datasets.sudoku.solving import unique_solution

    unique_solution(_SUDOKU, "puzzle", board)

    from jaxgnn import pretrained

    solver, effort = pretrained.sudoku_solver(weights), SudokuEffort(steps)
    return solver.solve(board, effort)


if __name__ == "__main__":
    main()
