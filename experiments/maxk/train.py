"""One training run, from options to a picture of its curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flax import nnx

from experiments._driver import open_run, trace_loss
from experiments._node_data import load_for_run
from experiments._node_training import (
    Epochs,
    Outcome,
    SampledEpochs,
    SampledLoss,
    confusion_of,
    loop_of,
    optimizer_of,
    outcome_of,
    report_outcome,
)
from experiments._nodes import Loss, Scores, predict
from experiments._processes import check_same_run
from experiments._runs import shown
from experiments._spread import MAY_CHANGE, on_host, place
from experiments.maxk import kernels
from experiments.maxk.config import TrainConfig
from experiments.maxk.serving import export_model
from experiments.maxk.setup import batch_of, caption_of, loader_of, make_model
from jaxgnn import CSRGraph
from jaxgnn.datasets import NodeDataset
from jaxgnn.training import FitResult, LoopConfig, RunFolder, Table, fit, jit_apply, phase

_MAY_CHANGE = (*MAY_CHANGE, "profile_kernels")


def train(
    config: TrainConfig,
    dataset: NodeDataset | None = None,
    graph: CSRGraph | None = None,
    *,
    tables: Sequence[Table] = (),
    pictures: Sequence[Path] = (),
    export: Path | None = None,
) -> Outcome:
    """Trains one model and writes its report, curves, metrics and checkpoints to the run folder.

    Args:
      config: the options of the run.
      dataset: the data, if it is already loaded.
      graph: graph of the dataset's edges, without self loops and normalisation, if already built.
      tables: tables for the report, such as scores of trivial methods.
      pictures: pictures for the report, after the curves.
      export: file to which the best model is exported, or None.

    Raises:
      ValueError: if an option or a data file is invalid.
    """
    config.check()
    config.check_devices("train")
    settings, ks = config.recipe(), config.layer_ks()
    if dataset is None:
        dataset = load_for_run(config)
    check_same_run(config, dataset)
    with phase("preparing the graph", progress=config.progress):
        batch = batch_of(config, dataset, graph)
        epochs = Epochs(batch)
        if config.sample:
            epochs = SampledEpochs(batch, loader_of(config, dataset, batch))
    loop = loop_of(config, epochs.num_steps)
    _trace(config, make_model(config, dataset), epochs)
    # A run that names the recipe's k explicitly is the same run.
    run = open_run(config, _MAY_CHANGE, stored=replace(config, k=ks))
    running = config
    if config.validate_kernels:
        running = kernels.validated(config, batch.graph, settings.hidden_features)
    model = make_model(running, dataset)
    place(model, batch.graph)
    result = _fit(running, loop, model, dataset, epochs, run)
    caption = caption_of(running)
    outcome = outcome_of(result, run, epochs, caption)
    if config.profile_kernels:
        times = kernels.profile(running, batch.graph, settings.hidden_features)
        run.write_json("kernels.json", times)
        print("aggregation an epoch: " + ", ".join(f"{n} {t:.3f}" for n, t in times.items()))
    if export is not None and result.best is not None:
        k = config.scheduled_k(outcome.epoch)
        export_model(export, config, result.best_model, dataset, k)
        print(f"exported: {shown(export)}")
    confusion = confusion_of(result, dataset, batch)
    parts = {"tables": tables, "pictures": pictures, "confusion": confusion}
    report_outcome(outcome, run, caption, config.report, **parts)
    return outcome


def _trace(config: TrainConfig, model: nnx.Module, epochs: Epochs) -> None:
    """Traces the loss with each scheduled ``k``, to find errors before the training."""
    batch = epochs.loader.batch(0, 0) if isinstance(epochs, SampledEpochs) else epochs.batch
    numbers = range(1, config.recipe().epochs + 1) if config.k_schedule else [1]
    for k in {config.scheduled_k(epoch) for epoch in numbers}:
        trace_loss(_loss_of(config), model, batch, k)


def _loss_of(config: TrainConfig) -> Loss | SampledLoss:
    return (SampledLoss if config.sample else Loss)(config.recipe().input_dropout)


def _fit(
    config: TrainConfig,
    loop: LoopConfig,
    model: nnx.Module,
    dataset: NodeDataset,
    epochs: Epochs,
    run: RunFolder,
) -> FitResult[Any]:
    settings, batch = config.recipe(), epochs.batch
    scores, scored = Scores(dataset, settings.metric), jit_apply(predict)
    return fit(
        model,
        optimizer_of(settings),
        _loss_of(config),
        epochs,
        config=loop,
        evaluate=lambda model, k: scores(on_host(batch, scored(model, batch, k=k))),
        static=lambda step: config.scheduled_k(epochs.epoch_of(step)),
        run=run,
        progress=config.progress,
    )
