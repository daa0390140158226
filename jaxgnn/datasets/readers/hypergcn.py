"""The cocitation and coauthorship hypergraphs in HyperGCN's files, which AllSet also reads."""

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from jaxgnn.datasets.formats.file_errors import bad_file, naming, require_folder, require_room
from jaxgnn.datasets.formats.files import numbers_to_int32, to_int32
from jaxgnn.datasets.formats.matrices import length_of, read_matrix
from jaxgnn.datasets.formats.pickle_parts import StoredArray, StoredSet
from jaxgnn.datasets.formats.safe_pickle import read_numbers
from jaxgnn.datasets.records.hypergraph_dataset import HypergraphDataset
from jaxgnn.datasets.records.splits import stratified_split

_FILES = ("hypergraph.pickle", "features.pickle", "labels.pickle")
_FRACTIONS = (0.5, 0.25, 0.25)


def read_hypergcn(
    path: str | PathLike[str], name: str | None = None, *, split: int | None = None, seed: int = 0
) -> HypergraphDataset:
    """Reads a hypergraph of papers in HyperGCN's published format.

    Pickles are read without executing any code that they refer to.

    Args:
      path: folder with ``hypergraph.pickle`` (name -> node ids), ``features.pickle`` (a sparse or
        dense matrix, a row a node), ``labels.pickle`` (a class a node), and for published splits
        ``splits/1.pickle`` and so on (train, test -> node ids).
      name: name of the data set; the folder's name if None.
      split: number of a published split, which has no validation nodes; None for a random one,
        50 / 25 / 25 % of each class for training, validation and test, as in AllSet.
      seed: seed of the random split.

    Returns:
      The data set; classes are the different labels, in ascending order.

    Raises:
      FileNotFoundError: the folder or a file is missing.
      ValueError: a file is invalid, or refers to code; the message names it.
    """
    folder = Path(path)
    require_folder(folder, ", ".join(_FILES))
    paths = dict(
        zip(("hypergraph", "features", "labels"), (folder / f for f in _FILES), strict=True)
    )
    features = read_matrix(paths["features"], "features")
    labels, classes = _labels(paths["labels"])
    if len(labels) != len(features):
        raise bad_file(
            paths["labels"],
            f"expected {len(features)} labels, one for each row of {paths['features']}, "
            f"got {len(labels)}",
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
    """Nodes and hyperedges [incidences] int32 in the file's order, and the number of hyperedges."""
    expected = "a dict of hyperedges: name -> node ids"
    hyperedges = read_numbers(path, expected)
    with naming(path, expected):
        if not isinstance(hyperedges, dict):
            raise bad_file(path, f"expected {expected}, got a {type(hyperedges).__name__}")
        most = sum(map(length_of, hyperedges.values()))
        # A pickle may refer to the same list many times.
        require_room(path, 2 * most * np.dtype(np.int32).itemsize, "its hyperedges")
        nodes, sizes = np.empty(most, np.int32), np.zeros(len(hyperedges), np.int64)
        end = 0
        for number, (name, members) in enumerate(hyperedges.items()):
            ids = _integers(path, f"node ids of hyperedge {str(name)[:80]!r}", members)
            nodes[end : end + len(ids)] = ids
            sizes[number] = len(ids)
            end += len(ids)
        hyperedge_ids = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        return nodes[:end], hyperedge_ids, len(sizes)


def _labels(path: Path) -> tuple[np.ndarray, int]:
    """Class ids [nodes] int32, and the number of different labels."""
    stored = read_numbers(path, "a list of labels, one for each node")
    with naming(path, "labels"):
        different, ids = np.unique(_integers(path, "labels", stored), return_inverse=True)
        return ids.astype(np.int32), len(different)


def _published_split(path: Path) -> dict[str, np.ndarray]:
    expected = "a dict of node ids: train, test"
    stored = read_numbers(path, expected)
    with naming(path, expected):
        if not isinstance(stored, dict) or not {"train", "test"} <= stored.keys():
            raise bad_file(path, f"expected {expected}")
        parts = {
            key: np.sort(_integers(path, f"node ids of {key}", stored[key]))
            for key in ("train", "test")
        }
        return {**parts, "validation": np.zeros(0, np.int32)}


def _integers(path: Path, what: str, stored: Any) -> np.ndarray:
    """A list, set or array of integers as [n] int32; a set in ascending order."""
    if isinstance(stored, StoredArray):
        if stored.value.ndim != 1:
            got = f"shape {stored.value.shape}"
            raise bad_file(path, f"expected {what} as plain integers, got {got}")
        return to_int32(stored.value, path, what)
    if isinstance(stored, StoredSet):
        return np.unique(numbers_to_int32(stored.members, path, what))
    if not isinstance(stored, list | tuple):
        raise bad_file(path, f"expected {what} as a list, got a {type(stored).__name__}")
    return numbers_to_int32(stored, path, what)
