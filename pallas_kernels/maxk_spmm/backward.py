"""Gradients of the k-sparse product: to the values and to the edge weights."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.chip import Chip
from pallas_kernels.graph.rows import Pieces, load_row
from pallas_kernels.maxk_spmm.edge_blocks import BlocksTile, EdgeBlocks, add_to_sums
from pallas_kernels.simt.blocks import lanes_before, warps_with_rows
from pallas_kernels.simt.values import Array, Shared
from pallas_kernels.simt.warp import LANES, Warp

# The part of the second-level cache for the sums that a pass adds to. Each pass reads dy again.
_CACHE_SHARE = 0.72
_MOST_PASSES = 3


@dataclass(frozen=True)
class GradTile:
    """Division of the work of the gradients among warps.

    Attributes:
      lanes: lanes that share a neighbour.
      ahead: neighbours whose columns a lane reads before it works on them.
      warps: warps of a block.
      passes: passes over the edges; each adds to the sums of some senders, which stay in the cache.
    """

    lanes: int
    ahead: int
    warps: int
    passes: int

    @classmethod
    def choose(cls, chip: Chip, nodes: int, k: int, dim: int, lists: int = 0) -> GradTile:
        """The one heuristic: four entries a lane.

        Args:
          chip: the GPU.
          nodes: how many compressed rows there are.
          k: entries of a compressed row.
          dim: columns of a dense row.
          lists: words of shared memory that a warp needs besides its row.
        """
        lanes = 1
        while lanes < LANES and lanes * 4 < k:
            lanes *= 2
        cached = int(_CACHE_SHARE * chip.cache_bytes)
        passes = max(1, min(_MOST_PASSES, -(-nodes * k * 4 // cached)))
        return cls(lanes, 4, warps_with_rows(chip, 4 * (dim + lists), 8), passes)


# Length of a warp's list of edges whose sender is in the current slice, in shared memory.
_LIST = 4 * LANES


def grad_values(
    graph: Pieces, columns: jax.Array, dy: jax.Array, tile: GradTile | None = None
) -> jax.Array:
    """Computes ``dvalues_jt = c_j Σ_i w_ij r_i dy_i[column_jt]``.

    The sums are atomic, so their last bits vary.

    Args:
      graph: the sparse matrix of ``rows`` rows, with its weights and scales.
      columns: [cols, k], uint8 or uint16.
      dy: [rows, dim], float32 or bfloat16, dim at most ``graph.rows.MOST_COLUMNS``.
      tile: how the work is divided; chosen by the shapes if None.

    Returns:
      [cols, k], of the dtype of ``dy``.
    """
    (nodes, k), dim = columns.shape, dy.shape[-1]
    if graph.num_edges == 0 or dy.size == 0 or columns.size == 0:
        return jnp.zeros((nodes, k), dy.dtype)
    tile = tile or GradTile.choose(Chip.current(), nodes, k, dim, lists=2 * _LIST)
    scale, graph = graph.col_scale, dataclasses.replace(graph, col_scale=None)
    sums = simt.launch(
        _GradValues(tile),
        (graph, columns, dy),
        [],
        name="maxk_spmm_grad_values",
        grid=simt.Grid(graph.blocks(tile.warps), tile.warps, tile.passes),
        shared={"row": ("f32", dim), "list_nodes": ("i32", _LIST), "list_edges": ("i32", _LIST)},
        updated=[jnp.zeros((nodes, k), jnp.float32)],
    )[0]
    return _scaled(sums, scale, dy.dtype)


def grad_values_blocks(
    graph: EdgeBlocks, columns: jax.Array, dy: jax.Array, tile: BlocksTile | None = None
) -> jax.Array:
    """Computes the same as ``grad_values``, for edges that are grouped by block of rows."""
    if graph.entries.size == 0 or dy.size == 0 or columns.size == 0:
        return jnp.zeros(columns.shape, dy.dtype)
    scale, graph = graph.col_scale, dataclasses.replace(graph, col_scale=None)
    if graph.has_many_edges:
        sums = _along_rows(add_to_sums(graph, _across_lanes(columns), dy, tile))
    else:
        sums = add_to_sums(graph, columns, dy, tile)
    return _scaled(sums, scale, dy.dtype)


def _across_lanes(columns: jax.Array) -> jax.Array:
    """Reorders rows so that lanes with four entries each read neighbouring columns.

    Neighbours in a row of ascending columns are seldom in the same bank of shared memory. Where
    there are few edges, this does not pay for a pass over the columns and one over the sums.
    """
    nodes, k = columns.shape
    if k % 4:
        return columns
    return columns.reshape(nodes, 4, k // 4).swapaxes(1, 2).reshape(nodes, k)


def _along_rows(sums: jax.Array) -> jax.Array:
    """Restores the order of entries before ``_across_lanes``."""
    nodes, k = sums.shape
    if k % 4:
        return sums
    return sums.reshape(nodes, k // 4, 4).swapaxes(1, 2).reshape(nodes, k)


def _scaled(sums: jax.Array, scale: jax.Array | None, dtype) -> jax.Array:
    """Scales the sums of each row, and rounds them to a dtype."""
    scaled = sums if scale is None else sums * scale[:, None]
    return scaled.astype(dtype)


@dataclass(frozen=True)
class _GradValues:
    """Each warp keeps the row of dy of its piece in shared memory, for the senders of a slice.

    Slices come one after another, so that their sums stay in the second-level cache. A warp first
    lists the edges of the piece whose sender is in the slice, and then adds to the sums of those.
    """

    tile: GradTile

    def __call__(
        self,
        warp: Warp,
        inputs,
        sums: Array,
        row: Shared,
        list_nodes: Shared,
        list_edges: Shared,
    ) -> None:
        graph, columns, dy = inputs
        nodes = columns.shape[0]
        first, last = (
            (warp.slice.to("i64") * nodes + extra) // warp.slices for extra in (0, nodes)
        )
        first, last = first.to("i32"), last.to("i32")
        before = lanes_before(warp)

        def add_listed(piece, listed):
            warp.sync()
            self._add_listed(
                warp, graph, columns, piece, listed, sums, (row, list_nodes, list_edges)
            )
            warp.sync()

        def take(piece):
            def take_edges(begin, carry):
                listed, has_row = carry
                edge = begin + warp.lane
                node = graph.indices.load(edge.at_most(piece.end - 1))
                mine = (edge < piece.end) & (node >= first) & (node < last)
                found = warp.ballot(mine)
                at = listed + warp.popcount(found & before)

                def note():
                    list_nodes.store(at, node)
                    list_edges.store(at, (edge - piece.begin).to("i32"))

                warp.when(mine, note)
                listed = listed + warp.popcount(found)
                is_last = begin + LANES >= piece.end
                is_full = (listed > 0) & ((listed > _LIST - LANES) | is_last)
                needs_row = is_full & (has_row == 0)
                warp.when(needs_row, lambda: load_row(warp, graph, piece.row, dy, row))
                warp.when(is_full, lambda: add_listed(piece, listed))
                return warp.select(is_full, 0, listed), has_row | is_full.to("i32")

            start = warp.i32(0), warp.i32(0)
            warp.loop(piece.begin, piece.end, LANES, start, take_edges)

        graph.for_each(warp, take)

    def _add_listed(self, warp, graph, columns, piece, listed, sums, shared) -> None:
        """Adds the row's entries to the sums of the senders in the list."""
        row, list_nodes, list_edges = shared
        lanes, ahead = self.tile.lanes, self.tile.ahead
        neighbours, k = LANES // lanes, columns.shape[1]
        is_aligned = k % 4 == 0

        def four_columns(node, at):
            of_node = columns.row(node)
            if is_aligned:
                words = of_node.load_words(at, 4)
                return [of_node.unpack(words, i) for i in range(4)]
            return [of_node.load((at + i).at_most(k - 1)) for i in range(4)]

        def add(node, at, four, weight):
            values = [row.load(column) for column in four]
            if weight is not None:
                values = [weight * value for value in values]
            to = sums.row(node)
            if is_aligned:
                return to.add(at, *values)
            for i, value in enumerate(values):
                warp.when(at + i < k, lambda i=i, value=value: to.add(at + i, value))

        def take(first, _):
            places = [first + s * neighbours for s in range(ahead)]
            # Past the end of the list, its last entry is read again and nothing is added.
            inner = [place.at_most(listed - 1) for place in places]
            nodes = [list_nodes.load(place) for place in inner]
            weights = [
                None
                if graph.weights is None
                else graph.weights.load(piece.begin + list_edges.load(place))
                for place in inner
            ]

            def take_entries(at, _):
                found = [four_columns(node, at) for node in nodes]
                for s in range(ahead):
                    warp.when(
                        places[s] < listed, lambda s=s: add(nodes[s], at, found[s], weights[s])
                    )

            warp.loop(warp.lane % lanes * 4, k, 4 * lanes, (), take_entries)

        warp.loop(warp.lane // lanes, listed, ahead * neighbours, (), take)


def grad_weights(
    graph: Pieces,
    values: jax.Array,
    columns: jax.Array,
    dy: jax.Array,
    tile: GradTile | None = None,
) -> jax.Array:
    """Computes ``dw_ij = r_i c_j Σ_t dy_i[column_jt] value_jt``; the weights are not used.

    Args:
      graph: the sparse matrix of ``rows`` rows.
      values: [cols, k], float32 or bfloat16.
      columns: [cols, k], uint8 or uint16.
      dy: [rows, dim], of the dtype of the values, dim at most ``graph.rows.MOST_COLUMNS``.
      tile: how the work is divided; chosen by the shapes if None.

    Returns:
      [edges] float32, zero in padding slots.
    """
    (nodes, k), dim = values.shape, dy.shape[-1]
    if graph.num_edges == 0 or dy.size == 0 or values.size == 0:
        return jnp.zeros((graph.num_edges,), jnp.float32)
    tile = tile or GradTile.choose(Chip.current(), nodes, k, dim)
    return simt.launch(
        _GradWeights(tile),
        (graph, values, columns, dy),
        [jax.ShapeDtypeStruct((graph.num_edges,), jnp.float32)],
        name="maxk_spmm_grad_weights",
        grid=simt.Grid(graph.blocks(tile.warps), tile.warps),
        shared={"row": ("f32", dim)},
    )[0]


@dataclass(frozen=True)
class _GradWeights:
    """Each warp keeps the row of its piece in shared memory; each group takes a neighbour."""

    tile: GradTile

    def __call__(self, warp: Warp, inputs, edges: Array, row: Shared) -> None:
        graph, values, columns, dy = inputs
        lanes, k = self.tile.lanes, values.shape[1]

        def inner_product(node):
            value, column = values.row(node), columns.row(node)

            def add(t, total):
                return warp.fma(row.load(column.load(t)), value.load(t), total)

            return warp.loop(warp.lane % lanes, k, lanes, warp.f32(0.0), add)

        def take(piece):
            load_row(warp, graph, piece.row, dy, row)

            def take_neighbours(first, _):
                edge = first + warp.lane // lanes
                # Groups past the end read the last edge again and store nothing.
                node = graph.indices.load(edge.at_most(piece.end - 1))
                product = warp.sum_lanes(inner_product(node), lanes)

                def store():
                    scale = None if graph.col_scale is None else graph.col_scale.load(node)
                    edges.store(edge, product if scale is None else scale * product)

                warp.when((edge < piece.end) & (warp.lane % lanes == 0), store)

            warp.loop(piece.begin, piece.end, LANES // lanes, (), take_neighbours)

        graph.for_each(warp, take)
        graph.zero_padding(warp, edges)
