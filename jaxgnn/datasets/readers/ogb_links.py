"""Link-prediction sets and knowledge graphs of the Open Graph Benchmark, from their folders."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from jaxgnn.datasets.formats.file_errors import (
    BadFileError,
    bad_file,
    is_there,
    naming,
    require_folder,
)
from jaxgnn.datasets.formats.files import csv_path, to_float32, to_int32
from jaxgnn.datasets.formats.npy import read_npz
from jaxgnn.datasets.formats.pickle_parts import StoredArray
from jaxgnn.datasets.formats.torch_file import read_torch_numbers
from jaxgnn.datasets.readers.ogb_folder import (
    SPLIT_FILES,
    open_ogb,
    read_count,
    read_features,
    read_numbers_of_types,
    read_one_graph,
)
from jaxgnn.datasets.records.links_dataset import LinksDataset, TriplesDataset

# Type of all nodes of a graph without types.
_ENTITY = "entity"


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
    """
    _, recipe, raw, split = open_ogb("read_ogb_links", path, name)
    require_folder(split, "split_dict.pt" if recipe.binary else "train.pt, valid.pt and test.pt")
    num_nodes, features, edges = (_read_arrays if recipe.binary else _read_tables)(raw)
    parts: dict[str, Any] = {}
    for part, stored in _stored_parts(split, together=recipe.binary).items():
        has_negatives = part != "train" or recipe.binary
        if recipe.candidates:
            parts[part] = _citations(stored, num_nodes)
        else:
            parts[part] = _pairs(stored, "edge", num_nodes)
        if has_negatives and recipe.candidates:
            parts[f"{part}_negatives"] = _candidates(stored, num_nodes, parts[part].shape[1])
        elif has_negatives:
            parts[f"{part}_negatives"] = _pairs(stored, "edge_neg", num_nodes)
    if edges is None:
        edges = np.unique(np.sort(parts["train"], axis=0), axis=1)
    return LinksDataset(
        name=name,
        num_nodes=num_nodes,
        messages=np.concatenate([edges, edges[::-1]], axis=1) if recipe.one_direction else edges,
        features=features,
        **parts,
    )


def _read_tables(raw: Path) -> tuple[int, np.ndarray | None, np.ndarray]:
    """Reads the number of nodes, their features and the edges, from csv files."""
    num_nodes, edges = read_one_graph(raw)
    path = raw / "node-feat.csv.gz"
    features = read_features(path, num_nodes, "node") if is_there(csv_path(path)) else None
    return num_nodes, features, edges


def _read_arrays(raw: Path) -> tuple[int, np.ndarray, None]:
    """Reads the number of nodes and their features, from an .npz file."""
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


class _Stored:
    """The arrays of a part of a split, by name.

    Args:
      path: their file.
      arrays: the content of the file.
    """

    def __init__(self, path: Path, arrays: Any):
        self.path = path
        self.arrays = _require_dict(path, arrays, "arrays")

    def numbers(self, key: str, axes: int) -> np.ndarray:
        """Returns an array of whole numbers, int32."""
        stored = self.arrays.get(key)
        if not isinstance(stored, StoredArray):
            expected = f"an array {key!r} among {sorted(map(str, self.arrays))[:9]}"
            raise self.fault(expected, f"a {type(stored).__name__}")
        with naming(self.path, "the arrays of a part"):
            numbers = to_int32(stored.value, self.path, key)
        if numbers.ndim != axes:
            raise self.fault(f"{key} of {axes} axes", f"shape {numbers.shape}")
        return numbers

    def nodes(self, key: str, axes: int, limit: int | np.ndarray) -> np.ndarray:
        """Returns an array of nodes in [0, limit), int32."""
        nodes = self.numbers(key, axes)
        good = (nodes >= 0) & (nodes < limit)
        if not good.all():
            at = int(np.argmin(good))
            most = np.broadcast_to(limit, nodes.shape).flat[at]
            raise self.fault(f"{key} of nodes in [0, {most})", nodes.flat[at])
        return nodes

    def require_size(self, key: str, size: int, expected: int, of: str, others: str) -> None:
        """Raises unless an array has as many rows or entries as there are others."""
        if size != expected:
            raise self.fault(f"{key} of {expected} {of}, as many as {others}", size)

    def fault(self, expected: str, got: object) -> BadFileError:
        """Creates an error about the file."""
        return bad_file(self.path, f"expected {expected}, got {got}")


def _require_dict(path: Path, stored: Any, what: str) -> dict[Any, Any]:
    """Returns what a file holds, and raises unless it is a dict."""
    if not isinstance(stored, dict):
        raise bad_file(path, f"expected a dict of {what}, got a {type(stored).__name__}")
    return stored


def _stored_parts(split: Path, *, together: bool = False) -> dict[str, _Stored]:
    """Reads the arrays of each part, from a file for each, or from one file of all."""
    if together:
        path = split / "split_dict.pt"
        parts = _require_dict(path, read_torch_numbers(path, "the parts of a split"), "parts")
        return {part: _Stored(path, parts.get(file)) for part, file in SPLIT_FILES.items()}
    paths = {part: split / f"{file}.pt" for part, file in SPLIT_FILES.items()}
    contents = "a dict of arrays: the edges of a part"
    return {part: _Stored(path, read_torch_numbers(path, contents)) for part, path in paths.items()}


