"""Data sets by the names that command lines give them, and their features on the device."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from experiments._seeds import streams
from jaxgnn import CSRGraph, datasets
from jaxgnn._errors import bad_input
from jaxgnn.datasets import NodeDataset

DATASETS = ("cora", "digits", "synthetic", *datasets.READERS)

# Features of which a smaller part is not zero are kept as sparse matrices.
_DENSE = 0.1


class DataOptions(Protocol):
    """The options of a command line that say which data set it is, and where.

    Attributes:
      dataset: one of ``DATASETS``, or the path of a graph of one's own.
      data: folder with the raw files of a published data set.
      labels: file with the labels of one's own graph, where its folder has none.
      features: file with the features of one's own graph, where its folder has none.
      splits: folder with the split of one's own graph.
      scale: size of the synthetic graph.
      seed: what the split comes from.
    """

    @property
    def dataset(self) -> str: ...
    @property
    def data(self) -> Path | None: ...
    @property
    def labels(self) -> Path | None: ...
    @property
    def features(self) -> Path | None: ...
    @property
    def splits(self) -> Path | None: ...
    @property
    def scale(self) -> str: ...
    @property
    def seed(self) -> int: ...


def load(config: DataOptions, command: str = "train") -> NodeDataset:
    """Reads or makes the dataset that the options name, with the split of their seed.

    Args:
      config: the options.
      command: the command that errors name.

    Raises:
      ValueError: if the dataset needs a folder and none was given, or a file is at fault.
    """
    name, seed = config.dataset, streams(config.seed).split
    if name not in DATASETS:
        return _load_own(config, seed, command)
    for option in ("labels", "features", "splits"):
        if getattr(config, option) is not None:
            expected = f"left out for {name}, which has its own"
            raise bad_input(command, f"--{option}", expected, getattr(config, option))
    if name == "cora":
        return datasets.cora(seed=seed)
    if name == "digits":
        return datasets.digits(seed=seed)
    if name == "synthetic":
        if config.scale not in datasets.SCALES:
            expected = f"one of {', '.join(datasets.SCALES)}"
            raise bad_input(command, "--scale", expected, config.scale)
        return datasets.synthetic(config.scale, seed=seed)
    if config.data is None:
        raise bad_input(command, "--data", f"the folder with the raw files of {name}", None)
    return datasets.read(name, config.data)


def _load_own(config: DataOptions, seed: int, command: str) -> NodeDataset:
    """Reads a graph of one's own."""
    path = Path(config.dataset)
    if not path.exists():
        expected = f"one of {', '.join(DATASETS)}, or the path of a folder or a file of edges"
        raise bad_input(command, "--dataset", expected, config.dataset)
    return datasets.read_graph(
        path, labels=config.labels, features=config.features, splits=config.splits, seed=seed
    )


def on_device(features: np.ndarray, dtype: str) -> jax.Array | CSRGraph:
    """A copy on the device, without the zeros where nearly all are."""
    if np.count_nonzero(features) >= _DENSE * features.size:
        return jnp.array(features).astype(dtype)
    matrix = scipy.sparse.csr_array(features)
    return CSRGraph.from_scipy(matrix, weighted=True).with_weights(
        jnp.array(matrix.data).astype(dtype)
    )


def rows_to_one(features: np.ndarray) -> np.ndarray:
    """Divides each row by the sum of its absolute values; a row of zeros stays."""
    sums = np.abs(features).sum(axis=1, keepdims=True, dtype=np.float64)
    return (features / np.where(sums > 0, sums, 1)).astype(features.dtype)
