"""Parts of a graph as batches of one shape, and the common part of their loaders."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Bool, Float, Int

from jaxgnn._arrays.arrays import is_concrete, own, require_count, shown
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.csr.transforms import distinct_ids
from jaxgnn.graph.csr.validation import check_finite
from jaxgnn.graph.plan.plan import make_plan
from jaxgnn.graph.plan.sorting import row_ids_on_host
from jaxgnn.sampling import checks, options, random
from jaxgnn.sampling.capacity import Capacity
from jaxgnn.sampling.drawing import HostGraph, on_host
from jaxgnn.sampling.features import FeatureStore
from jaxgnn.sampling.loader import Loader, StagedRows, Step
from jaxgnn.sampling.memory import Spare, check_files
from jaxgnn.sampling.random import Key


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class SubgraphBatch:
    """A part of a graph as a graph of its own, padded to a fixed shape.

    Nodes have local ids; padding nodes and padding edges come last, and no edge enters a padding
    node. It is a pytree of arrays on the default device: pass it to a jitted function, which
    compiles once for all batches of a loader.

    Attributes:
      graph: the edges between the nodes, [nodes, nodes]. ``SaintLoader`` weights and normalises it;
        the other loaders keep the weights of the whole graph.
      n_id: node of the whole graph for each node, -1 for padding.
      node_mask: False for padding nodes.
      e_id: edge slot of the whole graph for each edge slot, -1 for padding; None for a graph of
        more than 2^31 - 1 edges without ``jax_enable_x64``.
      x: features of the nodes, zero for padding; or None.
      y: labels, or None. ``ShadowLoader`` has those of the seeds, [seeds, ...], the other loaders
        those of the nodes, [nodes, ...]. Zero for padding.
      train_mask: True for nodes to train on; None from ``ShadowLoader``.
      node_weight: factor of the loss of each node, zero for nodes that are not trained on. The
        expected value of ``(node_weight * loss).sum()`` over the batches of an epoch is the mean
        loss of all nodes to train on. None from ``ShadowLoader``.
      root: local id of each seed, 0 for padding; None but from ``ShadowLoader``.
      seed_mask: False for padding seeds; None but from ``ShadowLoader``.
      graph_ids: number of the seed that a node belongs to, [nodes], ascending; the number of seed
        slots for padding nodes. None but from ``ShadowLoader``.
    """

    graph: CSRGraph
    n_id: Int[Array, " nodes"]
    node_mask: Bool[Array, " nodes"]
    e_id: Int[Array, " edges"] | None
    x: Float[Array, "nodes *features"] | None = None
    y: Array | None = None
    train_mask: Bool[Array, " nodes"] | None = None
    node_weight: Float[Array, " nodes"] | None = None
    root: Int[Array, " seeds"] | None = None
    seed_mask: Bool[Array, " seeds"] | None = None
    graph_ids: Int[Array, " nodes"] | None = None

    def __repr__(self) -> str:
        """Shows shapes instead of arrays."""
        arrays = {k: v for k, v in vars(self).items() if k != "graph" and v is not None}
        shapes = ", ".join(f"{name}={shown(value)}" for name, value in arrays.items())
        return f"SubgraphBatch(graph={self.graph!r}, {shapes})"


class Induced(NamedTuple):
    """Some nodes of a graph, and all edges between them.

    Attributes:
      n_id: the nodes, in their local order.
      indptr: first edge of each node, int64 [nodes + 1].
      senders: local id of the sender of each edge, int32.
      e_id: position of each edge in the arrays of the graph, int64.
      starts: local id of the first node of each of the subgraphs that were joined, or None.
    """

    n_id: np.ndarray
    indptr: np.ndarray
    senders: np.ndarray
    e_id: np.ndarray
    starts: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class WholeGraph(HostGraph):
    """The arrays of a graph that subgraphs are cut from, on the host or mapped from files.

    Attributes:
      weights: weight of each edge, or None.
    """

    weights: np.ndarray | None = None
    _tables: Spare[np.ndarray] = field(default_factory=Spare)

    @classmethod
    def read(cls, where: str, graph: Any, *, allow_normalized: bool = False) -> WholeGraph:
        """Reads and checks a square concrete graph, its weights included."""
        host = HostGraph.of(where, graph, "in")
        if host.num_nodes == 0:
            raise bad_input(where, "graph", "of at least one node", "a graph without nodes")
        if graph.is_normalized and not allow_normalized:
            expected = (
                "not normalised, since degrees differ in a subgraph; layers normalise a batch"
            )
            raise bad_input(where, "graph", expected, repr(graph.normalization))
        if not is_concrete(graph.weights, graph.row_scale, graph.col_scale):
            raise bad_input(where, "graph", "concrete; make loaders outside jit", "a tracer")
        if graph.weights is None:
            return cls(host.indptr, host.indices, None)
        weights = on_host(graph.weights)[: host.num_edges]
        if weights.ndim != 1:
            expected = "one number for each edge"
            raise bad_input(where, "graph.weights", expected, f"shape {weights.shape}")
        check_finite(where, "graph.weights", weights)
        return cls(host.indptr, host.indices, None, weights)

    def check_files(self, where: str) -> None:
        """Raises ValueError if a file that an array is mapped from has become shorter."""
        arrays = {"indptr": self.indptr, "indices": self.indices, "weights": self.weights}
        check_files(where, **{f"graph.{name}": array for name, array in arrays.items()})

    def edges_into(self, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Edges that enter some nodes, in the order of the nodes.

        Returns:
          The first edge of each node, int64 [nodes + 1], and the positions of the edges in the
          arrays of the graph, int64.
        """
        first = self.indptr[nodes].astype(np.int64)
        ends = np.zeros(len(nodes) + 1, np.int64)
        np.cumsum(self.indptr[nodes + 1] - first, out=ends[1:])
        starts = np.repeat(first - ends[:-1], np.diff(ends))
        return ends, starts + np.arange(ends[-1])

    def induced(self, nodes: np.ndarray) -> Induced:
        """The edges between distinct nodes; local ids follow the order of ``nodes``."""
        ends, positions = self.edges_into(nodes)
        places = self._table()
        places[nodes] = np.arange(len(nodes), dtype=np.int32)
        senders = places[self.indices[positions]]
        places[nodes] = -1
        self._tables.give_back(places)
        inside = np.flatnonzero(senders >= 0)
        # Offsets count the inside edges before each boundary.
        indptr = np.searchsorted(inside, ends)
        return Induced(nodes, indptr, senders[inside], positions[inside])

    def distinct(self, nodes: np.ndarray) -> np.ndarray:
        """The distinct ones of some nodes, ascending; a table is faster than ``np.unique``."""
        places, order = self._table(), np.arange(len(nodes), dtype=np.int32)
        places[nodes] = order
        distinct_nodes = np.sort(nodes[places[nodes] == order])  # one place of each node is left
        places[distinct_nodes] = -1
        self._tables.give_back(places)
        return distinct_nodes

    def _table(self) -> np.ndarray:
        """A borrowed table of -1 for all nodes, to be given back as it was."""
        table = self._tables.borrow()
        return np.full(self.num_nodes, -1, np.int32) if table is None else table


