"""Data sets of nodes, and the input of a full-batch training step."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from experiments._node_options import DATASETS, PLANETOID, DataOptions, check_data
from experiments._seeds import streams
from jaxgnn import CSRGraph, datasets
from jaxgnn._errors import bad_input
from jaxgnn.datasets import NodeDataset
from jaxgnn.distributed import ShardedMatrix
from jaxgnn.training import phase

# Features with a smaller share of nonzeros are kept as sparse matrices.
_DENSE = 0.1


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """The whole graph, on the device.

    Attributes:
      graph: normalised for the model; spread over devices, or one device's part of it.
      features: [nodes, features]; a sparse matrix if less than a tenth is nonzero.
      labels: [nodes] class ids, or [nodes, tasks] of zeros and ones.
      train: [nodes] bool, the nodes whose labels count.
      given: further arguments of the network, by name.
    """

    graph: Any
    features: jax.Array | CSRGraph | ShardedMatrix
    labels: jax.Array
    train: jax.Array
    given: dict[str, jax.Array] = field(default_factory=dict)


def load(config: DataOptions, command: str = "train", *, map_features: bool = False) -> NodeDataset:
    """Reads or generates the dataset that the options name, with the split of their seed.

    Args:
      config: the options.
      command: the command that errors name.
      map_features: whether the features of a user's own graph are memory-mapped, if their file
        allows it.

    Raises:
      ValueError: if the dataset needs a folder and none was given, or a file is invalid.
    """
    check_data(config, command)
    name, seed = config.dataset, streams(config.seed).split
    if name not in DATASETS:
        return _load_own(config, seed, map_features=map_features)
    if name == "digits":
        return datasets.digits(seed=seed)
    if name == "synthetic":
        if config.scale not in datasets.SCALES:
            expected = f"one of {', '.join(datasets.SCALES)}"
            raise bad_input(command, "--scale", expected, config.scale)
        return datasets.synthetic(config.scale, seed=seed)
    if config.data is None:
        return datasets.cora(seed=seed)
    if name in PLANETOID:
        return _load_planetoid(name, config.data, seed)
    return datasets.read(name, config.data)


def load_for_run(config: Any) -> NodeDataset:
    """Reads the data set of a run and prints a line of progress.

    With several processes, features are memory-mapped where their file allows it, so that each
    process copies only those of its own nodes.
    """
    with phase(f"reading {config.data_name()}", progress=config.progress):
        return load(config, map_features=jax.process_count() > 1)


def _load_planetoid(name: str, path: Path, seed: int) -> NodeDataset:
    """Reads Planetoid's pickles in a folder with their split, or an .npz file with a random one."""
    beside = path / f"{name}.npz"
    if path.is_file():
        return datasets.read_npz_graph(path, seed=seed)
    if beside.is_file() and not (path / f"ind.{name}.graph").is_file():
        return datasets.read_npz_graph(beside, seed=seed)
    return datasets.read_planetoid(path, name)


def _load_own(config: DataOptions, seed: int, *, map_features: bool) -> NodeDataset:
    """Reads a user's own graph."""
    path = Path(config.dataset)
    if path.suffix == ".npz":
        return datasets.read_npz_graph(path, seed=seed)
    dataset = datasets.read_graph(
        path,
        labels=config.labels,
        features=config.features,
        splits=config.splits,
        seed=seed,
        map_features=None if map_features else False,
    )
    if dataset.edge_features is not None:
        names = ", ".join(dataset.edge_feature_names or ())
        print(f"{path}: features of edges ({names}) are not used; a column weight would be")
    return dataset


def say_weights_are_unused(dataset: NodeDataset, network: str) -> None:
    """Prints that a network does not read the weights of edges, if the data set has some."""
    if dataset.edge_weights is not None:
        print(f"{dataset.name}: weights of edges are not used by {network}")


def make_batch(
    dataset: NodeDataset,
    graph: CSRGraph | None = None,
    *,
    normalization: Any,
    self_loops: int,
    dtype: str,
    normalize_features: bool = False,
    op: str = "maxk_spmm",
) -> Batch:
    """Copies a dataset to the device, its graph normalised and with self loops.

    Args:
      dataset: the data.
      graph: graph of the dataset's edges, if it is already built; else None.
      normalization: kind of degree normalisation, ``"mean"`` or ``"sym"``.
      self_loops: 0, 1 (where missing) or 2 (one more).
      dtype: dtype of the features.
      normalize_features: whether each node's features are divided by the sum of their magnitudes.
      op: op that the graph is prepared for, one that ``CSRGraph.prepared`` knows.

    Raises:
      ValueError: if ``self_loops`` is not 0, 1 or 2.
    """
    features = rows_to_one(dataset.features) if normalize_features else dataset.features
    return Batch(
        graph=make_graph(dataset, graph, normalization, self_loops, op),
        features=on_device(features, dtype),
        labels=jnp.array(dataset.labels),
        train=jnp.array(split_mask(dataset, dataset.train)),
    )


def make_graph(
    dataset: NodeDataset,
    graph: CSRGraph | None,
    normalization: Any,
    self_loops: int,
    op: str | None = "maxk_spmm",
) -> CSRGraph:
    """Graph of a dataset with self loops and normalisation, as described in ``make_batch``.

    With ``op`` None the graph is not prepared, because its parts will be.
    """
    if graph is None:
        ends = dataset.senders, dataset.receivers
        graph = CSRGraph.from_edges(*ends, dataset.num_nodes, dataset.edge_weights)
    if self_loops not in (0, 1, 2):
        raise bad_input("train", "--self-loops", "0, 1 or 2", self_loops)
    if self_loops:
        graph = graph.with_self_loops()
    if self_loops == 2:
        graph = graph.with_self_loops(duplicates=True)
    graph = graph.normalized(normalization)
    return graph if op is None else graph.prepared(op)


def is_sparse(features: np.ndarray) -> bool:
    """Whether nearly all features are zero."""
    return bool(np.count_nonzero(features) < _DENSE * features.size)


def on_device(features: np.ndarray, dtype: str) -> jax.Array | CSRGraph:
    """A copy on the device, as a sparse matrix where nearly all features are zero."""
    if not is_sparse(features):
        return jnp.array(features).astype(dtype)
    matrix = scipy.sparse.csr_array(features)
    return CSRGraph.from_scipy(matrix, weighted=True).with_weights(
        jnp.array(matrix.data).astype(dtype)
    )


def rows_to_one(features: np.ndarray) -> np.ndarray:
    """Divides each row by the sum of its absolute values; a row of zeros is unchanged."""
    sums = np.abs(features).sum(axis=1, keepdims=True, dtype=np.float64)
    return (features / np.where(sums > 0, sums, 1)).astype(features.dtype)


def split_mask(dataset: NodeDataset, nodes: np.ndarray) -> np.ndarray:
    """Mask of the nodes of a split: [nodes] bool."""
    mask = np.zeros(dataset.num_nodes, bool)
    mask[nodes] = True
    return mask
