"""The record that readers of hypergraphs return."""

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike

import numpy as np

from jaxgnn.datasets.records.node_dataset import SPLITS, DatasetCheck


@dataclass(frozen=True)
class HypergraphDataset:
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

    def validate(self, files: Mapping[str, str | PathLike[str]] | None = None) -> None:
        """Checks that the arrays are consistent with each other and with the description of fields.

        Args:
          files: for a field's name, its source file; errors then name the file.

        Raises:
          ValueError: for the first invalid field: data set, field, file, the expected and the
            actual value, and its position.
        """
        check = DatasetCheck(self, files or {})
        check.features()
        check.incidences()
        check.labels()
        for split in SPLITS:
            check.split(split, may_be_empty=split == "validation")
        check.splits_are_disjoint()
