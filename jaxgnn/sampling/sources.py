"""Sources of samples, on the host and on the device, with their results in slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn._arrays.arrays import to_device
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph, EdgeType
from jaxgnn.sampling.capacity import Capacity, HeteroCapacity
from jaxgnn.sampling.device import sample_on_device
from jaxgnn.sampling.device_rows import MAX_FANOUT
from jaxgnn.sampling.drawing import Drawing, HostGraph, RawSample, drawn_arrays, id_dtype
from jaxgnn.sampling.host import sample_hops
from jaxgnn.sampling.memory import filled
from jaxgnn.sampling.reference import EdgesLeft, Hops
from jaxgnn.sampling.relations import (
    Relation,
    Temporal,
    TypedHops,
    check_present,
    checked_times,
    sample_typed_hops,
    timed_graph,
)


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


@dataclass(frozen=True, eq=False)
class TemporalSource:
    """Draws before the times of seeds, on the host; each seed has nodes of its own.

    The seeds of its methods are numbers of seeds, not nodes: one node may be a seed several times.

    Attributes:
      host: the graph, and options of the draws.
      relation: the edges in the order of their times.
      seeds: node of each seed, int64 [all seeds].
      seed_times: time of each seed, [all seeds].
      latest: whether the last edges are taken.
    """

    host: HostSource
    relation: Relation
    seeds: np.ndarray
    seed_times: np.ndarray
    latest: bool

    def sizes(self, seeds: np.ndarray, epoch: int, step: int) -> Capacity:
        """Sizes of a sample."""
        return sizes_of(self._hops(seeds, epoch, step)[0])

    def draw(
        self, seeds: np.ndarray, epoch: int, step: int, capacity: Capacity
    ) -> RawSample | Capacity:
        """A sample; its sizes instead if it does not fit into the capacity."""
        hops, owners = self._hops(seeds, epoch, step)
        sizes = sizes_of(hops)
        if not capacity.holds(sizes):
            return sizes
        num_seeds, *_, num_nodes = capacity.nodes
        raw = padded(hops, capacity, self.relation.graph)
        return raw._replace(owners=filled(owners, num_nodes, num_seeds, np.int32))

    def _hops(self, seeds: np.ndarray, epoch: int, step: int) -> tuple[Hops, np.ndarray]:
        """A sample without padding, and the place of the seed of each node."""
        found = sample_typed_hops(
            [self.relation],
            {self.relation.sender: self.relation.graph.num_nodes},
            self.relation.sender,
            self.seeds[seeds],
            drawing=self.host.drawing,
            epoch=epoch,
            step=step,
            seed_times=self.seed_times[seeds],
            latest=self.latest,
            num_threads=self.host.num_threads,
        )
        return _of_one_type(found)


def _of_one_type(found: TypedHops) -> tuple[Hops, np.ndarray]:
    assert found.owners is not None
    (n_id,), (num_nodes,), (owners,) = (
        each.values() for each in (found.n_id, found.num_nodes, found.owners)
    )
    return Hops(n_id, num_nodes, found.hops[0], found.seed_ids), owners


def timed_source(
    where: str,
    host: HostSource,
    graph: CSRGraph,
    seeds: np.ndarray,
    given: tuple[Any, Any, Temporal],
    on: str,
) -> TemporalSource:
    """Returns a source for the times of a loader.

    Args:
      where: the function that was called.
      host: the graph, and options of the draws that ``check_options`` has passed.
      graph: the user's graph.
      seeds: node of each seed, int64 [seeds].
      given: times of edges, times of seeds, and which edges are drawn.
      on: what draws.

    Raises:
      ValueError: if times are invalid, or an option is not for samples before a time.
    """
    edge_times, seed_times, temporal = given
    if on != "host":
        raise bad_input(where, "on", '"host" with seed_times', repr(on))
    if host.weights is not None:
        raise bad_input(where, "weights", "None with seed_times", f"{len(host.weights)} values")
    times = checked_times(where, "seed_times", seed_times, len(seeds))
    check_present(where, "seed_times", times)
    if graph.is_normalized:
        expected = "not normalised with seed_times; normalise the blocks"
        raise bad_input(where, "graph", expected, repr(graph.normalization))
    drawn = timed_graph(where, "edge_times", edge_times, graph, host.graph, times)
    relation = Relation("", "", *drawn, fanouts=host.drawing.fanouts)
    # A copy, since a file that times are mapped from may shrink.
    return TemporalSource(host, relation, seeds, np.array(times), temporal == "last")


@dataclass(frozen=True, eq=False)
class HeteroSample:
    """A sample that fits into a capacity."""

    found: TypedHops
    capacity: HeteroCapacity


@dataclass(frozen=True, eq=False)
class HeteroSource:
    """Draws along relations, on the host. The seeds of its methods are numbers of seeds.

    Attributes:
      relations: what is drawn.
      num_nodes: number of nodes of each type, the type of the seeds first.
      seed_type: type of the seeds.
      seeds: node of each seed, int64 [all seeds].
      seed_times: time of each seed, [all seeds], or None.
      drawing: the options.
      latest: whether the last edges before a time are taken.
      num_threads: threads for one batch.
    """

    relations: dict[EdgeType, Relation]
    num_nodes: dict[str, int]
    seed_type: str
    seeds: np.ndarray
    seed_times: np.ndarray | None
    drawing: Drawing
    latest: bool
    num_threads: int

    def sizes(self, seeds: np.ndarray, epoch: int, step: int) -> HeteroCapacity:
        """Sizes of a sample."""
        return HeteroCapacity.of(self.hops(seeds, epoch, step), list(self.relations))

    def draw(
        self, seeds: np.ndarray, epoch: int, step: int, capacity: HeteroCapacity
    ) -> HeteroSample | HeteroCapacity:
        """A sample; its sizes instead if it does not fit into the capacity."""
        found = self.hops(seeds, epoch, step)
        sizes = HeteroCapacity.of(found, list(self.relations))
        return HeteroSample(found, capacity) if capacity.holds(sizes) else sizes

    def hops(self, seeds: np.ndarray, epoch: int, step: int) -> TypedHops:
        """A sample without padding."""
        return sample_typed_hops(
            list(self.relations.values()),
            self.num_nodes,
            self.seed_type,
            self.seeds[seeds],
            drawing=self.drawing,
            epoch=epoch,
            step=step,
            seed_times=None if self.seed_times is None else self.seed_times[seeds],
            latest=self.latest,
            num_threads=self.num_threads,
        )


@dataclass(frozen=True, eq=False)
class DeviceSource:
    """Draws on the device; the host counts, for the capacity.

    Attributes:
      host: draws the same samples.
      indptr: row offsets, on the device.
      indices: neighbour of each edge, on the device.
      edge_ids: position in the user's graph of each edge, or None where it is the same.
    """

    host: HostSource
    indptr: Any
    indices: Any
    edge_ids: Any

    @classmethod
    def of(cls, host: HostSource, graph: CSRGraph, direction: str, device: Any) -> DeviceSource:
        """Copies the graph to the device, unless it is there.

        Raises:
          ValueError: if it has 2^31 edges or more, or a fan-out exceeds that of the device.
        """
        for fanout in host.drawing.fanouts:
            if fanout > MAX_FANOUT:
                expected = f'at most {MAX_FANOUT}, or -1, with on="device"; use on="host" for more'
                raise bad_input("sampling.NeighborLoader", "fanouts", expected, fanout)
        if host.graph.num_edges > np.iinfo(np.int32).max:
            expected = 'of fewer than 2^31 edges with on="device"; use on="host" for more'
            raise bad_input("sampling.NeighborLoader", "graph", expected, host.graph.num_edges)
        arrays = (
            None if array is None else array.astype(np.int32, copy=False)
            for array in drawn_arrays(graph, direction)
        )
        return cls(host, *to_device("sampling.NeighborLoader", tuple(arrays), device))

    def sizes(
        self, seeds: np.ndarray, epoch: int, step: int, *, excluded: np.ndarray | None = None
    ) -> Capacity:
        """Sizes of a sample, with the candidates of LABOR."""
        hops = self.host.hops(seeds, epoch, step, excluded)
        sizes = sizes_of(hops)
        if self.host.drawing.method != "labor":
            return sizes
        indptr, left = self.host.graph.indptr, EdgesLeft.of(excluded)
        rows = (hops.n_id[:count] for count in sizes.nodes[:-1])
        candidates = tuple(
            int((left.ranks(indptr[ids + 1]) - left.ranks(indptr[ids])).sum()) for ids in rows
        )
        return Capacity(sizes.nodes, sizes.edges, candidates)

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
        if len(seeds) > capacity.nodes[0]:
            return self.sizes(seeds, epoch, step, excluded=excluded)
        drawing = self.host.drawing
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
            return self.sizes(seeds, epoch, step, excluded=excluded)
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


def _in_slots(excluded: np.ndarray, usual: int) -> Any:
    """Positions of edges, padded to a power of 2, for which the device compiles once.

    More than the usual number are rare: repeats of edges, or many edges between few seeds.
    """
    slots = 1 << (max(len(excluded), usual) - 1).bit_length()
    return filled(excluded, slots, np.iinfo(np.int32).max, np.int32)


@jax.jit
def _mapped(edge_ids: jax.Array, e_id: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    return tuple(jnp.where(ids >= 0, edge_ids[ids], -1) for ids in e_id)
