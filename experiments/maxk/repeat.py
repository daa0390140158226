"""The same run with several seeds: in turn, in processes, or all in one program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from experiments._datasets import load
from experiments._seeds import Repeats, run_all
from experiments.maxk.config import TrainConfig
from experiments.maxk.data import split_mask
from experiments.maxk.setup import (
    Loss,
    Scores,
    batch_of,
    label_of,
    loop_of,
    make_model,
    num_parameters,
    optimizer_of,
    predict,
)
from experiments.maxk.train import Outcome, train
from jaxgnn._errors import bad_input
from jaxgnn.datasets import NodeDataset
from jaxgnn.training import fit_many


def repeated(
    variants: Sequence[TrainConfig], repeats: Repeats, *, vmap: bool
) -> list[list[Outcome]]:
    """Trains each variant with each seed.

    Args:
      variants: the options of each variant, whose ``run`` is the folder of all runs together; left
        out, each run has the name that ``train`` would give it.
      repeats: the seeds, and the number of processes.
      vmap: whether all seeds of a variant are trained in one program, which compiles once, and
        writes no run folders.

    Returns:
      For each variant the outcome of each seed.

    Raises:
      ValueError: if an option or a data file is at fault.
    """
    if vmap:
        return [train_in_one_program(variant, repeats.seeds) for variant in variants]
    runs = [in_own_folder(run) for variant in variants for run in repeats.of(variant)]
    outcomes = run_all(train, runs, repeats.processes)
    count = len(repeats.seeds)
    return [outcomes[i : i + count] for i in range(0, len(outcomes), count)]


def in_own_folder(run: TrainConfig) -> TrainConfig:
    """A run in a folder of its own below the one that is given for several."""
    return run if run.run is None else replace(run, run=run.run / run.variant_name())


def train_in_one_program(
    config: TrainConfig,
    seeds: Sequence[int],
    *,
    datasets: Sequence[NodeDataset] | None = None,
    label: str | None = None,
) -> list[Outcome]:
    """Trains a run for each seed, all of them at once.

    Args:
      config: the options that the runs share.
      seeds: a run for each.
      datasets: the data of each seed, if they are loaded already.
      label: names the runs in tables; None for activation and k.

    Raises:
      ValueError: if an option asks for what only single runs have, the seeds do not have the same
        graph, or an option or a data file is at fault.
      FloatingPointError: if a loss is NaN or infinite, or no evaluation of a seed was finite.
    """
    config.check()
    for name in ("k_schedule", "validate_kernels", "profile_kernels"):
        if getattr(config, name):
            option = "--" + name.replace("_", "-")
            raise bad_input("train", option, "left out with --vmap", getattr(config, name))
    runs = [replace(config, seed=seed) for seed in seeds]
    data = [load(run) for run in runs] if datasets is None else list(datasets)
    _check_same_graph(data)
    batch = batch_of(config, data[0])
    models = [make_model(run, part) for run, part in zip(runs, data, strict=True)]
    masks = jnp.array(np.stack([split_mask(part, part.train) for part in data]))
    loss = Loss(config.recipe().input_dropout)
    metric = config.recipe().metric
    scores = [Scores(part, metric) for part in data]
    results = fit_many(
        models,
        optimizer_of(config),
        lambda model, batch, rngs: loss(model, replace(batch[0], train=batch[1]), rngs),
        batch,
        masks,
        seeds=[loop_of(run).seed for run in runs],
        config=loop_of(config),
        predict=predict,
        score=lambda run, logits: scores[run](logits),
        progress=config.progress,
    )
    outcomes = []
    for seed, result in zip(seeds, results, strict=True):
        if result.best is None:
            raise FloatingPointError(f"train: every evaluation of seed {seed} was NaN")
        outcomes.append(
            Outcome(
                label=label or label_of(config),
                parameters=num_parameters(models[0]),
                test=result.best.metrics[f"test {metric}"],
                validation=result.best.metrics[f"validation {metric}"],
                epoch=result.best.step,
                ms_per_epoch=result.ms_per_step,
                history=result.history,
                curves=None,
            )
        )
    return outcomes


def _check_same_graph(data: Sequence[NodeDataset]) -> None:
    """Raises unless all have the same nodes and edges: one program has one graph."""
    first = data[0]
    for other in data[1:]:
        same = all(
            np.array_equal(getattr(first, name), getattr(other, name))
            for name in ("senders", "receivers", "features", "labels")
        )
        if not same:
            expected = "left out where each seed has a graph of its own"
            raise bad_input("train", "--vmap", expected, f"the data of {first.name}")


def mean_of(values: Sequence[float | None]) -> float:
    """Mean of those that are numbers; NaN if there are none."""
    numbers = [value for value in values if value is not None]
    return float(np.mean(numbers)) if numbers else math.nan
