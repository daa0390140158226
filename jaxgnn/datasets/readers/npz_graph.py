"""Graphs with attributes in one .npz file, as in "Pitfalls of graph neural network evaluation"."""

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from jaxgnn.datasets.formats.file_errors import bad_file, naming
from jaxgnn.datasets.formats.files import to_float32, to_int32
from jaxgnn.datasets.formats.matrices import csr_to_dense, rows_of_entries, square_size
from jaxgnn.datasets.formats.npy import npz_names, read_npz
from jaxgnn.datasets.formats.pickle_parts import StoredArray
from jaxgnn.datasets.records.node_dataset import SPLITS, NodeDataset, distinct_edges
from jaxgnn.datasets.records.splits import class_split

_CONTENTS = "arrays adj_data, adj_indices, adj_indptr, adj_shape, attr_* and labels"
_CSR = ("data", "indices", "indptr", "shape")
# Two prefixes of the names of a matrix's parts.
_BEGINNINGS = ("{}_", "{}_matrix.")


def read_npz_graph(
    path: str | PathLike[str],
    *,
    seed: int = 0,
    per_class: tuple[int, int] = (20, 30),
    directed: bool = False,
) -> NodeDataset:
    """Reads a graph with attributes from one ``.npz`` file, such as amazon_electronics_photo.npz.

    This is the format of https://arxiv.org/abs/1811.05868, in which Cora, CiteSeer, PubMed, the
    Amazon and the Coauthor graphs are published: the sparse matrices ``adj`` and ``attr`` by their
    parts (``adj_data``, ``adj_indices``, ``adj_indptr``, ``adj_shape``, or ``adj_matrix.data`` and
    so on), or a dense ``attr_matrix``, and ``labels``. Other contents of the file are not read, so
    that none of its code can run. Values of edges are not read, and self loops are dropped.

    Args:
      path: the file.
      seed: seed of the split, which is random, because the files have none.
      per_class: number of nodes of each class for training and for validation; all others are for
        the test.
      directed: whether edges keep their directions; if not, every pair of joined nodes is listed
        once in each direction. Row i of the matrix has the nodes to which i has edges.

    Returns:
      The data set, named after the file.

    Raises:
      ValueError: a class has too few nodes for the split.
    """
    file = Path(path)
    names = npz_names(file, _CONTENTS)
    edges, count = _edges(file, names)
    edges = distinct_edges(edges[:, edges[0] != edges[1]], count, both_directions=not directed)
    labels = _labels(file, names, count)
    sizes = np.bincount(labels)
    if (sizes <= sum(per_class)).any():
        small = int(np.argmin(sizes))
        expected = f"more than {sum(per_class)} nodes of each class, for the split"
        raise bad_file(file, f"expected {expected}, got {sizes[small]} of class {small}")
    dataset = NodeDataset(
        name=file.name.removesuffix(".npz"),
        senders=edges[0],
        receivers=edges[1],
        features=_features(file, names),
        labels=labels,
        num_classes=sizes.size,
        **class_split(labels, *per_class, seed),
    )
    fields = ("senders", "receivers", "features", "labels", *SPLITS)
    dataset.validate(dict.fromkeys(fields, file))
    return dataset


def _edges(file: Path, names: frozenset[str]) -> tuple[np.ndarray, int]:
    """The entries of the adjacency matrix, int32 [2, entries], and the number of its nodes."""
    parts = _sparse(file, names, "adj")
    with naming(file, "a graph"):
        count = square_size(file, parts["shape"], "adj: ")
        columns = to_int32(parts["indices"], file, "columns")
        if columns.ndim != 1 or ((columns < 0) | (columns >= count)).any():
            raise bad_file(file, f"adj: expected columns in [0, {count})")
        rows = rows_of_entries(file, parts["indptr"], count, columns.size, "adj: ")
        return np.stack([rows, columns]), count


def _features(file: Path, names: frozenset[str]) -> np.ndarray:
    """Returns the attributes of the nodes, float32 [nodes, features]."""
    if "attr_matrix" in names:
        dense = read_npz(file, ("attr_matrix",), _CONTENTS)["attr_matrix"]
        return to_float32(dense, file, "attr_matrix")
    parts = _sparse(file, names, "attr")
    with naming(file, "attributes"):
        shape = tuple(to_int32(parts["shape"], file, "the shape of attr").ravel().tolist())
        fields: dict[str, Any] = {name: StoredArray(parts[name]) for name in _CSR[:3]}
        return csr_to_dense(file, fields | {"_shape": shape})


def _labels(file: Path, names: frozenset[str], count: int) -> np.ndarray:
    """The class of each node, int32 [nodes]; classes are the distinct labels in ascending order."""
    if "labels" not in names:
        raise bad_file(file, f"expected labels, got {sorted(names)[:20]}")
    labels = to_int32(read_npz(file, ("labels",), _CONTENTS)["labels"], file, "labels")
    if labels.shape != (count,):
        raise bad_file(file, f"labels: expected {count}, one for each node, got {labels.shape}")
    return np.unique(labels, return_inverse=True)[1].astype(np.int32)


def _sparse(file: Path, names: frozenset[str], matrix: str) -> dict[str, np.ndarray]:
    """Returns the parts of a sparse matrix by their names."""
    for beginning in _BEGINNINGS:
        keys = {part: beginning.format(matrix) + part for part in _CSR}
        if names >= set(keys.values()):
            arrays = read_npz(file, tuple(keys.values()), _CONTENTS)
            return {part: arrays[key] for part, key in keys.items()}
    raise bad_file(file, f"expected {_CONTENTS}, got {sorted(names)[:20]}")
