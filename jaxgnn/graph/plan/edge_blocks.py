"""Edges grouped by block, for the backward pass of the k-sparse product on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt

from jaxgnn._arrays.arrays import KeepsArrays, is_concrete, own
from jaxgnn.graph.plan.communities import find_communities
from jaxgnn.graph.plan.schedule import cut_rows
from jaxgnn.graph.plan.sorting import inverse_permutation, row_ids, row_ids_on_host, sort_edges

# Bits of an entry that name the row within its block; the others name the sender in its span.
ROW_BITS = 9
# Kernels read four or eight entries at a time.
_ENTRIES_ALIGNED = 8


class Limits(Protocol):
    """Memory of a GPU: its second-level cache, and the shared memory of a block of threads."""

    @property
    def cache_bytes(self) -> int: ...
    @property
    def shared_bytes(self) -> int: ...


class _H100:
    """Limits where no kernels have been imported, which know the GPU of this machine."""

    cache_bytes, shared_bytes = 50 * 2**20, 226 * 2**10


_current_limits: Callable[[], Limits] = _H100


def use_limits(current: Callable[[], Limits]) -> None:
    """Sets the function that returns the limits of the GPU for which edges are grouped."""
    global _current_limits
    _current_limits = current


@dataclass(frozen=True)
class BlockShape:
    """Shape of the blocks of a graph: every ``rows`` rows by every ``senders`` senders.

    Attributes:
      rows: number of rows of a block, whose gradients a multiprocessor holds in shared memory; less
        than 2**ROW_BITS.
      senders: number of senders of a span, limited by the bits of an entry.
      edges_per_task: maximum number of edges of a block that one thread block processes.
      row_blocks: number of blocks in one span.
      spans: number of spans, which are consecutive ranges of senders.
      tiles: numbers of tiles of senders into which a span may be cut, in ascending order.
      order: order of the rows: ``"degree"`` by descending degree, then by community;
        ``"community"`` by community alone; ``"given"`` by row number.
    """

    rows: int
    senders: int
    edges_per_task: int
    row_blocks: int
    spans: int
    tiles: tuple[int, ...]
    order: Literal["degree", "community", "given"]

    @classmethod
    def choices(
        cls, chip: Limits, num_rows: int, num_cols: int, num_edges: int
    ) -> tuple[BlockShape, ...]:
        """Returns the shapes in which to cut a graph; larger blocks are for narrower rows.

        Many rows in a block share senders, whose sums are added once for all these rows. This pays
        where rows have many edges, and pays more in larger blocks. Elsewhere a block only avoids
        reading rows again, and small blocks keep more thread blocks in flight.
        """
        options, many_edges = _rows_of_blocks(num_rows, num_edges)
        few_senders = num_cols <= _few_senders(chip)
        order = "degree" if many_edges else "given" if few_senders else "community"
        if 0 in (num_rows, num_cols):
            order = "given"
        spans = max(1, -(-num_cols // _MOST_SENDERS))
        senders = max(1, -(-num_cols // spans))
        # A task reads all rows of its block, however few of its edges it takes.
        most_edges = 1 << 18 if many_edges else 1 << 15
        return tuple(
            cls(
                rows=rows,
                senders=senders,
                edges_per_task=min(max(num_edges >> 10, 1 << 10), most_edges),
                row_blocks=max(1, -(-num_rows // rows)),
                spans=spans,
                tiles=_tiles(senders, many_edges),
                order=order,
            )
            for rows in options
        )

    @property
    def num_blocks(self) -> int:
        """Total number of blocks, which are numbered ``span * row_blocks + block of rows``."""
        return self.spans * self.row_blocks

    def senders_of(self, tiles: int) -> int:
        """Returns the number of senders of a tile, if a span is cut into ``tiles`` tiles."""
        return -(-self.senders // tiles)

    def tiles_for(self, chip: Limits, k: int, itemsize: int) -> int:
        """Returns the number of tiles, among ``tiles``, into which a span is best cut.

        Each tile reads the rows of a block again. Where rows have many edges the sums of a tile,
        ``k`` columns of float32 for each sender, should stay in the second-level cache. Elsewhere
        rows of one community soon bring their senders into the cache, and kernels prefetch the
        sums of larger tiles. ``itemsize`` is that of an entry of a row, in bytes.
        """
        if self.order == "degree":
            most = chip.cache_bytes * _CACHED_PARTS[itemsize] // _PARTS // (4 * k)
        else:
            most = _TILE_SENDERS[itemsize]
        return next((n for n in self.tiles if self.senders_of(n) <= most), self.tiles[-1])

    def can_hold(self, chip: Limits, row_bytes: int, passes: int) -> bool:
        """Returns whether shared memory holds the rows of a block in a number of passes."""
        return self.rows * row_bytes <= passes * (chip.shared_bytes - _BYTES_OF_KERNELS)


# Bytes of shared memory that kernels need in addition to the rows of a block.
_BYTES_OF_KERNELS = 2 * 1024
# Wider rows are processed one by one.
_MOST_PASSES = 2
# Blocks are large in graphs with at least this many rows, which give at least 128 blocks, and at
# least this many edges a row, as measured on an H200.
_MANY_ROWS, _MANY_EDGES = 16_384, 128
# Rows of a large block: this fraction of all rows, within these bounds; for narrow rows twice the
# fraction, up to the last of these numbers.
_LARGE_BLOCKS, _MANY_BLOCKS, _MOST_IN_BLOCK = (128, 144), 1024, 288
_SMALL_BLOCKS = 64
# Number of senders that the bits of an entry can represent.
_MOST_SENDERS = 1 << (32 - ROW_BITS)
# Bytes of the sums of a sender, if 32 columns are kept.
_BYTES_OF_FEW_SUMS = 32 * 4
# Sizes of a tile, by the bytes of an entry of the rows. Narrower rows are cheaper to read again, so
# that more tiles pay. With many edges in a row, the part of the second-level cache for the sums, in
# 25ths; elsewhere a number of senders, as measured on an H200.
_CACHED_PARTS, _PARTS = {2: 8, 4: 16}, 25
_TILE_SENDERS = {2: 7 << 17, 4: 5 << 18}
# With many edges in a row no tile is smaller: its tasks would have few edges.
_SMALL_TILE = 1 << 17


def _few_senders(chip: Limits) -> int:
    """Number of senders whose sums fit the second-level cache, where row order matters little."""
    return chip.cache_bytes // _BYTES_OF_FEW_SUMS


def _rows_of_blocks(num_rows: int, num_edges: int) -> tuple[tuple[int, ...], bool]:
    """Returns the possible numbers of rows of a block, ascending, and whether degrees are high."""
    if num_rows < _MANY_ROWS or num_edges < _MANY_EDGES * num_rows:
        return (_SMALL_BLOCKS,), False
    least, most = _LARGE_BLOCKS
    fewest = min(max(num_rows // _MANY_BLOCKS, least), most)
    most = min(2 * num_rows // _MANY_BLOCKS, _MOST_IN_BLOCK)
    # Blocks that are only slightly larger do not justify another list of the edges.
    return ((fewest, most) if most >= fewest + fewest // 4 else (fewest,)), True


def _tiles(senders: int, many_edges: bool) -> tuple[int, ...]:
    """Returns the numbers of tiles into which a span of ``senders`` senders may be cut."""
    if not many_edges:
        return tuple(sorted({-(-senders // most) for most in _TILE_SENDERS.values()}))
    most = -(-senders // _SMALL_TILE)
    return (*(1 << n for n in range((most - 1).bit_length())), most)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class BlockTasks(KeepsArrays):
    """The edges of all blocks, distributed to thread blocks, one tile of senders after another.

    Task ``t`` covers the entries from ``begins[t]`` up to ``ends[t]``, all of block ``blocks[t]``;
    unused tasks at the end have no entries.

    Attributes:
      blocks: block of each task, int32.
      begins: first entry of each task, int32.
      ends: index after the last entry of each task, int32.
      senders: maximum number of senders of a tile.
    """

    blocks: Int[Array, " tasks"]
    begins: Int[Array, " tasks"]
    ends: Int[Array, " tasks"]
    senders: int = field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class EdgeBlocks(KeepsArrays):
    """The edges of a graph ordered by block, and by sender within a block.

    Attributes:
      row_order: the rows in the order in which they are cut into blocks, int32, or None if that is
        the order of their numbers.
      entries: ``sender within the span << ROW_BITS | row within the block`` of each edge, then
        zeros up to a multiple of eight.
      edges: position of each entry's edge in the graph, which only graphs with weights need, or
        None.
      tasks: the tasks for each number of tiles in ``shape.tiles``.
      shape: shape of the blocks.
    """

    row_order: Int[Array, " rows"] | None
    entries: UInt[Array, " entries"]
    edges: Int[Array, " edges"] | None
    tasks: tuple[BlockTasks, ...]
    shape: BlockShape = field(metadata={"static": True})

    def tasks_for(self, chip: Limits, k: int, itemsize: int) -> BlockTasks:
        """Returns the tasks for the number of tiles that is best for these arguments."""
        return self.tasks[self.shape.tiles.index(self.shape.tiles_for(chip, k, itemsize))]


def blocks_for(chip: Limits, options: Sequence[EdgeBlocks], row_bytes: int) -> EdgeBlocks | None:
    """Returns the largest blocks whose rows of ``row_bytes`` fit shared memory, or None."""

    def held_in(passes):
        return [blocks for blocks in options if blocks.shape.can_hold(chip, row_bytes, passes)]

    if at_once := held_in(1):
        return at_once[-1]
    return next(iter(held_in(_MOST_PASSES)), None)


def make_edge_blocks(
    indptr: Int[Array, " rows+1"] | np.ndarray,
    transposed_indptr: Int[Array, " cols+1"] | np.ndarray,
    transposed_indices: Int[Array, " edges"] | np.ndarray,
    permutation: Int[Array, " edges"] | np.ndarray | None,
) -> tuple[EdgeBlocks, ...]:
    """Groups the edges of a transposed graph, in the order of their senders, by block.

    ``permutation`` has the position of each edge in the graph itself; None omits ``edges``.

    Returns:
      One for each of ``BlockShape.choices``; in numpy from concrete input, traced otherwise.
    """
    num_rows, num_cols = indptr.shape[0] - 1, transposed_indptr.shape[0] - 1
    num_edges = transposed_indices.shape[0]
    xp: Any = np if is_concrete(indptr, transposed_indptr, transposed_indices) else jnp
    if xp is np:
        senders = row_ids_on_host(transposed_indptr, num_edges)
    else:
        senders = row_ids(jnp.asarray(transposed_indptr), num_edges)
    shapes = BlockShape.choices(_current_limits(), num_rows, num_cols, num_edges)
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
    """Orders rows by descending degree, then by community, so that long blocks come first.

    Degrees are compared by their next power of two. The sort is stable, so that rows that are
    neighbours in the given order and share senders stay close.
    """
    if degrees is None:
        return xp.argsort(communities, stable=True).astype(np.int32)
    degree_class = xp.searchsorted(2 ** xp.arange(31, dtype=np.int32), degrees, side="right")
    return xp.lexsort((communities, -degree_class)).astype(np.int32)


def _cut(xp, shape, row_order, places, senders, num_cols, permutation) -> EdgeBlocks:
    """Orders the edges by block, from the positions of their rows in ``row_order`` and senders."""
    num_edges = senders.shape[0]
    span, sender = senders // shape.senders, senders % shape.senders
    block = span * shape.row_blocks + places // shape.rows
    offsets, order = sort_edges(block, shape.num_blocks, senders < num_cols)
    row = (places % shape.rows).astype(np.uint32)
    entries = (sender.astype(np.uint32) << np.uint32(ROW_BITS) | row)[order]
    padding = xp.zeros(-num_edges % _ENTRIES_ALIGNED, np.uint32)
    return EdgeBlocks(
        row_order=own(row_order),
        entries=own(xp.concatenate([entries, padding])),
        edges=None if permutation is None else own(permutation[order]),
        tasks=tuple(_share_out(xp, shape, tiles, entries, offsets) for tiles in shape.tiles),
        shape=shape,
    )


def _share_out(xp, shape, tiles, entries, offsets) -> BlockTasks:
    """Builds the tasks for a number of tiles; ``offsets`` delimit the entries of blocks."""
    first_senders = shape.senders_of(tiles) * np.arange(1, tiles, dtype=np.int32)
    block_begins, block_ends = offsets[:-1, None], offsets[1:, None]
    inner = _search(xp, entries, block_begins, block_ends, first_senders)
    bounds = xp.concatenate([block_begins, inner, block_ends], axis=1)
    # By span, tile and block, instead of by span, block and tile.
    bounds = bounds.reshape(shape.spans, shape.row_blocks, tiles + 1).swapaxes(1, 2)
    begins, ends = bounds[:, :-1].reshape(-1), bounds[:, 1:].reshape(-1)
    blocks = np.arange(shape.num_blocks, dtype=np.int32).reshape(shape.spans, 1, -1)
    blocks = xp.asarray(np.repeat(blocks, tiles, axis=1).reshape(-1))
    # Offsets as if the parts of blocks were stored in that order.
    indptr = xp.concatenate([xp.zeros(1, offsets.dtype), xp.cumsum(ends - begins)])
    indptr = indptr.astype(offsets.dtype)
    part, cuts = cut_rows(indptr, entries.shape[0], shape.edges_per_task)
    # Unused tasks look up a part after the last one.
    shift = xp.concatenate([begins - indptr[:-1], xp.zeros(1, offsets.dtype)])[part]
    return BlockTasks(
        blocks=own(xp.concatenate([blocks, xp.zeros(1, np.int32)])[part]),
        begins=own(cuts[:-1] + shift),
        ends=own(cuts[1:] + shift),
        senders=shape.senders_of(tiles),
    )


def _search(xp, entries, begins, ends, senders):
    """Finds, in ranges of entries sorted by sender, the first entry at or after ``senders``."""
    shape = np.broadcast_shapes(begins.shape, senders.shape)
    begins, ends = xp.broadcast_to(begins, shape), xp.broadcast_to(ends, shape)
    if 0 in (*shape, entries.shape[0]):
        return begins  # Without entries the rest would be traced for nothing.

    def halve(_, bounds):
        begins, ends = bounds
        middle = begins + (ends - begins) // 2
        row = entries[xp.minimum(middle, entries.shape[0] - 1)] >> np.uint32(ROW_BITS)
        below = (begins < ends) & (row.astype(np.int32) < senders)
        return xp.where(below, middle + 1, begins), xp.where(below, ends, middle)

    steps, bounds = entries.shape[0].bit_length(), (begins, ends)
    if xp is not np:
        return jax.lax.fori_loop(0, steps, halve, bounds)[0]
    for step in range(steps):
        bounds = halve(step, bounds)
    return bounds[0]
