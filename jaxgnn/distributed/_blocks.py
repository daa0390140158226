"""Blocks of equal shape for the devices of a mesh axis: cut on the host, and put on the devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxgnn._arrays.arrays import offset_dtype, to_device
from jaxgnn._errors import bad_input
from jaxgnn.distributed._partition import Partition, edges_of, rows_of
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.local.edge_numbers import EdgeNumbers, Words

# On a GPU, XLA cuts sums over rows, as in weight gradients, into equal parts, and copies arrays
# that do not divide evenly. So blocks of this many rows or more get a multiple of a round number.
_LONG = 2**14
_ROUND = 2**10


@dataclass(frozen=True, eq=False)
class Layout:
    """Place of each node of a graph on the devices."""

    partition: Partition
    rows: int  # number in each block, padding included
    edges: int  # edge slots of each block, padding included

    @classmethod
    def from_partition(cls, partition: Partition) -> Layout:
        """Returns the smallest equal blocks; long ones have a round number of rows.

        All have an edge slot, since XLA ends the process on some arrays without elements inside of
        ``jax.shard_map`` (jaxlib 0.11.2).
        """
        rows = int(partition.rows.max())
        if rows >= _LONG:
            rows = -(-rows // _ROUND) * _ROUND
        return cls(partition, rows, max(int(partition.edges.max()), 1))

    @property
    def devices(self) -> int:
        """Number of devices, each of which has one block."""
        return self.partition.num_parts

    @property
    def num_nodes(self) -> int:
        """Number of nodes of the graph."""
        return len(self.partition.part_of)

    @cached_property
    def members(self) -> list[np.ndarray]:
        """The nodes of each block in ascending order."""
        return rows_of(self.partition.part_of, self.partition.rows)

    @cached_property
    def ids(self) -> np.ndarray:
        """The node of each row of each block, int32 [devices, rows]; padding is ``num_nodes``."""
        ids = np.full((self.devices, self.rows), self.num_nodes, np.int32)
        for block, members in enumerate(self.members):
            ids[block, : len(members)] = members
        return ids

    @cached_property
    def row_of(self) -> np.ndarray:
        """The row of each node within its block, int32 [nodes]."""
        row_of = np.empty(self.num_nodes, np.int32)
        for members in self.members:
            row_of[members] = np.arange(len(members), dtype=np.int32)
        return row_of

    @cached_property
    def place_of(self) -> np.ndarray:
        """The place of each node among the rows of all blocks, int64 [nodes]."""
        return self.partition.part_of.astype(np.int64) * self.rows + self.row_of


class Part(NamedTuple):
    """Some edges of the rows of one device, in numpy; padding slots are zero."""

    indptr: np.ndarray  # padding rows included
    indices: np.ndarray  # column of each slot
    slots: np.ndarray  # edge slot of the device's block of each slot


class Block(NamedTuple):
    """The rows of one device, in numpy; padding is zero."""

    indptr: np.ndarray  # padding rows included
    indices: np.ndarray  # place in the table of each edge's sender
    weights: np.ndarray | None  # one for each edge slot
    row_scale: np.ndarray | None
    col_scale: np.ndarray | None  # factor of each entry of the table


class Cutter:
    """Cuts the blocks out of a graph, one after the other.

    ``layout`` has the places of its rows, ``columns`` those of its columns, which are the same
    nodes if the graph is square. With ``lists`` rows are sent by lists (``"all_to_all"``),
    otherwise all of them to all devices.
    """

    def __init__(self, graph: CSRGraph, layout: Layout, columns: Layout, *, lists: bool):
        self.graph, self.layout, self.columns = graph, layout, columns
        self.indptr, self.indices = np.asarray(graph.indptr), np.asarray(graph.indices)
        self.needs = self._needs() if lists else None

    @cached_property
    def slots(self) -> int:
        """Length of the longest list."""
        assert self.needs is not None
        return max((len(rows) for needs in self.needs for rows in needs), default=0)

    def _needs(self) -> list[list[np.ndarray]]:
        """Returns the columns of each owner that each block reads, ascending."""
        columns, needs = self.columns, []
        for members, columns_of_part in zip(self.layout.members, columns.members, strict=True):
            read = np.zeros(columns.num_nodes, bool)
            read[self.indices[edges_of(self.indptr, members)]] = True
            read[columns_of_part] = False
            nodes = np.flatnonzero(read)
            owners = columns.partition.part_of[nodes]
            nodes = nodes[np.argsort(owners, kind="stable")]
            counts = np.bincount(owners, minlength=columns.devices)
            needs.append(np.split(nodes, np.cumsum(counts)[:-1]))
        return needs

    def send(self, owner: int) -> np.ndarray | None:
        """Returns the lists of an owner: its rows that each block needs, int32 [devices, slots]."""
        if self.needs is None:
            return None
        columns = self.columns
        send = np.full((columns.devices, self.slots), columns.rows, np.int32)
        for block, needs in enumerate(self.needs):
            send[block, : len(needs[owner])] = columns.row_of[needs[owner]]
        return send

    def _table(self, block: int) -> np.ndarray:
        """The place of each column in the table of a block, int32; -1 if it is not there."""
        columns = self.columns
        if self.needs is None:
            return columns.place_of.astype(np.int32)
        place_of = np.full(columns.num_nodes, -1, np.int32)
        place_of[columns.members[block]] = columns.row_of[columns.members[block]]
        for owner, nodes in enumerate(self.needs[block]):
            begin = columns.rows + owner * self.slots
            place_of[nodes] = np.arange(begin, begin + len(nodes), dtype=np.int32)
        return place_of

    @property
    def table_rows(self) -> int:
        """Number of entries of each table."""
        columns = self.columns
        if self.needs is None:
            return columns.devices * columns.rows
        return columns.rows + columns.devices * self.slots

    def edges(self, block: int, of_edges: Any) -> np.ndarray:
        """The entries of a block from an array with one for each edge slot; zeros for padding."""
        positions = edges_of(self.indptr, self.layout.members[block])
        return padded(np.asarray(of_edges)[positions], self.layout.edges)

    def cut(self, block: int) -> Block:
        """Builds the block of one device, padded to the shape of all."""
        layout, graph = self.layout, self.graph
        members, place_of = layout.members[block], self._table(block)
        positions = edges_of(self.indptr, members)
        weights, row_scale, col_scale = (
            None if a is None else np.asarray(a)
            for a in (graph.weights, graph.row_scale, graph.col_scale)
        )
        in_table = np.flatnonzero(place_of >= 0)
        if col_scale is not None:
            of_nodes, col_scale = col_scale, np.zeros(self.table_rows, col_scale.dtype)
            col_scale[place_of[in_table]] = of_nodes[in_table]
        return Block(
            indptr=offsets_of(np.diff(self.indptr)[members], layout.rows, layout.edges),
            indices=padded(place_of[self.indices[positions]], layout.edges),
            weights=None if weights is None else padded(weights[positions], layout.edges),
            row_scale=None if row_scale is None else padded(row_scale[members], layout.rows),
            col_scale=col_scale,
        )

    @cached_property
    def num_near_edges(self) -> list[int]:
        """Number of edges of each block whose sender is the device's own."""
        return [int(np.count_nonzero(self._is_near(b))) for b in range(self.layout.devices)]

    def split(self, block: int) -> tuple[Part, Part]:
        """The edges of a device from own senders, by own columns, and the others, by the table."""
        layout = self.layout
        members, is_near = layout.members[block], self._is_near(block)
        senders = self.indices[edges_of(self.indptr, members)]
        degrees = np.diff(self.indptr)[members]
        rows = np.repeat(np.arange(len(members), dtype=np.int32), degrees)
        dtype = offset_dtype(layout.edges)
        of_others = layout.partition.edges - self.num_near_edges
        most = max(*self.num_near_edges, 1), max(int(of_others.max()), 1)
        near, far = (
            Part(
                indptr=offsets_of(
                    np.bincount(rows[chosen], minlength=len(members)), layout.rows, layout.edges
                ),
                indices=padded(places[senders[chosen]].astype(np.int32), length),
                slots=padded(np.flatnonzero(chosen).astype(dtype), length),
            )
            for chosen, places, length in (
                (is_near, self.columns.row_of, most[0]),
                (~is_near, self._table(block), most[1]),
            )
        )
        return near, far

    def _is_near(self, block: int) -> np.ndarray:
        """Returns a mask of the edges of a block whose sender is on the device."""
        senders = self.indices[edges_of(self.indptr, self.layout.members[block])]
        return self.columns.partition.part_of[senders] == block


