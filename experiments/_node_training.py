"""Shared parts of the trainings of node classifiers: length, outcome and report."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from experiments._node_data import Batch, load, split_mask
from experiments._nodes import Loss, Scores, node_loss, num_parameters, predict, scheduled
from experiments._options import ReportOptions
from experiments._runs import finish, shown
from experiments._seeds import streams
from experiments._spread import on_host
from jaxgnn._errors import bad_input
from jaxgnn.datasets import NodeDataset
from jaxgnn.nn.shared.dropout import dropout
from jaxgnn.sampling import HeteroBatch, HeteroNeighborLoader, NeighborLoader, SampledBatch
from jaxgnn.training import (
    Confusion,
    FitResult,
    LoopConfig,
    RunFolder,
    Table,
    fit_many,
    jit_apply,
    plot_curves,
)


class Settings(Protocol):
    """Hyper-parameters that every training has, from a recipe or from options."""

    @property
    def learning_rate(self) -> float:
        """Learning rate of Adam."""
        ...

    @property
    def weight_decay(self) -> float:
        """Strength of the L2 penalty on all parameters."""
        ...

    @property
    def input_dropout(self) -> float:
        """Probability of dropout of the features."""
        ...

    @property
    def epochs(self) -> int:
        """Number of full-batch steps."""
        ...

    @property
    def metric(self) -> str:
        """Metric by which validation selects."""
        ...


class Parts(NamedTuple):
    """Functions of the options in which the trainings of experiments differ.

    Attributes:
      batch_of: returns the data on the device, from the options and the dataset.
      make_model: returns the network with its initial parameters, from the same.
      label_of: name of a run in tables and pictures.
    """

    batch_of: Callable[[Any, NodeDataset], Batch]
    make_model: Callable[[Any, NodeDataset], nnx.Module]
    label_of: Callable[[Any], str]


@dataclass(frozen=True)
class Outcome:
    """Results of a run.

    Attributes:
      label: names the run in tables and pictures.
      parameters: number of trained parameters.
      test: the metric on the test nodes at the best validation epoch.
      validation: the metric on the validation nodes there.
      epoch: the epoch of that evaluation.
      ms_per_epoch: mean time of the steps of an epoch; None if the run was already complete.
      history: a row for each step.
      curves: path of the picture; None where there is none.
      epoch_ms: time of each epoch that ran now, except the last, from its start to the start of
        the next. It includes the evaluation, and the checkpoint if there was one.
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


class Epochs:
    """Yields the batch of every epoch, and records the time of each request.

    Attributes:
      batch: the whole graph.
      num_steps: number of steps of an epoch.
    """

    num_steps: int = 1

    def __init__(self, batch: Batch):
        self.batch = batch
        self._starts: list[float] = []

    def __call__(self, step: int) -> Batch:
        self._note(step)
        return self.batch

    def epoch_of(self, step: int) -> int:
        """The epoch of a step, both counted from 1."""
        return (step - 1) // self.num_steps + 1

    def _note(self, step: int) -> None:
        """Records the time of a request if it begins an epoch."""
        if (step - 1) % self.num_steps == 0:
            self._starts.append(time.perf_counter())

    def ms(self) -> tuple[float, ...]:
        """Milliseconds from each start to the next."""
        return tuple(1e3 * (end - start) for start, end in itertools.pairwise(self._starts))


Sampled = SampledBatch | HeteroBatch
"""A batch of seeds, of one type of nodes or of several."""


@dataclass(frozen=True)
class SampledLoss:
    """Cross entropy over the seeds of a sampled batch, binary where labels are tasks.

    Attributes:
      input_dropout: probability of dropout of the features; 0 with several types of nodes.
    """

    input_dropout: float

    def __call__(self, model: Any, batch: Sampled, rngs: nnx.Rngs, k: int | None = None):
        x: Any = batch.x
        x = dropout(x, self.input_dropout, rngs)
        logits = model(batch.blocks, x, rngs=rngs, **scheduled(k)).astype("float32")
        return node_loss(logits[batch.seed_ids], batch.y, batch.seed_mask), {}


class SampledEpochs(Epochs):
    """Passes over the training nodes, whose batches a loader makes ahead."""

    def __init__(self, batch: Batch, loader: NeighborLoader | HeteroNeighborLoader):
        super().__init__(batch)
        self.loader, self.num_steps = loader, len(loader)

    def steps(self, start: int) -> _Steps:
        """The batches from a step on."""
        made = self.loader.steps(start)
        return _Steps(made, made.close, self._note)


@dataclass(frozen=True)
class _Steps:
    batch_of: Callable[[int], Sampled]
    close: Callable[[], None]
    note: Callable[[int], None]

    def __call__(self, step: int) -> Sampled:
        self.note(step)
        return self.batch_of(step)


class Caption(NamedTuple):
    """Names of a run in reports.

    Attributes:
      data: name of the dataset.
      network: name of the network, with the options that distinguish it.
      label: shorter name, for its curves.
      seed: its seed.
      metric: metric by which validation selected.
    """

    data: str
    network: str
    label: str
    seed: int
    metric: str


def optimizer_of(settings: Settings) -> optax.GradientTransformation:
    """Adam, with an L2 penalty if the settings have one."""
    adam = optax.adam(settings.learning_rate)
    if not settings.weight_decay:
        return adam
    return optax.chain(optax.add_decayed_weights(settings.weight_decay), adam)


