"""Command line: ``python -m experiments.physics train|rollout|draw``."""

from __future__ import annotations

from typing import Annotated

import tyro

from experiments._command import run_commands
from experiments._seeds import ONE_SEED, Repeats
from experiments.physics.config import DrawConfig, RolloutConfig, TrainConfig


def train(
    config: Annotated[TrainConfig, tyro.conf.arg(name="")],
    repeats: Annotated[Repeats, tyro.conf.arg(name="")] = ONE_SEED,
    commit_results: bool = False,
) -> None:
    """Train a network with each seed to predict the accelerations of particles, and roll it out.

    Args:
      config: options of the runs.
      repeats: seeds, and number of concurrent runs.
      commit_results: add the errors to those that are stored with the code.
    """
    repeats.check("train")
    config.check()
    from experiments.physics.train import train_all

    train_all(config, repeats, commit_results=commit_results)


def rollout(config: Annotated[RolloutConfig, tyro.conf.arg(name="")]) -> None:
    """Compare the rollout of a trained network with the simulator, on new runs.

    Args:
      config: options of the rollout.
    """
    config.check("rollout")
    from experiments.physics.rollout import run

    run(config)


def draw(config: Annotated[DrawConfig, tyro.conf.arg(name="")]) -> None:
    """Draw a rollout of a trained network beside the simulator, as an animation or a strip.

    Args:
      config: options of the rollout and of the picture.
    """
    config.check("draw")
    from experiments.physics.draw import run

    run(config)


def main() -> None:
    """Runs a command; an invalid option or file ends it with a one-line error."""
    run_commands("experiments.physics", train, rollout, draw)


if __name__ == "__main__":
    main()
