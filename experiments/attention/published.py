"""GCN and GAT on Cora by the protocol and with the recipes of Shchur et al. 2018.

Run ``python -m experiments.attention published``. The data are those of ``datasets.cora``: the
largest component, words as zeros and ones, 20 papers of each class to train and 30 to validate.
Recipes are the best ones of the paper's search, as its code lists them
(https://github.com/shchur/gnn-benchmark, config/optimized). Training stops when the validation
loss, L2 penalty included, has not fallen for 50 epochs; the parameters of its minimum are tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from experiments._node_data import Batch, make_batch, split_mask
from experiments._nodes import node_loss
from experiments._seeds import Repeats, streams, summarize
from experiments.attention.config import PublishedConfig, PublishedModel
from experiments.benchmarks._report import Row, append_rows
from jaxgnn import CSRGraph, nn
from jaxgnn.datasets import NodeDataset, cora
from jaxgnn.nn.shared.dropout import dropout
from jaxgnn.testing.timing import device_description
from jaxgnn.training import Table

RESULTS = Path(__file__).parent / "results" / "cora.jsonl"
_LEARNING_RATE = 0.01
_PATIENCE = 50
_GLOROT = nnx.initializers.glorot_uniform()


class PublishedGCN(nnx.Module):
    """Two graph convolutions, 64 wide, with dropout of 0.8 before each; L2 on the first kernel."""

    name = "GCN"
    published = 81.5
    weight_decay = 1e-3
    normalization, op = "gcn", "spmm"

    def __init__(self, words: int, classes: int, rngs: nnx.Rngs):
        options: dict[str, Any] = {"add_self_loops": False, "rngs": rngs}  # the graph has them
        self.first = nn.GCNConv(words, 64, **options)
        self.last = nn.GCNConv(64, classes, **options)
        for layer in (self.first, self.last):
            kernel = layer.linear.kernel
            kernel[...] = _GLOROT(rngs.params(), kernel.shape)

    def __call__(self, batch: Batch, rngs: nnx.Rngs | None = None) -> jax.Array:
        """Logits of all papers, [papers, classes]."""
        h = jax.nn.relu(self.first(batch.graph, _words(batch, 0.8, rngs)))
        return self.last(batch.graph, dropout(h, 0.8, rngs))

    def penalized(self) -> list[jax.Array]:
        """The arrays of the L2 penalty."""
        return [self.first.linear.kernel[...]]


class PublishedGAT(nnx.Module):
    """Attention of 8 heads, 8 wide, then of one; dropout 0.6, of neighbours 0.3; L2 on all."""

    name = "GAT"
    published = 81.8
    weight_decay = 1e-2
    normalization, op = None, "sddmm"

    def __init__(self, words: int, classes: int, rngs: nnx.Rngs):
        options: dict[str, Any] = {"dropout": 0.3, "add_self_loops": False, "rngs": rngs}
        self.first = nn.GATConv(words, 8, heads=8, **options)
        self.last = nn.GATConv(64, classes, **options)

    def __call__(self, batch: Batch, rngs: nnx.Rngs | None = None) -> jax.Array:
        """Logits of all papers, [papers, classes]."""
        h: Any = self.first(batch.graph, _words(batch, 0.6, rngs), rngs=rngs)
        out: Any = self.last(batch.graph, dropout(jax.nn.elu(h), 0.6, rngs), rngs=rngs)
        return out

    def penalized(self) -> list[jax.Array]:
        """The arrays of the L2 penalty, all except biases."""
        return [p for p in jax.tree.leaves(nnx.state(self, nnx.Param)) if p.ndim > 1]


NETWORKS: dict[PublishedModel, type[PublishedGCN | PublishedGAT]] = {
    "gcn": PublishedGCN,
    "gat": PublishedGAT,
}


def _words(batch: Batch, rate: float, rngs: nnx.Rngs | None) -> jax.Array:
    """The words of each paper as a matrix, of which training drops some."""
    words = batch.features
    assert isinstance(words, CSRGraph)
    kept = dropout(words, rate, rngs)
    return jnp.zeros(words.shape).at[words.receivers(), words.indices].set(kept.weights)


class Best(NamedTuple):
    """The epoch with the lowest validation loss.

    Attributes:
      loss: that loss, with the penalty.
      validation: accuracy on the validation papers.
      test: accuracy on the test papers.
      epoch: the epoch, counted from 1.
    """

    loss: jax.Array
    validation: jax.Array
    test: jax.Array
    epoch: jax.Array


class _State(NamedTuple):
    params: Any
    optimizer: Any
    epoch: jax.Array
    waited: jax.Array
    best: Best


def train_until_it_stops(
    model: PublishedGCN | PublishedGAT, batch: Batch, dataset: NodeDataset, seed: int, epochs: int
) -> Best:
    """Trains a network until its validation loss has not fallen for 50 epochs.

    Args:
      model: the network with its initial parameters.
      batch: the data on the device.
      dataset: the data with its split.
      seed: seed of dropout.
      epochs: most epochs.
    """
    structure, params = nnx.split(model)
    parts = (dataset.train, dataset.validation, dataset.test)
    masks = tuple(jnp.array(split_mask(dataset, part)) for part in parts)
    return _run(structure, nnx.to_pure_dict(params), batch, masks, jax.random.key(seed), epochs)


@partial(jax.jit, static_argnums=(0, 5))
def _run(
    structure: Any, params: Any, batch: Batch, masks: Any, key: jax.Array, epochs: int
) -> Best:
    train, validation, test = masks
    optimizer = optax.adam(_LEARNING_RATE)

    def loss(params: Any, counted: jax.Array, key: jax.Array | None = None) -> Any:
        model = nnx.merge(structure, params)
        logits = model(batch, None if key is None else nnx.Rngs(dropout=key))
        squares = sum(jnp.sum(jnp.square(p)) for p in model.penalized())
        penalty = 0.5 * model.weight_decay * squares
        return node_loss(logits, batch.labels, counted) + penalty, logits

    def step(state: _State) -> _State:
        drawn = jax.random.fold_in(key, state.epoch)
        gradients, _ = jax.grad(loss, has_aux=True)(state.params, train, drawn)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
            updates, optimized = optimizer.update(gradients, state.optimizer)
            params = optax.apply_updates(state.params, updates)
        value, logits = loss(params, validation)
        is_right = jnp.argmax(logits, axis=1) == batch.labels
        validated, tested = (jnp.mean(is_right, where=part) for part in (validation, test))
        now, is_best = Best(value, validated, tested, state.epoch), value <= state.best.loss
        best = jax.tree.map(lambda new, old: jnp.where(is_best, new, old), now, state.best)
        waited = jnp.where(is_best, 0, state.waited + 1)
        return _State(params, optimized, state.epoch + 1, waited, best)

    def goes_on(state: _State) -> jax.Array:
        return (state.waited < _PATIENCE) & (state.epoch <= epochs)

    zero = jnp.zeros(())
    best = Best(jnp.full((), jnp.inf), zero, zero, jnp.int32(0))
    start = _State(params, optimizer.init(params), jnp.int32(1), jnp.int32(0), best)
    return jax.lax.while_loop(goes_on, step, start).best


def train_all(config: PublishedConfig, repeats: Repeats) -> list[Row]:
    """Trains each network on the split of each seed; prints and returns a row for each network."""
    rows = [_train_on_splits(config, model, repeats.seeds) for model in config.models]
    if config.commit_results:
        append_rows(RESULTS, rows)
    table = Table(
        title="Cora, protocol of Shchur et al. 2018: test accuracy, %",
        columns=("method", "here", "published"),
        rows=tuple(
            (
                row["method"],
                str(summarize([100 * score for score in row["test"]])),
                row["published"],
            )
            for row in rows
        ),
        note="mean ± standard deviation (splits); published: 100 splits",
    )
    print(table.text())
    return rows


def _train_on_splits(config: PublishedConfig, model: PublishedModel, seeds: Sequence[int]) -> Row:
    kind, found = NETWORKS[model], []
    batch: Batch | None = None
    for seed in seeds:
        dataset = cora(seed=streams(seed).split)
        if batch is None:  # splits differ only in their masks
            batch = make_batch(
                dataset,
                normalization=kind.normalization,
                self_loops=1,
                dtype="float32",
                op=kind.op,
            )
        rngs = nnx.Rngs(streams(seed).parameters)
        network = kind(dataset.features.shape[1], dataset.num_classes, rngs)
        best = train_until_it_stops(network, batch, dataset, streams(seed).training, config.epochs)
        found.append(jax.tree.map(lambda array: array.item(), best))
        if config.progress:
            test, epoch = found[-1].test, found[-1].epoch
            print(
                f"{kind.name}, seed {seed}: test accuracy {test:.4f} at epoch {epoch}", flush=True
            )
    return {
        "experiment": "published",
        "data": "cora",
        "protocol": "Shchur et al. 2018",
        "method": kind.name,
        "test": [best.test for best in found],
        "validation": [best.validation for best in found],
        "epochs": [best.epoch for best in found],
        "seeds": list(seeds),
        "published": kind.published,
        **device_description(),
    }
