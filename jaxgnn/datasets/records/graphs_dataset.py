"""A data set of many graphs, each with its own labels or numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn._html.drawing import SmallGraph
from jaxgnn._html.notebook import degrees_of
from jaxgnn.datasets.records.record import Record


@dataclass(frozen=True, eq=False, repr=False)
class GraphsDataset(Record):
    """Many graphs, for classification or regression of whole graphs, as numpy arrays.

    The nodes of the first graph come first, then those of the second, and so on; so do the edges.
    ``GraphSample(**dataset[i])`` is one graph, to be added to a ``GraphBatch``.

    Attributes:
      name: name of the data set.
      senders: node that each edge leaves, counted from 0 in its graph, int32 [edges].
      receivers: node that each edge enters, counted from 0 in its graph, int32 [edges].
      num_nodes_of_each: number of nodes of each graph, int32 [graphs].
      num_edges_of_each: number of edges of each graph, int32 [graphs].
      labels: class of each graph, int32 [graphs]; or float32 [graphs, tasks], numbers to predict or
        zeros and ones, NaN if unknown; or words, int32 [graphs, words] (ogbg-code2).
      num_classes: number of classes, or of words; of tasks, where labels are float32.
      node_features: float32 [nodes, features], or None.
      edge_features: float32 [edges, features], or None.
      class_names: name of each class in the files, or None.
      node_categories: number of categories of each column of ``node_features``, whose entries are
        then whole numbers from 0, such as kinds of atoms; None if features are quantities.
      edge_categories: the same for ``edge_features``.
      train: graphs for training, int32, or None if the files have no split.
      validation: graphs for validation, int32, or None.
      test: graphs for the test, int32, or None.
    """

    name: str
    senders: np.ndarray
    receivers: np.ndarray
    num_nodes_of_each: np.ndarray
    num_edges_of_each: np.ndarray
    labels: np.ndarray
    num_classes: int
    node_features: np.ndarray | None = None
    edge_features: np.ndarray | None = None
    class_names: tuple[str, ...] | None = None
    node_categories: tuple[int, ...] | None = None
    edge_categories: tuple[int, ...] | None = None
    train: np.ndarray | None = None
    validation: np.ndarray | None = None
    test: np.ndarray | None = None

    @property
    def num_graphs(self) -> int:
        """The number of graphs of the data set."""
        return self.labels.shape[0]

    def __len__(self) -> int:
        return self.num_graphs

    def __getitem__(self, at: int) -> dict[str, Any]:
        """One graph, as the arguments of ``GraphSample``: views of the arrays, labels as globals.

        Raises:
          ValueError: there is no such graph.
        """
        is_number = hasattr(at, "__index__")
        if not is_number or not -self.num_graphs <= at < self.num_graphs:
            expected = f"a number of one of {self.num_graphs} graphs"
            raise bad_input("GraphsDataset", "[graph]", expected, at)
        nodes, edges = (
            slice(ends[at % self.num_graphs], ends[at % self.num_graphs + 1]) for ends in self._ends
        )
        of_edges, of_nodes = self.edge_features, self.node_features
        return {
            "senders": self.senders[edges],
            "receivers": self.receivers[edges],
            "num_nodes": int(self.num_nodes_of_each[at]),
            "nodes": None if of_nodes is None else of_nodes[nodes],
            "edges": None if of_edges is None else of_edges[edges],
            "globals": self.labels[at],
        }

    def _facts(self) -> list[tuple[str, Any]]:
        return [
            ("graphs", f"{self.num_graphs:,}"),
            ("nodes of a graph", degrees_of(self.num_nodes_of_each)),
            ("edges of a graph", degrees_of(self.num_edges_of_each)),
        ]

    def _drawn(self) -> SmallGraph | None:
        if not self.num_graphs:
            return None
        first = self[0]
        ends = first["num_nodes"], first["senders"], first["receivers"]
        return SmallGraph(*ends, caption="the first graph")

    @cached_property
    def _ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Offsets of the nodes and of the edges of each graph, with the ends of the last ones."""
        counts = self.num_nodes_of_each, self.num_edges_of_each
        nodes, edges = (np.append(0, np.cumsum(count, dtype=np.int64)) for count in counts)
        return nodes, edges
