"""Sources of samples, on the host and on the device, and their results in slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn._arrays.arrays import to_device
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph, EdgeType
from jaxgnn.sampling.capacity import Capacity
from jaxgnn.sampling.device import sample_on_device
from jaxgnn.sampling.device_rows import MAX_FANOUT
from jaxgnn.sampling.drawing import Drawing, HostGraph, RawSample, drawn_arrays, id_dtype
from jaxgnn.sampling.host import sample_hops
from jaxgnn.sampling.memory import filled
from jaxgnn.sampling.reference import EdgesLeft, Hops
from jaxgnn.sampling.relations import Relation, TypedHops, sample_typed_hops


@dataclass(frozen=True, eq=False)
class Source:
    """Draws along relations, on the host; a graph with nodes of one type is one relation.

    Attributes:
      relations: the edges, and what is drawn of them.
      num_nodes: number of nodes of each type, the type of the seeds first.
      seed_type: type of the seeds.
      drawing: the options of the draws; the fan-outs are those of the relations.
      latest: whether the last edges before a time are taken.
      num_threads: threads for one sample.
    """

    relations: dict[EdgeType, Relation]
    num_nodes: dict[str, int]
    seed_type: str
    drawing: Drawing
    latest: bool
    num_threads: int

    def draw(
        self,
        seeds: np.ndarray,
        epoch: int,
        step: int,
        *,
        seed_times: np.ndarray | None = None,
        excluded: np.ndarray | None = None,
    ) -> TypedHops:
        """Draws a sample.

        Args:
          seeds: nodes, int64 [seeds].
          epoch: number of the epoch.
          step: number of the step.
          seed_times: times before which edges are drawn, [seeds], so that each seed has nodes of
            its own; None to draw from all edges.
          excluded: positions of edges that are not drawn, of a single relation; None for none.
        """
        if len(self.num_nodes) == len(self.relations) == 1 and seed_times is None:
            (relation,) = self.relations.values()
            if 0 not in relation.fanouts:
                return self._draw_at_once(relation, seeds, epoch, step, excluded)
        assert excluded is None
        return sample_typed_hops(
            list(self.relations.values()),
            self.num_nodes,
            self.seed_type,
            seeds,
            drawing=self.drawing,
            epoch=epoch,
            step=step,
            seed_times=seed_times,
            latest=self.latest,
            num_threads=self.num_threads,
        )

    def _draw_at_once(
        self,
        relation: Relation,
        seeds: np.ndarray,
        epoch: int,
        step: int,
        excluded: np.ndarray | None,
    ) -> TypedHops:
        """Draws all hops of a single relation by one call, which is faster, with the same bits."""
        drawing = self.drawing
        hops = sample_hops(
            relation.graph.indptr,
            relation.graph.indices,
            seeds,
            relation.fanouts,
            seed=drawing.seed,
            epoch=epoch,
            step=step,
            replace=drawing.replace,
            weights=relation.weights,
            method=drawing.method,
            batch_dependency=drawing.batch_dependency,
            excluded=excluded,
            num_threads=self.num_threads,
        )
        of = self.seed_type
        return TypedHops({of: hops.n_id}, None, {of: hops.num_nodes}, (hops.hops,), hops.seed_ids)


def hops_of_one_type(sample: TypedHops) -> Hops:
    """Returns a sample of a single relation without the names of its types."""
    (n_id,), (num_nodes,) = sample.n_id.values(), sample.num_nodes.values()
    return Hops(n_id, num_nodes, sample.hops[0], sample.seed_ids)


def sizes_of(hops: Hops) -> Capacity:
    """Counts the nodes and edges of a sample."""
    edges = tuple(hop.senders.shape[0] for hop in hops.hops)
    return Capacity(tuple(map(int, hops.num_nodes)), edges)


def padded(sample: TypedHops, capacity: Capacity, graph: HostGraph) -> RawSample:
    """Returns the arrays of a sample of one relation in slots, with the ids of the user's graph."""
    hops = hops_of_one_type(sample)
    num_seeds, *_, num_nodes = capacity.nodes
    owners = None
    if sample.owners is not None:
        (of_nodes,) = sample.owners.values()
        owners = filled(of_nodes, num_nodes, num_seeds, np.int32)
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
        seed_ids=filled(hops.seed_ids, num_seeds, 0, np.int32),
        owners=owners,
    )


