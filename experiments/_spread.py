"""Training on one graph that is distributed over several devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments._node_data import Batch, is_sparse, on_device, rows_to_one, split_mask
from experiments._options import GraphDevices
from jaxgnn import CSRGraph, distributed
from jaxgnn._errors import bad_input
from jaxgnn.datasets import NodeDataset
from jaxgnn.distributed import ShardedGraph, ShardedMatrix

_AXIS = "nodes"

MAY_CHANGE = (
    "epochs",
    "run",
    "fresh",
    "progress",
    "data",
    "checkpoint_every",
    "report",
    "devices",
    "partition",
)
"""Options of a training on one graph that a resumed run may change: its devices, length and
output."""


def spread_graph(
    graph: CSRGraph, devices: GraphDevices, ops: Sequence[str], like: ShardedGraph | None = None
) -> ShardedGraph:
    """Distributes the rows of a graph over the first devices.

    Args:
      graph: the whole graph, normalised.
      devices: number of devices, and the partition.
      ops: ops that the parts are prepared for.
      like: another graph of the same nodes, whose assignment of nodes to devices is used.

    Raises:
      ValueError: if there are fewer nodes than devices, or the partition's package is missing.
    """
    mesh = Mesh(np.array(jax.devices()[: devices.devices]), (_AXIS,))
    parts: Any = devices.partition if like is None else like.partition.part_of
    try:
        return distributed.shard(graph, mesh, partition=parts, ops=tuple(ops))
    except ImportError as error:
        expected = f"another method where a package is missing ({error})"
        raise bad_input("train", "--partition", expected, devices.partition) from error


def spread_batch(
    graph: ShardedGraph,
    dataset: NodeDataset,
    *,
    dtype: str,
    normalize_features: bool = False,
    given: Mapping[str, np.ndarray] | None = None,
) -> Batch:
    """Puts a data set on the devices of its graph; a process copies only its own features' rows.

    Args:
      graph: the graph of the data set.
      dataset: the data, whose features may be a memory-mapped array.
      dtype: dtype of the features.
      normalize_features: whether each node's features are divided by the sum of their magnitudes.
      given: further arguments of the network, arrays with a row for each node.

    Raises:
      ValueError: if a row of the process's features is not finite.
    """
    return Batch(
        graph=graph,
        features=spread_features(graph, dataset, dtype, normalize_features=normalize_features),
        labels=graph.shard_rows(dataset.labels),
        train=graph.shard_rows(split_mask(dataset, dataset.train)),
        given={name: graph.shard_rows(rows) for name, rows in (given or {}).items()},
    )


def spread_features(
    graph: ShardedGraph, dataset: NodeDataset, dtype: str, *, normalize_features: bool = False
) -> jax.Array | ShardedMatrix:
    """The features of a data set, [devices * rows, features], as described in ``spread_batch``.

    A matrix that is sparse on one device is sparse here too, so that its dropout draws the same
    numbers; memory-mapped features are dense.
    """
    source, target = dataset.features, jnp.dtype(dtype)
    if not dataset.features_on_disk and is_sparse(source):
        whole: Any = on_device(rows_to_one(source) if normalize_features else source, dtype)
        return graph.shard_matrix(whole)

    def rows_at(index: Any) -> np.ndarray:
        members = graph.layout.members[(index[0].start or 0) // graph.rows]
        with np.errstate(over="ignore"):  # values beyond float32 become infinite
            rows = np.asarray(source[members]).astype(np.float32, copy=False)
        good = np.isfinite(rows).all(axis=1)
        if not good.all():
            node = int(members[int(np.argmin(good))])
            expected = "finite numbers"
            raise bad_input(
                "train", f"the features of {dataset.name}", expected, f"others at node {node}"
            )
        made = np.zeros((graph.rows, source.shape[1]), target)
        made[: len(members)] = rows_to_one(rows) if normalize_features else rows
        return made

    shape = (graph.devices * graph.rows, source.shape[1])
    return jax.make_array_from_callback(shape, graph.row_sharding, rows_at)


def place(model: nnx.Module, graph: Any) -> None:
    """Replicates a model's arrays on all devices of a graph, so that no step is compiled again."""
    if isinstance(graph, ShardedGraph):
        nnx.update(model, everywhere(nnx.state(model), graph))


def everywhere[Tree](tree: Tree, graph: Any) -> Tree:
    """Replicates arrays on all devices of a graph, if it is spread over several."""
    if not isinstance(graph, ShardedGraph):
        return tree
    return jax.device_put(tree, NamedSharding(graph.mesh, PartitionSpec()))


def on_each_device(
    function: Callable[..., Any],
    outputs: Literal["rows", "all"],
    model: Any,
    batch: Batch,
    rngs: nnx.Rngs | None = None,
    **options: Any,
) -> Any:
    """Calls ``function(model, batch, rngs, **options)`` on each device with its part of the batch.

    For a batch that is not spread, the function is called once with the whole batch.

    Args:
      function: the function to call.
      outputs: ``"rows"`` if its result has a row for each node, ``"all"`` if all devices have the
        same.
      model: the network.
      batch: the batch.
      rngs: random streams, or None.
      options: static arguments.
    """
    graph = batch.graph
    if not isinstance(graph, ShardedGraph):
        return function(model, batch, rngs, **options)

    def of_part(graph: Any, rows: Any, modules: Any) -> Any:
        model, rngs = modules
        return function(model, Batch(graph, **rows), rngs, **options)

    rows = {name: getattr(batch, name) for name in ("features", "labels", "train", "given")}
    return with_modules(of_part, outputs, graph, rows, (model, rngs))


def with_modules(
    function: Callable[[Any, Any, Any], Any],
    outputs: Literal["rows", "all"],
    graph: ShardedGraph,
    rows: Any,
    modules: Any,
) -> Any:
    """Calls ``function(part of the graph, its rows, modules)`` on each device.

    Args:
      function: the function to call.
      outputs: as for ``on_each_device``.
      graph: the graph.
      rows: arrays with a row for each node, as the graph spreads them, in any pytree.
      modules: networks and random streams, replicated on all devices.
    """
    graphdef, state = nnx.split(modules)

    def of_part(graph: Any, rows: Any, state: Any) -> Any:
        return function(graph, rows, nnx.merge(graphdef, state))

    over = distributed.sharded(of_part, graph.mesh, rows=(1,), outputs=outputs)
    return over(graph, rows, state)


def on_host(batch: Batch, rows: jax.Array) -> np.ndarray:
    """The rows of all nodes in their order, copied to the host."""
    if isinstance(batch.graph, ShardedGraph):
        return batch.graph.gather_rows(rows)
    return np.asarray(rows)