def offsets_of(degrees: np.ndarray, rows: int, edges: int) -> np.ndarray:
    """Returns offsets of rows of these degrees, and of padding rows after them up to ``rows``.

    ``edges`` is the number of edge slots of the block, which fit 32 bits where those of the whole
    graph may not.
    """
    offsets = np.zeros(rows + 1, offset_dtype(edges))
    ends = np.cumsum(degrees)
    offsets[1 : len(ends) + 1] = ends
    offsets[len(ends) + 1 :] = ends[-1]
    return offsets


def edge_numbers(indptr: np.ndarray, members: np.ndarray, rows: int, total: int) -> EdgeNumbers:
    """Returns numbers in the whole graph, of ``total`` edges, of the edges of a block's rows."""
    words = Words.of_host(padded(indptr[members].astype(np.int64), rows))
    return EdgeNumbers(jnp.stack([*map(jnp.asarray, words)], axis=1), total)


def padded(array: np.ndarray, length: int) -> np.ndarray:
    """Returns the array padded with zeros at the end of the first axis."""
    missing = length - len(array)
    if not missing:
        return array
    return np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])


def axis_of(where: str, mesh: Any, axis: str | None) -> str:
    """Returns the mesh axis to spread over: the named one, or the only one."""
    if not isinstance(mesh, Mesh):
        raise bad_input(where, "mesh", "a jax.sharding.Mesh", type(mesh).__name__)
    names = tuple(mesh.axis_names)
    if axis is None and len(names) == 1:
        return names[0]
    if axis is None:
        expected = f"the name of one of several axes of the mesh, {names}"
        raise bad_input(where, "axis", expected, None)
    if axis not in names:
        raise bad_input(where, "axis", f"an axis of the mesh, {names}", repr(axis))
    return axis


