"""Command line: ``python -m experiments.molecules train``."""

from __future__ import annotations

from typing import Annotated

import tyro

from experiments._command import run_commands
from experiments._seeds import ONE_SEED, Repeats
from experiments.molecules.config import TrainConfig


def train(
    config: Annotated[TrainConfig, tyro.conf.arg(name="")],
    repeats: Annotated[Repeats, tyro.conf.arg(name="")] = ONE_SEED,
    commit_results: bool = False,
) -> None:
    """Train a potential with each seed on energies and forces, and run dynamics with it.

    Args:
      config: options of the runs.
      repeats: seeds, and number of concurrent runs.
      commit_results: add the errors to those that are stored with the code.
    """
    repeats.check("train")
    config.check()
    from experiments.molecules.train import train_all

    train_all(config, repeats, commit_results=commit_results)


def main() -> None:
    """Runs a command; an invalid option or file ends it with a one-line error."""
    run_commands("experiments.molecules", train)


if __name__ == "__main__":
    main()
