"""One training run, from options to a picture of its curves."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from experiments._datasets import load
from experiments._report import finish
from experiments._runs import discard, shown
from experiments.maxk import kernels
from experiments.maxk.config import TrainConfig
from experiments.maxk.data import Batch
from experiments.maxk.serving import export_model
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
from jaxgnn import CSRGraph
from jaxgnn.datasets import NodeDataset
from jaxgnn.training import (
    Confusion,
    FitResult,
    LoopConfig,
    RunFolder,
    Table,
    fit,
    jit_apply,
    phase,
    plot_curves,
)

# What may differ when a run is resumed: where and how far, not what.
_MAY_CHANGE = (
    "epochs",
    "run",
    "fresh",
    "progress",
    "profile_kernels",
    "data",
    "checkpoint_every",
    "report",
)


@dataclass(frozen=True)
class Outcome:
    """Results of a run.

    Attributes:
      label: names the run in tables and pictures.
      parameters: number of trained parameters.
      test: the metric on the test nodes at the best validation epoch.
      validation: the metric on the validation nodes there.
      epoch: the epoch of that evaluation.
      ms_per_epoch: mean time of a training step; None if the run had been complete already.
      history: a row for each epoch.
      curves: path of the picture; None where there is none.
      epoch_ms: of each epoch that was run now, but the last: the time from its start to that of
        the next, so with its evaluation, and with its checkpoint if it had one.
    """

    label: str
    parameters: int
    test: float
    validation: float
    epoch: int
    ms_per_epoch: float | None
    history: list[dict[str, float]]
    curves: Path | None
    epoch_ms: tuple[float, ...] = ()


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
      dataset: the data, if it is loaded already.
      graph: of the dataset's edges, without self loops and normalisation, if it is made already.
      tables: shown in the report, such as what trivial methods reach.
      pictures: shown there behind the curves.
      export: file to which the best model is exported, or None.

    Raises:
      ValueError: if an option or a data file is at fault.
    """
    config.check()
    settings, ks = config.recipe(), config.layer_ks()
    if dataset is None:
        with phase(f"reading {config.data_name()}", progress=config.progress):
            dataset = load(config)
    with phase("preparing the graph", progress=config.progress):
        batch = batch_of(config, dataset, graph)
    loop = loop_of(config)
    _trace(config, make_model(config, dataset), batch)
    # All options are valid: only now are files written or removed.
    folder = config.run_folder()
    if config.fresh:
        discard(folder)
    # Who names the recipe's k goes on with the same run.
    run = RunFolder(folder, replace(config, k=ks), may_change=_MAY_CHANGE)
    running = config
    if config.validate_kernels:
        running = kernels.validated(config, batch.graph, settings.hidden_features)
    model = make_model(running, dataset)
    epochs = _Epochs(batch)
    result = _fit(running, loop, model, dataset, epochs, run)
    outcome = _outcome(running, result, run, settings.metric, epochs)
    if config.profile_kernels:
        times = kernels.profile(running, batch.graph, settings.hidden_features)
        run.write_json("kernels.json", times)
        print("aggregation an epoch: " + ", ".join(f"{n} {t:.3f}" for n, t in times.items()))
    if export is not None and result.best is not None:
        k = config.scheduled_k(result.best.step)
        export_model(export, config, result.best_model, dataset, k)
        print(f"exported: {shown(export)}")
    confusion = _confusion(result, dataset, batch)
    _report(config, outcome, run, tables=tables, pictures=pictures, confusion=confusion)
    return outcome


def _trace(config: TrainConfig, model: nnx.Module, batch: Batch) -> None:
    """Traces the loss with each scheduled ``k``, which finds what can not run."""
    graphdef, state = nnx.split(model)
    objective = Loss(config.recipe().input_dropout)

    def loss(state, batch, k):
        return objective(nnx.merge(graphdef, state), batch, nnx.Rngs(dropout=0), k)[0]

    epochs = range(1, config.recipe().epochs + 1) if config.k_schedule else [1]
    for k in {config.scheduled_k(epoch) for epoch in epochs}:
        jax.eval_shape(functools.partial(loss, k=k), state, batch)


