"""Command line: ``python -m experiments.sudoku generate|train|evaluate|solve|export|cost``."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Annotated

import tyro

from experiments._command import run_commands
from experiments.sudoku.config import (
    CostConfig,
    EvaluateConfig,
    ExportConfig,
    GenerateConfig,
    SolveConfig,
    TrainConfig,
)
from jaxgnn._sudoku import board_of

_UNNAMED = tyro.conf.arg(name="")


def generate(config: Annotated[GenerateConfig, _UNNAMED]) -> None:
    """Generate puzzles for training, and held-out ones."""
    config.check()
    from experiments._runs import shown
    from experiments.sudoku.data import make_data, write

    start = time.monotonic()
    data = make_data(
        config.train, config.test, config.seed, config.threads, progress=config.progress
    )
    write(data, config.out)
    for name in ("train", "minimal", "mixed"):
        puzzles = getattr(data, name)
        span = f"{puzzles.givens.min()} to {puzzles.givens.max()} givens"
        print(f"{shown(config.out / f'{name}.csv')}: {len(puzzles):,} puzzles, {span}")
    print(f"{time.monotonic() - start:.0f} s")


def train(config: Annotated[TrainConfig, _UNNAMED]) -> None:
    """Train a network, or one for each of several seeds, and draw the curves."""
    config.check()
    from experiments.sudoku.train import train_seeds as run_train_seeds

    run_train_seeds(config)


def evaluate(config: Annotated[EvaluateConfig, _UNNAMED]) -> None:
    """Measure a trained network by givens and by difficulty."""
    config.check()
    from experiments.sudoku.evaluate import evaluate as run_evaluate

    run_evaluate(config)


def solve(config: Annotated[SolveConfig, _UNNAMED, tyro.conf.PositionalRequiredArgs]) -> None:
    """Solve one puzzle with a trained network."""
    config.effort()
    board = board_of("solve", "puzzle", config.puzzle)
    from experiments.sudoku.solve import solve as run_solve

    # A pipe can be read only once.
    if not run_solve(replace(config, puzzle="".join(map(str, board)))).solved:
        sys.exit(1)


def export(config: Annotated[ExportConfig, _UNNAMED]) -> None:
    """Write the weights of a run into one file, beside its log."""
    from experiments.sudoku.solve import export as run_export

    run_export(config)


def cost(config: Annotated[CostConfig, _UNNAMED]) -> None:
    """Print memory and time of a training step, by steps and batch."""
    config.check()
    from experiments.sudoku.cost import cost as run_cost

    run_cost(config)


def main() -> None:
    """Runs a command; an invalid option, file or puzzle ends it with a one-line error."""
    run_commands("experiments.sudoku", generate, train, evaluate, solve, export, cost)


if __name__ == "__main__":
    main()