def loop_of(config: Any, steps_per_epoch: int = 1) -> LoopConfig:
    """Length of the training and the intervals of evaluations and saves, from a run's options."""
    settings = config.recipe()
    return LoopConfig(
        steps=settings.epochs * steps_per_epoch,
        eval_every=config.eval_every * steps_per_epoch,
        checkpoint_every=config.checkpoint_every * steps_per_epoch,
        seed=streams(config.seed).training,
        select=f"validation {settings.metric}",
    )


def outcome_of(result: FitResult, run: RunFolder, epochs: Epochs, caption: Caption) -> Outcome:
    """Draws the curves of a run, and writes its results to ``result.json`` in its folder.

    Raises:
      FloatingPointError: if no evaluation was finite.
    """
    best, curves, metric = result.best, run.path / "curves.png", caption.metric
    if best is None:
        raise FloatingPointError("train: every evaluation was NaN; no epoch is the best")
    title = f"{caption.data}, {caption.network}, seed {caption.seed}"
    label = caption.label
    if run.writes:
        plot_curves({label: result.history}, curves, title=title, best={label: best.step})
    pace = None if result.ms_per_step is None else result.ms_per_step * epochs.num_steps
    outcome = Outcome(
        label=label,
        parameters=num_parameters(result.model),
        test=best.metrics[f"test {metric}"],
        validation=best.metrics[f"validation {metric}"],
        epoch=epochs.epoch_of(best.step),
        ms_per_epoch=pace,
        history=result.history,
        curves=curves,
        epoch_ms=epochs.ms(),
    )
    names = ("test", "validation", "epoch", "parameters")
    summary = {name: getattr(outcome, name) for name in names}
    run.write_json("result.json", {"metric": metric, **summary})
    return outcome


def confusion_of(result: FitResult, dataset: NodeDataset, batch: Batch) -> Confusion | None:
    """Labels and predictions of the test nodes by the best model; None for labels of tasks."""
    if dataset.multilabel or result.best_model is None:
        return None
    model, test = result.best_model, dataset.test
    model.eval()
    predicted = on_host(batch, jit_apply(predict)(model, batch))[test].argmax(axis=1)
    names = dataset.class_names or tuple(map(str, range(dataset.num_classes)))
    return Confusion(dataset.labels[test], predicted, names)


def report_outcome(
    outcome: Outcome,
    run: RunFolder,
    caption: Caption,
    options: ReportOptions,
    *,
    tables: Sequence[Table] = (),
    **parts: Any,
) -> None:
    """Prints the result, and writes it with further ``parts`` of the report at the end."""
    if not run.writes:
        return
    metric, pace = caption.metric, ""
    if outcome.ms_per_epoch is not None:
        pace = f", {outcome.ms_per_epoch:.1f} ms an epoch"
    print(
        f"{caption.data} {caption.network}, seed {caption.seed}: best validation {metric} "
        f"{outcome.validation:.4f} at epoch {outcome.epoch}{pace}"
    )
    print(f"curves: {shown(run.path / 'curves.png')}")
    print(f"test {metric}: {outcome.test:.4f}")
    title = f"{caption.data}: {caption.network}, seed {caption.seed}"
    own = Table(
        title="This run",
        columns=("nodes", metric),
        rows=(("validation", outcome.validation), ("test", outcome.test)),
        note=f"at the best validation {metric}, epoch {outcome.epoch}",
    )
    finish(run.path, options, title=title, tables=[own, *tables], **parts)


def train_in_one_program(
    parts: Parts,
    config: Any,
    seeds: Sequence[int],
    *,
    datasets: Sequence[NodeDataset] | None = None,
    label: str | None = None,
) -> list[Outcome]:
    """Trains a run for each seed, all of them in one program, and writes no run folders.

    Args:
      parts: the experiment's data, model and labels.
      config: the options that the runs share.
      seeds: a run for each.
      datasets: the data of each seed, if they are loaded already.
      label: names the runs in tables; None for the experiment's name.

    Raises:
      ValueError: if the seeds do not have the same graph, or an option or a data file is invalid.
      FloatingPointError: if a loss is NaN or infinite, or no evaluation of a seed was finite.
    """
    runs = [replace(config, seed=seed) for seed in seeds]
    data = [load(run) for run in runs] if datasets is None else list(datasets)
    _check_same_graph(data)
    settings = config.recipe()
    batch = parts.batch_of(config, data[0])
    models = [parts.make_model(run, part) for run, part in zip(runs, data, strict=True)]
    masks = jnp.array(np.stack([split_mask(part, part.train) for part in data]))
    loss = Loss(settings.input_dropout)
    scores = [Scores(part, settings.metric) for part in data]
    results = fit_many(
        models,
        optimizer_of(settings),
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
                label=label or parts.label_of(config),
                parameters=num_parameters(models[0]),
                test=result.best.metrics[f"test {settings.metric}"],
                validation=result.best.metrics[f"validation {settings.metric}"],
                epoch=result.best.step,
                ms_per_epoch=result.ms_per_step,
                history=result.history,
                curves=None,
            )
        )
    return outcomes


def _check_same_graph(data: Sequence[NodeDataset]) -> None:
    """Raises unless all have the same nodes and edges, because one program has one graph."""
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
    """Mean of the values that are not None; NaN if there are none."""
    numbers = [value for value in values if value is not None]
    return float(np.mean(numbers)) if numbers else math.nan
