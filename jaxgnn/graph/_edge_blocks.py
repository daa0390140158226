"""Edges grouped by block: how the backward of the k-sparse product walks a graph on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt

from jaxgnn.graph._arrays import is_concrete
from jaxgnn.graph._schedule import cut_rows
from jaxgnn.graph._sorting import row_ids, sort_edges

# Bits of an entry that name the row within its block; the others name the sender in its tile.
ROW_BITS = 8
# Kernels load entries in fours.
_ENTRIES_ALIGNED = 4


@dataclass(frozen=True)
class BlockShape:
    """How a graph is cut into blocks: every ``rows`` rows by every ``senders`` senders.

    Attributes:
      rows: rows of a block, whose gradients a multiprocessor holds in shared memory; less than
        2**ROW_BITS.
      senders: senders of a tile, whose sums a second-level cache holds.
      edges_per_task: edges that one thread block takes of a block at most.
      row_blocks: blocks side by side in one tile.
      tiles: of senders, one after another.
    """

    rows: int
    senders: int
    edges_per_task: int
    row_blocks: int
    tiles: int

    @classmethod
    def choose(cls, num_rows: int, num_cols: int, num_edges: int) -> BlockShape:
        """The one heuristic, measured on an H200 at width 256.

        Many rows in a block have senders in common, whose sums are then added once for all of
        them; that pays where rows have many edges. Otherwise a block only spares reading rows
        again, and small ones keep more thread blocks in flight. Each tile of senders reads all
        rows again, which costs little where rows have many edges.
        """
        many_edges = num_edges >= 128 * num_rows and num_rows >= 512 * _MANY_ROWS
        rows, most_senders = (_MANY_ROWS, 1 << 17) if many_edges else (_FEW_ROWS, 420_000)
        tiles = max(1, -(-num_cols // most_senders))
        return cls(
            rows=rows,
            senders=max(1, -(-num_cols // tiles)),
            edges_per_task=min(max(num_edges >> 10, 1 << 10), 1 << 15),
            row_blocks=max(1, -(-num_rows // rows)),
            tiles=tiles,
        )

    @property
    def num_blocks(self) -> int:
        """Blocks in all; block ``tile * row_blocks + rows`` comes after those before it."""
        return self.tiles * self.row_blocks

    def can_hold(self, row_bytes: int) -> bool:
        """Whether shared memory holds the rows of a block in a few passes."""
        return self.rows * row_bytes <= _MOST_BLOCK_BYTES


# At most two passes on an H100. Wider rows are walked one by one.
_MOST_BLOCK_BYTES = 448 * 1024
_MANY_ROWS, _FEW_ROWS = 208, 64


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class EdgeBlocks:
    """The edges of a graph by block, and by sender within a block; see ``BlockShape``.

    Task ``t`` is entries ``offsets[t]`` up to ``offsets[t + 1]`` of block ``blocks[t]``; unused
    tasks at the end have no entries.

    Attributes:
      entries: ``sender within the tile << ROW_BITS | row within the block`` of each edge, then
        zeros up to a multiple of four.
      edges: position of each in the graph.
      blocks: block of each task, int32.
      offsets: first entry of each task, and the end of the last.
    """

    entries: UInt[Array, " entries"]
    edges: Int[Array, " edges"]
    blocks: Int[Array, " tasks"]
    offsets: Int[Array, " tasks+1"]


def make_edge_blocks(
    transposed_indptr: Int[Array, " cols+1"] | np.ndarray,
    transposed_indices: Int[Array, " edges"] | np.ndarray,
    permutation: Int[Array, " edges"] | np.ndarray,
    num_rows: int,
) -> EdgeBlocks:
    """Groups the edges of a transposed graph, which are in the order of their senders.

    Args:
      transposed_indptr: offsets of the senders.
      transposed_indices: receiver of each edge.
      permutation: position of each edge in the graph itself.
      num_rows: receivers.

    Returns:
      numpy arrays from concrete input, traced arrays otherwise.
    """
    num_cols, num_edges = transposed_indptr.shape[0] - 1, transposed_indices.shape[0]
    shape = BlockShape.choose(num_rows, num_cols, num_edges)
    xp: Any = np if is_concrete(transposed_indptr, transposed_indices) else jnp
    if xp is np:
        senders = np.full(num_edges, num_cols, np.int32)
        columns = np.arange(num_cols, dtype=np.int32)
        senders[: transposed_indptr[-1]] = np.repeat(columns, np.diff(transposed_indptr))
    else:
        senders = row_ids(jnp.asarray(transposed_indptr), num_edges)
    tile, sender = senders // shape.senders, senders % shape.senders
    block = tile * shape.row_blocks + transposed_indices // shape.rows
    offsets, order = sort_edges(block, shape.num_blocks, senders < num_cols)
    row = (transposed_indices % shape.rows).astype(np.uint32)
    entries = sender.astype(np.uint32) << np.uint32(ROW_BITS) | row
    padding = xp.zeros(-num_edges % _ENTRIES_ALIGNED, np.uint32)
    blocks, task_offsets = cut_rows(offsets, num_edges, shape.edges_per_task)
    return EdgeBlocks(
        entries=xp.concatenate([entries[order], padding]),
        edges=permutation[order],
        blocks=blocks,
        offsets=task_offsets,
    )
