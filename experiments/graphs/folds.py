"""GIN on MUTAG by the protocol of Xu et al. 2019: ten folds, and no test.

Run ``python -m experiments.graphs folds``. Each of ten stratified folds is held out once. The mean
of the ten validation curves has its maximum at one epoch; the result is mean and deviation of the
ten accuracies at that epoch, which is chosen by the graphs that it is reported for. The network is
GIN-0 with five readouts, as in https://github.com/weihua916/powerful-gnns: an epoch has 50 steps of
random graphs, and the learning rate of 0.01 is halved every 50 epochs.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from sklearn.model_selection import StratifiedKFold

from experiments._seeds import streams, summarize
from experiments.benchmarks._report import Row, append_rows
from experiments.graphs.config import FoldsConfig
from jaxgnn import datasets, nn
from jaxgnn.datasets import GraphsDataset
from jaxgnn.graph import GraphBatch, GraphSample
from jaxgnn.nn.shared.dropout import dropout
from jaxgnn.testing.timing import device_description

RESULTS = Path(__file__).parent / "results" / "mutag.jsonl"
_LAYERS = 4
_STEPS_OF_EPOCH = 50
_PUBLISHED = "89.4 ± 5.6"


class _Layer(nnx.Module):
    """GIN-0 with a perceptron of two layers, a batch norm after each, and ReLU."""

    def __init__(self, in_features: int, width: int, rngs: nnx.Rngs):
        self.conv = nn.GINConv(in_features, in_features, linear=False, rngs=rngs)
        self.linears = nnx.List(
            nn.FusedLinear(features, width, rngs=rngs) for features in (in_features, width)
        )
        self.norms = nnx.List(nn.BatchNorm(width, rngs=rngs) for _ in range(2))

    def __call__(self, batch: GraphBatch, h: jax.Array) -> jax.Array:
        """The features after the layer, [nodes, width]."""
        out: Any = self.conv(batch.graph, h)
        for linear, norm in zip(self.linears, self.norms, strict=True):
            summed: Any = linear(out)
            out = jax.nn.relu(norm(summed, batch))
        return out


class PublishedGIN(nnx.Module):
    """Four layers; the sums over each graph of their inputs and outputs are scored one by one.

    Args:
      features: width of the node features.
      classes: number of classes.
      width: width of the layers.
      rate: probability of dropping a score of a layer.
      rngs: random streams of the initial parameters.
    """

    def __init__(self, features: int, classes: int, width: int, rate: float, rngs: nnx.Rngs):
        widths = [features] + [width] * _LAYERS
        self.rate = rate
        self.layers = nnx.List(_Layer(before, width, rngs) for before in widths[:-1])
        self.heads = nnx.List(nn.FusedLinear(before, classes, rngs=rngs) for before in widths)

    def __call__(self, batch: GraphBatch, rngs: nnx.Rngs | None = None) -> jax.Array:
        """Logits of each graph, [graphs, classes]."""
        h: Any = batch.nodes
        outputs = [h]
        for layer in self.layers:
            outputs.append(h := layer(batch, h))
        logits: Any = 0.0
        for head, output in zip(self.heads, outputs, strict=True):
            score: Any = head(nn.pool(output, batch, "sum"))
            logits += dropout(score, self.rate, rngs)
        return logits


def run(config: FoldsConfig) -> Row:
    """Trains a network for each fold; prints and returns the row of the result."""
    dataset = datasets.mutag()
    graphs = _Graphs(dataset)
    kfold = StratifiedKFold(config.folds, shuffle=True, random_state=streams(config.seed).split)
    curves = []
    splits = kfold.split(dataset.labels, dataset.labels)
    for fold, (trained, held_out) in enumerate(splits):
        curves.append(_curve(config, graphs, fold, trained, held_out))
        if config.progress:
            print(f"fold {fold}: best accuracy {max(curves[-1]):.4f}", flush=True)
    mean = np.mean(curves, axis=0)
    epoch = int(mean.argmax())
    row: Row = {
        "experiment": "folds",
        "data": "mutag",
        "protocol": "Xu et al. 2019",
        "method": "GIN-0",
        "accuracy": [curve[epoch] for curve in curves],
        "mean_curve": mean.tolist(),
        "epoch": epoch + 1,
        **dataclasses.asdict(config),
        **device_description(),
    }
    if config.commit_results:
        append_rows(RESULTS, [row])
    summary = summarize([100 * accuracy for accuracy in row["accuracy"]])
    print(f"MUTAG, GIN-0: accuracy {summary} % at epoch {epoch + 1}; published {_PUBLISHED}")
    return row


class _Graphs:
    """Batches of molecules, whose class is in ``globals``."""

    def __init__(self, dataset: GraphsDataset):
        self.dataset = dataset
        self._samples = [GraphSample(**dataset[graph]) for graph in range(dataset.num_graphs)]

    def batch(self, graphs: np.ndarray) -> GraphBatch:
        """The graphs as one batch, whose shape depends only on their number."""
        sizes = self.dataset.num_nodes_of_each, self.dataset.num_edges_of_each
        nodes, edges = (int(np.sort(size)[-len(graphs) :].sum()) for size in sizes)
        shape = nodes + 1, edges, len(graphs) + 1  # a node and a graph of padding
        return GraphBatch.from_graphs([self._samples[graph] for graph in graphs], pad_to=shape)

    def epoch(self, graphs: np.ndarray, size: int, rng: np.random.Generator) -> GraphBatch:
        """Batches of random graphs for the steps of an epoch, stacked."""
        drawn = (rng.permutation(graphs)[:size] for _ in range(_STEPS_OF_EPOCH))
        return jax.tree.map(lambda *parts: np.stack(parts), *map(self.batch, drawn))


def _curve(
    config: FoldsConfig, graphs: _Graphs, fold: int, trained: np.ndarray, held_out: np.ndarray
) -> list[float]:
    """The accuracy on the held-out graphs after each epoch."""
    seeds = streams(config.seed)
    dataset = graphs.dataset
    assert dataset.node_features is not None
    widths = dataset.node_features.shape[1], dataset.num_classes, config.hidden_features
    model = PublishedGIN(*widths, config.dropout, nnx.Rngs(seeds.parameters + fold))
    model.train()
    structure, *parts = nnx.split(model, _is_trained, ...)
    params, rest = map(nnx.to_pure_dict, parts)
    state = params, rest, _optimizer().init(params)
    rng = np.random.default_rng((seeds.training, fold))
    keys = jax.random.split(jax.random.key(seeds.training + fold), config.epochs)
    scored, curve = jax.device_put(graphs.batch(held_out)), []
    for key in keys:
        drawn = graphs.epoch(trained, config.batch_size, rng)
        state, accuracy = _epoch(structure, state, drawn, scored, key)
        curve.append(accuracy)
    return [float(accuracy) for accuracy in curve]


def _optimizer() -> optax.GradientTransformation:
    rate = optax.exponential_decay(0.01, 50 * _STEPS_OF_EPOCH, 0.5, staircase=True)
    return optax.adam(rate)


def _is_trained(path: tuple[Any, ...], value: Any) -> bool:
    """Whether a variable is trained; ε of GIN-0 stays zero."""
    return isinstance(value, nnx.Param) and path[-1] != "epsilon"


@partial(jax.jit, static_argnums=0)
def _epoch(
    structure: Any, state: Any, batches: GraphBatch, scored: GraphBatch, key: jax.Array
) -> tuple[Any, jax.Array]:
    """The state after a step for each batch, and the accuracy on the graphs that are scored."""

    def loss(params: Any, rest: Any, batch: GraphBatch, key: jax.Array) -> Any:
        model = nnx.merge(structure, params, rest)
        logits = model(batch, nnx.Rngs(dropout=key))
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.globals)
        _, _, changed = nnx.split(model, _is_trained, ...)
        rest = nnx.to_pure_dict(changed)
        return jnp.mean(losses, where=batch.graph_mask), rest

    def step(state: Any, of_step: tuple[GraphBatch, jax.Array]) -> tuple[Any, None]:
        params, rest, optimized = state
        gradients, rest = jax.grad(loss, has_aux=True)(params, rest, *of_step)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
            updates, optimized = _optimizer().update(gradients, optimized)
            params = optax.apply_updates(params, updates)
        return (params, rest, optimized), None

    keys = jax.random.split(key, _STEPS_OF_EPOCH)
    state, _ = jax.lax.scan(step, state, (batches, keys))
    model = nnx.merge(structure, *state[:2])
    model.eval()
    is_right = jnp.argmax(model(scored), axis=1) == scored.globals
    return state, jnp.mean(is_right, where=scored.graph_mask)
