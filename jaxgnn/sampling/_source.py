"""Sources of samples: the host's sampler, with its results padded to a capacity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from jaxgnn._errors import bad_input, is_choice
from jaxgnn.graph import CSRGraph, is_concrete
from jaxgnn.graph.csr.require_graph import require_graph
from jaxgnn.sampling._capacity import Capacity
from jaxgnn.sampling._checks import Method
from jaxgnn.sampling._host import find_edges, sample_hops
from jaxgnn.sampling._memory import filled
from jaxgnn.sampling._reference import Hops


class RawSample(NamedTuple):
    """The structure of one batch, hop by hop from the seeds outwards, padded to a capacity.

    Attributes:
      n_id: node of the graph for each node slot, -1 for padding.
      indptr: for each hop the row offsets; rows without a node have no edges.
      indices: for each hop the place in ``n_id`` of the sender of each edge slot, 0 for padding.
      e_id: for each hop the position in the graph of each edge slot, -1 for padding.
      num_nodes: number of seeds, then of nodes up to and with each hop, [hops + 1].
      num_edges: number of edges of each hop, [hops].
      seed_ids: place in ``n_id`` of each seed slot, 0 for padding.
      owners: place of the seed of each node slot, where each seed has nodes of its own; the number
        of seed slots for padding.
    """

    n_id: Any
    indptr: tuple[Any, ...]
    indices: tuple[Any, ...]
    e_id: tuple[Any, ...]
    num_nodes: Any
    num_edges: Any
    seed_ids: Any
    owners: Any = None

    def num_cols(self, hop: int) -> int:
        """Number of columns of a hop, which are the rows of the next one."""
        if hop + 1 < len(self.indptr):
            return self.indptr[hop + 1].shape[0] - 1
        return self.n_id.shape[0]


class Source(Protocol):
    """A sampler of a graph: a function of seeds, epoch and step.

    Those for links also take ``excluded``, positions of edges that are not drawn.
    """

    def sizes(self, seeds: np.ndarray, epoch: int, step: int) -> Capacity:
        """Sizes of a sample."""
        ...

    def draw(
        self, seeds: np.ndarray, epoch: int, step: int, capacity: Capacity
    ) -> RawSample | Capacity:
        """A sample of distinct seeds; its sizes instead if it does not fit into the capacity."""
        ...


@dataclass(frozen=True)
class Drawing:
    """Options of a sampler, as ``NeighborLoader`` describes them."""

    fanouts: tuple[int, ...]
    seed: int
    replace: bool = False
    method: Method = "neighbour"
    batch_dependency: int = 1


@dataclass(frozen=True, eq=False)
class HostGraph:
    """The arrays of a graph in the memory of the host, rows being the nodes that draw.

    Attributes:
      indptr: row offsets.
      indices: neighbour of each edge.
      edge_ids: position in the user's graph of each edge, or None where it is the same.
    """

    indptr: np.ndarray
    indices: np.ndarray
    edge_ids: np.ndarray | None

    @classmethod
    def of(
        cls,
        where: str,
        graph: Any,
        direction: str,
        *,
        argument: str = "graph",
        is_relation: bool = False,
    ) -> HostGraph:
        """Reads a concrete graph, square unless it is a relation; mapped arrays stay in files."""
        require_graph(where, argument, graph)
        if not is_concrete(graph.indptr, graph.indices):
            raise bad_input(where, argument, "concrete; make loaders outside jit", "a tracer")
        if not (is_relation or graph.is_square):
            raise bad_input(
                where, argument, "square, with nodes of one kind", f"shape {graph.shape}"
            )
        if not graph.in_range:
            graph.concrete_parts()  # checks offsets and ids
        if not is_choice(direction, ("in", "out")):
            raise bad_input(where, "direction", '"in" or "out"', repr(direction))
        indptr, indices, edge_ids = map(on_host, drawn_arrays(graph, direction))
        num_edges = int(indptr[-1])
        return cls(indptr, indices[:num_edges], None if edge_ids is None else edge_ids[:num_edges])

    def degrees(self) -> np.ndarray:
        """Number of edges of each row."""
        return np.diff(self.indptr)

    def edges_between(self, rows: np.ndarray, neighbours: np.ndarray) -> np.ndarray:
        """Positions of all edges that join a row to its neighbour of the same place, ascending."""
        return find_edges(self.indptr, self.indices, rows, neighbours)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.indptr.shape[0] - 1

    @property
    def num_edges(self) -> int:
        """Number of edges, without padding."""
        return self.indices.shape[0]


def drawn_arrays(graph: CSRGraph, direction: str) -> tuple[Any, Any, Any]:
    """Offsets and neighbours of the rows that draw, and the edge of the graph of each, or None."""
    if direction == "in":
        return graph.indptr, graph.indices, None
    plan = graph.made_plan("transpose", "permutation")
    return plan.transposed_indptr, plan.transposed_indices, plan.permutation


@dataclass(frozen=True, eq=False)
class HostSource:
    """Draws on the host.

    Attributes:
      graph: the graph to draw from.
      weights: weight of each of its edges for the draws, or None.
      drawing: the options.
      num_threads: threads for one batch.
    """

    graph: HostGraph
    weights: np.ndarray | None
    drawing: Drawing
    num_threads: int

    def sizes(
        self, seeds: np.ndarray, epoch: int, step: int, *, excluded: np.ndarray | None = None
    ) -> Capacity:
        """Sizes of a sample."""
        return sizes_of(self.hops(seeds, epoch, step, excluded))

    def draw(
        self,
        seeds: np.ndarray,
        epoch: int,
        step: int,
        capacity: Capacity,
        *,
        excluded: np.ndarray | None = None,
    ) -> RawSample | Capacity:
        """A sample of distinct seeds; its sizes instead if it does not fit into the capacity."""
        hops = self.hops(seeds, epoch, step, excluded)
        sizes = sizes_of(hops)
        if not capacity.holds(sizes):
            return sizes
        return padded(hops, capacity, self.graph)

    def hops(
        self, seeds: np.ndarray, epoch: int, step: int, excluded: np.ndarray | None = None
    ) -> Hops:
        """A sample without padding."""
        drawing = self.drawing
        return sample_hops(
            self.graph.indptr,
            self.graph.indices,
            seeds,
            drawing.fanouts,
            seed=drawing.seed,
            epoch=epoch,
            step=step,
            replace=drawing.replace,
            weights=self.weights,
            method=drawing.method,
            batch_dependency=drawing.batch_dependency,
            excluded=excluded,
            num_threads=self.num_threads,
        )


def sizes_of(hops: Hops) -> Capacity:
    """Numbers of nodes and edges of a sample."""
    edges = tuple(hop.senders.shape[0] for hop in hops.hops)
    return Capacity(tuple(map(int, hops.num_nodes)), edges)


def padded(hops: Hops, capacity: Capacity, graph: HostGraph) -> RawSample:
    """The arrays of a sample in slots, with the ids of the user's graph."""
    node_dtype, edge_dtype = id_dtype(graph.num_nodes), id_dtype(graph.num_edges)
    rows = zip(hops.hops, capacity.nodes, capacity.edges, strict=False)
    indptr, indices, e_id = [], [], []
    for hop, num_rows, num_slots in rows:
        offsets = np.full(num_rows + 1, hop.senders.shape[0], np.int32)
        offsets[: hop.indptr.shape[0]] = hop.indptr
        indptr.append(offsets)
        indices.append(filled(hop.senders, num_slots, 0, np.int32))
        edges = hop.e_id if graph.edge_ids is None else graph.edge_ids[hop.e_id]
        e_id.append(filled(edges, num_slots, -1, edge_dtype))
    return RawSample(
        n_id=filled(hops.n_id, capacity.nodes[-1], -1, node_dtype),
        indptr=tuple(indptr),
        indices=tuple(indices),
        e_id=tuple(e_id),
        num_nodes=np.asarray(hops.num_nodes, np.int32),
        num_edges=np.asarray([hop.senders.shape[0] for hop in hops.hops], np.int32),
        seed_ids=filled(hops.seed_ids, capacity.nodes[0], 0, np.int32),
    )


def on_host(array: Any) -> Any:
    """The NumPy array of an array or None; one that is mapped from a file still knows its file."""
    return array if array is None or isinstance(array, np.ndarray) else np.asarray(array)


def id_dtype(count: int) -> type[np.signedinteger]:
    """The dtype of ids below a count, int32 where they fit."""
    return np.int32 if count <= np.iinfo(np.int32).max else np.int64
