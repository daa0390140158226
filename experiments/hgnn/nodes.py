"""Node classification on a hypergraph, from options to a picture of its curves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from experiments._nodes import node_loss
from experiments._runs import discard, shown
from experiments.hgnn.config import NodesConfig
from jaxgnn import Incidence, datasets
from jaxgnn._errors import bad_input
from jaxgnn.datasets import HypergraphDataset
from jaxgnn.models import HypergraphGNN
from jaxgnn.training import (
    FitResult,
    LoopConfig,
    RunFolder,
    accuracy,
    fit,
    jit_apply,
    plot_curves,
)

# What may differ when a run is resumed: where and how far, not what.
_MAY_CHANGE = ("epochs", "run", "fresh", "progress", "data", "checkpoint_every")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """The whole hypergraph, on the device.

    Attributes:
      hypergraph: with what the options add to it.
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
      ms_per_epoch: mean time of a training step; None if the run had been complete already.
      history: a row for each epoch.
    """

    test: float
    epoch: int
    ms_per_epoch: float | None
    history: list[dict[str, float]]


def load(config: NodesConfig) -> HypergraphDataset:
    """Reads or makes the data set.

    Raises:
      ValueError: if the data set needs a folder and none was given, or a file is at fault.
    """
    if config.dataset == "digits":
        return datasets.digits_hypergraph(config.neighbors, seed=config.seed)
    if config.data is None:
        raise bad_input("nodes", "--data", f"the folder with the files of {config.dataset}", None)
    if config.dataset == "hypergcn":
        return datasets.read_hypergcn(config.data, split=config.split, seed=config.seed)
    return datasets.read_hyperedge_text(
        config.data,
        first_id=config.first_id,
        feature_noise=config.feature_noise,
        seed=config.seed,
    )


def nodes(config: NodesConfig, dataset: HypergraphDataset | None = None) -> Outcome:
    """Trains one model and writes its curves, metrics and checkpoints to the run folder.

    Args:
      config: the options of the run.
      dataset: the data, if it is loaded already.

    Raises:
      ValueError: if an option or a data file is at fault.
    """
    dataset = load(config) if dataset is None else dataset
    selects = dataset.validation.size > 0
    loop = LoopConfig(
        steps=config.epochs,
        eval_every=config.eval_every,
        checkpoint_every=config.checkpoint_every,
        seed=config.seed,
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
        implementation=config.implementation,
        rngs=nnx.Rngs(config.seed),
    )
    nnx.eval_shape(lambda model: _loss(model, batch, nnx.Rngs(dropout=0))[0], model)
    # All options are valid: only now are files written or removed.
    folder = config.run_folder()
    if config.fresh:
        discard(folder)
    run = RunFolder(folder, config, may_change=_MAY_CHANGE)
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
    return _report(config, dataset, result, run)


def make_batch(config: NodesConfig, dataset: HypergraphDataset) -> Batch:
    """Puts copies of a data set on the device, its hypergraph with self loops if asked for."""
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


def _report(
    config: NodesConfig, dataset: HypergraphDataset, result: FitResult, run: RunFolder
) -> Outcome:
    curves: Path = run.path / "curves.png"
    plot_curves({config.model: result.history}, curves)
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
    print(f"test accuracy: {outcome.test:.4f}")
    print(f"curves: {shown(curves)}")
    return outcome
