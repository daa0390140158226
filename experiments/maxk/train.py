"""One training run, from options to a picture of its curves."""

from __future__ import annotations

import functools
import itertools
import time
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from experiments._nodes import node_loss
from experiments._runs import discard, shown
from experiments.maxk import kernels
from experiments.maxk.config import TrainConfig
from experiments.maxk.data import Batch, load, make_batch, split_mask
from jaxgnn import CSRGraph
from jaxgnn.datasets import NodeDataset
from jaxgnn.models import MaxKGNN
from jaxgnn.training import (
    FitResult,
    LoopConfig,
    RunFolder,
    accuracy,
    fit,
    jit_apply,
    micro_f1,
    plot_curves,
    roc_auc,
)

_SCORES = {"accuracy": accuracy, "micro F1": micro_f1, "ROC-AUC": roc_auc}
_NORMALIZATIONS = {"sage": "mean", "gcn": "sym", "gin": None}
# What may differ when a run is resumed: where and how far, not what.
_MAY_CHANGE = ("epochs", "run", "fresh", "progress", "profile_kernels", "data", "checkpoint_every")


@dataclass(frozen=True)
class Outcome:
    """Results of a run.

    Attributes:
      label: names the run in tables and pictures.
      test: the metric on the test nodes at the best validation epoch.
      validation: the metric on the validation nodes there.
      epoch: the epoch of that evaluation.
      ms_per_epoch: mean time of a training step; None if the run had been complete already.
      history: a row for each epoch.
      curves: path of the picture.
      epoch_ms: of each epoch that was run now, but the last: the time from its start to that of
        the next, so with its evaluation, and with its checkpoint if it had one.
    """

    label: str
    test: float
    validation: float
    epoch: int
    ms_per_epoch: float | None
    history: list[dict[str, float]]
    curves: Path
    epoch_ms: tuple[float, ...]


def train(
    config: TrainConfig, dataset: NodeDataset | None = None, graph: CSRGraph | None = None
) -> Outcome:
    """Trains one model and writes its curves, metrics and checkpoints to the run folder.

    Args:
      config: the options of the run.
      dataset: the data, if it is loaded already.
      graph: of the dataset's edges, without self loops and normalisation, if it is made already.

    Raises:
      ValueError: if an option or a data file is at fault.
    """
    settings, ks = config.recipe(), config.layer_ks()
    config.all_ks()  # complains about a bad schedule before any data is read
    if dataset is None:
        dataset = load(config.dataset, config.data, scale=config.scale, seed=config.seed)
    batch = make_batch(
        dataset,
        graph,
        normalization=_NORMALIZATIONS[config.model],
        self_loops=settings.self_loops,
        dtype=config.dtype,
    )
    loop = _loop(config)
    _trace(config, _make_model(config, dataset, ks), batch)
    # All options are valid: only now are files written or removed.
    folder = config.run_folder()
    if config.fresh:
        discard(folder)
    # Who names the recipe's k goes on with the same run.
    run = RunFolder(folder, replace(config, k=ks), may_change=_MAY_CHANGE)
    running = config
    if config.validate_kernels:
        running = kernels.validated(config, batch.graph, settings.hidden_features)
    model = _make_model(running, dataset, ks)
    epochs = _Epochs(batch)
    result = _fit(running, loop, model, dataset, epochs, run)
    outcome = _report(running, result, run, settings.metric, epochs)
    if config.profile_kernels:
        times = kernels.profile(running, batch.graph, settings.hidden_features)
        run.write_json("kernels.json", times)
        print("aggregation an epoch: " + ", ".join(f"{n} {t:.3f}" for n, t in times.items()))
    return outcome


def _make_model(config: TrainConfig, dataset: NodeDataset, ks) -> MaxKGNN:
    settings = config.recipe()
    return MaxKGNN(
        dataset.features.shape[1],
        settings.hidden_features,
        dataset.num_classes,
        num_layers=settings.num_layers,
        kind=config.model,
        activation=config.activation,
        k=ks,
        dropout=settings.dropout,
        norm=config.norm,
        hyper_connections=config.hyper_connections,
        scan_layers=config.scan_layers,
        kernel_mode=config.kernel_mode,
        implementation=config.implementation,
        dtype=jnp.dtype(config.dtype),
        rngs=nnx.Rngs(config.seed),
    )


def _loss(model: MaxKGNN, batch: Batch, rngs: nnx.Rngs, k: int | None):
    """Cross entropy over the training nodes, binary where labels are tasks."""
    logits = model(batch.graph, batch.features, rngs=rngs, k=k).astype(jnp.float32)
    return node_loss(logits, batch.labels, batch.train), {}


def _loop(config: TrainConfig) -> LoopConfig:
    settings = config.recipe()
    return LoopConfig(
        steps=settings.epochs,
        eval_every=config.eval_every,
        checkpoint_every=config.checkpoint_every,
        seed=config.seed,
        select=f"validation {settings.metric}",
    )


def _trace(config: TrainConfig, model: MaxKGNN, batch: Batch) -> None:
    """Traces the loss with each scheduled ``k``, which finds what can not run."""
    graphdef, state = nnx.split(model)

    def loss(state, batch, k):
        return _loss(nnx.merge(graphdef, state), batch, nnx.Rngs(dropout=0), k)[0]

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
    model: MaxKGNN,
    dataset: NodeDataset,
    epochs: _Epochs,
    run: RunFolder,
) -> FitResult[MaxKGNN]:
    settings, batch = config.recipe(), epochs.batch
    score = _SCORES[settings.metric]
    splits = {name: split_mask(dataset, getattr(dataset, name)) for name in ("validation", "test")}
    predict = jit_apply(
        lambda model, batch, *, k: model(batch.graph, batch.features, k=k).astype(jnp.float32)
    )

    def evaluate(model, k):
        logits = predict(model, batch, k=k)
        return {
            f"{name} {settings.metric}": score(logits, dataset.labels, mask)
            for name, mask in splits.items()
        }

    optimizer = optax.adam(settings.learning_rate)
    return fit(
        model,
        optimizer,
        _loss,
        epochs,
        config=loop,
        evaluate=evaluate,
        static=config.scheduled_k,
        run=run,
        progress=config.progress,
    )


def _report(
    config: TrainConfig, result: FitResult, run: RunFolder, metric: str, epochs: _Epochs
) -> Outcome:
    ks = config.layer_ks()
    label = "ReLU" if ks is None else "MaxK k = " + ", ".join(map(str, sorted(set(ks))))
    curves = run.path / "curves.png"
    plot_curves({label: result.history}, curves)
    best = result.best
    if best is None:
        raise FloatingPointError("train: every evaluation was NaN; no epoch is the best")
    outcome = Outcome(
        label=label,
        test=best.metrics[f"test {metric}"],
        validation=best.metrics[f"validation {metric}"],
        epoch=best.step,
        ms_per_epoch=result.ms_per_step,
        history=result.history,
        curves=curves,
        epoch_ms=epochs.ms(),
    )
    summary = {name: getattr(outcome, name) for name in ("test", "validation", "epoch")}
    run.write_json("result.json", {"metric": metric, **summary})
    pace = "" if outcome.ms_per_epoch is None else f", {outcome.ms_per_epoch:.1f} ms an epoch"
    print(
        f"{config.dataset} {config.model} {label}: best validation at epoch {outcome.epoch}{pace}"
    )
    print(f"test {metric}: {outcome.test:.4f}")
    print(f"curves: {shown(curves)}")
    return outcome
