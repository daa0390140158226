"""ShardedGraph: the rows of a graph spread over the devices of a mesh axis."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxgnn._arrays.arrays import checked_numbers, dtype_of_jax, host_array
from jaxgnn._errors import bad_input
from jaxgnn.distributed._blocks import Cutter, Layout, axis_of, edge_numbers, stacked
from jaxgnn.distributed._partition import Method, Partition, check_graph, partition
from jaxgnn.distributed._processes import check_same_on
from jaxgnn.distributed._sharded_matrix import ShardedMatrix, shard_matrix
from jaxgnn.graph import CSRGraph, Halo, LocalGraph, is_concrete
from jaxgnn.graph.local.local_graph import EdgesByOwner

Side = Literal["rows", "columns"]
"""The nodes of the rows of a graph, or those of its columns: the same if the graph is square."""

Exchange = Literal["auto", "all_gather", "all_to_all"]
"""Method to send rows between devices; ``"auto"`` uses lists where they are much shorter."""

# Ops that sum over edges from own senders before the rows of others arrive.
_OVERLAPPING = ("spmm", "maxk_spmm")

# Lists pay for packing and placing rows only if they are shorter than this part of all rows.
_LISTED_PART = 0.75


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class ShardedGraph:
    """A graph whose rows and columns are spread over the devices along an axis of a mesh.

    All devices have blocks of one shape, padded with rows and edges, and each block has its own
    plan. It is a pytree whose arrays have a leading axis for the devices, sharded over the mesh
    axis. Inside of ``jax.shard_map`` with ``jax.P(axis)`` for it, ``local`` is the block of
    the device, which layers and ops accept; ``sharded`` does that.

    Attributes:
      blocks: the blocks of all devices, with a leading axis.
      mesh: the mesh.
      axis: name of the axis.
      layout: the place of the node of each row.
      columns: the place of the node of each column; ``layout`` itself if the graph is square.
    """

    blocks: LocalGraph
    mesh: Mesh = field(metadata={"static": True})
    axis: str = field(metadata={"static": True})
    layout: Layout = field(metadata={"static": True})
    columns: Layout = field(metadata={"static": True})

    def __repr__(self) -> str:
        """Shows sizes and the method to send rows."""
        return (
            f"ShardedGraph(nodes={self.num_nodes}, devices={self.devices}, "
            f"rows={self.rows}, edges={self.layout.edges}, exchange={self.exchange!r})"
        )

    @property
    def devices(self) -> int:
        """Number of devices along the axis."""
        return self.layout.devices

    @property
    def is_square(self) -> bool:
        """Whether rows and columns are the same nodes."""
        return self.columns is self.layout

    @property
    def num_nodes(self) -> int:
        """Number of nodes of the whole graph; of its rows, if it is not square."""
        return self.layout.num_nodes

    @property
    def rows(self) -> int:
        """Rows of each device, padding included."""
        return self.layout.rows

    @property
    def partition(self) -> Partition:
        """Assignment of rows to devices."""
        return self.layout.partition

    @property
    def column_partition(self) -> Partition:
        """Assignment of columns to devices: that of the rows if the graph is square."""
        return self.columns.partition

    @property
    def exchange(self) -> str:
        """Method to send rows: ``"all_gather"`` or ``"all_to_all"``."""
        return self.blocks.halo.form

    @property
    def rows_received(self) -> int:
        """Rows that each device receives in an exchange, padding included."""
        return self.blocks.halo.rows_received

    @property
    def local(self) -> LocalGraph:
        """The block of the device, inside of ``jax.shard_map``.

        Raises:
          ValueError: outside of ``shard_map``, where all blocks are present.
        """
        leading = self.blocks.indptr.shape[0]
        if leading != 1 or (self.devices > 1 and is_concrete(self.blocks.indptr)):
            expected = f"read inside of jax.shard_map with {PartitionSpec(self.axis)} for the graph"
            raise bad_input("ShardedGraph.local", "self", expected, f"{leading} blocks")
        return jax.tree.map(lambda array: array[0], self.blocks)

    @property
    def row_sharding(self) -> NamedSharding:
        """The sharding of arrays with a row for each node."""
        return NamedSharding(self.mesh, PartitionSpec(self.axis))

    def shard_rows(self, x: npt.ArrayLike, fill: Any = 0, *, side: Side = "rows") -> jax.Array:
        """Spreads an array with a row for each node, in the order of the devices' rows.

        Args:
          x: array [nodes, ...] that the host can read.
          fill: value of padding rows.
          side: whose nodes these are, if the graph is not square.

        Returns:
          [devices * rows, ...], of which each device has its own ``rows``.

        Raises:
          ValueError: if ``x`` has not one row of numbers for each node or is spread already, or
            there is no such side.
        """
        where = "ShardedGraph.shard_rows"
        layout = self._layout_of(where, side)
        is_array = isinstance(x, jax.Array) and x.ndim > 0
        if self.devices > 1 and is_array and x.sharding.is_equivalent_to(self.row_sharding, x.ndim):
            expected = "in the order of the nodes, and not spread yet"
            raise bad_input(where, "x", expected, f"rows of devices, {np.shape(x)}")
        array = checked_numbers(where, "x", host_array(where, "x", x))
        if array.ndim < 1 or array.shape[0] != layout.num_nodes:
            expected = f"of one row for each of {layout.num_nodes} nodes"
            raise bad_input(where, "x", expected, f"shape {array.shape}")
        array = array.astype(dtype_of_jax(array.dtype), copy=False)
        shape = (self.devices * layout.rows, *array.shape[1:])

        def rows_at(index: Any) -> np.ndarray:
            block = (index[0].start or 0) // layout.rows
            rows = np.full((layout.rows, *array.shape[1:]), fill, array.dtype)
            members = layout.members[block]
            rows[: len(members)] = array[members]
            return rows

        return jax.make_array_from_callback(shape, self.row_sharding, rows_at)

    def _layout_of(self, where: str, side: Side) -> Layout:
        if side not in ("rows", "columns"):
            raise bad_input(where, "side", "'rows' or 'columns'", repr(side))
        return self.layout if side == "rows" else self.columns

    def gather_rows(self, x: jax.Array, *, side: Side = "rows") -> np.ndarray:
        """Brings spread rows to the host, in the order of the graph's nodes.

        Every process calls it, and gets all rows.

        Args:
          x: [devices * rows, ...], as ``shard_rows`` gives.
          side: as for ``shard_rows``.

        Returns:
          [nodes, ...].

        Raises:
          ValueError: if ``x`` has another number of rows, or there is no such side.
        """
        where = "ShardedGraph.gather_rows"
        layout = self._layout_of(where, side)
        rows = self.devices * layout.rows
        if getattr(x, "ndim", 0) < 1 or x.shape[0] != rows:
            expected = f"of {rows} rows, {layout.rows} for each of {self.devices} devices"
            raise bad_input(where, "x", expected, f"shape {np.shape(x)}")
        if isinstance(x, jax.Array) and not x.is_fully_addressable:
            x = multihost_utils.process_allgather(x, tiled=True)
        return np.asarray(x)[layout.place_of]

    def shard_matrix(self, matrix: CSRGraph, *, side: Side = "rows") -> ShardedMatrix:
        """Spreads sparse features, such as bags of words, which layers accept like dense ones.

        Args:
          matrix: a row for each node and a column for each feature, ``CSRGraph.from_scipy(...)``.
          side: as for ``shard_rows``.

        Raises:
          ValueError: if ``matrix`` is no graph that the host can read, has scales or not one row
            for each node, or there is no such side.
        """
        where = "ShardedGraph.shard_matrix"
        layout = self._layout_of(where, side)
        check_graph(matrix, square=False)
        if matrix.num_rows != layout.num_nodes:
            expected = f"of one row for each of {layout.num_nodes} nodes"
            raise bad_input(where, "matrix", expected, f"shape {matrix.shape}")
        if matrix.row_scale is not None or matrix.col_scale is not None:
            raise bad_input(where, "matrix", "with weights alone", "scales of rows or columns")
        return shard_matrix(matrix, layout, self.mesh, self.axis)

    def shard_edges(self, graph: CSRGraph, of_edges: npt.ArrayLike) -> jax.Array:
        """Spreads an array with an entry for each edge slot of the graph.

        Args:
          graph: the whole graph that was sharded.
          of_edges: array [edges, ...] in the graph's edge order, such as edge features.

        Returns:
          [devices * edges, ...], of which each device has the edges of its rows, and zeros for
          padding.

        Raises:
          ValueError: if ``of_edges`` has not one entry for each edge slot of ``graph``, or the
            graph has another number of nodes.
        """
        where = "ShardedGraph.shard_edges"
        array = checked_numbers(where, "of_edges", host_array(where, "of_edges", of_edges))
        self._check_whole(where, graph)
        if array.ndim < 1 or array.shape[0] != graph.num_edges:
            expected = f"of one entry for each of {graph.num_edges} edge slots"
            raise bad_input(where, "of_edges", expected, f"shape {array.shape}")
        cutter = Cutter(graph, self.layout, self.columns, lists=False)
        array = array.astype(dtype_of_jax(array.dtype), copy=False)
        edges = self.layout.edges
        shape = (self.devices * edges, *array.shape[1:])

        def edges_at(index: Any) -> np.ndarray:
            return cutter.edges((index[0].start or 0) // max(edges, 1), array)

        return jax.make_array_from_callback(shape, self.row_sharding, edges_at)

    def transpose(self, graph: CSRGraph, *, ops: tuple[str, ...] = ("spmm",)) -> ShardedGraph:
        """Spreads the transposed graph, its nodes on the devices that have them here.

        So arrays of rows fit both: columns of this graph are rows of the transposed graph.

        Args:
          graph: the whole graph that was sharded.
          ops: ops that the plans of the blocks support.

        Raises:
          ValueError: if ``graph`` is not of the nodes and edges that were sharded.
        """
        self._check_whole("ShardedGraph.transpose", graph)
        return shard(
            graph.transpose(),
            self.mesh,
            axis=self.axis,
            partition=self.columns.partition.part_of,
            columns=None if self.is_square else self.layout.partition.part_of,
            wire_dtype=self.blocks.halo.wire_dtype,
            records=self.blocks.halo.records,
            overlap=self.blocks.split is not None,
            ops=ops,
        )

    def _check_whole(self, where: str, graph: CSRGraph) -> None:
        """Raises ValueError unless a graph has the numbers of the one that was sharded."""
        shape = self.num_nodes, self.columns.num_nodes
        if graph.shape != shape:
            expected = f"the graph of shape {shape} that was sharded"
            raise bad_input(where, "graph", expected, f"shape {graph.shape}")
        degrees = np.diff(np.asarray(graph.indptr))
        of_parts = np.bincount(self.partition.part_of, degrees, self.devices).astype(np.int64)
        if not np.array_equal(of_parts, self.partition.edges):
            expected = f"the graph that was sharded, with {self.partition.edges.tolist()} edges"
            got = f"{of_parts.tolist()} edges of the devices' rows"
            raise bad_input(where, "graph", expected, got)


def shard(
    graph: CSRGraph,
    mesh: Mesh,
    *,
    axis: str | None = None,
    partition: Partition | Method | npt.ArrayLike = "degree",
    columns: Method | npt.ArrayLike | None = None,
    exchange: Exchange = "auto",
    wire_dtype: str | None = None,
    records: bool = False,
    overlap: bool = False,
    ops: tuple[str, ...] = ("spmm",),
) -> ShardedGraph:
    """Spreads the rows of a graph, and its columns, over the devices along an axis of a mesh.

    The graph keeps its weights and a normalisation by scales. In a program of several processes all
    call it with the same arguments, which are compared once, by hashes, but for arrays that are
    mapped from files; and each builds the blocks of its own devices. Senders may be
    mapped from a file: ``CSRGraph(np.load("indptr.npy", mmap_mode="r"), np.load("indices.npy",
    mmap_mode="r"))``. With ``exchange="all_gather"`` and a partition other than ``"metis"``, only
    those of the own blocks are read; lists, and the choice of them, read all senders.

    Args:
      graph: the graph, not traced. If it is square, rows and columns are the same nodes.
      mesh: the devices.
      axis: name of the axis of the mesh; None for the only one.
      partition: assignment of rows to devices: a method of ``partition``, its result, or an array
        with the place along the axis for each row.
      columns: assignment of the columns of a graph between two kinds of nodes, by a method other
        than ``"metis"`` or an array; None if the graph is square, whose columns are its rows.
      exchange: ``"all_gather"`` sends all rows to all devices, ``"all_to_all"`` only those that a
        device reads, in lists padded to the longest; ``"auto"`` uses lists if a device then
        receives less than three quarters of the rows.
      wire_dtype: ``"bfloat16"`` or ``"float16"`` sends features in that dtype; None in their own.
      records: whether values and columns of a compressed row are sent together, by one collective
        instead of two. Packing and unpacking copies the rows.
      overlap: whether ``spmm`` and ``maxk_spmm`` sum over the edges from own senders while the rows
        of others are sent, and then over the other edges. This stores the edges a second time, and
        rounds half precision once more.
      ops: ops that the plans of the blocks support, by the names that ``CSRGraph.prepared`` takes.

    Raises:
      ValueError: if the graph is traced, or not square without ``columns``; it has fewer rows or
        columns than there are devices; the mesh does not have the axis; a partition has another
        number of parts or leaves one empty; an option is not as above; or an argument differs
        between the processes of the mesh, on all of them.

    Example:
      >>> import jax
      >>> from jaxgnn import CSRGraph, distributed
      >>> graph = CSRGraph.from_edges([0, 1, 2, 3], [1, 2, 3, 0], 4)
      >>> distributed.shard(graph, jax.make_mesh((1,), ("nodes",), devices=jax.devices()[:1]))
      ShardedGraph(nodes=4, devices=1, rows=4, edges=4, exchange='all_gather')
    """
    axis = axis_of("shard", mesh, axis)
    if isinstance(ops, str):
        raise bad_input("shard", "ops", "a tuple of names of ops", repr(ops))
    check_graph(graph, square=columns is None)
    if exchange not in ("auto", "all_gather", "all_to_all"):
        expected = "'auto', 'all_gather' or 'all_to_all'"
        raise bad_input("shard", "exchange", expected, repr(exchange))
    if wire_dtype not in (None, "bfloat16", "float16", "float32"):
        expected = "'bfloat16', 'float16', 'float32' or None"
        raise bad_input("shard", "wire_dtype", expected, repr(wire_dtype))
    layout, of_columns = _layouts_for(graph, mesh.shape[axis], partition, columns)
    options = exchange, wire_dtype, records, overlap, tuple(ops), axis
    places = layout.partition.part_of, of_columns.partition.part_of
    compared = {"graph": _compared(graph), "partition": places, "options": options}
    check_same_on(mesh, "shard", compared)
    cutter = _cutter_for(graph, layout, of_columns, exchange)

    def make(place: int) -> LocalGraph:
        ids = layout.ids[place]
        row_ids = np.where(ids < layout.num_nodes, ids, -1)  # Padding rows have no node.
        # None, for a missing array, is an empty pytree.
        block, send = jax.tree.map(jnp.asarray, (cutter.cut(place), cutter.send(place)))
        bipartite = CSRGraph(
            indptr=block.indptr,
            indices=block.indices,
            weights=block.weights,
            num_cols=cutter.table_rows,
        )
        of_block = tuple(op for op in ops if not (overlap and op in _OVERLAPPING))
        prepared = bipartite.prepared(*of_block) if of_block else None
        return LocalGraph(
            **block._asdict(),
            num_cols=of_columns.rows,
            plan=None if prepared is None else prepared.plan,
            normalization=graph.normalization,
            in_range=True,
            halo=Halo(
                ids=jnp.asarray(of_columns.ids[place]),
                send=send,
                axis=axis,
                devices=layout.devices,
                num_nodes=of_columns.num_nodes,
                wire_dtype=wire_dtype,
                records=records,
            ),
            numbers=edge_numbers(
                cutter.indptr, layout.members[place], layout.rows, graph.num_edges
            ),
            split=_split(cutter, place, ops) if overlap else None,
            row_ids=None if of_columns is layout else jnp.asarray(row_ids),
        )

    return ShardedGraph(stacked(mesh, axis, make), mesh, axis, layout, of_columns)


def _compared(graph: CSRGraph) -> list[Any]:
    """Parts of a graph that are the same in all processes.

    An array that is mapped from a file may differ in the rows of other processes, and is large.
    """
    arrays = graph.indices, graph.weights, graph.row_scale, graph.col_scale
    inside = [None if array is None or _is_mapped(array) else array for array in arrays]
    return [graph.indptr, graph.shape, graph.num_edges, graph.normalization, *inside]


def _is_mapped(array: Any) -> bool:
    """Returns whether an array, or what it is a view of, is mapped from a file."""
    while isinstance(array, np.ndarray) and not isinstance(array, np.memmap):
        array = array.base
    return isinstance(array, np.memmap)


def _split(cutter: Cutter, place: int, ops: tuple[str, ...]) -> EdgesByOwner:
    """Returns the edges of a block from own senders and from others, with a plan of each."""
    near, far = jax.tree.map(jnp.asarray, cutter.split(place))
    of_near, of_far = (
        CSRGraph(indptr=part.indptr, indices=part.indices, num_cols=num_cols).prepared(*ops)
        for part, num_cols in ((near, cutter.columns.rows), (far, cutter.table_rows))
    )
    return EdgesByOwner(of_near, of_far, near.slots, far.slots)


def _cutter_for(graph: CSRGraph, layout: Layout, columns: Layout, exchange: Exchange) -> Cutter:
    """Returns the cutter of the blocks; a row has as many bytes by either method to send it."""
    gathered = Cutter(graph, layout, columns, lists=False)
    if exchange == "all_gather" or (exchange == "auto" and layout.devices == 1):
        return gathered
    if exchange == "all_to_all":
        return Cutter(graph, layout, columns, lists=True)
    most = _LISTED_PART * columns.rows
    # No list is shorter than the mean over the owners.
    if int(layout.partition.halo_rows.max()) / (layout.devices - 1) >= most:
        return gathered
    listed = Cutter(graph, layout, columns, lists=True)
    return listed if listed.slots < most else gathered


def _layouts_for(
    graph: CSRGraph,
    devices: int,
    choice: Partition | Method | npt.ArrayLike,
    columns: Method | npt.ArrayLike | None,
) -> tuple[Layout, Layout]:
    """Places of rows and of columns, which are equal if the columns are the rows."""
    for count, what in zip(graph.shape, ("row", "column"), strict=True):
        if count < devices:
            expected = f"of at least one {what} for each of {devices} devices"
            raise bad_input("shard", "graph", expected, f"{count} {what}s")
    if columns is None:
        layout = Layout.from_partition(_partition_for(graph, devices, choice, None))
        return layout, layout
    back = graph.transpose()
    # A method assigns columns by their own degrees, independently of the parts of the rows.
    anywhere = np.zeros(graph.num_rows, np.int32)
    of_columns = partition(back, devices, columns, columns=anywhere).part_of
    of_rows = _partition_for(graph, devices, choice, of_columns)
    of_columns = partition(back, devices, of_columns, columns=of_rows.part_of)
    return Layout.from_partition(of_rows), Layout.from_partition(of_columns)


def _partition_for(
    graph: CSRGraph,
    devices: int,
    choice: Partition | Method | npt.ArrayLike,
    columns: np.ndarray | None,
) -> Partition:
    """Returns the given partition after checks, or one computed by the given method."""
    is_made = isinstance(choice, Partition)
    chosen = choice if is_made else partition(graph, devices, choice, columns=columns)
    if chosen.num_parts != devices or len(chosen.part_of) != graph.num_rows:
        expected = f"of {graph.num_rows} rows over {devices} devices"
        got = f"{len(chosen.part_of)} rows over {chosen.num_parts} parts"
        raise bad_input("shard", "partition", expected, got)
    edges = np.bincount(chosen.part_of, np.diff(np.asarray(graph.indptr)), devices)
    if np.array_equal(edges, chosen.edges):
        return chosen
    # The partition is that of another graph of these nodes, such as one without self loops.
    return partition(graph, devices, chosen.part_of, columns=columns)
