"""Records of graphs whose edges are to be predicted: pairs of nodes, or triples of relations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxgnn.datasets.records.record import Record


@dataclass(frozen=True, eq=False, repr=False)
class LinksDataset(Record):
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


@dataclass(frozen=True, eq=False, repr=False)
class TriplesDataset(Record):
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
