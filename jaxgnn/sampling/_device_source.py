"""A source of samples on the device, the same as those of the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn._arrays.arrays import to_device
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph
from jaxgnn.sampling._capacity import Capacity
from jaxgnn.sampling._device_rows import MAX_FANOUT
from jaxgnn.sampling._edges_left import EdgesLeft
from jaxgnn.sampling._memory import filled
from jaxgnn.sampling._on_device import sample_on_device
from jaxgnn.sampling._source import HostSource, RawSample, drawn_arrays, sizes_of


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
