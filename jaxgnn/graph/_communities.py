"""Communities: receivers of edges from much the same senders, found by majorities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Array, Int

from jaxgnn.graph._arrays import is_concrete, offset_dtype

# Ways in which the nodes are split in two; a community is what no split divides.
_SPLITS = 8
# Rounds at most: few where nodes have many neighbours. It ends once one of so many nodes changes.
_MOST_ROUNDS, _ONE_OF = 7, 1024
# One of so many edges must stay within its community; else rows are better ordered without.
_LEAST_INSIDE = 4


def find_communities(
    indptr: Int[Array, " rows+1"] | np.ndarray,
    transposed_indptr: Int[Array, " cols+1"] | np.ndarray,
    receivers: Int[Array, " edges"] | np.ndarray,
    senders: Int[Array, " edges"] | np.ndarray,
) -> Any:
    """A number for each receiver, equal for those that have much the same senders.

    Senders are split in two at random. Then, by turns, receivers and senders go to the side that is
    more frequent among their neighbours than among the ends of all edges, which soon has whole
    communities on one side. Several such splits tell communities apart: label propagation with two
    labels each. Where too few edges stay within what is found, all receivers have one number.
    Linear time; the same numbers on the host and traced.

    Args:
      indptr: offsets of the receivers.
      transposed_indptr: offsets of the senders.
      receivers: of each edge, in the order of their senders; any row where there is no edge.
      senders: of each edge, ascending; behind the last edge one that does not exist.

    Returns:
      [rows] int32, from 0 up to 255; numpy from concrete input, traced otherwise.
    """
    is_host = is_concrete(indptr, transposed_indptr, receivers, senders)
    xp: Any = np if is_host else jnp
    num_rows, num_cols = indptr.shape[0] - 1, transposed_indptr.shape[0] - 1
    row_degrees, col_degrees = xp.diff(xp.asarray(indptr)), xp.diff(xp.asarray(transposed_indptr))
    if is_host:
        to_rows, to_cols = _count_on_host(transposed_indptr, receivers, num_rows)
    else:
        to_rows, to_cols = _count_traced(num_rows, num_cols, receivers, senders)

    def take_turns(of_cols):
        of_rows = _join_majority(xp, to_rows(of_cols), row_degrees)
        return of_rows, _join_majority(xp, to_cols(of_rows), col_degrees)

    of_rows, of_cols = _repeat(is_host, take_turns, _split_at_random(xp, num_cols))
    names = 2 ** xp.arange(_SPLITS, dtype=np.int32)
    rows, cols = (xp.where(sides, names, 0).sum(1, dtype=np.int32) for sides in (of_rows, of_cols))
    real = senders < num_cols
    inside = real & (rows[receivers] == cols[xp.minimum(senders, num_cols - 1)])
    dtype = offset_dtype(receivers.shape[0])
    is_found = inside.sum(dtype=dtype) >= real.sum(dtype=dtype) // _LEAST_INSIDE
    return xp.where(is_found, rows, 0)


def _repeat(is_host: bool, take_turns: Callable, of_cols: Any) -> tuple[Any, Any]:
    """The sides of rows and columns once hardly any column changes its side, or at the limit."""

    def is_done(changed):
        return changed <= of_cols.size // _ONE_OF

    if is_host:
        for _ in range(_MOST_ROUNDS):
            before = of_cols
            of_rows, of_cols = take_turns(before)
            if is_done((of_cols != before).sum()):
                break
        return of_rows, of_cols

    def go_on(carry):
        count, *_, changed = carry
        return (count < _MOST_ROUNDS) & ~is_done(changed)

    def take(carry):
        count, _, before, _ = carry
        of_rows, of_cols = take_turns(before)
        return count + 1, of_rows, of_cols, (of_cols != before).sum(dtype=jnp.int32)

    of_rows, of_cols = take_turns(of_cols)
    first = jnp.int32(1), of_rows, of_cols, jnp.int32(of_cols.size)
    _, of_rows, of_cols, _ = jax.lax.while_loop(go_on, take, first)
    return of_rows, of_cols


def _split_at_random(xp, count: int) -> Any:
    """[count, _SPLITS] bool, a hash of the numbers of nodes, so that equal graphs stay equal."""
    bits = xp.arange(count, dtype=np.uint32) * np.uint32(0x9E3779B1)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        bits = (bits ^ bits >> np.uint32(shift)) * np.uint32(factor)
    bits = bits ^ bits >> np.uint32(16)
    return (bits[:, None] >> xp.arange(_SPLITS, dtype=np.uint32)) % 2 == 1


def _join_majority(xp, votes: Any, degrees: Any) -> Any:
    """Whether more of a node's neighbours are on the one side than of the ends of all edges.

    Two products are compared: those are rounded alike everywhere, quotients are not.
    """
    dtype = degrees.dtype
    own, of_all = votes.astype(np.float32), votes.sum(0, dtype=dtype).astype(np.float32)
    degree, ends = degrees.astype(np.float32), degrees.sum(dtype=dtype).astype(np.float32)
    return own * ends > degree[:, None] * of_all


def _count_on_host(transposed_indptr, receivers, num_rows) -> tuple[Callable, Callable]:
    """Functions that count each node's neighbours on the one side, int32."""
    ones = np.ones(len(receivers), np.int32)
    edges = scipy.sparse.csr_array(
        (ones, receivers, transposed_indptr), shape=(len(transposed_indptr) - 1, num_rows)
    )
    return (lambda sides: edges.T @ sides.astype(np.int32)), (
        lambda sides: edges @ sides.astype(np.int32)
    )


def _count_traced(num_rows, num_cols, receivers, senders) -> tuple[Callable, Callable]:
    def to_rows(of_cols):
        sides = of_cols.at[senders].get(mode="fill", fill_value=False).astype(jnp.int32)
        return jax.ops.segment_sum(sides, receivers, num_rows)

    def to_cols(of_rows):
        # Senders that do not exist get no sum.
        sides = of_rows[receivers].astype(jnp.int32)
        return jax.ops.segment_sum(sides, senders, num_cols, indices_are_sorted=True)

    return to_rows, to_cols