def stacked[Tree](mesh: Mesh, axis: str, make: Callable[[int], Tree]) -> Tree:
    """Builds a pytree for each place along the axis, and stacks their arrays along a first axis.

    Each process builds those of its own devices, with their device as the default device. All have
    one structure and equal shapes.
    """
    along = np.moveaxis(mesh.devices, mesh.axis_names.index(axis), 0)
    sharding = NamedSharding(mesh, PartitionSpec(axis))
    of_leaves: list[list[jax.Array]] = []
    structure: Any = None
    for place, anywhere in enumerate(along.reshape(mesh.shape[axis], -1)):
        devices = [device for device in anywhere if device.process_index == jax.process_index()]
        if not devices:
            continue
        with jax.default_device(devices[0]):
            leaves, structure = jax.tree.flatten(make(place))
        of_leaves = of_leaves or [[] for _ in leaves]
        for arrays, leaf in zip(of_leaves, leaves, strict=True):
            first = to_device("distributed.shard", leaf, devices[0])[None]
            arrays += [to_device("distributed.shard", first, device) for device in devices]
    joined = [
        jax.make_array_from_single_device_arrays(
            (mesh.shape[axis], *arrays[0].shape[1:]), sharding, arrays
        )
        for arrays in of_leaves
    ]
    return jax.tree.unflatten(structure, joined)
