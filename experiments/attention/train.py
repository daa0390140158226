"""Training runs, from options to a picture of their curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments._driver import Training, train_in_folder, train_seeds
from experiments._node_data import load_for_run
from experiments._node_tables import tables_beside
from experiments._node_training import (
    Epochs,
    Outcome,
    confusion_of,
    loop_of,
    optimizer_of,
    outcome_of,
    report_outcome,
    train_in_one_program,
)
from experiments._nodes import Loss, Scores, predict
from experiments._options import check_alone
from experiments._processes import check_same_run
from experiments._seeds import ONE_SEED, Repeats, summarize
from experiments._spread import MAY_CHANGE, on_host, place
from experiments.attention.config import AttentionConfig
from experiments.attention.setup import PARTS, batch_of, caption_of, make_model
from jaxgnn.datasets import NodeDataset
from jaxgnn.training import Table, jit_apply, phase


def train(
    config: AttentionConfig,
    dataset: NodeDataset | None = None,
    *,
    tables: Sequence[Table] = (),
    pictures: Sequence[Path] = (),
) -> Outcome:
    """Trains one network and writes its report, curves, metrics and checkpoints to the run folder.

    Args:
      config: the options of the run.
      dataset: the data, if it is already loaded.
      tables: tables for the report, such as scores of trivial methods.
      pictures: pictures for the report, after the curves.

    Raises:
      ValueError: if an option or a data file is invalid.
    """
    config.check()
    config.check_devices("train")
    settings = config.recipe()
    if dataset is None:
        dataset = load_for_run(config)
    check_same_run(config, dataset)
    with phase("preparing the graph", progress=config.progress):
        batch = batch_of(config, dataset)
    model = make_model(config, dataset)
    place(model, batch.graph)
    scores, scored, epochs = Scores(dataset, settings.metric), jit_apply(predict), Epochs(batch)
    training = Training(
        model,
        optimizer_of(settings),
        Loss(settings.input_dropout),
        epochs,
        batch,
        loop_of(config),
        evaluate=lambda model: scores(on_host(batch, scored(model, batch))),
    )
    result, run = train_in_folder(config, training, MAY_CHANGE)
    caption = caption_of(config)
    outcome = outcome_of(result, run, epochs, caption)
    confusion = confusion_of(result, dataset, batch)
    parts: dict[str, Any] = {"tables": tables, "pictures": pictures, "confusion": confusion}
    report_outcome(outcome, run, caption, config.report, **parts)
    return outcome


def train_all(
    config: AttentionConfig, repeats: Repeats = ONE_SEED, *, vmap: bool = False
) -> list[Outcome]:
    """Trains a run for each seed, and prints their mean if there are several.

    Args:
      config: the options of the runs.
      repeats: the seeds, and number of concurrent runs.
      vmap: whether all seeds are trained in one program.

    Raises:
      ValueError: if an option or a data file is invalid.
    """
    repeats.check("train")
    config.check()
    check_alone(config, "train", {"--processes": repeats.processes > 1, "--vmap": vmap})
    print(f"settings: {config.settings()}", flush=True)
    if vmap:
        outcomes = train_in_one_program(PARTS, config, repeats.seeds)
    elif len(repeats.seeds) == 1:
        return [_train_beside_trivial(replace(config, seed=repeats.seeds[0]))]
    else:
        outcomes = train_seeds(_train_beside_trivial, config, repeats)
    validation, test = (
        summarize([100 * getattr(outcome, part) for outcome in outcomes])
        for part in ("validation", "test")
    )
    metric = config.recipe().metric
    print(f"{config.label()}, seeds {' '.join(map(str, repeats.seeds))}")
    print(f"validation {metric}: {validation} %")
    print(f"test {metric}: {test} %")
    return outcomes


def _train_beside_trivial(config: AttentionConfig) -> Outcome:
    dataset = load_for_run(config)
    return train(config, dataset, tables=tables_beside(config, dataset))
