"""Command line: ``python -m experiments.maxk train|compare|sweep|predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from experiments._command import run_commands
from experiments._node_options import check_data, check_training
from experiments._options import ALONE, ProcessOptions
from experiments._seeds import ONE_SEED, Repeats
from experiments.maxk.config import PredictOptions, TrainConfig, variants_of

Config = Annotated[TrainConfig, tyro.conf.arg(name="")]
Seeds = Annotated[Repeats, tyro.conf.arg(name="")]
Processes = Annotated[ProcessOptions, tyro.conf.arg(name="")]


def train(
    config: Config,
    repeats: Seeds = ONE_SEED,
    table_seeds: tuple[int, ...] = (),
    vmap: bool = False,
    export: Path | None = None,
    processes: Processes = ALONE,
) -> None:
    """Train a model with each seed, draw its curves and write a report.

    Args:
      config: options of the runs.
      repeats: seeds, and number of concurrent runs.
      table_seeds: first compare ReLU, MaxK and trivial methods over these seeds, each variant in
        one program, and put the table into the report.
      vmap: train all seeds in one program, compiled once, without run folders.
      export: file to write the best model to, for the command predict and for
        jaxgnn.load_exported; for a complete run it is written without training again.
      processes: options that connect the processes of a command that runs in several.
    """
    check_training(config, repeats, processes)
    from experiments._processes import connected
    from experiments.maxk.trainings import train_all

    with connected("train", processes):
        train_all(config, repeats, table_seeds=table_seeds, vmap=vmap, export=export)


def compare(
    config: Config,
    repeats: Seeds = ONE_SEED,
    ks: tuple[int, ...] = (),
    vmap: bool = False,
    commit_results: bool = False,
) -> None:
    """Train dense ReLU and MaxK with the same seeds, and print both beside trivial methods.

    Args:
      config: options shared by the runs.
      repeats: seeds, and number of concurrent runs.
      ks: kept entries per row, one variant for each; by default ``--k`` or that of the recipe.
      vmap: train all seeds of a variant in one program, compiled once, without run folders.
      commit_results: add the scores to those that are stored with the code.
    """
    repeats.check("compare")
    variants_of(config, ks)
    check_data(config)
    from experiments.maxk.compare import compare as run_compare

    run_compare(config, ks, repeats, vmap=vmap, commit_results=commit_results)


def sweep(
    config: Config,
    repeats: Seeds = ONE_SEED,
    ks: tuple[int, ...] = (2, 4, 8, 16, 32, 64),
    vmap: bool = False,
) -> None:
    """Compare ReLU with MaxK over a list of k, and draw the score against k.

    Args:
      config: options shared by the runs.
      repeats: seeds, and number of concurrent runs.
      ks: kept entries per row, one variant for each.
      vmap: train all seeds of a variant in one program, compiled once, without run folders.
    """
    repeats.check("sweep")
    variants_of(config, ks)
    check_data(config)
    from experiments.maxk.compare import sweep as run_sweep

    run_sweep(config, ks, repeats, vmap=vmap)


def predict(options: Annotated[PredictOptions, tyro.conf.arg(name="")]) -> None:
    """Predict the classes of a graph's nodes with a model written by train --export.

    Args:
      options: the model, the graph and the table to write.
    """
    from experiments.maxk.serving import predict as run_predict

    run_predict(options)


def main() -> None:
    """Runs a command; an invalid option or data file ends it with a one-line error."""
    run_commands("experiments.maxk", train, compare, sweep, predict)


if __name__ == "__main__":
    main()
