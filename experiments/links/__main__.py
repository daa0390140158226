"""Command line: ``python -m experiments.links train``."""

from __future__ import annotations

from typing import Annotated

import tyro

from experiments._command import run_commands
from experiments._node_options import check_data
from experiments._seeds import ONE_SEED, Repeats
from experiments.links.config import TrainConfig


def train(
    config: Annotated[TrainConfig, tyro.conf.arg(name="")],
    repeats: Annotated[Repeats, tyro.conf.arg(name="")] = ONE_SEED,
    commit_results: bool = False,
) -> None:
    """Train a network with each seed to distinguish edges from other pairs of nodes, and score it.

    Args:
      config: options of the runs.
      repeats: seeds, and number of concurrent runs.
      commit_results: add the scores to those that are stored with the code.
    """
    repeats.check("train")
    config.check()
    check_data(config)
    from experiments.links.train import train_all

    train_all(config, repeats, commit_results=commit_results)


def main() -> None:
    """Runs a command; an invalid option or data file ends it with a one-line error."""
    run_commands("experiments.links", train)


if __name__ == "__main__":
    main()
