"""Training on one graph that is spread over several devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments._node_data import Batch
from jaxgnn import CSRGraph, distributed
from jaxgnn.distributed import ShardedGraph

_AXIS = "nodes"


def spread(batch: Batch, devices: int) -> Batch:
    """Deals the rows of a batch out to the first devices.

    Args:
      batch: a whole graph.
      devices: how many; 1 returns the batch.
    """
    if devices == 1:
        return batch
    mesh = Mesh(np.array(jax.devices()[:devices]), (_AXIS,))
    graph = distributed.shard(batch.graph, mesh, ops=("spmm", "maxk_spmm"))
    given: Any = batch.features
    place: Any = graph.shard_matrix if isinstance(given, CSRGraph) else graph.shard_rows
    return Batch(
        graph=graph,
        features=place(given),
        labels=graph.shard_rows(batch.labels),
        train=graph.shard_rows(batch.train),
    )


def place(model: nnx.Module, batch: Batch) -> None:
    """Puts the arrays of a model on all devices of a batch, so that no step compiles for others."""
    if isinstance(batch.graph, ShardedGraph):
        everywhere = NamedSharding(batch.graph.mesh, PartitionSpec())
        nnx.update(model, jax.device_put(nnx.state(model), everywhere))


def on_each_device(
    function: Callable[..., Any],
    outputs: Literal["rows", "all"],
    model: Any,
    batch: Batch,
    rngs: nnx.Rngs | None = None,
    **options: Any,
) -> Any:
    """Calls ``function(model, batch, rngs, **options)``, on each device with its part of the batch.

    A batch that is not spread is passed on as it is.

    Args:
      function: what to call.
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
    graphdef, state = nnx.split((model, rngs))

    def of_part(graph: Any, features: Any, labels: Any, train: Any, state: Any) -> Any:
        model, rngs = nnx.merge(graphdef, state)
        return function(model, Batch(graph, features, labels, train), rngs, **options)

    over = distributed.sharded(of_part, graph.mesh, rows=(1, 2, 3), outputs=outputs)
    return over(graph, batch.features, batch.labels, batch.train, state)


def on_host(batch: Batch, rows: jax.Array) -> np.ndarray:
    """The rows of all nodes in their order, wherever they lie."""
    if isinstance(batch.graph, ShardedGraph):
        return batch.graph.gather_rows(rows)
    return np.asarray(rows)
