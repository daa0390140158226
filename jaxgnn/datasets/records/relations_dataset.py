"""The record of a data set with nodes of several types, joined by several relations."""

from dataclasses import dataclass

import numpy as np

from jaxgnn.datasets.records.record import Record

Relation = tuple[str, str, str]
"""Type of the senders, name of the relation, and type of the receivers."""


@dataclass(frozen=True, eq=False, repr=False)
class RelationsDataset(Record):
    """One graph with nodes of several types, joined by several relations, as numpy arrays.

    ``CSRGraph.from_edges(*dataset.edges[relation], num_nodes=…, num_senders=…)`` is the graph of a
    relation, with as many rows as there are nodes of its last type.

    Attributes:
      name: name of the data set.
      num_nodes: number of nodes of each type.
      edges: senders and receivers of each relation, int32 [2, edges], by ``("author", "writes",
        "paper")``; both are counted from 0 in their type.
      features: float32 [nodes, features] of each type that has some.
      target: the type of the nodes to classify.
      labels: class of each node of that type, int32.
      num_classes: number of classes.
      train: sorted training nodes of that type, int32.
      validation: validation nodes.
      test: test nodes.
      years: the year of each node of each type that has one, int32.
    """

    name: str
    num_nodes: dict[str, int]
    edges: dict[Relation, np.ndarray]
    features: dict[str, np.ndarray]
    target: str
    labels: np.ndarray
    num_classes: int
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    years: dict[str, np.ndarray]
