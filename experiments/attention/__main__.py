"""Command line: ``python -m experiments.attention train|compare``."""

from __future__ import annotations

import sys
from typing import Annotated

import tyro

from experiments._processes import ALONE, ProcessOptions, connected
from experiments._seeds import ONE_SEED, Repeats
from experiments.attention.compare import compare as run_compare
from experiments.attention.config import AttentionConfig
from experiments.attention.recipes import MODELS, Model
from experiments.attention.train import train_all

Config = Annotated[AttentionConfig, tyro.conf.arg(name="")]
Seeds = Annotated[Repeats, tyro.conf.arg(name="")]
Processes = Annotated[ProcessOptions, tyro.conf.arg(name="")]


def train(
    config: Config,
    repeats: Seeds = ONE_SEED,
    vmap: bool = False,
    processes: Processes = ALONE,
) -> None:
    """Train a network with each seed, draw its curves and write a report.

    Args:
      config: options of the runs.
      repeats: seeds, and how many runs at once.
      vmap: train all seeds in one program, which compiles once and writes no run folders.
      processes: where the processes of a command that runs in several find each other.
    """
    with connected("train", processes):
        train_all(config, repeats, vmap=vmap)


def compare(
    config: Config,
    repeats: Seeds = ONE_SEED,
    models: tuple[Model, ...] = MODELS,
    vmap: bool = False,
) -> None:
    """Train several networks with the same seeds, and print them beside trivial methods.

    Args:
      config: options shared by the runs; --models takes the place of --model.
      repeats: seeds, and how many runs at once.
      models: the networks; differences are to the first.
      vmap: train all seeds of a network in one program, which compiles once and writes no run
        folders.
    """
    run_compare(config, models, repeats, vmap=vmap)


def main() -> None:
    """Runs a command; a bad option or data file ends it with one line."""
    commands = {"train": train, "compare": compare}
    try:
        tyro.extras.subcommand_cli_from_dict(commands, prog="python -m experiments.attention")
    except (ValueError, FileNotFoundError, NotImplementedError, FloatingPointError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
