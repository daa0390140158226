"""Parts of a graph as batches of one shape: ``SubgraphBatch``, and how it is cut and padded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxgnn._arrays.arrays import is_concrete, own, shown
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.csr.validation import check_finite
from jaxgnn.graph.plan.plan import make_plan
from jaxgnn.graph.plan.sorting import row_ids_on_host
from jaxgnn.sampling._mapped import check_files
from jaxgnn.sampling._memory import Spare
from jaxgnn.sampling._source import HostGraph, on_host


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
        found = np.sort(nodes[places[nodes] == order])  # one place of each node is left
        places[found] = -1
        self._tables.give_back(places)
        return found

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
    made = np.empty((length, *values.shape[1:]), dtype)
    made[: len(values)] = values
    made[len(values) :] = padding
    return own(made)


def id_dtype(count: int) -> type[np.signedinteger]:
    """int32 while ids below ``count`` fit, else int64."""
    return np.int32 if count <= np.iinfo(np.int32).max else np.int64
