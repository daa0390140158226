"""Command line: ``python -m experiments.maxk train|compare|sweep``."""

from __future__ import annotations

import sys
from typing import Annotated

import tyro

from experiments.maxk.compare import compare as run_compare
from experiments.maxk.config import TrainConfig
from experiments.maxk.train import train as run_train

Config = Annotated[TrainConfig, tyro.conf.arg(name="")]


def train(config: Config) -> None:
    """Train one model and draw its curves."""
    run_train(config)


def compare(config: Config) -> None:
    """Train dense ReLU and MaxK with the same seed, and print both."""
    run_compare(config, config.k or ())


def sweep(config: Config, ks: tuple[int, ...] = (2, 4, 8, 16, 32, 64)) -> None:
    """Train dense ReLU and MaxK with each of a list of k.

    Args:
      config: options shared by the runs.
      ks: kept entries per row, one run for each.
    """
    run_compare(config, ks)


def main() -> None:
    """Runs a command; a bad option or data file ends it with one line."""
    commands = {"train": train, "compare": compare, "sweep": sweep}
    try:
        tyro.extras.subcommand_cli_from_dict(commands, prog="python -m experiments.maxk")
    except (ValueError, FileNotFoundError, NotImplementedError, FloatingPointError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
