"""Common part of the loaders whose batches are subgraphs: arguments, shapes, epochs."""

from __future__ import annotations

import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from jaxgnn._arrays.arrays import is_concrete, own, require_count
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.csr.require_graph import require_graph
from jaxgnn.graph.csr.transforms import distinct_ids
from jaxgnn.graph.csr.validation import check_finite
from jaxgnn.sampling import _random
from jaxgnn.sampling._capacity import Capacity, measured
from jaxgnn.sampling._prefetch import Prefetched
from jaxgnn.sampling._random import Key
from jaxgnn.sampling._subgraphs import (
    HostGraph,
    Induced,
    SubgraphBatch,
    filled,
    id_dtype,
    padded_graph,
)

# Batches whose sizes give the shape of all batches.
_MEASURED = 8
# Stream of random numbers of samplers of subgraphs; ``_random`` has those of the other samplers.
SUBGRAPHS = 5
# Threads that compute batches ahead, and how many batches.
_THREADS, _DEPTH = 2, 4


@dataclass(frozen=True, eq=False)
class NodeData:
    """Arguments of loaders that have an entry for each node.

    Attributes:
      features: what ``x`` of a batch is gathered from, or None.
      labels: [nodes, ...], or None.
      train: ids of the nodes to train on, ascending; all nodes if none are given.
    """

    features: Any
    labels: np.ndarray | None
    train: np.ndarray

    @classmethod
    def of(cls, where: str, num_nodes: int, features: Any, labels: Any, train: Any) -> NodeData:
        """Reads and checks the arguments."""
        checked_features(where, features, num_nodes)
        if labels is not None:
            labels = np.asarray(labels)
            check_length(where, "labels", labels, num_nodes)
        ids = np.arange(num_nodes) if train is None else distinct_ids(where, "train", train, num_nodes)
        if not len(ids):
            raise bad_input(where, "train", "at least one node", "none")
        return cls(features, labels, np.sort(ids))


