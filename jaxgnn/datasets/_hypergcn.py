"""The cocitation and coauthorship hypergraphs, in HyperGCN's files, which AllSet reads too."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from jaxgnn.datasets._files import require_folder, to_float32, to_int32
from jaxgnn.datasets._hypergraph_dataset import HypergraphDataset
from jaxgnn.datasets._safe_pickle import StoredCSR, read_numbers
from jaxgnn.datasets._splits import stratified_split

_FILES = ("hypergraph.pickle", "features.pickle", "labels.pickle")
_FRACTIONS = (0.5, 0.25, 0.25)


def read_hypergcn(
    path: str | PathLike[str], name: str | None = None, *, split: int | None = None, seed: int = 0
) -> HypergraphDataset:
    """Reads a hypergraph of papers as HyperGCN publishes it.

    Pickles are read without running what they say, see `ValueError`.

    Args:
        path: folder with `hypergraph.pickle` (name -> node ids), `features.pickle` (a sparse or
            dense matrix, a row a node), `labels.pickle` (a class a node), and for published splits
            `splits/1.pickle` and so on (train, test -> node ids).
        name: what to call the data set; the folder's name if None.
        split: number of a published split, which has no validation nodes; None for a random one,
            50 / 25 / 25 % of each class for training, validation and test, as AllSet has it.
        seed: of the random split.

    Returns:
        The data set; classes are the different labels, in ascending order.

    Raises:
        FileNotFoundError: the folder or a file is missing.
        ValueError: a file is not what it should be, or refers to code; the message names it.
    """
    folder = Path(path)
    require_folder(folder, ", ".join(_FILES))
    paths = dict(
        zip(("hypergraph", "features", "labels"), (folder / f for f in _FILES), strict=True)
    )
    features = _features(paths["features"])
    labels, classes = _labels(paths["labels"])
    if len(labels) != len(features):
        raise ValueError(
            f"{paths['labels']}: expected {len(features)} labels, one for each row of "
            f"{paths['features']}, got {len(labels)}"
        )
    node_ids, hyperedge_ids, count = _incidences(paths["hypergraph"])
    parts, split_file = stratified_split(labels, _FRACTIONS, seed), paths["labels"]
    if split is not None:
        split_file = folder / "splits" / f"{split}.pickle"
        parts = _published_split(split_file)
    dataset = HypergraphDataset(
        name=folder.name if name is None else name,
        node_ids=node_ids,
        hyperedge_ids=hyperedge_ids,
        num_hyperedges=count,
        features=features,
        labels=labels,
        num_classes=classes,
        **parts,
    )
    incidence_files = dict.fromkeys(("node_ids", "hyperedge_ids"), paths["hypergraph"])
    dataset.validate({**paths, **incidence_files, **dict.fromkeys(parts, split_file)})
    return dataset


def _incidences(path: Path) -> tuple[np.ndarray, np.ndarray, int]:
    """Nodes and hyperedges [incidences] int32 in the file's order, and how many hyperedges."""
    hyperedges = read_numbers(path, "a dict of hyperedges: name -> node ids")
    if not isinstance(hyperedges, Mapping):
        expected = "a dict of hyperedges: name -> node ids"
        raise ValueError(f"{path}: expected {expected}, got a {type(hyperedges).__name__}")
    members = [
        _integers(path, f"node ids of hyperedge {name!r}", nodes)
        for name, nodes in hyperedges.items()
    ]
    sizes = [len(nodes) for nodes in members]
    ids = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    nodes = np.concatenate([np.zeros(0, np.int32), *members])
    return nodes, ids, len(sizes)


def _features(path: Path) -> np.ndarray:
    stored = read_numbers(path, "a matrix of features, a row for each node")
    if isinstance(stored, StoredCSR):
        stored = _dense(path, stored.fields)
    try:
        values = np.asarray(stored)
    except ValueError as error:  # lists of different lengths
        raise ValueError(f"{path}: expected features as a matrix: {error}") from error
    return to_float32(values, path, "features")


def _dense(path: Path, fields: dict[str, Any]) -> np.ndarray:
    """The sparse matrix, checked before it is trusted."""
    try:
        shape = tuple(int(size) for size in fields["_shape"])
        arrays = (np.asarray(fields[key]) for key in ("data", "indices", "indptr"))
        matrix = scipy.sparse.csr_array(tuple(arrays), shape=shape)
        matrix.check_format(full_check=True)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"{path}: not a csr_matrix as scipy stores it: {error!r}") from error
    return matrix.toarray()


def _labels(path: Path) -> tuple[np.ndarray, int]:
    """Class ids [nodes] int32, and how many different labels there are."""
    stored = read_numbers(path, "a list of labels, one for each node")
    different, ids = np.unique(_integers(path, "labels", stored), return_inverse=True)
    return ids.astype(np.int32), len(different)


def _published_split(path: Path) -> dict[str, np.ndarray]:
    stored = read_numbers(path, "a dict of node ids: train, test")
    if not isinstance(stored, Mapping) or not {"train", "test"} <= stored.keys():
        raise ValueError(f"{path}: expected a dict of node ids: train, test")
    parts = {
        key: np.sort(_integers(path, f"node ids of {key}", stored[key]))
        for key in ("train", "test")
    }
    return {**parts, "validation": np.zeros(0, np.int32)}


def _integers(path: Path, what: str, stored: Any) -> np.ndarray:
    """A list, set or array of integers as [n] int32."""
    if not isinstance(stored, list | tuple | set | frozenset | np.ndarray):
        raise ValueError(f"{path}: expected {what} as a list, got a {type(stored).__name__}")
    values = list(stored)
    if not values:
        return np.zeros(0, np.int32)
    try:
        array = np.array(values)
    except ValueError as error:  # lists of different lengths within the list
        raise ValueError(f"{path}: expected {what} as plain integers") from error
    if array.ndim != 1:
        raise ValueError(f"{path}: expected {what} as plain integers, got shape {array.shape}")
    return to_int32(array, path, what)
