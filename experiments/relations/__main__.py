"""Command line: ``python -m experiments.relations train``."""

from __future__ import annotations

from typing import Annotated

import tyro

from experiments._command import run_commands
from experiments._seeds import ONE_SEED, Repeats
from experiments.relations.config import TrainConfig


def train(
    config: Annotated[TrainConfig, tyro.conf.arg(name="")],
    repeats: Annotated[Repeats, tyro.conf.arg(name="")] = ONE_SEED,
    commit_results: bool = False,
) -> None:
    """Train a network with each seed to classify papers by their authors, venues and citations.

    Args:
      config: options of the runs.
      repeats: seeds, and number of concurrent runs.
      commit_results: add the scores to those that are stored with the code.
    """
    repeats.check("train")
    config.check()
    from experiments.relations.train import train_all

    train_all(config, repeats, commit_results=commit_results)


def main() -> None:
    """Runs a command; an invalid option ends it with a one-line error."""
    run_commands("experiments.relations", train)


if __name__ == "__main__":
    main()
