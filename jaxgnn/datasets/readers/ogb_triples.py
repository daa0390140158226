"""Knowledge graphs of the Open Graph Benchmark, from their raw folders and files of torch."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.datasets.formats.file_errors import bad_file, naming, require_folder
from jaxgnn.datasets.formats.files import csv_path, to_int32
from jaxgnn.datasets.formats.pickle_parts import StoredArray
from jaxgnn.datasets.formats.torch_file import read_torch_numbers
from jaxgnn.datasets.readers.ogb_tables import (
    SPLIT_FILES,
    read_counts,
    read_numbers_of_types,
    require_rows,
)


@dataclass(frozen=True, eq=False)
class TriplesDataset:
    """A knowledge graph, whose edges are triples of a head, a relation and a tail.

    Nodes are numbered over all types, those of the first type first; ``first_of["drug"]`` is the
    first drug. ``CSRGraph.from_edges(*train[[0, 2]], num_nodes)`` is the graph of the training,
    in which heads are senders, and ``train[1]`` has the relation of each edge.

    Attributes:
      name: name of the data set.
      num_nodes_of: number of nodes of each type, in the order of their numbers.
      num_relations: number of relations.
      train: training triples, int32 [3, triples]: head, relation, tail.
      validation: validation triples.
      test: test triples.
      validation_heads: nodes among which the head of each validation triple is ranked, int32
        [triples, candidates].
      validation_tails: the same for its tail.
      test_heads: the same for the heads of the test.
      test_tails: the same for the tails of the test.
    """

    name: str
    num_nodes_of: dict[str, int]
    num_relations: int
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    validation_heads: np.ndarray
    validation_tails: np.ndarray
    test_heads: np.ndarray
    test_tails: np.ndarray

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all types."""
        return sum(self.num_nodes_of.values())

    @property
    def first_of(self) -> dict[str, int]:
        """The first node of each type."""
        ends = np.cumsum([0, *self.num_nodes_of.values()]).tolist()
        return dict(zip(self.num_nodes_of, ends[:-1], strict=True))


