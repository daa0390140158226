"""Edges grouped by block: how the backward of the k-sparse product walks a graph on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt

from jaxgnn.graph._arrays import is_concrete
from jaxgnn.graph._communities import find_communities
from jaxgnn.graph._schedule import cut_rows
from jaxgnn.graph._sorting import inverse_permutation, row_ids, sort_edges

# Bits of an entry that name the row within its block; the others name the sender in its tile.
ROW_BITS = 9
# Kernels take entries in fours or eights.
_ENTRIES_ALIGNED = 8


@dataclass(frozen=True)
class BlockShape:
    """How a graph is cut into blocks: every ``rows`` rows by every ``senders`` senders.

    Attributes:
      rows: rows of a block, whose gradients a multiprocessor holds in shared memory; less than
        2**ROW_BITS.
      senders: senders of a tile, whose sums a second-level cache holds; in the order
        ``"community"`` it holds those of some communities at a time.
      edges_per_task: edges that one thread block takes of a block at most.
      row_blocks: blocks side by side in one tile.
      tiles: of senders, one after another.
      order: of the rows. By ``"degree"`` those of many edges come first, and of those of about as
        many the communities one after another; by ``"community"`` only these; ``"given"`` is the
        order of their numbers.
    """

    rows: int
    senders: int
    edges_per_task: int
    row_blocks: int
    tiles: int
    order: Literal["degree", "community", "given"]

    @classmethod
    def choices(cls, num_rows: int, num_cols: int, num_edges: int) -> tuple[BlockShape, ...]:
        """The shapes in which a graph is cut: the larger its blocks, the narrower are its rows.

        The one heuristic, for an H100. Many rows in a block have senders in common, whose sums
        are then added once for all of them; that pays where rows have many edges, and the more
        the larger the block. Otherwise a block only spares reading rows again, and small ones keep
        more thread blocks in flight. Each tile of senders reads all rows again, which costs little
        where rows have many edges; elsewhere tiles are larger, as the senders of rows that share a
        community are soon in the cache, and kernels prefetch the sums of tiles too large for it.
        """
        options, many_edges = _rows_of_blocks(num_rows, num_edges)
        order = "degree" if many_edges else "given" if num_cols <= _FEW_SENDERS else "community"
        if 0 in (num_rows, num_cols):
            order = "given"
        most_senders = 1 << 17 if many_edges else 5 << 18
        tiles = max(1, -(-num_cols // most_senders))
        # A task reads all rows of its block, however few of its edges it takes.
        most_edges = 1 << 18 if many_edges else 1 << 15
        return tuple(
            cls(
                rows=rows,
                senders=max(1, -(-num_cols // tiles)),
                edges_per_task=min(max(num_edges >> 10, 1 << 10), most_edges),
                row_blocks=max(1, -(-num_rows // rows)),
                tiles=tiles,
                order=order,
            )
            for rows in options
        )

    @property
    def num_blocks(self) -> int:
        """Blocks in all; block ``tile * row_blocks + rows`` comes after those before it."""
        return self.tiles * self.row_blocks

    def can_hold(self, row_bytes: int, passes: int) -> bool:
        """Whether shared memory holds the rows of a block in so many passes."""
        return self.rows * row_bytes <= passes * _BYTES_AT_ONCE


# Of rows in the shared memory of an H100.
_BYTES_AT_ONCE = 224 * 1024
# Wider rows are walked one by one.
_MOST_PASSES = 2
# Blocks are large in graphs of so many rows, which leave 512 blocks and more, that have so many
# edges each. What they leave of the memory of a multiprocessor is its first-level cache, which the
# kernels need too.
_MANY_ROWS, _MANY_EDGES = 73_728, 128
# Rows of a large block: one of so many parts of all, within these bounds; for narrow rows twice
# the part, up to the last of these numbers.
_LARGE_BLOCKS, _MANY_BLOCKS, _MOST_IN_BLOCK = (128, 144), 1024, 288
_SMALL_BLOCKS = 64
# Whose sums, of 32 kept columns, take about as much as a second-level cache of 50 MB holds.
_FEW_SENDERS = 420_000


def _rows_of_blocks(num_rows: int, num_edges: int) -> tuple[tuple[int, ...], bool]:
    """Rows of the blocks to choose from, fewest first, and whether rows have many edges."""
    if num_rows < _MANY_ROWS or num_edges < _MANY_EDGES * num_rows:
        return (_SMALL_BLOCKS,), False
    least, most = _LARGE_BLOCKS
    fewest = min(max(num_rows // _MANY_BLOCKS, least), most)
    most = min(2 * num_rows // _MANY_BLOCKS, _MOST_IN_BLOCK)
    # Blocks that are hardly larger are not worth another list of the edges.
    return ((fewest, most) if most >= fewest + fewest // 4 else (fewest,)), True


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class EdgeBlocks:
    """The edges of a graph by block, and by sender within a block; see ``BlockShape``.

    Task ``t`` is entries ``offsets[t]`` up to ``offsets[t + 1]`` of block ``blocks[t]``; unused
    tasks at the end have no entries.

    Attributes:
      row_order: the rows in the order in which they are cut into blocks, int32, or None if that is
        the order of their numbers.
      entries: ``sender within the tile << ROW_BITS | row within the block`` of each edge, then
        zeros up to a multiple of eight.
      edges: position of each in the graph.
      blocks: block of each task, int32.
      offsets: first entry of each task, and the end of the last.
      shape: of the blocks.
    """

    row_order: Int[Array, " rows"] | None
    entries: UInt[Array, " entries"]
    edges: Int[Array, " edges"]
    blocks: Int[Array, " tasks"]
    offsets: Int[Array, " tasks+1"]
    shape: BlockShape = field(metadata={"static": True})


def blocks_for(options: Sequence[EdgeBlocks], row_bytes: int) -> EdgeBlocks | None:
    """The largest blocks whose rows shared memory holds, or None.

    Args:
      options: as ``make_edge_blocks`` returns them.
      row_bytes: of a row.
    """
    at_once = [blocks for blocks in options if blocks.shape.can_hold(row_bytes, 1)]
    if at_once:
        return at_once[-1]
    in_passes = [blocks for blocks in options if blocks.shape.can_hold(row_bytes, _MOST_PASSES)]
    return in_passes[0] if in_passes else None


def make_edge_blocks(
    indptr: Int[Array, " rows+1"] | np.ndarray,
    transposed_indptr: Int[Array, " cols+1"] | np.ndarray,
    transposed_indices: Int[Array, " edges"] | np.ndarray,
    permutation: Int[Array, " edges"] | np.ndarray,
) -> tuple[EdgeBlocks, ...]:
    """Groups the edges of a transposed graph, which are in the order of their senders.

    Args:
      indptr: offsets of the receivers.
      transposed_indptr: offsets of the senders.
      transposed_indices: receiver of each edge.
      permutation: position of each edge in the graph itself.

    Returns:
      One for each of ``BlockShape.choices``; numpy arrays from concrete input, traced arrays
      otherwise.
    """
    num_rows, num_cols = indptr.shape[0] - 1, transposed_indptr.shape[0] - 1
    num_edges = transposed_indices.shape[0]
    xp: Any = np if is_concrete(indptr, transposed_indptr, transposed_indices) else jnp
    if xp is np:
        senders = np.full(num_edges, num_cols, np.int32)
        columns = np.arange(num_cols, dtype=np.int32)
        senders[: transposed_indptr[-1]] = np.repeat(columns, np.diff(transposed_indptr))
    else:
        senders = row_ids(jnp.asarray(transposed_indptr), num_edges)
    shapes = BlockShape.choices(num_rows, num_cols, num_edges)
    row_order, places = None, transposed_indices
    if shapes[0].order != "given":
        communities = find_communities(indptr, transposed_indptr, transposed_indices, senders)
        degrees = xp.diff(xp.asarray(indptr)) if shapes[0].order == "degree" else None
        row_order = _order_rows(xp, degrees, communities)
        places = inverse_permutation(row_order)[transposed_indices]
    return tuple(
        _cut(xp, shape, row_order, places, senders, num_cols, permutation) for shape in shapes
    )


def _order_rows(xp, degrees, communities):
    """Rows that have most senders in common are to share a block, and long blocks to come first.

    Those are rows of many edges, then those of one community. Degrees up to the next power of two
    count as equal, and what is alike in both stays in the given order, so that what neighbours in
    that order have in common is not lost.
    """
    if degrees is None:
        return xp.argsort(communities, stable=True).astype(np.int32)
    degree_class = xp.searchsorted(2 ** xp.arange(31, dtype=np.int32), degrees, side="right")
    return xp.lexsort((communities, -degree_class)).astype(np.int32)


def _cut(xp, shape, row_order, places, senders, num_cols, permutation) -> EdgeBlocks:
    """The edges by block, given by the places of their rows in ``row_order`` and their senders."""
    num_edges = senders.shape[0]
    tile, sender = senders // shape.senders, senders % shape.senders
    block = tile * shape.row_blocks + places // shape.rows
    offsets, order = sort_edges(block, shape.num_blocks, senders < num_cols)
    row = (places % shape.rows).astype(np.uint32)
    entries = sender.astype(np.uint32) << np.uint32(ROW_BITS) | row
    padding = xp.zeros(-num_edges % _ENTRIES_ALIGNED, np.uint32)
    blocks, task_offsets = cut_rows(offsets, num_edges, shape.edges_per_task)
    return EdgeBlocks(
        row_order=row_order,
        entries=xp.concatenate([entries[order], padding]),
        edges=permutation[order],
        blocks=blocks,
        offsets=task_offsets,
        shape=shape,
    )