def _pairs(stored: _Stored, key: str, num_nodes: int) -> np.ndarray:
    """Returns pairs of nodes, int32 [2, pairs]."""
    pairs = stored.nodes(key, 2, num_nodes)
    if pairs.shape[1] != 2:
        raise stored.fault(f"{key} of shape [pairs, 2]", pairs.shape)
    return np.ascontiguousarray(pairs.T)


def _citations(stored: _Stored, num_nodes: int) -> np.ndarray:
    """Returns sources and targets of pairs, int32 [2, pairs]."""
    ends = [stored.nodes(key, 1, num_nodes) for key in ("source_node", "target_node")]
    if ends[0].size != ends[1].size:
        raise stored.fault(
            "as many source_node as target_node", f"{ends[0].size} and {ends[1].size}"
        )
    return np.stack(ends)


def _candidates(stored: _Stored, num_nodes: int, count: int) -> np.ndarray:
    """Returns candidates for the target of each pair, int32 [pairs, candidates]."""
    key = "target_node_neg"
    nodes = stored.nodes(key, 2, num_nodes)
    stored.require_size(key, len(nodes), count, "rows", "pairs")
    return nodes


def read_ogb_triples(path: str | PathLike[str], name: str) -> TriplesDataset:
    """Reads ogbl-wikikg2 or ogbl-biokg as unpacked from OGB's archive.

    The parts of the split are files of torch, which are read without torch and without executing
    any code that they refer to. The training triples are all edges of the graph, so that only the
    numbers of nodes are read from ``raw/``.

    Args:
      path: folder with ``raw/`` and ``split/``, whose files ``train.pt``, ``valid.pt`` and
        ``test.pt`` hold arrays ``head``, ``relation`` and ``tail``, the types of heads and tails
        for ogbl-biokg, and the candidates ``head_neg`` and ``tail_neg``.
      name: one of the two names above.

    Returns:
      The data set, with OGB's split.
    """
    _, recipe, raw, split = open_ogb("read_ogb_triples", path, name)
    require_folder(split, "train.pt, valid.pt and test.pt")
    num_nodes_of = _numbers_of_nodes(raw, is_typed=recipe.typed)
    ranges = _Ranges(num_nodes_of)
    arrays: dict[str, Any] = {}
    for part, stored in _stored_parts(split).items():
        arrays[part] = _triples(stored, ranges)
        if part != "train":
            for end in ("head", "tail"):
                arrays[f"{part}_{end}s"] = ranges.nodes(stored, f"{end}_neg", end, 2)
    relations = int(max(arrays[part][1].max(initial=-1) for part in SPLIT_FILES)) + 1
    return TriplesDataset(name, num_nodes_of, relations, **arrays)


def _numbers_of_nodes(raw: Path, *, is_typed: bool) -> dict[str, int]:
    """Reads the number of nodes of each type."""
    path = raw / ("num-node-dict.csv.gz" if is_typed else "num-node-list.csv.gz")
    numbers = read_numbers_of_types(path) if is_typed else {_ENTITY: read_count(path, "nodes")}
    if sum(numbers.values()) > np.iinfo(np.int32).max:
        got = f"{sum(numbers.values())} nodes"
        raise bad_file(csv_path(path), f"expected no more nodes than int32 counts, got {got}")
    return numbers


def _triples(stored: _Stored, ranges: _Ranges) -> np.ndarray:
    """Returns heads, relations and tails, int32 [3, triples]."""
    relations = stored.numbers("relation", 1)
    if (relations < 0).any():
        raise stored.fault("relation from 0 on", relations[int(np.argmax(relations < 0))])
    heads, tails = (ranges.nodes(stored, end, end, 1) for end in ("head", "tail"))
    sizes = [heads.size, relations.size, tails.size]
    if len(set(sizes)) > 1:
        raise stored.fault("as many head as relation and tail", sizes)
    return np.stack([heads, relations, tails])


class _Ranges:
    """The numbers of the nodes of each type among those of all types.

    Args:
      num_nodes_of: number of nodes of each type.
    """

    def __init__(self, num_nodes_of: dict[str, int]):
        self._numbers = {name: number for number, name in enumerate(num_nodes_of)}
        self._counts = np.array(list(num_nodes_of.values()), np.int64)
        self._first = np.cumsum(self._counts) - self._counts

    def nodes(self, stored: _Stored, key: str, end: str, axes: int) -> np.ndarray:
        """Converts nodes numbered within their types to nodes numbered over all types, int32."""
        rows, types = stored.numbers(end, 1).size, np.zeros(1, np.int64)
        local = stored.numbers(key, axes)
        if len(self._numbers) > 1:
            types = self._types(stored, f"{end}_type")
            stored.require_size(f"{end}_type", types.size, len(local), "entries", key)
        stored.require_size(key, len(local), rows, "rows", "triples")
        types = types.reshape(-1, *(1,) * (axes - 1))
        return (stored.nodes(key, axes, self._counts[types]) + self._first[types]).astype(np.int32)

    def _types(self, stored: _Stored, key: str) -> np.ndarray:
        """Returns the number of the type of each head or tail, [triples]."""
        names = stored.arrays.get(key)
        if not isinstance(names, list) or not all(
            type(name) is str and name in self._numbers for name in names
        ):
            raise stored.fault(f"{key} as a list of {', '.join(self._numbers)}", "others")
        return np.array([self._numbers[name] for name in names], np.int64)
