"""From a dataset to what a full-batch training step reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments._datasets import on_device, rows_to_one
from jaxgnn import CSRGraph
from jaxgnn._errors import bad_input
from jaxgnn.datasets import NodeDataset


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """The whole graph, on the device.

    Attributes:
      graph: normalised for the model.
      features: [nodes, features]; a sparse matrix if less than a tenth is not zero.
      labels: [nodes] class ids, or [nodes, tasks] of zeros and ones.
      train: [nodes] bool, the nodes whose labels count.
    """

    graph: CSRGraph
    features: jax.Array | CSRGraph
    labels: jax.Array
    train: jax.Array


def make_batch(
    dataset: NodeDataset,
    graph: CSRGraph | None = None,
    *,
    normalization: Any,
    self_loops: int,
    dtype: str,
    normalize_features: bool = False,
) -> Batch:
    """Puts copies of a dataset on the device, its graph with self loops and normalised.

    Args:
      dataset: the data.
      graph: graph of the dataset's edges, if it is made already; else None.
      normalization: kind of degree normalisation, ``"mean"`` or ``"sym"``.
      self_loops: 0, 1 (where missing) or 2 (one more).
      dtype: dtype of the features.
      normalize_features: whether the features of each node are divided by the sum of their sizes.

    Raises:
      ValueError: if ``self_loops`` is none of these.
    """
    features = rows_to_one(dataset.features) if normalize_features else dataset.features
    return Batch(
        graph=make_graph(dataset, graph, normalization, self_loops),
        features=on_device(features, dtype),
        labels=jnp.array(dataset.labels),
        train=jnp.array(split_mask(dataset, dataset.train)),
    )


def make_graph(
    dataset: NodeDataset, graph: CSRGraph | None, normalization: Any, self_loops: int
) -> CSRGraph:
    """The graph of a dataset with self loops and normalised, as ``make_batch`` says."""
    if graph is None:
        graph = CSRGraph.from_edges(dataset.senders, dataset.receivers, dataset.num_nodes)
    if self_loops not in (0, 1, 2):
        raise bad_input("train", "--self-loops", "0, 1 or 2", self_loops)
    if self_loops:
        graph = graph.with_self_loops()
    if self_loops == 2:
        graph = graph.with_self_loops(duplicates=True)
    return graph.normalized(normalization).prepared("maxk_spmm")


def split_mask(dataset: NodeDataset, nodes: np.ndarray) -> np.ndarray:
    """Which nodes belong to a split: [nodes] bool."""
    mask = np.zeros(dataset.num_nodes, bool)
    mask[nodes] = True
    return mask
