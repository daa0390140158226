"""From a dataset to what a full-batch training step reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn import CSRGraph, datasets
from jaxgnn._errors import bad_input
from jaxgnn.datasets import NodeDataset


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """The whole graph, on the device.

    Attributes:
      graph: normalised for the model.
      features: [nodes, features].
      labels: [nodes] class ids, or [nodes, tasks] of zeros and ones.
      train: [nodes] bool, the nodes whose labels count.
    """

    graph: CSRGraph
    features: jax.Array
    labels: jax.Array
    train: jax.Array


def load(name: str, path: Path | None, *, scale: str, seed: int) -> NodeDataset:
    """Reads or makes a dataset.

    Raises:
      ValueError: if the dataset needs a folder and none was given, or a file is at fault.
    """
    if name == "digits":
        return datasets.digits()
    if name == "synthetic":
        if scale not in datasets.SCALES:
            raise bad_input("train", "--scale", f"one of {', '.join(datasets.SCALES)}", scale)
        return datasets.synthetic(scale, seed=seed)
    if path is None:
        raise bad_input("train", "--data", f"the folder with the raw files of {name}", None)
    return datasets.read(name, path)


def make_batch(
    dataset: NodeDataset,
    graph: CSRGraph | None = None,
    *,
    normalization: Any,
    self_loops: int,
    dtype: str,
) -> Batch:
    """Puts copies of a dataset on the device, its graph with self loops and normalised.

    Args:
      dataset: the data.
      graph: graph of the dataset's edges, if it is made already; else None.
      normalization: kind of degree normalisation, ``"mean"`` or ``"sym"``.
      self_loops: 0, 1 (where missing) or 2 (one more).
      dtype: dtype of the features.

    Raises:
      ValueError: if ``self_loops`` is none of these.
    """
    if graph is None:
        graph = CSRGraph.from_edges(dataset.senders, dataset.receivers, dataset.num_nodes)
    if self_loops not in (0, 1, 2):
        raise bad_input("train", "--self-loops", "0, 1 or 2", self_loops)
    if self_loops:
        graph = graph.with_self_loops()
    if self_loops == 2:
        graph = graph.with_self_loops(duplicates=True)
    return Batch(
        graph=graph.normalized(normalization),
        features=jnp.array(dataset.features).astype(dtype),
        labels=jnp.array(dataset.labels),
        train=jnp.array(split_mask(dataset, dataset.train)),
    )


def split_mask(dataset: NodeDataset, nodes: np.ndarray) -> np.ndarray:
    """Which nodes belong to a split: [nodes] bool."""
    mask = np.zeros(dataset.num_nodes, bool)
    mask[nodes] = True
    return mask
