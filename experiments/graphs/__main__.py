"""Command line: ``python -m experiments.graphs train|compare|folds``."""

from __future__ import annotations

from typing import Annotated

import tyro

from experiments._command import run_commands
from experiments._seeds import ONE_SEED, Repeats
from experiments.graphs.config import MODELS, FoldsConfig, GraphsConfig, Model, variants_of

Config = Annotated[GraphsConfig, tyro.conf.arg(name="")]
Folds = Annotated[FoldsConfig, tyro.conf.arg(name="")]
Seeds = Annotated[Repeats, tyro.conf.arg(name="")]


def train(config: Config, repeats: Seeds = ONE_SEED) -> None:
    """Train a network with each seed to classify whole graphs, or to predict numbers of them.

    Args:
      config: options of the runs.
      repeats: seeds, and number of concurrent runs.
    """
    repeats.check("train")
    config.check()
    from experiments.graphs.train import train_all

    train_all(config, repeats)


def compare(config: Config, repeats: Seeds = ONE_SEED, models: tuple[Model, ...] = MODELS) -> None:
    """Train several networks with the same seeds, and print them beside trivial methods.

    Args:
      config: options shared by the runs; --models replaces --model.
      repeats: seeds, and number of concurrent runs.
      models: the networks.
    """
    repeats.check("compare")
    variants_of(config, models)
    from experiments.graphs.compare import compare as run_compare

    run_compare(config, models, repeats)


def folds(config: Folds) -> None:
    """Train GIN on ten folds of MUTAG, by the protocol of Xu et al. 2019.

    Args:
      config: options of the training.
    """
    config.check()
    from experiments.graphs.folds import run

    run(config)


def main() -> None:
    """Runs a command; an invalid option or data file ends it with a one-line error."""
    run_commands("experiments.graphs", train, compare, folds)


if __name__ == "__main__":
    main()