class SubgraphLoader(ABC):
    """Base class of loaders; a batch is a function of ``(epoch, step)`` and of the arguments.

    A subclass draws parts of the graph (``_part``) and adds to a batch what only it has.
    """

    def __init__(self, graph: HostGraph, data: NodeData, seed: int):
        where = self._name
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**64:
            raise bad_input(where, "seed", "an integer in [0, 2^64)", repr(seed))
        self._graph, self._data, self._seed = graph, data, int(seed)
        self._lock = threading.Lock()
        self._capacity: Capacity | None = None
        self._next_epoch = 0

    @property
    def _name(self) -> str:
        return type(self).__name__

    @property
    def capacity(self) -> tuple[int, int]:
        """Number of node slots and of edge slots of the batches so far."""
        capacity = self._measured()
        return capacity.nodes[-1], capacity.edges[-1]

    @abstractmethod
    def __len__(self) -> int:
        """Number of batches of an epoch."""

    def __iter__(self) -> Iterator[SubgraphBatch]:
        """The batches of the next epoch; threads compute them ahead."""
        with self._lock:
            epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        return self._ahead((epoch, step) for step in range(len(self)))

    def steps(self, start: int = 0) -> Iterator[SubgraphBatch]:
        """The batches from a step on, counted through all epochs, without an end.

        Resuming with ``steps(done)`` gives the batches that an uninterrupted run has.

        Args:
          start: number of batches to leave out.

        Raises:
          ValueError: if ``start`` is negative.
        """
        if isinstance(start, bool) or not isinstance(start, int | np.integer) or start < 0:
            raise bad_input(f"{self._name}.steps", "start", "an integer of at least 0", repr(start))
        return self._ahead(divmod(at, len(self)) for at in count(int(start)))

    def batch(self, epoch: int, step: int) -> SubgraphBatch:
        """The batch of a step of an epoch, both counted from 0.

        Raises:
          ValueError: if there is no such step, or ``epoch`` is negative.
        """
        self._check_step(epoch, step)
        part = self._part(epoch, step)
        capacity = self._holding(_sizes(part), (epoch, step))
        return self._padded(part, capacity)

    # -- what a subclass has ------------------------------------------------------------------

    @abstractmethod
    def _part(self, epoch: int, step: int) -> Induced:
        """The nodes and edges of a batch."""

    @abstractmethod
    def _own_fields(self, part: Induced, slots: int) -> dict[str, Any]:
        """Fields of a batch that only some loaders have."""

    def _subgraph(self, part: Induced, slots: tuple[int, int]) -> CSRGraph:
        """The padded graph of a batch."""
        weights = self._graph.weights
        return padded_graph(part, None if weights is None else weights[part.e_id], slots)

    # -- random numbers -----------------------------------------------------------------------

    def _key(self, epoch: int, step: int, stream: int = SUBGRAPHS) -> Key:
        return _random.hop_key(_random.batch_key(self._seed, epoch, step), 0, stream)

    def _shuffled(self, epoch: int, size: int) -> np.ndarray:
        """A permutation for an epoch."""
        words = _random.draw(self._key(epoch, 0, _random.SHUFFLE), np.arange(size), 0)
        return np.argsort(words, kind="stable")

    # -- shapes -------------------------------------------------------------------------------

    def _bound(self) -> Capacity:
        """Sizes that no batch exceeds."""
        return _capacity(self._graph.num_nodes, self._graph.num_edges)

    def _measured(self) -> Capacity:
        """The capacity, from batches that are spread over an epoch or several when first needed."""
        with self._lock:
            if self._capacity is None:
                stride = max(1, len(self) // _MEASURED)
                places = [divmod(i * stride, len(self)) for i in range(_MEASURED)]
                parts = (self._part(*place) for place in places)
                self._capacity = measured(map(_sizes, parts), self._bound())
            return self._capacity

    def _holding(self, sizes: Capacity, place: tuple[int, int]) -> Capacity:
        """The capacity, which grows if a batch does not fit."""
        capacity = self._measured()
        if capacity.holds(sizes):
            return capacity
        with self._lock:
            capacity = self._capacity or sizes
            if not capacity.holds(sizes):
                self._capacity = capacity.grown(sizes, self._bound())
                warnings.warn(_overflow(self._name, place, sizes, self._capacity), stacklevel=3)
            return self._capacity or sizes

    def _padded(self, part: Induced, capacity: Capacity) -> SubgraphBatch:
        nodes, edges = capacity.nodes[-1], capacity.edges[-1]
        num_nodes = len(part.n_id)
        graph = self._graph
        mask = own(np.arange(nodes) < num_nodes)
        return SubgraphBatch(
            graph=self._subgraph(part, (nodes, edges)),
            n_id=filled(part.n_id, nodes, -1, id_dtype(graph.num_nodes)),
            node_mask=mask,
            e_id=filled(part.e_id, edges, -1, id_dtype(graph.num_edges)),
            x=gathered(self._data.features, filled(part.n_id, nodes, 0, np.int64), mask),
            **self._own_fields(part, nodes),
        )

    def _trained_fields(
        self, part: Induced, slots: int, probability: npt.ArrayLike
    ) -> dict[str, Any]:
        """Labels, nodes to train on and their weights; batches have a node with ``probability``."""
        data = self._data
        place = np.minimum(np.searchsorted(data.train, part.n_id), len(data.train) - 1)
        is_trained = data.train[place] == part.n_id
        weight = np.where(is_trained, 1.0 / (np.asarray(probability) * len(data.train)), 0.0)
        labels = data.labels
        return {
            "y": None if labels is None else filled(labels[part.n_id], slots, 0, labels.dtype),
            "train_mask": filled(is_trained, slots, False, bool),
            "node_weight": filled(weight, slots, 0, np.float32),
        }

    # -- epochs -------------------------------------------------------------------------------

    def _ahead(self, places: Iterator[tuple[int, int]]) -> Iterator[SubgraphBatch]:
        return Prefetched(lambda at: self.batch(*at), places, threads=_THREADS, depth=_DEPTH)

    def _check_step(self, epoch: int, step: int) -> None:
        for name, value, end in (("epoch", epoch, 2**32 - 1), ("step", step, len(self))):
            is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
            if not is_integer or not 0 <= value < end:
                expected = f"an integer in [0, {end})"
                raise bad_input(f"{self._name}.batch", name, expected, repr(value))


def read_graph(where: str, graph: Any, *, allow_normalized: bool = False) -> CSRGraph:
    """Checks a graph that subgraphs are cut from, its ids and weights included."""
    require_graph(where, "graph", graph)
    if not is_concrete(graph.indptr, graph.indices, graph.weights):
        raise bad_input(where, "graph", "concrete; make loaders outside jit", "a tracer")
    if not graph.is_square:
        raise bad_input(where, "graph", "square, with nodes of one kind", f"shape {graph.shape}")
    if graph.num_rows == 0:
        raise bad_input(where, "graph", "of at least one node", "a graph without nodes")
    if graph.is_normalized and not allow_normalized:
        expected = "not normalised, since degrees differ in a subgraph; layers normalise a batch"
        raise bad_input(where, "graph", expected, repr(graph.normalization))
    graph.concrete_parts()  # checks offsets and ids
    if graph.weights is not None:
        weights = np.asarray(graph.weights)[: int(graph.indptr[-1])]
        if weights.ndim != 1:
            raise bad_input(where, "graph.weights", "one number for each edge", f"shape {weights.shape}")
        check_finite(where, "graph.weights", weights)
    return graph


def checked_size(where: str, argument: str, value: Any) -> int:
    """Returns a count of at least 1."""
    return require_count(where, argument, value, "an integer of at least 1")


def check_length(where: str, argument: str, array: Any, num_nodes: int) -> None:
    """Raises ValueError unless an array has a row for each node."""
    shape = np.shape(array)
    if not shape or shape[0] != num_nodes:
        raise bad_input(where, argument, f"of {num_nodes} rows, one for each node", f"shape {shape}")


def checked_features(where: str, features: Any, num_nodes: int) -> None:
    """Raises ValueError unless features have a row for each node, as far as they tell."""
    if features is None or (hasattr(features, "gather") and not hasattr(features, "shape")):
        return
    if not hasattr(features, "shape"):
        expected = "an array, or an object with gather(ids)"
        raise bad_input(where, "features", expected, type(features).__name__)
    check_length(where, "features", features, num_nodes)


def gathered(features: Any, ids: np.ndarray, mask: np.ndarray) -> Any:
    """Rows of features by valid ids, zero where the mask is False; None for no features.

    All batches ask for the same number of rows, so that features on a device compile once.
    """
    if features is None:
        return None
    if isinstance(features, np.ndarray):
        rows = np.asarray(features).take(ids, axis=0)
    else:
        rows = features.gather(ids) if hasattr(features, "gather") else features[ids]
        if isinstance(rows, np.ndarray):
            rows = np.array(rows)  # a store may keep what it returns
    if isinstance(rows, np.ndarray):
        rows[~mask] = 0
        return own(rows)
    keep = jnp.asarray(mask).reshape(-1, *[1] * (rows.ndim - 1))
    return jnp.where(keep, rows, jnp.zeros((), rows.dtype))


def _capacity(nodes: int, edges: int) -> Capacity:
    # The first number is that of seeds, which subgraphs do not have.
    return Capacity((1, nodes), (edges,))


def _sizes(part: Induced) -> Capacity:
    return _capacity(len(part.n_id), len(part.e_id))


def _overflow(name: str, place: tuple[int, int], sizes: Capacity, grown: Capacity) -> str:
    (epoch, step), (nodes, edges) = place, (sizes.nodes[-1], sizes.edges[-1])
    return (
        f"{name}: batch {step} of epoch {epoch} has {nodes:,} nodes and {edges:,} edges, more than "
        f"were measured; the batches that follow have slots for {grown.nodes[-1]:,} nodes and "
        f"{grown.edges[-1]:,} edges, and functions of them compile once more"
    )
