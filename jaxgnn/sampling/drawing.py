"""Records of samplers: options of the draws, graphs on the host, and samples in slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jaxgnn._errors import bad_input, is_choice
from jaxgnn.graph import CSRGraph, is_concrete
from jaxgnn.graph.csr.require_graph import require_graph
from jaxgnn.sampling.checks import Method
from jaxgnn.sampling.host import find_edges


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


def on_host(array: Any) -> Any:
    """The NumPy array of an array or None; one that is mapped from a file still knows its file."""
    return array if array is None or isinstance(array, np.ndarray) else np.asarray(array)


def id_dtype(count: int) -> type[np.signedinteger]:
    """The dtype of ids below a count, int32 where they fit."""
    return np.int32 if count <= np.iinfo(np.int32).max else np.int64
