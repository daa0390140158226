"""Command line: ``python -m experiments.mhc train|compare|deep``."""

from __future__ import annotations

from typing import Annotated

import tyro

from experiments._command import run_commands
from experiments._seeds import ONE_SEED, Repeats
from experiments.mhc.config import DeepConfig, TrainConfig

Config = Annotated[TrainConfig, tyro.conf.arg(name="")]
Seeds = Annotated[Repeats, tyro.conf.arg(name="")]


def train(config: Config, repeats: Seeds = ONE_SEED) -> None:
    """Train a language model with each seed on the text of Python's help."""
    repeats.check("train")
    config.check()
    from experiments.mhc.train import train_all

    train_all(config, repeats)


def compare(config: Config, repeats: Seeds = ONE_SEED, time_ratio: float = 1.7) -> None:
    """Train it with plain residuals, also wider or longer, and with hyper-connections.

    Args:
      config: options of the run with hyper-connections.
      repeats: seeds, and number of concurrent runs.
      time_ratio: time of a step with hyper-connections relative to a plain step; the plain run of
        equal time trains longer by this factor. The table has the seconds of both.
    """
    config.check()
    repeats.check("compare")
    from experiments.mhc.compare import compare as run_compare

    run_compare(config, repeats, time_ratio=time_ratio)


def deep(config: Annotated[DeepConfig, tyro.conf.arg(name="")]) -> None:
    """Train graph networks of growing depth, their layers joined in several ways."""
    config.check()
    from experiments.mhc.deep import deep as run_deep

    run_deep(config)


def main() -> None:
    """Runs a command; an invalid option ends it with a one-line error."""
    run_commands("experiments.mhc", train, compare, deep)


if __name__ == "__main__":
    main()
