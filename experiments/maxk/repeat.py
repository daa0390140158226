"""Runs with several seeds: one after another, in processes, or all in one program."""

from __future__ import annotations

from collections.abc import Sequence

from experiments._driver import train_variants
from experiments._node_training import Outcome
from experiments._node_training import train_in_one_program as train_together
from experiments._seeds import Repeats
from experiments.maxk.config import TrainConfig
from experiments.maxk.setup import PARTS
from experiments.maxk.train import train
from jaxgnn._errors import bad_input
from jaxgnn.datasets import NodeDataset


def repeated(
    variants: Sequence[TrainConfig], repeats: Repeats, *, vmap: bool
) -> list[list[Outcome]]:
    """Trains each variant with each seed.

    Args:
      variants: the options of each variant. ``run`` is the folder of all runs together; if None,
        each run has the name that ``train`` would give it.
      repeats: the seeds, and the number of processes.
      vmap: whether all seeds of a variant are trained in one program, compiled once, without run
        folders.

    Returns:
      For each variant the outcome of each seed.

    Raises:
      ValueError: if an option or a data file is invalid.
    """
    if vmap:
        return [train_in_one_program(variant, repeats.seeds) for variant in variants]
    return train_variants(train, variants, repeats)


def train_in_one_program(
    config: TrainConfig,
    seeds: Sequence[int],
    *,
    datasets: Sequence[NodeDataset] | None = None,
    label: str | None = None,
) -> list[Outcome]:
    """Trains a run for each seed, all of them in one program.

    Args:
      config: the options that the runs share.
      seeds: a run for each.
      datasets: the data of each seed, if they are loaded already.
      label: names the runs in tables; None for activation and k.

    Raises:
      ValueError: if an option applies only to single runs, the seeds do not have the same graph,
        or an option or a data file is invalid.
      FloatingPointError: if a loss is NaN or infinite, or no evaluation of a seed was finite.
    """
    config.check()
    for name in ("k_schedule", "validate_kernels", "profile_kernels", "sample"):
        if getattr(config, name):
            option = "--" + name.replace("_", "-")
            raise bad_input("train", option, "left out with --vmap", getattr(config, name))
    return train_together(PARTS, config, seeds, datasets=datasets, label=label)