class _Epochs:
    """Hands out the batch of every epoch, and notes when it was asked for."""

    def __init__(self, batch: Batch):
        self.batch = batch
        self._starts: list[float] = []

    def __call__(self, epoch: int) -> Batch:
        self._starts.append(time.perf_counter())
        return self.batch

    def ms(self) -> tuple[float, ...]:
        """From each start to the next."""
        return tuple(1e3 * (end - start) for start, end in itertools.pairwise(self._starts))


def _fit(
    config: TrainConfig,
    loop: LoopConfig,
    model: nnx.Module,
    dataset: NodeDataset,
    epochs: _Epochs,
    run: RunFolder,
) -> FitResult[Any]:
    settings, batch = config.recipe(), epochs.batch
    scores, scored = Scores(dataset, settings.metric), jit_apply(predict)
    return fit(
        model,
        optimizer_of(config),
        Loss(settings.input_dropout),
        epochs,
        config=loop,
        evaluate=lambda model, k: scores(scored(model, batch, k=k)),
        static=config.scheduled_k,
        run=run,
        progress=config.progress,
    )


def _outcome(
    config: TrainConfig, result: FitResult, run: RunFolder, metric: str, epochs: _Epochs
) -> Outcome:
    label, best, curves = label_of(config), result.best, run.path / "curves.png"
    if best is None:
        raise FloatingPointError("train: every evaluation was NaN; no epoch is the best")
    title = f"{config.data_name()}, {config.kind().upper()} {label}, seed {config.seed}"
    plot_curves({label: result.history}, curves, title=title, best={label: best.step})
    outcome = Outcome(
        label=label,
        parameters=num_parameters(result.model),
        test=best.metrics[f"test {metric}"],
        validation=best.metrics[f"validation {metric}"],
        epoch=best.step,
        ms_per_epoch=result.ms_per_step,
        history=result.history,
        curves=curves,
        epoch_ms=epochs.ms(),
    )
    names = ("test", "validation", "epoch", "parameters")
    summary = {name: getattr(outcome, name) for name in names}
    run.write_json("result.json", {"metric": metric, **summary})
    return outcome


def _confusion(result: FitResult, dataset: NodeDataset, batch: Batch) -> Confusion | None:
    """Labels and predictions of the test nodes by the best model; None for labels of tasks."""
    if dataset.multilabel or result.best_model is None:
        return None
    model, test = result.best_model, dataset.test
    model.eval()
    predicted = np.asarray(jit_apply(predict)(model, batch))[test].argmax(axis=1)
    names = dataset.class_names or tuple(map(str, range(dataset.num_classes)))
    return Confusion(dataset.labels[test], predicted, names)


def _report(
    config: TrainConfig,
    outcome: Outcome,
    run: RunFolder,
    **parts: Any,
) -> None:
    """Says what was reached, and writes it with further ``parts`` of the report, last of all."""
    metric, pace = config.recipe().metric, ""
    if outcome.ms_per_epoch is not None:
        pace = f", {outcome.ms_per_epoch:.1f} ms an epoch"
    name = f"{config.data_name()} {config.kind()} {outcome.label}, seed {config.seed}"
    print(
        f"{name}: best validation {metric} {outcome.validation:.4f} at epoch {outcome.epoch}{pace}"
    )
    print(f"curves: {shown(run.path / 'curves.png')}")
    print(f"test {metric}: {outcome.test:.4f}")
    title = f"{config.data_name()}: {config.kind().upper()} {outcome.label}, seed {config.seed}"
    own = Table(
        title="This run",
        columns=("nodes", metric),
        rows=(("validation", outcome.validation), ("test", outcome.test)),
        note=f"at the best validation {metric}, epoch {outcome.epoch}",
    )
    parts["tables"] = [own, *parts["tables"]]
    finish(run.path, config.report, title=title, **parts)
