"""The records of data sets whose nodes are classified."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, Never

import numpy as np

from jaxgnn._html.drawing import SmallGraph
from jaxgnn._html.notebook import degrees_of
from jaxgnn.datasets.records.record import Record, facts_of_edges

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, repr=False)
class NodeDataset(Record):
    """One graph whose nodes are to be classified, with its published split.

    Attributes:
      name: name of the data set.
      senders: [edges] int32, node that each edge starts from.
      receivers: [edges] int32, node that each edge points to. The list is directed; an
        undirected graph lists both directions of each edge.
      features: [nodes, features] float32; or a memory-mapped array, a ``np.memmap`` of the dtype of
        its file.
      labels: [nodes] int32 class ids, or [nodes, tasks] float32 zeros and ones. A node in none of
        the three parts may have -1, for an unknown class.
      train: [train nodes] int32, sorted node ids.
      validation: [validation nodes] int32, sorted node ids.
      test: [test nodes] int32, sorted node ids.
      num_classes: number of classes, or of tasks when ``multilabel``.
      class_names: name of each class, or of each task; None if the source has none.
      node_names: [nodes] integers or strings, names of the nodes in the source; None if their names
        are their ids.
      edge_weights: [edges] float32, or None if edges have no weights.
      edge_features: [edges, features] float32 in the order of ``senders``, or None.
      edge_feature_names: name of each column of ``edge_features``, or None.
    """

    name: str
    senders: np.ndarray
    receivers: np.ndarray
    features: np.ndarray
    labels: np.ndarray
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    num_classes: int
    class_names: tuple[str, ...] | None = None
    node_names: np.ndarray | None = None
    edge_weights: np.ndarray | None = None
    edge_features: np.ndarray | None = None
    edge_feature_names: tuple[str, ...] | None = None

    @property
    def num_nodes(self) -> int:
        """The number of nodes of the graph."""
        return self.features.shape[0]

    @property
    def num_edges(self) -> int:
        """Number of directed edges: an undirected edge counts twice."""
        return self.senders.shape[0]

    @property
    def multilabel(self) -> bool:
        """Whether a node may have any number of labels, rather than exactly one."""
        return self.labels.ndim == 2

    @property
    def features_on_disk(self) -> bool:
        """Whether the features are memory-mapped, so that they are read when they are used."""
        return isinstance(self.features, np.memmap)

    def _facts(self) -> list[tuple[str, Any]]:
        return facts_of_edges(self.num_nodes, self.receivers)

    def _drawn(self) -> SmallGraph:
        classes = None if self.multilabel else self.labels
        return SmallGraph(self.num_nodes, self.senders, self.receivers, classes, self.node_names)

    def validate(self, files: Mapping[str, str | PathLike[str]] | None = None) -> None:
        """Checks that the arrays are consistent with each other and with the description of fields.

        Args:
          files: for a field's name, its source file; errors then name the file.

        Raises:
          ValueError: for the first invalid field: data set, field, file, the expected and the
            actual value, and its position.
        """
        check = _Check(self, files or {})
        check.features()
        check.pairs(dict.fromkeys(("senders", "receivers"), (self.num_nodes, "node ids")))
        check.labels(may_be_unknown=True)
        for split in SPLITS:
            check.split(split)
        check.splits_are_disjoint()
        check.splits_are_labelled()
        check.names()
        check.edges()


@dataclass(frozen=True, repr=False)
class HypergraphDataset(Record):
    """One hypergraph whose nodes are to be classified.

    Attributes:
      name: name of the data set.
      node_ids: [incidences] int32, node of each incidence.
      hyperedge_ids: [incidences] int32, hyperedge of each incidence.
      num_hyperedges: number of hyperedges, including those without nodes.
      features: [nodes, features] float32.
      labels: [nodes] int32 class ids; -1 for a node of unknown class, which is in no part.
      train: [train nodes] int32, sorted node ids.
      validation: [validation nodes] int32, sorted node ids; empty if a published split has
        none.
      test: [test nodes] int32, sorted node ids.
      num_classes: number of classes.
    """

    name: str
    node_ids: np.ndarray
    hyperedge_ids: np.ndarray
    num_hyperedges: int
    features: np.ndarray
    labels: np.ndarray
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    num_classes: int

    @property
    def num_nodes(self) -> int:
        """The number of nodes of the hypergraph."""
        return self.features.shape[0]

    @property
    def num_incidences(self) -> int:
        """Number of pairs of a node and a hyperedge that contains it."""
        return self.node_ids.shape[0]

    @property
    def multilabel(self) -> bool:
        """False: a node has one label."""
        return False

    def _facts(self) -> list[tuple[str, Any]]:
        sizes = np.bincount(self.hyperedge_ids, minlength=self.num_hyperedges)
        return [
            ("nodes", f"{self.num_nodes:,}"),
            ("hyperedges", f"{self.num_hyperedges:,}"),
            ("nodes of a hyperedge", degrees_of(sizes)),
        ]

    def validate(self, files: Mapping[str, str | PathLike[str]] | None = None) -> None:
        """Checks that the arrays are consistent, as ``NodeDataset.validate`` does."""
        check = _Check(self, files or {})
        check.features()
        limits = {"node_ids": (self.num_nodes, "node ids")}
        check.pairs(limits | {"hyperedge_ids": (self.num_hyperedges, "hyperedge ids")})
        check.labels()
        for split in SPLITS:
            check.split(split, may_be_empty=split == "validation")
        check.splits_are_disjoint()


def distinct_edges(edges: np.ndarray, num_nodes: int, *, both_directions: bool) -> np.ndarray:
    """Returns edges [2, edges] without repeats, sorted by sender and receiver, int32.

    Args:
      edges: senders and receivers.
      num_nodes: number of nodes.
      both_directions: whether the reverse of each edge is added.
    """
    if both_directions:
        edges = np.concatenate([edges, edges[::-1]], axis=1)
    cells = np.unique(edges[0].astype(np.int64) * num_nodes + edges[1])
    return np.stack(np.divmod(cells, max(num_nodes, 1))).astype(np.int32)


class _Check:
    """Checks of a data set, one method per property, with common error messages.

    Args:
      data: a ``NodeDataset`` or ``HypergraphDataset``.
      files: for a field's name, its source file; errors then name the file.
    """

    def __init__(self, data: Any, files: Mapping[str, str | PathLike[str]]):
        self._data = data
        self._files = files

    def features(self) -> None:
        features = self._data.features
        if isinstance(features, np.memmap) and features.ndim == 2:
            return  # They have any dtype, and are not read here.
        self._array("features", ndim=2, dtype=np.float32)
        self._every("features", np.isfinite(self._data.features), "finite numbers")

    def pairs(self, limits: dict[str, tuple[int, str]]) -> None:
        """Checks two fields of equal length; each has the limit of its ids, and their name."""
        for field in limits:
            self._array(field, ndim=1, dtype=np.int32)
        first, second = limits
        sizes = [getattr(self._data, field).size for field in limits]
        if sizes[0] != sizes[1]:
            self._fail(second, f"as many as {first} ({sizes[0]})", f"{sizes[1]}")
        for field, (limit, what) in limits.items():
            self._require_range(field, limit, what)

    def labels(self, *, may_be_unknown: bool = False) -> None:
        data, labels = self._data, self._data.labels
        shape = (data.num_nodes, data.num_classes) if data.multilabel else (data.num_nodes,)
        self._array("labels", ndim=len(shape), dtype=np.float32 if data.multilabel else np.int32)
        if labels.shape != shape:
            self._fail("labels", f"shape {shape}", f"shape {labels.shape}")
        if data.multilabel:
            self._every("labels", (labels == 0) | (labels == 1), "zeros and ones")
        else:
            is_class = (labels >= -may_be_unknown) & (labels < data.num_classes)
            self._every("labels", is_class, f"class ids in [0, {data.num_classes})")

    def split(self, field: str, *, may_be_empty: bool = False) -> None:
        self._array(field, ndim=1, dtype=np.int32)
        ids = getattr(self._data, field)
        if not ids.size and not may_be_empty:
            self._fail(field, "at least one node", "none")
        self._require_range(field, self._data.num_nodes, "node ids")
        self._every(field, np.diff(ids, prepend=-1) > 0, "sorted node ids without repeats")

    def splits_are_disjoint(self) -> None:
        owner = np.full(self._data.num_nodes, -1, np.int8)
        for number, field in enumerate(SPLITS):
            ids = getattr(self._data, field)
            taken = owner[ids]
            if (taken >= 0).any():
                first = int(np.argmax(taken >= 0))
                other = SPLITS[taken[first]]
                self._fail(field, f"nodes outside {other}", f"node {ids[first]} at [{first}]")
            owner[ids] = number

    def splits_are_labelled(self) -> None:
        if not self._data.multilabel:
            is_labelled = np.ones(self._data.num_nodes, bool)
            for field in SPLITS:
                ids = getattr(self._data, field)
                is_labelled[ids] = self._data.labels[ids] >= 0
            self._every("labels", is_labelled, f"class ids in [0, {self._data.num_classes})")

    def names(self) -> None:
        for field, sizes in (("class_names", "num_classes"), ("node_names", "num_nodes")):
            names, size = getattr(self._data, field), getattr(self._data, sizes)
            if names is None:
                continue
            if len(names) != size:
                self._fail(field, f"as many as {sizes} ({size})", f"{len(names)}")
            repeated = [name for name, times in Counter(list(names)).items() if times > 1]
            if repeated:
                self._fail(field, "every name once", f"{repeated[0]!s:.80} twice")

    def edges(self) -> None:
        """Checks weights and features of edges, if there are some."""
        for field, axes in (("edge_weights", 1), ("edge_features", 2)):
            values = getattr(self._data, field)
            if values is None:
                continue
            self._array(field, ndim=axes, dtype=np.float32)
            edges = self._data.senders.size
            if len(values) != edges:
                self._fail(field, f"as many as senders ({edges})", f"{len(values)}")
            self._every(field, np.isfinite(values), "finite numbers")

    def _array(self, field: str, *, ndim: int, dtype: type) -> None:
        array = getattr(self._data, field)
        if array.ndim != ndim or array.dtype != dtype:
            expected = f"a {ndim}-d {np.dtype(dtype)} array"
            self._fail(field, expected, f"{array.ndim}-d {array.dtype}")

    def _require_range(self, field: str, limit: int, what: str) -> None:
        values = getattr(self._data, field)
        self._every(field, (values >= 0) & (values < limit), f"{what} in [0, {limit})")

    def _every(self, field: str, good: np.ndarray, expected: str) -> None:
        if good.all():
            return
        position = np.unravel_index(int(np.argmin(good)), good.shape)
        value = getattr(self._data, field)[position]
        self._fail(field, expected, f"{value} at [{', '.join(map(str, position))}]")

    def _fail(self, field: str, expected: str, got: str) -> Never:
        source = f" (from {self._files[field]})" if field in self._files else ""
        raise ValueError(f"{self._data.name}.{field}{source}: expected {expected}, got {got}")