def union(parts: Iterable[Induced]) -> Induced:
    """Subgraphs, at least one, as one without edges between them."""
    each = list(parts)
    sizes = np.array([(len(part.n_id), len(part.e_id)) for part in each], np.int64)
    before = np.cumsum(sizes, axis=0) - sizes
    pairs = list(zip(each, before.tolist(), strict=True))
    indptr = [part.indptr[:-1] + edges for part, (_, edges) in pairs]
    return Induced(
        n_id=np.concatenate([part.n_id for part in each]),
        indptr=np.concatenate([*indptr, sizes.sum(axis=0)[1:]]),
        senders=np.concatenate([part.senders + np.int32(nodes) for part, (nodes, _) in pairs]),
        e_id=np.concatenate([part.e_id for part in each]),
        starts=before[:, 0],
    )


def padded_graph(
    part: Induced, weights: np.ndarray | None, slots: tuple[int, int], *, with_plan: bool
) -> CSRGraph:
    """The graph of a part, padded.

    Args:
      part: the part.
      weights: weights of its edges, or None.
      slots: number of node slots and of edge slots.
      with_plan: whether to sort the edges by sender here, for gradients, and not in each step.
    """
    num_nodes, num_edges = slots
    indptr = filled(part.indptr, num_nodes + 1, len(part.e_id), np.int32)
    # Padding edges leave the first padding node, which no op reads.
    padding = min(len(part.n_id), num_nodes - 1)
    indices = filled(part.senders, num_edges, padding, np.int32)
    if weights is not None:
        weights = filled(weights, num_edges, 0, weights.dtype)
    plan = make_plan(indptr, indices, num_nodes) if with_plan else None
    return CSRGraph(indptr, indices, weights, num_nodes, plan=plan, in_range=True)


def receivers_of(part: Induced) -> np.ndarray:
    """Local id of the receiver of each edge."""
    return row_ids_on_host(part.indptr, len(part.e_id))


def filled(values: np.ndarray, length: int, padding: Any, dtype: Any) -> Any:
    """A NumPy array of ``length`` that begins with ``values``; the rest is ``padding``."""
    array = np.empty((length, *values.shape[1:]), dtype)
    array[: len(values)] = values
    array[len(values) :] = padding
    return own(array)


def id_dtype(count: int) -> type[np.signedinteger]:
    """int32 while ids below ``count`` fit, else int64."""
    return np.int32 if count <= np.iinfo(np.int32).max else np.int64


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
            options.checked_features(where, features, num_nodes),
            options.checked_labels(where, labels, num_nodes),
            ids,
        )


