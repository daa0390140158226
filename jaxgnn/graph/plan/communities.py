"""Communities of receivers with mostly the same senders, found by label propagation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Int

from jaxgnn._arrays.arrays import is_concrete, offset_dtype

# Number of two-way splits of the nodes. The sides of a node in all splits are the bits of the
# number of its community.
_SPLITS = 8
# Maximum of rounds; they stop earlier where at most one in this many senders still changes its
# side.
_MOST_ROUNDS, _ONE_OF = 7, 1024
# At least one in this many edges must stay within its community, or communities are not used.
_LEAST_INSIDE = 4

# Maps the sides of the nodes at the other ends, [others, _SPLITS] bool, to the number of each
# node's neighbours on the true side, [nodes, _SPLITS] int32.
Count = Callable[[Any], Any]


def find_communities(
    indptr: Int[Array, " rows+1"] | np.ndarray,
    transposed_indptr: Int[Array, " cols+1"] | np.ndarray,
    receivers: Int[Array, " edges"] | np.ndarray,
    senders: Int[Array, " edges"] | np.ndarray,
) -> Any:
    """Returns a community for each receiver; receivers with similar senders mostly share one.

    Senders are split in two at random. Then receivers and senders alternately move to the side that
    is more frequent among their neighbours than among the ends of all edges: label propagation with
    two labels. Several such splits distinguish the communities. Where too few edges stay within the
    communities found, all receivers get one number. Linear time; host and traced results are equal.

    Args:
      indptr: row offsets of the receivers. There must be at least one receiver and one sender.
      transposed_indptr: row offsets of the senders.
      receivers: receiver of each edge, ordered by sender; any row for padding.
      senders: sender of each edge, ascending; after the last edge a sender that does not exist.

    Returns:
      [rows] int32, from 0 up to 255; numpy from concrete input, traced otherwise.
    """
    is_host = is_concrete(indptr, transposed_indptr, receivers, senders)
    xp: Any = np if is_host else jnp
    num_rows, num_cols = indptr.shape[0] - 1, transposed_indptr.shape[0] - 1
    row_degrees, col_degrees = xp.diff(xp.asarray(indptr)), xp.diff(xp.asarray(transposed_indptr))
    if is_host:
        count_of_rows, count_of_cols = _counts_on_host(transposed_indptr, receivers, num_rows)
    else:
        count_of_rows, count_of_cols = _counts_traced(num_rows, num_cols, receivers, senders)

    def take_turns(col_sides):
        row_sides = _join_majority(xp, count_of_rows(col_sides), row_degrees)
        return row_sides, _join_majority(xp, count_of_cols(row_sides), col_degrees)

    row_sides, col_sides = _repeat(is_host, take_turns, _split_at_random(xp, num_cols))
    bits = 2 ** xp.arange(_SPLITS, dtype=np.int32)
    row_codes, col_codes = (
        xp.where(sides, bits, 0).sum(1, dtype=np.int32) for sides in (row_sides, col_sides)
    )
    real = senders < num_cols
    inside = real & (row_codes[receivers] == col_codes[xp.minimum(senders, num_cols - 1)])
    dtype = offset_dtype(receivers.shape[0])
    is_found = inside.sum(dtype=dtype) >= real.sum(dtype=dtype) // _LEAST_INSIDE
    return xp.where(is_found, row_codes, 0)


def _repeat(is_host: bool, take_turns: Callable, col_sides: Any) -> tuple[Any, Any]:
    """Repeats rounds until hardly any column changes its side, or up to the limit."""

    def take(before):
        row_sides, col_sides = take_turns(before)
        changed = (col_sides != before).any(1).sum(dtype=np.int32)
        return row_sides, col_sides, changed > col_sides.shape[0] // _ONE_OF

    if is_host:
        for _ in range(_MOST_ROUNDS):
            row_sides, col_sides, goes_on = take(col_sides)
            if not goes_on:
                break
        return row_sides, col_sides
    _, row_sides, col_sides, _ = jax.lax.while_loop(
        lambda carry: (carry[0] < _MOST_ROUNDS) & carry[-1],
        lambda carry: (carry[0] + 1, *take(carry[2])),
        (jnp.int32(1), *take(col_sides)),
    )
    return row_sides, col_sides


def _split_at_random(xp, count: int) -> Any:
    """Random sides [count, _SPLITS] bool from a hash of node ids, equal for equal graphs."""
    bits = xp.arange(count, dtype=np.uint32) * np.uint32(0x9E3779B1)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        bits = (bits ^ bits >> np.uint32(shift)) * np.uint32(factor)
    bits = bits ^ bits >> np.uint32(16)
    return (bits[:, None] >> xp.arange(_SPLITS, dtype=np.uint32)) % 2 == 1


def _join_majority(xp, counts: Any, degrees: Any) -> Any:
    """Whether the true side is more frequent among a node's neighbours than among all edge ends.

    Products of integers, each rounded to float32 once, are equal on all devices.
    """
    dtype = degrees.dtype
    weights, of_all = counts.astype(np.float32), counts.sum(0, dtype=dtype).astype(np.float32)
    degree, ends = degrees.astype(np.float32), degrees.sum(dtype=dtype).astype(np.float32)
    return weights * ends > degree[:, None] * of_all


def _counts_on_host(transposed_indptr, receivers, num_rows) -> tuple[Count, Count]:
    """Returns functions that count the sides of the neighbours of rows and columns, in numpy."""
    ones = np.ones(len(receivers), np.int32)
    edges = scipy.sparse.csr_array(
        (ones, receivers, transposed_indptr), shape=(len(transposed_indptr) - 1, num_rows)
    )

    def count_of_rows(col_sides):
        return edges.T @ col_sides.astype(np.int32)

    def count_of_cols(row_sides):
        return edges @ row_sides.astype(np.int32)

    return count_of_rows, count_of_cols


def _counts_traced(num_rows, num_cols, receivers, senders) -> tuple[Count, Count]:
    """Returns functions that count the sides of the neighbours of rows and columns, traced."""

    def count_of_rows(col_sides):
        sides = col_sides.at[senders].get(mode="fill", fill_value=False).astype(jnp.int32)
        return jax.ops.segment_sum(sides, receivers, num_rows)

    def count_of_cols(row_sides):
        # Padding senders are dropped from the sums.
        sides = row_sides[receivers].astype(jnp.int32)
        return jax.ops.segment_sum(sides, senders, num_cols, indices_are_sorted=True)

    return count_of_rows, count_of_cols