# The folder of the split, and whether nodes have types.
_RECIPES = {"ogbl-wikikg2": ("time", False), "ogbl-biokg": ("random", True)}
_ENTITY = "entity"  # type of all nodes of a graph without types


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

    Raises:
      FileNotFoundError: a folder or file is missing.
      ValueError: an unknown name, or an invalid file; the message names it.
    """
    if name not in _RECIPES:
        raise bad_input("datasets.read_ogb_triples", "name", f"one of {', '.join(_RECIPES)}", name)
    (split, is_typed), folder = _RECIPES[name], Path(path)
    require_folder(folder / "raw", f"the csv files of {name}")
    require_folder(folder / "split" / split, "train.pt, valid.pt and test.pt")
    num_nodes_of = _numbers_of_nodes(folder / "raw", is_typed=is_typed)
    arrays: dict[str, Any] = {}
    for part, file in SPLIT_FILES.items():
        stored = _Stored(folder / "split" / split / f"{file}.pt", num_nodes_of)
        arrays[part] = stored.triples()
        if part != "train":
            arrays |= {f"{part}_heads": stored.candidates("head")}
            arrays |= {f"{part}_tails": stored.candidates("tail")}
    relations = int(max(arrays[part][1].max(initial=-1) for part in SPLIT_FILES)) + 1
    return TriplesDataset(name, num_nodes_of, relations, **arrays)


def _numbers_of_nodes(raw: Path, *, is_typed: bool) -> dict[str, int]:
    """The number of nodes of each type."""
    path = raw / ("num-node-dict.csv.gz" if is_typed else "num-node-list.csv.gz")
    if is_typed:
        found = read_numbers_of_types(path)
    else:
        counts = read_counts(path, "nodes")
        require_rows(path, counts.size, 1, "the format of a single graph")
        found = {_ENTITY: int(counts[0])}
    if sum(found.values()) > np.iinfo(np.int32).max:
        got = f"{sum(found.values())} nodes"
        raise bad_file(csv_path(path), f"expected no more nodes than int32 counts, got {got}")
    return found


class _Stored:
    """The arrays of a part of a split.

    Args:
      path: its file.
      num_nodes_of: number of nodes of each type.
    """

    def __init__(self, path: Path, num_nodes_of: dict[str, int]):
        self._path = path
        self._types = list(num_nodes_of)
        self._counts = np.array(list(num_nodes_of.values()), np.int64)
        self._first = np.cumsum(self._counts) - self._counts
        stored = read_torch_numbers(path, "a dict of arrays: the triples of a part")
        if not isinstance(stored, dict):
            raise bad_file(path, f"expected a dict of arrays, got a {type(stored).__name__}")
        self._arrays: dict[Any, Any] = stored

    def triples(self) -> np.ndarray:
        """Heads, relations and tails, int32 [3, triples]."""
        relations = self._numbers("relation", 1)
        if (relations < 0).any():
            got = relations[int(np.argmax(relations < 0))]
            raise bad_file(self._path, f"expected relation from 0 on, got {got}")
        ends = [self._nodes(end, end, 1) for end in ("head", "tail")]
        sizes = [ends[0].size, relations.size, ends[1].size]
        if len(set(sizes)) > 1:
            message = f"expected as many head as relation and tail, got {sizes}"
            raise bad_file(self._path, message)
        return np.stack([ends[0], relations, ends[1]])

    def candidates(self, end: str) -> np.ndarray:
        """Candidates for one end of each triple, int32 [triples, candidates]."""
        key = f"{end}_neg"
        found = self._nodes(key, end, 2)
        rows = self._numbers(end, 1).size
        if found.shape[0] != rows:
            expected = f"{key} of {rows} rows, as many as triples"
            raise bad_file(self._path, f"expected {expected}, got {found.shape[0]}")
        return found

    def _nodes(self, key: str, end: str, axes: int) -> np.ndarray:
        """Converts nodes numbered within their types to nodes numbered over all types."""
        local, types = self._numbers(key, axes), self._types_of(end)
        if len(self._types) > 1 and types.size != local.shape[0]:
            expected = f"{end}_type of {local.shape[0]} entries, as many as {key}"
            raise bad_file(self._path, f"expected {expected}, got {types.size}")
        types = types.reshape(-1, *(1,) * (axes - 1))
        good = (local >= 0) & (local < self._counts[types])
        if not good.all():
            at = int(np.argmin(good))
            limit = np.broadcast_to(self._counts[types], local.shape).flat[at]
            expected = f"{key} of nodes in [0, {limit})"
            raise bad_file(self._path, f"expected {expected}, got {local.flat[at]}")
        return (local + self._first[types]).astype(np.int32)

    def _types_of(self, end: str) -> np.ndarray:
        """The number of the type of each head or tail, [triples]; [1] if there is only one type."""
        if len(self._types) == 1:
            return np.zeros(1, np.int64)
        key, numbers = f"{end}_type", {name: at for at, name in enumerate(self._types)}
        names = self._arrays.get(key)
        if not isinstance(names, list) or not all(type(n) is str and n in numbers for n in names):
            expected = f"{key} as a list of {', '.join(self._types)}"
            raise bad_file(self._path, f"expected {expected}, got others")
        return np.array([numbers[name] for name in names], np.int64)

    def _numbers(self, key: str, axes: int) -> np.ndarray:
        """An array of whole numbers, int32."""
        stored = self._arrays.get(key)
        if not isinstance(stored, StoredArray):
            expected = f"an array {key!r} among {sorted(map(str, self._arrays))[:9]}"
            raise bad_file(self._path, f"expected {expected}, got a {type(stored).__name__}")
        with naming(self._path, "the triples of a part"):
            numbers = to_int32(stored.value, self._path, key)
        if numbers.ndim != axes:
            raise bad_file(self._path, f"expected {key} of {axes} axes, got shape {numbers.shape}")
        return numbers
