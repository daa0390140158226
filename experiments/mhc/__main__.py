"""Command line: ``python -m experiments.mhc train|compare|deep``."""

from __future__ import annotations

import sys
from typing import Annotated

import tyro

from experiments.mhc.compare import compare as run_compare
from experiments.mhc.config import DeepConfig, TrainConfig
from experiments.mhc.deep import deep as run_deep
from experiments.mhc.train import train as run_train

Config = Annotated[TrainConfig, tyro.conf.arg(name="")]


def train(config: Config) -> None:
    """Train one language model on the text of Python's help."""
    run_train(config)


def compare(config: Config) -> None:
    """Train it with plain residuals and with hyper-connections on the same batches."""
    run_compare(config)


def deep(config: Annotated[DeepConfig, tyro.conf.arg(name="")]) -> None:
    """Train graph networks of growing depth with and without hyper-connections."""
    run_deep(config)


def main() -> None:
    """Runs a command; a bad option ends it with one line."""
    commands = {"train": train, "compare": compare, "deep": deep}
    try:
        tyro.extras.subcommand_cli_from_dict(commands, prog="python -m experiments.mhc")
    except (ValueError, FileNotFoundError, NotImplementedError, FloatingPointError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
