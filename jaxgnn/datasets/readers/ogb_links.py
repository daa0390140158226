"""Link-prediction sets of the Open Graph Benchmark, from their raw folders."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.datasets.formats.file_errors import bad_file, naming, require_folder
from jaxgnn.datasets.formats.files import to_float32, to_int32
from jaxgnn.datasets.formats.npy import read_npz
from jaxgnn.datasets.formats.pickle_parts import StoredArray
from jaxgnn.datasets.formats.torch_file import read_torch_numbers
from jaxgnn.datasets.readers.ogb_tables import (
    SPLIT_FILES,
    read_counts,
    read_ends,
    read_features,
    require_rows,
)


@dataclass(frozen=True, eq=False)
class LinksDataset:
    """One graph with a published split of its edges, for link prediction, as numpy arrays.

    Attributes:
      name: name of the data set.
      num_nodes: number of nodes.
      messages: senders and receivers of the training edges, which carry messages, int32 [2, edges];
        both directions of each if the graph is undirected.
      features: float32 [nodes, features], or None.
      train: the training pairs to predict, int32 [2, pairs].
      validation: the pairs for the validation, int32 [2, pairs].
      test: the pairs for the test, int32 [2, pairs].
      validation_negatives: pairs without an edge, int32 [2, pairs], among which all pairs are
        ranked; or candidates for the receiver of each pair, int32 [pairs, candidates].
      test_negatives: the same for the test.
      train_negatives: pairs without an edge for training, int32 [2, pairs], or None.
    """

    name: str
    num_nodes: int
    messages: np.ndarray
    features: np.ndarray | None
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    validation_negatives: np.ndarray
    test_negatives: np.ndarray
    train_negatives: np.ndarray | None = None


@dataclass(frozen=True)
class _Recipe:
    """Properties of a data set that its folder does not contain.

    Attributes:
      split: name of the folder of the split.
      both: whether the files list one direction of each edge of an undirected graph.
      candidates: whether negatives are candidates for the receiver of each pair.
      binary: whether the folder has arrays in .npz files and one file of the split, which also has
        negative training pairs; the messages are then the training pairs.
    """

    split: str
    both: bool = True
    candidates: bool = False
    binary: bool = False


_RECIPES = {
    "ogbl-ppa": _Recipe("throughput"),
    "ogbl-collab": _Recipe("time"),
    "ogbl-ddi": _Recipe("target"),
    "ogbl-citation2": _Recipe("time", both=False, candidates=True),
    "ogbl-vessel": _Recipe("random", binary=True),
}


def read_ogb_links(path: str | PathLike[str], name: str) -> LinksDataset:
    """Reads ogbl-ppa, -collab, -ddi, -citation2 or -vessel as unpacked from OGB's archive.

    The parts of the split are files of torch, which are read without torch and without executing
    any code that they refer to. Weights and years of edges are not read.

    Args:
      path: folder with ``raw/`` and ``split/``, whose files ``train.pt``, ``valid.pt`` and
        ``test.pt`` hold the pairs. Tables may be .csv.gz or .csv. For ogbl-vessel ``raw/data.npz``
        has the features of nodes, and ``split/random/split_dict.pt`` all three parts.
      name: one of the five names above.

    Returns:
      The data set, with OGB's split.

    Raises:
      FileNotFoundError: a folder or file is missing.
      ValueError: an unknown name, or an invalid file; the message names it.
    """
    if name not in _RECIPES:
        raise bad_input("datasets.read_ogb_links", "name", f"one of {', '.join(_RECIPES)}", name)
    recipe, folder = _RECIPES[name], Path(path)
    raw, split = folder / "raw", folder / "split" / recipe.split
    require_folder(raw, f"the {'arrays' if recipe.binary else 'csv files'} of {name}")
    require_folder(split, "split_dict.pt" if recipe.binary else "train.pt, valid.pt and test.pt")
    num_nodes, features, edges = (_read_arrays if recipe.binary else _read_tables)(raw)
    parts: dict[str, Any] = {}
    for part, (file, stored) in _stored_parts(split, binary=recipe.binary).items():
        pairs = _Pairs(file, stored, num_nodes, recipe.candidates)
        parts[part] = pairs.pairs()
        if part != "train" or recipe.binary:
            parts[f"{part}_negatives"] = pairs.negatives(parts[part].shape[1])
    if edges is None:
        edges = np.unique(np.sort(parts["train"], axis=0), axis=1)
    return LinksDataset(
        name=name,
        num_nodes=num_nodes,
        messages=np.concatenate([edges, edges[::-1]], axis=1) if recipe.both else edges,
        features=features,
        **parts,
    )


def _read_tables(raw: Path) -> tuple[int, np.ndarray | None, np.ndarray]:
    """The number of nodes, their features and the edges, from csv files."""
    counts = [read_counts(raw / f"num-{what}-list.csv.gz", f"{what}s") for what in ("node", "edge")]
    for what, count in zip(("node", "edge"), counts, strict=True):
        require_rows(raw / f"num-{what}-list.csv.gz", count.size, 1, "the format of a single graph")
    num_nodes = int(counts[0][0])
    edges = read_ends(raw / "edge.csv.gz", (counts[0], counts[0]))
    require_rows(raw / "edge.csv.gz", edges.shape[1], int(counts[1][0]), "num-edge-list")
    return num_nodes, read_features(raw / "node-feat.csv.gz", num_nodes, "num-node-list"), edges


def _read_arrays(raw: Path) -> tuple[int, np.ndarray, None]:
    """The number of nodes and their features, from an .npz file."""
    path = raw / "data.npz"
    stored = read_npz(path, ("num_nodes_list", "node_feat"), "num_nodes_list and node_feat")
    counts = to_int32(stored["num_nodes_list"], path, "num_nodes_list").ravel()
    features = to_float32(stored["node_feat"], path, "node_feat")
    if counts.tolist() != [features.shape[0]]:
        expected = "as many rows of node_feat as num_nodes_list says"
        raise bad_file(path, f"expected {expected}, got {features.shape[0]}, {counts.tolist()[:5]}")
    if not np.isfinite(features).all():
        node = int(np.argmin(np.isfinite(features).all(axis=1)))
        raise bad_file(path, f"node_feat: expected finite numbers, got others at node {node}")
    return features.shape[0], features, None


def _stored_parts(split: Path, *, binary: bool) -> dict[str, tuple[Path, dict[Any, Any]]]:
    """The file of each part, and its content."""
    if binary:
        path = split / "split_dict.pt"
        whole = _stored_dict(path, read_torch_numbers(path, "the parts of a split"), "parts")
        parts = {part: (path, whole.get(file)) for part, file in SPLIT_FILES.items()}
    else:
        paths = {part: split / f"{file}.pt" for part, file in SPLIT_FILES.items()}
        what = "a dict of arrays: the pairs of a part"
        parts = {part: (path, read_torch_numbers(path, what)) for part, path in paths.items()}
    return {part: (path, _stored_dict(path, s, "arrays")) for part, (path, s) in parts.items()}


def _stored_dict(path: Path, stored: Any, what: str) -> dict[Any, Any]:
    if not isinstance(stored, dict):
        raise bad_file(path, f"expected a dict of {what}, got a {type(stored).__name__}")
    return stored


class _Pairs:
    """The pairs of a part of a split.

    Args:
      path: its file.
      stored: its arrays, by name.
      num_nodes: number of nodes of the graph.
      candidates: whether it has sources, targets and candidates instead of pairs.
    """

    def __init__(self, path: Path, stored: dict[Any, Any], num_nodes: int, candidates: bool):
        self._path, self._num_nodes, self._candidates = path, num_nodes, candidates
        self._arrays = stored

    def pairs(self) -> np.ndarray:
        """The pairs that an edge joins, int32 [2, pairs]."""
        if not self._candidates:
            return self._of_pairs("edge")
        ends = [self._nodes(key, 1) for key in ("source_node", "target_node")]
        if ends[0].size != ends[1].size:
            got = f"{ends[0].size} and {ends[1].size}"
            message = f"expected as many source_node as target_node, got {got}"
            raise bad_file(self._path, message)
        return np.stack(ends)

    def negatives(self, count: int) -> np.ndarray:
        """Pairs without an edge, int32 [2, pairs], or candidates, int32 [pairs, candidates]."""
        if not self._candidates:
            return self._of_pairs("edge_neg")
        found = self._nodes("target_node_neg", 2)
        if found.shape[0] != count:
            expected = f"target_node_neg of {count} rows, as many as pairs"
            raise bad_file(self._path, f"expected {expected}, got {found.shape[0]}")
        return found

    def _of_pairs(self, key: str) -> np.ndarray:
        pairs = self._nodes(key, 2)
        if pairs.shape[1] != 2:
            raise bad_file(self._path, f"expected {key} of shape [pairs, 2], got {pairs.shape}")
        return np.ascontiguousarray(pairs.T)

    def _nodes(self, key: str, axes: int) -> np.ndarray:
        """An array of nodes, int32."""
        stored = self._arrays.get(key)
        if not isinstance(stored, StoredArray):
            expected = f"an array {key!r} among {sorted(map(str, self._arrays))[:9]}"
            raise bad_file(self._path, f"expected {expected}, got a {type(stored).__name__}")
        with naming(self._path, "the pairs of a part"):
            nodes = to_int32(stored.value, self._path, key)
            if nodes.ndim != axes:
                message = f"expected {key} of {axes} axes, got shape {nodes.shape}"
                raise bad_file(self._path, message)
            good = (nodes >= 0) & (nodes < self._num_nodes)
            if not good.all():
                bad = nodes.flat[int(np.argmin(good))]
                expected = f"{key} of nodes in [0, {self._num_nodes})"
                raise bad_file(self._path, f"expected {expected}, got {bad}")
        return nodes