@dataclass(frozen=True, eq=False)
class DeviceSource:
    """Draws on the device what a source on the host draws, from a graph with nodes of one type.

    Attributes:
      drawing: the options of the draws.
      indptr: row offsets, on the device.
      indices: neighbour of each edge, on the device.
      edge_ids: position in the user's graph of each edge, or None where it is the same.
    """

    drawing: Drawing
    indptr: Any
    indices: Any
    edge_ids: Any

    @classmethod
    def of(
        cls, drawing: Drawing, graph: CSRGraph, host: HostGraph, direction: str, device: Any
    ) -> DeviceSource:
        """Copies the graph to the device, unless it is there.

        Raises:
          ValueError: if it has 2^31 edges or more, or a fan-out exceeds that of the device.
        """
        for fanout in drawing.fanouts:
            if fanout > MAX_FANOUT:
                expected = f'at most {MAX_FANOUT}, or -1, with on="device"; use on="host" for more'
                raise bad_input("sampling.NeighborLoader", "fanouts", expected, fanout)
        if host.num_edges > np.iinfo(np.int32).max:
            expected = 'of fewer than 2^31 edges with on="device"; use on="host" for more'
            raise bad_input("sampling.NeighborLoader", "graph", expected, host.num_edges)
        arrays = (
            None if array is None else array.astype(np.int32, copy=False)
            for array in drawn_arrays(graph, direction)
        )
        return cls(drawing, *to_device("sampling.NeighborLoader", tuple(arrays), device))

    def draw(
        self,
        seeds: np.ndarray,
        epoch: int,
        step: int,
        capacity: Capacity,
        *,
        excluded: np.ndarray | None = None,
    ) -> RawSample | None:
        """Draws a sample of distinct seeds in slots; None if it does not fit into the capacity."""
        if len(seeds) > capacity.nodes[0]:
            return None
        drawing = self.drawing
        in_slots: Any = filled(seeds, capacity.nodes[0], -1, np.int32)
        sample = sample_on_device(
            self.indptr,
            self.indices,
            in_slots,
            drawing.fanouts,
            nodes=capacity.nodes,
            edges=capacity.edges,
            candidates=capacity.candidates or None,
            seed=drawing.seed,
            epoch=epoch,
            step=step,
            replace=drawing.replace,
            method=drawing.method,
            batch_dependency=drawing.batch_dependency,
            excluded=None if excluded is None else _in_slots(excluded, 2 * capacity.nodes[0]),
        )
        # Waits for the device, in a thread that works ahead.
        if sample.overflow:
            return None
        e_id = sample.e_id
        if self.edge_ids is not None:
            e_id = _mapped(self.edge_ids, e_id)
        return RawSample(
            n_id=sample.n_id,
            indptr=sample.indptr,
            indices=sample.senders,
            e_id=e_id,
            num_nodes=sample.num_nodes,
            num_edges=sample.num_edges,
            seed_ids=sample.seed_ids,
        )


def candidates_of(hops: Hops, graph: HostGraph, excluded: np.ndarray | None) -> tuple[int, ...]:
    """Counts the edges that LABOR chooses from in each hop."""
    left = EdgesLeft.of(excluded)
    rows = (hops.n_id[:count] for count in hops.num_nodes[:-1])
    return tuple(
        int((left.ranks(graph.indptr[ids + 1]) - left.ranks(graph.indptr[ids])).sum())
        for ids in rows
    )


def _in_slots(excluded: np.ndarray, usual: int) -> Any:
    """Positions of edges, padded to a power of 2, for which the device compiles once.

    More than the usual number are rare: repeats of edges, or many edges between few seeds.
    """
    slots = 1 << (max(len(excluded), usual) - 1).bit_length()
    return filled(excluded, slots, np.iinfo(np.int32).max, np.int32)


@jax.jit
def _mapped(edge_ids: jax.Array, e_id: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    return tuple(jnp.where(ids >= 0, edge_ids[ids], -1) for ids in e_id)
