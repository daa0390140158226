"""Node classification on a hypergraph, from options to a picture of its curves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments._driver import open_run, trace_loss, train_seeds
from experiments._nodes import node_loss
from experiments._options import check_alone
from experiments._runs import finish, shown
from experiments._seeds import ONE_SEED, Repeats, streams, summarize
from experiments._spread import MAY_CHANGE
from experiments.hgnn.config import NodesConfig
from experiments.hgnn.data import load, trivial_scores
from jaxgnn import Incidence
from jaxgnn.datasets import HypergraphDataset
from jaxgnn.metrics import accuracy
from jaxgnn.models import HypergraphGNN
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

_AXIS = "columns"


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """The whole hypergraph, on the device.

    Attributes:
      hypergraph: the hypergraph, with the self loops of the options.
      features: [nodes, features].
      labels: [nodes] class ids.
      train: [nodes] bool, the nodes whose labels count.
    """

    hypergraph: Incidence
    features: jax.Array
    labels: jax.Array
    train: jax.Array


@dataclass(frozen=True)
class Outcome:
    """Results of a run.

    Attributes:
      test: accuracy on the test nodes at the best validation epoch, or at the last epoch where
        there are no validation nodes.
      epoch: the epoch of that evaluation.
      ms_per_epoch: mean time of a training step; None if the run was already complete.
      history: a row for each epoch.
    """

    test: float
    epoch: int
    ms_per_epoch: float | None
    history: list[dict[str, float]]


def nodes(config: NodesConfig, dataset: HypergraphDataset | None = None) -> Outcome:
    """Trains one model and writes its curves, metrics and checkpoints to the run folder.

    Args:
      config: the options of the run.
      dataset: the data, if it is already loaded.

    Raises:
      ValueError: if an option or a data file is invalid.
    """
    config.check()
    if dataset is None:
        with phase(f"reading {config.dataset}", progress=config.progress):
            dataset = load(config)
    selects = dataset.validation.size > 0
    loop = LoopConfig(
        steps=config.epochs,
        eval_every=config.eval_every,
        checkpoint_every=config.checkpoint_every,
        seed=streams(config.seed).training,
        select="validation accuracy" if selects else None,
    )
    batch = make_batch(config, dataset)
    model = HypergraphGNN(
        dataset.features.shape[1],
        config.hidden_features,
        dataset.num_classes,
        num_layers=config.num_layers,
        kind=config.model,
        dropout=config.dropout,
        implementation=config.layers_run(),
        rngs=nnx.Rngs(streams(config.seed).parameters),
    )
    batch = spread_columns(model, batch, config.devices)
    trace_loss(_loss, model, batch)
    run = open_run(config, MAY_CHANGE)
    result = fit(
        model,
        optax.chain(
            optax.add_decayed_weights(config.weight_decay), optax.adam(config.learning_rate)
        ),
        _loss,
        lambda _: batch,
        config=loop,
        evaluate=_Evaluation(dataset, batch),
        run=run,
        progress=config.progress,
    )
    return _report(config, dataset, result, run, _confusion(result, dataset, batch))


def make_batch(config: NodesConfig, dataset: HypergraphDataset) -> Batch:
    """Copies a data set to the device, its hypergraph with self loops if configured."""
    hypergraph = Incidence.from_hyperedge_index(
        np.stack([dataset.node_ids, dataset.hyperedge_ids]),
        dataset.num_nodes,
        dataset.num_hyperedges,
    )
    features = dataset.features
    if config.normalize:
        sums = np.abs(features).sum(axis=1, keepdims=True, dtype=np.float64)
        features = (features / np.where(sums > 0, sums, 1)).astype(features.dtype)
    return Batch(
        hypergraph.with_self_loops() if config.self_loops else hypergraph,
        jnp.array(features),
        jnp.array(dataset.labels),
        jnp.array(_mask(dataset, dataset.train)),
    )


def spread_columns[B](model: nnx.Module, batch: B, devices: int) -> B:
    """Puts columns of the parameters on each device, in place, and the whole batch on all of them.

    Each device has the whole hypergraph, and some columns of the features between the layers, of
    the parameters and of the optimizer's state. Its gathers and sums are narrower by that factor.
    XLA partitions the plain ops in this way, and exchanges what the products with the parameters
    need.

    Args:
      model: a network of plain XLA ops.
      batch: training data, a pytree of arrays.
      devices: number of devices, the first ones; with one nothing moves.

    Returns:
      The batch on the devices.
    """
    if devices == 1:
        return batch
    mesh = Mesh(np.array(jax.devices()[:devices]), (_AXIS,))

    def sharding(array: Any) -> NamedSharding:
        is_divisible = array.ndim > 0 and array.shape[-1] % devices == 0
        last = (*(None,) * (array.ndim - 1), _AXIS) if is_divisible else ()
        return NamedSharding(mesh, PartitionSpec(*last))

    state = nnx.state(model)
    nnx.update(model, jax.device_put(state, jax.tree.map(sharding, state)))
    return jax.device_put(batch, NamedSharding(mesh, PartitionSpec()))


def _mask(dataset: HypergraphDataset, ids: np.ndarray) -> np.ndarray:
    mask = np.zeros(dataset.num_nodes, bool)
    mask[ids] = True
    return mask


def _loss(model: HypergraphGNN, batch: Batch, rngs: nnx.Rngs):
    """Cross entropy over the training nodes."""
    logits = model(batch.hypergraph, batch.features, rngs=rngs)
    return node_loss(logits, batch.labels, batch.train), {}


class _Evaluation:
    """Accuracy on the validation and the test nodes."""

    def __init__(self, dataset: HypergraphDataset, batch: Batch):
        self._labels, self._batch = dataset.labels, batch
        parts = {"validation": dataset.validation, "test": dataset.test}
        self._masks = {name: _mask(dataset, ids) for name, ids in parts.items() if ids.size}
        self._predict = jit_apply(lambda model, batch: model(batch.hypergraph, batch.features))

    def __call__(self, model: HypergraphGNN) -> dict[str, float]:
        logits = self._predict(model, self._batch)
        return {
            f"{name} accuracy": accuracy(logits, self._labels, mask)
            for name, mask in self._masks.items()
        }


def _confusion(result: FitResult, dataset: HypergraphDataset, batch: Batch) -> Confusion:
    """Labels and predictions of the test nodes by the best model, else by the last one."""
    model = result.model if result.best_model is None else result.best_model
    model.eval()
    logits = jit_apply(lambda model, batch: model(batch.hypergraph, batch.features))(model, batch)
    predicted = np.asarray(logits)[dataset.test].argmax(axis=1)
    names = tuple(map(str, range(dataset.num_classes)))
    return Confusion(dataset.labels[dataset.test], predicted, names)


def _report(
    config: NodesConfig,
    dataset: HypergraphDataset,
    result: FitResult,
    run: RunFolder,
    confusion: Confusion,
) -> Outcome:
    curves: Path = run.path / "curves.png"
    title = f"{dataset.name}, {config.model}, seed {config.seed}"
    marked: dict[str, int] = {}
    if result.best is not None:
        marked[config.model] = result.best.step
    plot_curves({config.model: result.history}, curves, title=title, best=marked)
    best, epoch = (result.history[-1], config.epochs)
    if result.best is not None:
        best, epoch = result.best.metrics, result.best.step
    elif dataset.validation.size:
        raise FloatingPointError("nodes: every evaluation was NaN; no epoch is the best")
    outcome = Outcome(best["test accuracy"], epoch, result.ms_per_step, result.history)
    summary = {"test": outcome.test, "epoch": epoch}
    run.write_json("result.json", {"metric": "accuracy", **summary})
    pace = "" if outcome.ms_per_epoch is None else f", {outcome.ms_per_epoch:.1f} ms an epoch"
    when = "best validation at" if result.best is not None else "no validation nodes, last"
    print(
        f"{dataset.name}: {dataset.num_nodes:,} nodes, {dataset.num_hyperedges:,} hyperedges, "
        f"{dataset.num_incidences:,} incidences"
    )
    print(f"{config.model}: {when} epoch {epoch}{pace}")
    print(f"curves: {shown(curves)}")
    print(f"test accuracy: {outcome.test:.4f}")
    trivial = trivial_scores(dataset)
    tables = [
        Table(
            title="Test accuracy on the same split",
            columns=("method", "chosen on validation", "test accuracy, %"),
            rows=(
                *((name, s.setting, f"{100 * s.test:.2f}") for name, s in trivial.items()),
                (config.model, f"epoch {epoch}", f"{100 * outcome.test:.2f}"),
            ),
        )
    ]
    print(tables[0].text())
    finish(run.path, config.report, title=title, tables=tables, confusion=confusion)
    return outcome


def nodes_all(config: NodesConfig, repeats: Repeats = ONE_SEED) -> list[Outcome]:
    """Trains a run for each seed, and prints their mean if there are several.

    Raises:
      ValueError: if an option or a data file is invalid.
    """
    check_alone(config, "nodes", {"--processes": repeats.processes > 1})
    outcomes = train_seeds(nodes, config, repeats, command="nodes")
    if len(outcomes) > 1:
        scores = summarize([100 * outcome.test for outcome in outcomes])
        print(f"{config.model}, seeds {' '.join(map(str, repeats.seeds))}")
        print(f"test accuracy: {scores} %")
    return outcomes
