"""Common part of the loaders whose batches are subgraphs: arguments, shapes, epochs."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from jaxgnn._arrays.arrays import own, require_count, to_device
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.csr.transforms import distinct_ids
from jaxgnn.sampling import _checks, _random
from jaxgnn.sampling import _loader_checks as checks
from jaxgnn.sampling._capacity import Capacity, measured
from jaxgnn.sampling._epochs import Epochs
from jaxgnn.sampling._prefetch import Prefetched
from jaxgnn.sampling._random import Key
from jaxgnn.sampling._shared_capacity import SharedCapacity
from jaxgnn.sampling._staging import StagedRows, default_device
from jaxgnn.sampling._subgraphs import (
    Induced,
    SubgraphBatch,
    WholeGraph,
    filled,
    id_dtype,
    padded_graph,
)
from jaxgnn.sampling.features import FeatureStore

# Batches whose sizes give the shape of all batches.
_MEASURED_BATCHES = 8
# Batches that are made at the same time, by one thread each.
_CONCURRENT_BATCHES = 4


@dataclass(frozen=True, eq=False)
class NodeData:
    """Arguments of loaders that have an entry for each node.

    Attributes:
      features: store that ``x`` of a batch is gathered from, or None.
      labels: [nodes, ...], or None.
      train: ids of the nodes to train on, ascending; all nodes if none are given.
    """

    features: FeatureStore | None
    labels: np.ndarray | None
    train: np.ndarray

    @classmethod
    def of(
        cls, where: str, num_nodes: int, features: Any, labels: Any, train: Any = None
    ) -> NodeData:
        """Reads and checks the arguments."""
        ids = np.arange(num_nodes)
        if train is not None:
            ids = np.sort(distinct_ids(where, "train", train, num_nodes))
        if not len(ids):
            raise bad_input(where, "train", "at least one node", "none")
        return cls(
            checks.checked_features(where, features, num_nodes),
            checks.checked_labels(where, labels, num_nodes),
            ids,
        )


class SubgraphLoader(Epochs[SubgraphBatch]):
    """Base class of loaders; a batch is a function of ``(epoch, step)`` and of the arguments.

    A subclass draws parts of the graph (``_part_of``) and adds to a batch what only it has.
    """

    def __init__(
        self,
        graph: WholeGraph,
        data: NodeData,
        seed: int,
        num_threads: int | None,
        processes: tuple[int, int] | None,
        capacity: tuple[int, int] | None,
    ):
        super().__init__()
        _checks.counters(self._where, seed, 0, 0)
        self._graph, self._data, self._seed = graph, data, int(seed)
        self._num_trained = len(data.train)  # of the nodes whose mean loss a batch estimates
        threads = checks.checked_threads(self._where, num_threads)
        self._process, self._num_processes = checks.checked_processes(self._where, processes)
        self._shared = SharedCapacity(
            self._where, self._process, self._num_processes, capacity is not None, _shown
        )
        self._workers = min(threads, _CONCURRENT_BATCHES)
        self._known_capacity = None if capacity is None else _checked(self._where, capacity)
        self._with_plan = jax.default_backend() == "cpu"
        self._device = default_device()
        stored = data.features
        self._rows = None if stored is None else StagedRows(self._where, stored, self._device)

    def __repr__(self) -> str:
        """Shows the number of steps, and of slots if they have been measured."""
        known = self._known_capacity
        sizes = "" if known is None else f" of {_shown(known)}"
        return f"{type(self).__name__}({len(self)} steps{sizes})"

    @property
    def capacity(self) -> tuple[int, int]:
        """Number of node slots and of edge slots of a batch.

        They are measured unless given. If a batch does not fit, they grow, with a warning; of
        several processes, in this step alone, for all of them.
        """
        capacity = self._capacity()
        return capacity.nodes[-1], capacity.edges[-1]

    def batch(self, epoch: int, step: int) -> SubgraphBatch:
        """Makes one batch, on the default device.

        Args:
          epoch: number of the epoch, from 0 on.
          step: number of the step in it, below ``len(loader)``.

        Raises:
          ValueError: if there is no such epoch or step, or a file that the graph or the features
            are mapped from has become shorter.

        Warns:
          UserWarning: if the batch does not fit into the capacity, which grows.
        """
        self._check_place(epoch, step)
        self._graph.check_files(self._where)
        part = self._part_of(epoch, step, self._process)
        on_host = self._padded(part, self._holding(_sizes(part), (epoch, step)))
        return to_device(self._where, on_host, self._device)

    # -- what a subclass has ------------------------------------------------------------------

    @abstractmethod
    def _part_of(self, epoch: int, step: int, process: int) -> Induced:
        """The nodes and edges of a batch of a process."""

    @abstractmethod
    def _own_fields(self, part: Induced, slots: int) -> dict[str, Any]:
        """Fields of a batch that only some loaders have."""

    def _subgraph(self, part: Induced, slots: tuple[int, int]) -> CSRGraph:
        """The padded graph of a batch."""
        weights = self._graph.weights
        chosen = None if weights is None else weights[part.e_id]
        return padded_graph(part, chosen, slots, with_plan=self._with_plan)

    def _key(self, epoch: int, number: int) -> Key:
        """The key of the random numbers of a batch, by its number among those of all processes."""
        return _random.hop_key(_random.batch_key(self._seed, epoch, number), 0, _random.SUBGRAPHS)

    # -- shapes -------------------------------------------------------------------------------

    def _bound(self) -> Capacity:
        """Sizes that no batch exceeds."""
        return sizes_of(self._graph.num_nodes, self._graph.num_edges)

    def _capacity(self) -> Capacity:
        """The capacity, measured when it is first needed from batches spread over the epoch."""
        with self._growing:
            if self._known_capacity is None:
                stride = max(1, len(self) // _MEASURED_BATCHES)
                places = (divmod(i * stride, len(self)) for i in range(_MEASURED_BATCHES))
                # The same batches in each process: shapes of a mesh are equal.
                count = self._num_processes
                sizes = (_sizes(self._part_of(*place, i % count)) for i, place in enumerate(places))
                self._known_capacity = measured(sizes, self._bound())
            return self._known_capacity

    def _holding(self, sizes: Capacity, place: tuple[int, int]) -> Capacity:
        """The capacity, large enough for a batch of these sizes."""
        before = self._capacity()
        if self._num_processes > 1:
            excess = None if before.holds(sizes) else sizes
            return self._shared.of_step(
                before, self._bound(), excess, lambda p: _sizes(self._part_of(*place, p)), place
            )
        if before.holds(sizes):
            return before
        with self._growing:  # unless another thread has done so
            before = self._known_capacity or before
            if before.holds(sizes):
                return before
            grown = self._known_capacity = before.grown(sizes, self._bound())
        warnings.warn(
            f"{self._where}: the batch of epoch {place[0]} and step {place[1]} has "
            f"{_shown(sizes)}, more than the {_shown(before)} of the capacity; from now on it is "
            f"{_shown(grown)}, for which a jitted step compiles again",
            stacklevel=3,
        )
        return grown

    def _padded(self, part: Induced, capacity: Capacity) -> SubgraphBatch:
        nodes, edges = capacity.nodes[-1], capacity.edges[-1]
        n_id = filled(part.n_id, nodes, -1, id_dtype(self._graph.num_nodes))
        dtype = id_dtype(self._graph.num_edges)
        fits = dtype == np.int32 or jax.config.jax_enable_x64
        return SubgraphBatch(
            graph=self._subgraph(part, (nodes, edges)),
            n_id=n_id,
            node_mask=own(n_id >= 0),
            e_id=filled(part.e_id, edges, -1, dtype) if fits else None,
            x=None if self._rows is None else self._rows.gather(n_id),
            **self._own_fields(part, nodes),
        )

    def _trained_fields(
        self, part: Induced, slots: int, probability: npt.ArrayLike
    ) -> dict[str, Any]:
        """Labels, nodes to train on and their weights; batches have a node with ``probability``."""
        data, where = self._data, self._where
        place = np.minimum(np.searchsorted(data.train, part.n_id), len(data.train) - 1)
        is_trained = data.train[place] == part.n_id
        weight = np.where(is_trained, 1.0 / (np.asarray(probability) * self._num_trained), 0.0)
        labels = data.labels
        return {
            "y": None if labels is None else checks.read_labels(where, labels, part.n_id, slots),
            "train_mask": filled(is_trained, slots, False, bool),
            "node_weight": filled(weight, slots, 0, np.float32),
        }

    # -- epochs -------------------------------------------------------------------------------

    def _ahead(self, places: Iterable[tuple[int, int]]) -> Prefetched[SubgraphBatch]:
        self._capacity()  # measured by this thread, which can be interrupted
        return super()._ahead(places)


def checked_size(where: str, argument: str, value: Any) -> int:
    """Returns a count of at least 1."""
    return require_count(where, argument, value, "an integer of at least 1")


def sizes_of(nodes: int, edges: int) -> Capacity:
    """Sizes of a subgraph; the first number is that of seeds, of which none are counted."""
    return Capacity((1, nodes), (edges,))


def _checked(where: str, capacity: Any) -> Capacity:
    """A user's capacity, after a check."""
    pair = tuple(capacity) if isinstance(capacity, tuple | list) else ()
    if len(pair) != 2 or not all(_checks.is_integer(n) and n >= 1 for n in pair):
        expected = "two integers of at least 1, of nodes and of edges, or None"
        raise bad_input(where, "capacity", expected, repr(capacity))
    return sizes_of(*map(int, pair))


def _sizes(part: Induced) -> Capacity:
    return sizes_of(len(part.n_id), len(part.e_id))


def _shown(sizes: Capacity) -> str:
    return f"{sizes.nodes[-1]:,} nodes and {sizes.edges[-1]:,} edges"
