"""The ``jaxgnn`` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from jaxgnn import _info


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command; a bad puzzle or file ends it with one line."""
    options = _parser().parse_args(arguments)
    if options.command == "info":
        print(_info.report())
        return
    try:
        solved = _solve(options.puzzle, options.weights, options.steps)
    except (ValueError, FileNotFoundError) as error:
        sys.exit(f"error: {error}")
    if not solved:
        sys.exit(1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="jaxgnn", description="GNN layers for JAX")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="versions, devices, usable implementations")
    sudoku = commands.add_parser("sudoku", help="solve a Sudoku with a trained network")
    cells = "81 cells, row by row, '.' or 0 where empty; or a file with them"
    sudoku.add_argument("puzzle", help=cells)
    sudoku.add_argument("--steps", type=int, default=64, help="of message passing")
    sudoku.add_argument("--weights", help="a file of weights in the place of those that come along")
    return parser


def _solve(puzzle: str, weights: str | None, steps: int) -> bool:
    """Prints the network's answer; returns whether it is a solution."""
    # Networks take a second to import, which `info` need not wait for.
    from jaxgnn import pretrained

    answer = pretrained.sudoku_solver(weights).solve(puzzle, steps=steps)
    print(answer)
    return answer.settled is not None


if __name__ == "__main__":
    main()
