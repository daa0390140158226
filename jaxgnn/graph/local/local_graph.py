"""LocalGraph: one device's rows of a graph that is spread over the devices of a mesh."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxgnn._arrays.arrays import KeepsArrays, as_jax, match_varying, offset_dtype
from jaxgnn._errors import bad_input
from jaxgnn.graph.csr.csr_graph import CSRGraph
from jaxgnn.graph.csr.self_loops import checked_count
from jaxgnn.graph.local.edge_numbers import EdgeNumbers, Words, totals_before
from jaxgnn.graph.local.halo import Halo
from jaxgnn.graph.local.union import LocalUnion, without_halo

_PART = "the rows of one device"


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class EdgesByOwner(KeepsArrays):
    """The edges of one device's rows in two graphs, without weights and scales.

    Attributes:
      near: the edges from own senders, whose columns are the own columns.
      far: those from senders of other devices, whose columns are places in the table.
      near_slots: edge slot of the device's block of each slot of ``near``; zero for padding.
      far_slots: edge slot of the device's block of each slot of ``far``; zero for padding.
    """

    near: CSRGraph
    far: CSRGraph
    near_slots: Int[Array, " near"]
    far_slots: Int[Array, " far"]


def _take_or_none(weights: Array | None, slots: Int[Array, " edges"]) -> Array | None:
    return None if weights is None else jnp.asarray(weights)[slots]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class LocalGraph(CSRGraph):
    """The rows of one device of a square graph, inside of ``jax.shard_map``.

    Layers and ops accept it instead of the whole graph, with the features of the device's own
    nodes. It has as many rows as columns, which are the own nodes and then padding. Ops first
    exchange the rows of other nodes that the edges read (``halo``); ``indices`` are places in that
    table, and the plan is that of the rows by the table.

    Attributes:
      col_scale: factor of each entry of the table; or of each own node, which ops then exchange.
      halo: exchange of the rows that edges read, among the devices.
      numbers: numbers of the edges in the whole graph, from which dropout draws.
      split: the same edges in two parts, own senders and others, for sums that begin before the
        rows of others arrive; or None.
      row_ids: number in the whole graph of each own row, int32, -1 for padding rows; None where
        rows and columns are the same nodes, as in ``halo.ids``.
    """

    halo: Halo = dataclasses.field(default=cast(Halo, None))
    numbers: EdgeNumbers = dataclasses.field(default=cast(EdgeNumbers, None))
    split: EdgesByOwner | None = None
    row_ids: Int[Array, " rows"] | None = None

    @property
    def is_square(self) -> bool:
        """Whether rows and columns are the same nodes, on the same devices."""
        return self.row_ids is None

    @property
    def is_real_row(self) -> Bool[Array, " rows"]:
        """A mask of the rows that are nodes of the graph, not padding."""
        return self.halo.is_real if self.row_ids is None else self.row_ids >= 0

    def bipartite(self) -> CSRGraph:
        """Returns the own rows by the entries of the table, as a graph without a halo."""
        return without_halo(self, col_scale=self._table_scale())

    def _table_scale(self) -> Array | None:
        """Returns the factor of each entry of the table, or None."""
        scale = self.col_scale
        if scale is None or scale.shape[0] == self.halo.table_rows:
            return scale
        return self.halo.exchange(scale)

    def near_and_far(self) -> tuple[CSRGraph, CSRGraph]:
        """The own rows by own columns, and by the table: together the edges of ``bipartite()``."""
        split, scale = self.split, self._table_scale()
        assert split is not None
        near_scale = scale
        if scale is not None:
            begin = self.halo.first_own()
            near_scale = lax.dynamic_slice_in_dim(jnp.asarray(scale), begin, self.halo.rows)
        rows = {"row_scale": self.row_scale, "normalization": self.normalization}
        near = split.near.with_weights(_take_or_none(self.weights, split.near_slots))
        far = split.far.with_weights(_take_or_none(self.weights, split.far_slots))
        near = near._with_fields(col_scale=near_scale, **rows)
        return near, far._with_fields(col_scale=scale, **rows)

    def edge_numbers(self) -> Words:
        """Returns the number of each edge slot in the whole graph; undefined for padding slots."""
        return self.numbers.of_slots(jnp.asarray(self.indptr), self.receivers())

    def senders_as_rows(self) -> Int[Array, " edges"]:
        """The own row that is the sender of each edge slot, -1 for nodes of other devices."""
        rows = self.indices - self.halo.first_own()
        return jnp.where((rows >= 0) & (rows < self.num_rows), rows, -1)

    def own_columns(self) -> Int[Array, " rows"]:
        """Returns the place in the table of the node of each row of a square graph."""
        return self.halo.first_own() + jnp.arange(self.num_rows, dtype=jnp.int32)

    def row_numbers(self) -> Int[Array, " rows"]:
        """Number in the whole graph of the node of each row, larger than any for padding rows."""
        largest = jnp.iinfo(jnp.int32).max
        ids = self.halo.ids if self.row_ids is None else self.row_ids
        return jnp.where(self.is_real_row, ids, largest)

    def of_all_nodes(self, x: Array) -> Array:
        """Returns the rows of all nodes of a square graph, in their order in the whole graph.

        Args:
          x: array with a row for each own node. All of them are sent to each device.
        """
        all_ids, rows = (
            lax.all_gather(part, self.halo.axis, tiled=True)
            for part in match_varying(self.halo.ids, x)
        )
        shape = self.halo.num_nodes, *rows.shape[1:]
        return jnp.zeros(shape, rows.dtype).at[all_ids].set(rows, mode="drop")

    def sender_table(self, of_nodes: Array) -> Array:
        """The table that ``indices`` point into, for an array with a row for each own node."""
        return self.halo.exchange(of_nodes)

    def _sums_of_senders(self, of_edges: Array) -> Array:
        """Returns the sum over the edges of all devices that leave each node of the table."""
        of_device = self.bipartite()._sums_of_senders(of_edges)
        return self.halo.exchange(self.halo.add_at_owners(of_device))

    def _column_degrees(self) -> Int[Array, " cols"]:
        """Returns the number of edges of all devices that leave each own node."""
        transposed = self.bipartite().made_plan("transpose").transposed_indptr
        return self.halo.add_at_owners(jnp.diff(transposed))

    def _with_loops(self, weight: float, duplicates: bool, num_real_nodes: Any) -> LocalGraph:
        """Adds the loops of the whole graph, by the numbers of the nodes there."""
        real = self.receivers() < self.num_rows
        missing = self.is_real_row
        if not duplicates:
            missing = missing.at[self._rows_of_loops()].set(False, mode="drop")
        if num_real_nodes is not None:
            missing &= self.row_numbers() < checked_count(num_real_nodes, self.halo.num_nodes)
        return with_edges(self, real, missing, weight)[0]

    def _rows_of_loops(self) -> Int[Array, " edges"]:
        """The row of each edge from a node to itself, and a row out of range for other edges."""
        rows = self.receivers()
        return jnp.where(rows == self.senders_as_rows(), rows, self.num_rows)

    def transpose(self) -> NoReturn:
        """Raises ValueError: the edges that leave own nodes are on other devices."""
        instead = "shard graph.transpose() with the same partition"
        raise bad_input("LocalGraph.transpose", "self", f"a whole graph; {instead}", _PART)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class LocalMatrix(CSRGraph):
    """The rows of one device of a sparse matrix, such as features, with all of its columns.

    Attributes:
      numbers: numbers of the stored entries in the whole matrix, from which dropout draws.
    """

    numbers: EdgeNumbers = dataclasses.field(default=cast(EdgeNumbers, None))

    def edge_numbers(self) -> Words:
        """The number of each stored entry in the whole matrix; undefined for padding slots."""
        return self.numbers.of_slots(jnp.asarray(self.indptr), self.receivers())


Spread = LocalGraph | LocalUnion
"""The part of a graph that one device has, whose edges read rows of other devices."""


def exchange_senders(graph: Spread, arrays: Sequence[Any], axes: Sequence[int] = ()) -> tuple:
    """Returns the rows that the columns of ``graph.bipartite()`` stand for, of each array.

    Args:
      graph: the part of one device.
      arrays: arrays with a row for each node of the device.
      axes: axis of the nodes in each array, by default the last but one.

    Raises:
      ValueError: if an array does not have one row for each node of the device.
    """
    axes = axes or (-2,) * len(arrays)
    return tuple(graph.halo.exchange(x, axis) for x, axis in zip(arrays, axes, strict=True))


def sum_of_parts(
    graph: Any, x: Any, axis: int, product: Callable[[CSRGraph, Any], Array]
) -> Array | None:
    """Sums over the edges from own senders while the rows of others are sent, then over the rest.

    Returns:
      The sum of ``product`` for both parts of the edges and the rows of their columns, which ``x``
      has along ``axis``. None unless the graph is one device's and its edges are in two parts.
    """
    if not isinstance(graph, LocalGraph) or graph.split is None:
        return None
    near, far = graph.near_and_far()
    table = graph.halo.exchange(x, axis)
    return product(near, x) + product(far, table)


def edge_words(graph: Any) -> UInt32[Array, " edges"] | None:
    """Returns the lower 32 bits of the number in the whole graph of each edge slot of a device.

    None for a whole graph, which needs no numbers; ValueError for several relations.
    """
    if isinstance(graph, LocalUnion):
        expected = "one relation, if edges are dropped and the graph is spread over devices"
        raise bad_input("dropout", "graph", expected, "several relations")
    return jnp.asarray(graph.edge_numbers().low) if isinstance(graph, LocalGraph) else None


def with_edges(
    graph: LocalGraph,
    kept: Bool[Array, " edges"],
    loops: Bool[Array, " rows"] | None = None,
    weight: Any = 1.0,
) -> tuple[LocalGraph, Int[Array, " new_edges"]]:
    """Keeps some edges of each row, in their order, and appends a self loop to some rows.

    Args:
      graph: the rows of one device of a graph that is not normalised; square if loops are added.
      kept: mask of the edge slots that are kept; False for padding slots.
      loops: mask of the rows that get a loop; None for none, and as many edge slots as before.
      weight: weight of the loops, if the graph has weights.

    Returns:
      The rows, without scales and plan; and for each of their edge slots the edge slot of
      ``graph``, which had E of them, or E + i for the loop of row i. Undefined for padding.
    """
    edges, rows = graph.num_edges, graph.num_rows
    indptr, indices, kept = match_varying(jnp.asarray(graph.indptr), graph.indices, kept)
    dtype = offset_dtype(edges if loops is None else edges + rows)
    before = jnp.pad(jnp.cumsum(kept, dtype=dtype), (1, 0))
    places, offsets = before[:-1], before[indptr]
    slots, total = jnp.arange(edges, dtype=dtype), graph.numbers.total
    if loops is not None:
        loops_before = jnp.pad(jnp.cumsum(loops, dtype=dtype), (1, 0))
        places = places + loops_before[graph.receivers()]
        offsets = offsets + loops_before
        kept, places = _behind(kept, loops), _behind(places, offsets[1:] - 1)
        slots = jnp.arange(edges + rows, dtype=dtype)
        indices = _behind(indices, graph.own_columns().astype(indices.dtype))
        total += graph.halo.num_nodes
    sources = jnp.zeros_like(slots).at[jnp.where(kept, places, len(slots))].set(slots, mode="drop")
    weights = graph.weights
    if weights is not None:
        weights = jnp.asarray(weights)
        if loops is not None:
            of_loops = jnp.full((rows, *weights.shape[1:]), weight, weights.dtype)
            weights = _behind(weights, of_loops)
        weights = weights[sources]
    changed = dataclasses.replace(
        graph,
        indptr=offsets,
        indices=indices[sources],
        weights=weights,
        row_scale=None,
        col_scale=None,
        plan=None,
        normalization=None,
        numbers=_numbers(graph, jnp.diff(offsets), total),
        split=None,
    )
    return changed, sources


def _behind(first: Array, second: Array) -> Array:
    return jnp.concatenate([*match_varying(first, second)])


def _numbers(graph: LocalGraph, counts: Int[Array, " rows"], total: int) -> EdgeNumbers:
    """Numbers of the edges of each own row in the whole graph, from the counts of each row."""
    axis = graph.halo.axis
    ids, counts = match_varying(graph.row_numbers(), counts)
    of_all = (lax.all_gather(part, axis, tiled=True) for part in (ids, counts.astype(jnp.uint32)))
    all_ids, all_counts = of_all
    # There are fewer nodes than rows of all devices, and padding rows have larger numbers.
    of_nodes = jnp.zeros_like(all_counts).at[all_ids].set(all_counts, mode="drop")
    first = totals_before(of_nodes, total)
    return EdgeNumbers(first.at[ids].get(mode="clip"), total)


def mean_over_nodes(
    graph: CSRGraph, values: Float[Array, "nodes *rest"], weight: Array | None = None
) -> Float[Array, " *rest"]:
    """Returns the mean of the values of all nodes, those of other devices included.

    On a whole graph on one device it is the mean of its nodes.

    Args:
      graph: the graph of the nodes, or inside of ``sharded`` that of the device.
      values: values of the own nodes; those of padding rows are ignored.
      weight: weight of each node, bool or numbers [nodes]; None to count each once.

    Returns:
      ``Σ w_i v_i / Σ w_i``, the same on all devices, of the wider floating dtype of values and
      weights, and float32 if neither is floating. Sums are accumulated in float32 or wider.

    Raises:
      ValueError: if ``graph`` is not a graph, or there is another number of values or weights
        than of nodes.
    """
    if not isinstance(graph, CSRGraph):
        expected = "a CSRGraph, or inside of sharded the graph of the device"
        raise bad_input("mean_over_nodes", "graph", expected, type(graph).__name__)
    values = as_jax("mean_over_nodes", "values", values)
    counted = jnp.ones(graph.num_rows, bool) if weight is None else jnp.asarray(weight)
    for name, array in (("values", values), ("weight", counted)):
        if array.ndim < 1 or array.shape[0] != graph.num_rows:
            expected = f"of one entry for each of {graph.num_rows} nodes"
            raise bad_input("mean_over_nodes", name, expected, f"shape {array.shape}")
    floating = [a.dtype for a in (values, counted) if jnp.issubdtype(a.dtype, jnp.floating)]
    dtype = max(floating, key=lambda one: one.itemsize, default=jnp.dtype(jnp.float32))
    wide = max(dtype, jnp.dtype(jnp.float32), key=lambda one: one.itemsize)
    counted, values = counted.astype(wide), values.astype(wide)
    if isinstance(graph, LocalGraph):
        counted = jnp.where(graph.is_real_row, counted, 0)
    column = counted.reshape(-1, *(1,) * (values.ndim - 1))
    # A padding row may have no finite value.
    total = jnp.sum(jnp.where(column != 0, values, 0) * column, axis=0)
    count = jnp.sum(counted)
    total, count = sum_over_devices(graph, (total, count))
    return (total / count).astype(dtype)


def sum_over_devices[Tree](graph: CSRGraph, of_device: Tree) -> Tree:
    """Sums a pytree over the devices; for a whole graph it is returned unchanged.

    Args:
      graph: the graph, or inside of ``sharded`` that of the device.
      of_device: a pytree of arrays, such as a sum over the own nodes.
    """
    return jax.lax.psum(of_device, graph.halo.axis) if isinstance(graph, LocalGraph) else of_device


def max_over_devices(graph: CSRGraph, of_device: Array) -> Array:
    """Returns the differentiable maximum over the devices; for a whole graph the array itself."""
    if not isinstance(graph, LocalGraph):
        return of_device
    return jnp.max(jax.lax.all_gather(of_device, graph.halo.axis), axis=0)