class SubgraphLoader(Loader[SubgraphBatch]):
    """Base class of loaders of subgraphs; a subclass draws parts of the graph.

    Args:
      graph: the graph.
      data: features, labels and nodes to train on.
      num_items: number of items that an epoch visits.
      batch_size: number of items of a batch.
      loading: other options of ``Loader``.
    """

    def __init__(
        self, graph: WholeGraph, data: NodeData, num_items: int, batch_size: int, **loading: Any
    ):
        self._graph, self._data = graph, data
        self._num_trained = len(data.train)  # Number of nodes whose mean loss a batch estimates.
        capacity = loading.pop("capacity", None)
        if capacity is not None:
            loading["capacity"] = _checked(self._where, capacity)
        super().__init__(num_items, batch_size, **loading)
        self._with_plan = jax.default_backend() == "cpu"
        stored = data.features
        self._rows = None if stored is None else StagedRows(self._where, stored, self._device)

    def __repr__(self) -> str:
        """Shows the number of steps, and of slots if they have been measured."""
        sizes = "" if self._slots is None else f" of {self._shown(self._slots)}"
        return f"{type(self).__name__}({len(self)} steps{sizes})"

    @property
    def capacity(self) -> tuple[int, int]:
        """Number of node slots and of edge slots of a batch.

        They are measured unless given. If a batch does not fit, they grow, with a warning; of
        several processes, in this step alone, for all of them.
        """
        capacity = self._capacity()
        return capacity.nodes[-1], capacity.edges[-1]

    # -- methods of a subclass ----------------------------------------------------------------

    @abstractmethod
    def _part_of(self, step: Step) -> Induced:
        """Draws the nodes and edges of a batch."""

    @abstractmethod
    def _own_fields(self, part: Induced, slots: int) -> dict[str, Any]:
        """Returns fields of a batch that only some loaders have."""

    def _subgraph(self, part: Induced, slots: tuple[int, int]) -> CSRGraph:
        """Returns the padded graph of a batch."""
        weights = self._graph.weights
        chosen = None if weights is None else weights[part.e_id]
        return padded_graph(part, chosen, slots, with_plan=self._with_plan)

    # -- policy of the loader -----------------------------------------------------------------

    def draw(self, step: Step) -> Induced:
        """Draws the nodes and edges of a batch, after a check of the files of the graph."""
        self._graph.check_files(self._where)
        return self._part_of(step)

    def sizes(self, sample: Induced) -> Capacity:
        """Counts the nodes and edges of a batch."""
        return sizes_of(len(sample.n_id), len(sample.e_id))

    def bound(self) -> Capacity:
        """Returns the sizes that no batch exceeds."""
        return sizes_of(self._graph.num_nodes, self._graph.num_edges)

    def fields(self, sample: Induced, capacity: Capacity) -> SubgraphBatch:
        """Pads the graph of a batch, and reads features and labels."""
        nodes, edges = capacity.nodes[-1], capacity.edges[-1]
        n_id = filled(sample.n_id, nodes, -1, id_dtype(self._graph.num_nodes))
        dtype = id_dtype(self._graph.num_edges)
        fits = dtype == np.int32 or jax.config.jax_enable_x64
        return SubgraphBatch(
            graph=self._subgraph(sample, (nodes, edges)),
            n_id=n_id,
            node_mask=own(n_id >= 0),
            e_id=filled(sample.e_id, edges, -1, dtype) if fits else None,
            x=None if self._rows is None else self._rows.gather(n_id),
            **self._own_fields(sample, nodes),
        )

    def _shown(self, sizes: Capacity) -> str:
        return f"{sizes.nodes[-1]:,} nodes and {sizes.edges[-1]:,} edges"

    def _shown_capacity(self, capacity: Capacity) -> str:
        return f"the {self._shown(capacity)} of the capacity"

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
            "y": None if labels is None else options.read_labels(where, labels, part.n_id, slots),
            "train_mask": filled(is_trained, slots, False, bool),
            "node_weight": filled(weight, slots, 0, np.float32),
        }


def subgraph_key(seed: int, epoch: int, number: int) -> Key:
    """Returns the key of the random numbers of a batch, by its number among all processes."""
    return random.hop_key(random.batch_key(seed, epoch, number), 0, random.SUBGRAPHS)


def checked_size(where: str, argument: str, value: Any) -> int:
    """Returns a count of at least 1."""
    return require_count(where, argument, value, "an integer of at least 1")


def sizes_of(nodes: int, edges: int) -> Capacity:
    """Sizes of a subgraph; the first number is that of seeds, of which none are counted."""
    return Capacity((1, nodes), (edges,))


def _checked(where: str, capacity: Any) -> Capacity:
    """A user's capacity, after a check."""
    pair = tuple(capacity) if isinstance(capacity, tuple | list) else ()
    if len(pair) != 2 or not all(checks.is_integer(n) and n >= 1 for n in pair):
        expected = "two integers of at least 1, of nodes and of edges, or None"
        raise bad_input(where, "capacity", expected, repr(capacity))
    return sizes_of(*map(int, pair))
