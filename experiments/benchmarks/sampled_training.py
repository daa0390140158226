"""Trains one network by batches of each loader and on the whole graph: time to accuracy.

Run ``python -m experiments.benchmarks.sampled_training``. The network is MaxK-GraphSAGE, the graph
synthetic, and parameters, optimizer and seed are the same for all. Rows go to
``sampled_training.jsonl``, the curves to ``sampled_training.png``.

- prepared: seconds until the loader exists, with its clusters or samples for normalisation, but
  without compilation.
- an epoch: mean seconds of an epoch, until the device is done. The first step, with its
  compilation, and evaluations are not timed.
- to target: seconds of training until the validation accuracy is within a point of the best of
  training on the whole graph; a dash if it never is.
- test: accuracy on the test nodes at the first best validation, both by the whole graph.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from flax import nnx

from experiments.benchmarks._command import command
from experiments.benchmarks._report import Column, Output, Row, append_rows, header, line
from jaxgnn import sampling
from jaxgnn._errors import bad_input
from jaxgnn.datasets import NodeDataset, SyntheticScale, synthetic
from jaxgnn.graph import CSRGraph
from jaxgnn.models import MaxKGNN
from jaxgnn.testing.timing import device_description
from jaxgnn.training import jit_apply, plot_curves

# Difference from the best accuracy on the whole graph that counts as reaching it.
_WITHIN = 0.01
# Largest number of points of a curve in a stored row. The picture has all of them.
_STORED_POINTS = 40
_COLUMNS = (
    Column("batches", "method", 10),
    Column("steps", "steps", 6, "d"),
    Column("prepared s", "prepared_s", 10, ".2f"),
    Column("an epoch s", "epoch_s", 10, ".3f"),
    Column("to target s", "to_target_s", 11, ".2f"),
    Column("test", "test", 6, ".4f"),
    Column("at epoch", "best_epoch", 8, "d"),
)


@dataclass(frozen=True)
class SampledTrainingOptions(Output):
    """Settings of the trainings.

    Attributes:
      methods: batches to train by, of ``full``, ``neighbour``, ``labor``, ``cluster``, ``saint``
        and ``shadow``; ``full`` first.
      nodes: nodes of the graph.
      edges: edges of the graph, in both directions together.
      features: width of the features.
      communities: number of classes.
      homophily: share of edges within a community.
      hidden: width of the network.
      layers: number of its convolutions.
      k: kept entries per row.
      seconds: time of training by each method, without compilation and evaluations; the epoch that
        exceeds it is the last.
      batch_size: seeds of a batch; nodes of other batches are about ten times as many, but those of
        clusters at most half of the graph.
      fanout: neighbours that each layer draws.
      learning_rate: learning rate of Adam.
      seed: seed of the data, the parameters and the loaders.
    """

    methods: tuple[str, ...] = ("full", "neighbour", "labor", "cluster", "saint", "shadow")
    nodes: int = 20_000
    edges: int = 400_000
    features: int = 64
    communities: int = 20
    homophily: float = 0.5
    hidden: int = 64
    layers: int = 2
    k: int = 16
    seconds: float = 30.0
    batch_size: int = 512
    fanout: int = 10
    learning_rate: float = 0.01
    seed: int = 0

    def check(self) -> None:
        """Raises ValueError for the first invalid option, by the name that is typed."""
        for method in self.methods:
            if method not in _BATCHES:
                expected = f"among {', '.join(_BATCHES)}"
                raise bad_input("sampled_training", "--methods", expected, method)
        if "full" not in self.methods[:1]:
            raise bad_input("sampled_training", "--methods", "full first", self.methods)
        for name in ("batch_size", "layers", "fanout"):
            if getattr(self, name) < 1:
                option = "--" + name.replace("_", "-")
                raise bad_input("sampled_training", option, "at least 1", getattr(self, name))


class Batches(NamedTuple):
    """Batches of a method, and which of their results are compared with which labels.

    Attributes:
      epoch: the batches of an epoch.
      steps: number of steps of an epoch.
      loss: from the network, a batch and random streams.
    """

    epoch: Callable[[int], Iterator[Any]]
    steps: int
    loss: Callable[[Any, Any, nnx.Rngs], jax.Array]


class Data(NamedTuple):
    """The data set and its graph."""

    dataset: NodeDataset
    graph: CSRGraph


def main(options: SampledTrainingOptions) -> list[Row]:
    """Trains by all methods, prints and stores the rows, and draws the curves.

    Raises:
      ValueError: if an option is invalid.
    """
    options.check()
    scale = SyntheticScale(
        options.nodes, options.edges, options.features, options.communities, 0.5, train=0.5
    )
    dataset = synthetic(scale, seed=options.seed, homophily=options.homophily)
    graph = CSRGraph.from_edges(dataset.senders, dataset.receivers, options.nodes)
    rows, target = [], 0.0
    print(header(_COLUMNS))
    for method in options.methods:
        row = _trained(options, Data(dataset, graph), method)
        if method == "full":
            target = max(point["validation accuracy"] for point in row["curve"]) - _WITHIN
        reached = (p["seconds"] for p in row["curve"] if p["validation accuracy"] >= target)
        rows.append(row | {"to_target_s": next(reached, None)})
        print(line(rows[-1], _COLUMNS), flush=True)
    stored = [row | {"curve": thinned(row["curve"])} for row in rows]
    append_rows(options.rows / "sampled_training.jsonl", stored)
    _draw(options, rows)
    return rows


def thinned(curve: list[Row]) -> list[Row]:
    """Returns at most 40 evenly spaced points of a curve, with its first, last and best one."""
    if len(curve) <= _STORED_POINTS:
        return curve
    places = set(np.linspace(0, len(curve) - 1, _STORED_POINTS - 1).astype(int).tolist())
    places.add(max(range(len(curve)), key=lambda place: curve[place]["validation accuracy"]))
    return [curve[place] for place in sorted(places)]


def _trained(options: SampledTrainingOptions, data: Data, method: str) -> Row:
    """Trains by one method."""
    started = time.perf_counter()
    batches = _BATCHES[method](options, data)
    prepared = time.perf_counter() - started
    curve = list(_curve(options, data, batches))
    best = max(curve, key=lambda point: point["validation accuracy"])  # the first of equal ones
    return {
        **device_description(),
        "method": method,
        "nodes": options.nodes,
        "edges": data.graph.num_edges,
        "hidden": options.hidden,
        "layers": options.layers,
        "k": options.k,
        "steps": batches.steps,
        "prepared_s": prepared,
        "epoch_s": curve[-1]["seconds"] / len(curve),
        "test": best["test accuracy"],
        "best_epoch": best["epoch"],
        "curve": curve,
    }


def _curve(options: SampledTrainingOptions, data: Data, batches: Batches) -> Iterator[Row]:
    """Seconds of training and accuracies after each epoch."""
    model = MaxKGNN(
        options.features,
        options.hidden,
        options.communities,
        num_layers=options.layers,
        k=options.k,
        dropout=0.2,
        rngs=nnx.Rngs(options.seed),
    )
    graphdef, params, other = nnx.split(model, nnx.Param, ...)
    optimizer = optax.adam(options.learning_rate)

    @jax.jit
    def step(state: Any, batch: Any, number: Any) -> Any:
        params, optimizer_state = state

        def loss_of(params: Any) -> jax.Array:
            streams = nnx.Rngs(dropout=jax.random.fold_in(jax.random.key(options.seed), number))
            return batches.loss(nnx.merge(graphdef, params, other), batch, streams)

        gradients = jax.grad(loss_of)(params)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
            updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
            return optax.apply_updates(params, updates), optimizer_state

    evaluate = _evaluation(data)
    state, seconds, number = (params, optimizer.init(params)), 0.0, itertools.count()
    jax.block_until_ready(step(state, next(iter(batches.epoch(0))), next(number)))  # compiles
    for epoch in itertools.count(1):
        started = time.perf_counter()
        for batch in batches.epoch(epoch):
            state = step(state, batch, next(number))
        jax.block_until_ready(state)
        seconds += time.perf_counter() - started
        scores = evaluate(nnx.merge(graphdef, state[0], other))
        yield {"seconds": seconds, "epoch": epoch, **scores}
        if seconds > options.seconds:
            return


def _evaluation(data: Data) -> Callable[[Any], Row]:
    """Accuracies on the whole graph."""
    dataset = data.dataset
    graph = data.graph.normalized("mean").prepared("spmm")
    predict = jit_apply(lambda model, graph, x: model(graph, x).argmax(-1))
    x, labels = jax.device_put(dataset.features), np.asarray(dataset.labels)

    def evaluate(model: Any) -> Row:
        model.eval()
        right = np.asarray(predict(model, graph, x)) == labels
        return {
            "validation accuracy": float(right[dataset.validation].mean()),
            "test accuracy": float(right[dataset.test].mean()),
        }

    return evaluate


_losses = optax.softmax_cross_entropy_with_integer_labels


def _whole(options: SampledTrainingOptions, data: Data) -> Batches:
    dataset = data.dataset
    arrays = data.graph.normalized("mean").prepared("spmm"), dataset.features, dataset.labels
    batch = jax.device_put((*arrays, dataset.train))

    def loss(model: Any, batch: Any, rngs: nnx.Rngs) -> jax.Array:
        graph, x, y, train = batch
        return _losses(model(graph, x, rngs=rngs)[train], y[train]).mean()

    return Batches(lambda epoch: iter([batch]), 1, loss)


def _neighbour(options: SampledTrainingOptions, data: Data, method: Any = "neighbour") -> Batches:
    dataset = data.dataset
    loader = sampling.NeighborLoader(
        data.graph,
        dataset.train,
        (options.fanout,) * options.layers,
        options.batch_size,
        dataset.features,
        dataset.labels,
        method=method,
        seed=options.seed,
    )

    def loss(model: Any, batch: Any, rngs: nnx.Rngs) -> jax.Array:
        scores = model(batch.blocks, batch.x, rngs=rngs)[batch.seed_ids]
        return sampling.masked_mean(_losses(scores, batch.y), batch.seed_mask)

    return Batches(loader.epoch, len(loader), loss)


def _labor(options: SampledTrainingOptions, data: Data) -> Batches:
    return _neighbour(options, data, "labor")


def _shadow(options: SampledTrainingOptions, data: Data) -> Batches:
    dataset = data.dataset
    loader = sampling.ShadowLoader(
        data.graph,
        dataset.train,
        (options.fanout, max(options.fanout // 2, 1)),
        options.batch_size,
        features=dataset.features,
        labels=dataset.labels,
        seed=options.seed,
    )

    def loss(model: Any, batch: Any, rngs: nnx.Rngs) -> jax.Array:
        scores = model(batch.graph, batch.x, rngs=rngs)[batch.root]
        return sampling.masked_mean(_losses(scores, batch.y), batch.seed_mask)

    return Batches(loader.epoch, len(loader), loss)


def _cluster(options: SampledTrainingOptions, data: Data) -> Batches:
    # Few large clusters would have the classes of a batch in other shares than the graph. A single
    # step would have the whole graph in its batch.
    steps = max(-(-data.graph.num_rows // (10 * options.batch_size)), 2)
    per_batch = min(200, data.graph.num_rows // steps)
    loader = sampling.ClusterLoader(
        data.graph, per_batch * steps, per_batch, **_of_nodes(options, data)
    )
    return Batches(loader.epoch, len(loader), _weighted_loss)


def _saint(options: SampledTrainingOptions, data: Data) -> Batches:
    # Walks of two steps have up to three nodes.
    size = max(10 * options.batch_size // 3, 1)
    size = min(size, data.graph.num_rows)
    loader = sampling.SaintLoader(data.graph, "walk", size=size, **_of_nodes(options, data))
    return Batches(loader.epoch, len(loader), _weighted_loss)


def _of_nodes(options: SampledTrainingOptions, data: Data) -> dict[str, Any]:
    dataset = data.dataset
    names = {"features": dataset.features, "labels": dataset.labels, "train": dataset.train}
    return names | {"seed": options.seed}


def _weighted_loss(model: Any, batch: Any, rngs: nnx.Rngs) -> jax.Array:
    return (batch.node_weight * _losses(model(batch.graph, batch.x, rngs=rngs), batch.y)).sum()


_BATCHES: dict[str, Callable[[SampledTrainingOptions, Data], Batches]] = {
    "full": _whole,
    "neighbour": _neighbour,
    "labor": _labor,
    "cluster": _cluster,
    "saint": _saint,
    "shadow": _shadow,
}


def _draw(options: SampledTrainingOptions, rows: list[Row]) -> None:
    """Draws the accuracies against the seconds of training."""
    path = options.pictures / "sampled_training.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    curves = {row["method"]: [_in_ms(point) for point in row["curve"]] for row in rows}
    labels = {"step": "ms of training", "accuracy": "validation accuracy"}
    title = f"MaxK-GraphSAGE by batches, {options.nodes:,} nodes"
    plot_curves(curves, path, fields=("accuracy",), title=title, axis_labels=labels)
    print(path)


def _in_ms(point: Row) -> Row:
    return {"step": round(1e3 * point["seconds"]), "accuracy": point["validation accuracy"]}


if __name__ == "__main__":
    command(main, SampledTrainingOptions, __doc__)
