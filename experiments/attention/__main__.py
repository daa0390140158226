"""Command line: ``python -m experiments.attention train|compare|published``."""

from __future__ import annotations

from typing import Annotated

import tyro

from experiments._command import run_commands
from experiments._node_options import check_data, check_training
from experiments._options import ALONE, ProcessOptions
from experiments._seeds import ONE_SEED, Repeats
from experiments.attention.config import AttentionConfig, PublishedConfig, variants_of
from experiments.attention.recipes import MODELS, Model

Config = Annotated[AttentionConfig, tyro.conf.arg(name="")]
Published = Annotated[PublishedConfig, tyro.conf.arg(name="")]
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
      repeats: seeds, and number of concurrent runs.
      vmap: train all seeds in one program, compiled once, without run folders.
      processes: options that connect the processes of a command that runs in several.
    """
    check_training(config, repeats, processes)
    from experiments._processes import connected
    from experiments.attention.train import train_all

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
      config: options shared by the runs; --models replaces --model.
      repeats: seeds, and number of concurrent runs.
      models: the networks; differences are to the first.
      vmap: train all seeds of a network in one program, compiled once, without run folders.
    """
    repeats.check("compare")
    variants_of(config, models)
    check_data(config)
    from experiments.attention.compare import compare as run_compare

    run_compare(config, models, repeats, vmap=vmap)


def published(config: Published, repeats: Seeds = ONE_SEED) -> None:
    """Train GCN and GAT on Cora by the protocol and with the recipes of Shchur et al. 2018.

    Args:
      config: options of the repetition.
      repeats: a split for each seed; --processes must be 1.
    """
    repeats.check("published")
    config.check(repeats)
    from experiments.attention.published import train_all

    train_all(config, repeats)


def main() -> None:
    """Runs a command; an invalid option or data file ends it with a one-line error."""
    run_commands("experiments.attention", train, compare, published)


if __name__ == "__main__":
    main()
