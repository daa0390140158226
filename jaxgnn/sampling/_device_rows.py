"""Draws of edges of many rows under ``jit``, with static shapes; ``_reference.py`` defines them."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int32

from jaxgnn.graph.plan.sorting import row_ids
from jaxgnn.sampling._dense_ranks import sort_rows
from jaxgnn.sampling._device_random import Words, below, draw, mixed
from jaxgnn.sampling._edges_left import EdgesLeft

MAX_FANOUT = 64
"""Largest fan-out of draws on the device, but for that of all neighbours."""


class Rows(NamedTuple):
    """Rows of the graph to draw from.

    Attributes:
      node: the node of each row, 0 for padding.
      first: its first edge, by its rank among the edges that are left.
      degree: its number of edges that are left, 0 for padding.
      left: the edges of the graph without those that are excluded; None without exclusion.
    """

    node: Int32[Array, " rows"]
    first: Int32[Array, " rows"]
    degree: Int32[Array, " rows"]
    left: EdgesLeft | None = None

    def positions(self, ranks: Array) -> Array:
        """Positions in the graph of edges by their ranks; padding, which is -1, stays."""
        if self.left is None:
            return ranks
        return jnp.where(ranks >= 0, self.left.positions(ranks), -1)


class Drawn(NamedTuple):
    """Edges drawn for each row.

    Attributes:
      indptr: first edge of each row.
      e_id: position in the graph of each edge, ascending within a row; -1 for padding.
      candidates: number of edges that were looked at, where that needs slots, or 0.
    """

    indptr: Int32[Array, " rows+1"]
    e_id: Int32[Array, " slots"]
    candidates: Int32[Array, ""]


def draw_all(rows: Rows, slots: int) -> Drawn:
    """Takes all edges of each row."""
    indptr = _offsets(rows.degree)
    e_id, _ = _all_edges(rows, indptr, slots)
    return Drawn(indptr, e_id, jnp.int32(0))


def draw_uniform(key: Words, rows: Rows, fanout: int, slots: int, *, replace: bool) -> Drawn:
    """Draws ``fanout`` edges of each row, uniformly."""
    slot = jnp.arange(fanout, dtype=jnp.int32)[:, None]
    words = draw(key, rows.node, slot)
    if replace:
        offsets = below(words, jnp.broadcast_to(rows.degree, words[0].shape))
        counts = jnp.where(rows.degree > 0, fanout, 0)
    else:
        offsets = _distinct_offsets(words, rows.degree)
        counts = jnp.minimum(rows.degree, fanout)
    offsets = _ascending(lax.optimization_barrier(offsets))
    indptr = _offsets(counts)
    places = jnp.where(slot < counts, indptr[:-1] + slot, slots)
    ranks = _empty(slots).at[places].set(rows.first + offsets, mode="drop")
    return Drawn(indptr, rows.positions(ranks), jnp.int32(0))


def draw_labor(
    key: Words,
    next_key: Words | None,
    factors: tuple[Array, Array],
    rows: Rows,
    indices: Array,
    fanout: int,
    slots: int,
    candidate_slots: int,
) -> Drawn:
    """Keeps the edges of each row whose senders drew the least numbers.

    With a next key, the numbers are those of both, mixed. All edges of the rows are candidates.
    They are sorted by row and number, in stable sorts of 32 bits each from the lowest word on.
    """
    starts = _offsets(rows.degree)
    e_id, row = _all_edges(rows, starts, candidate_slots)
    senders = jnp.maximum(indices.at[jnp.maximum(e_id, 0)].get(mode="clip"), 0)
    words = draw(key, senders, jnp.int32(0))
    if next_key is not None:
        words = mixed(words, draw(next_key, senders, jnp.int32(0)), factors)
    order = _then_by(_then_by(None, words[1], 1 << 32), words[0], 1 << 32)
    order = _then_by(order, row, rows.node.shape[0] + 1)
    # Rows keep their places in the sort by rows, so the start of a row tells the rank in it.
    place = jnp.arange(candidate_slots, dtype=jnp.int32)
    is_least = (place - starts[row] < fanout) & (place < starts[-1])
    kept = jnp.zeros((candidate_slots,), bool).at[order].set(is_least)
    kept_place = jnp.where(kept, jnp.cumsum(kept, dtype=jnp.int32) - 1, slots)
    chosen = _empty(slots).at[kept_place].set(e_id, mode="drop")
    return Drawn(_offsets(jnp.minimum(rows.degree, fanout)), chosen, starts[-1])


def _distinct_offsets(words: Words, degree: Array) -> Array:
    """Distinct offsets by Floyd's method, [fanout, rows]; for short rows those of all edges.

    Slot i draws up to ``last_i = degree - fanout + i`` and takes ``last_i`` itself if a slot before
    it has the number drawn. A number is held before if it was drawn before, or if it is the
    ``last`` of a slot that took it. Only this second case is a chain from slot to slot, which bits
    of a word follow.
    """
    fanout, num_rows = words[0].shape
    slot = jnp.arange(fanout, dtype=jnp.int32)[:, None]
    last = degree - fanout + slot
    drawn = lax.optimization_barrier(below(words, jnp.maximum(last + 1, 1)))
    is_before = (slot > slot.T)[:, :, None]
    is_repeated = ((drawn[:, None] == drawn[None, :]) & is_before).any(axis=1)
    owner = drawn - (degree - fanout)  # the slot whose `last` was drawn, if there is one
    took_last = [jnp.zeros((num_rows,), jnp.uint32) for _ in range(0, fanout, 32)]
    is_taken = []
    for i in range(fanout):
        word = took_last[0] if i < 32 else jnp.where(owner[i] < 32, *took_last)
        bit = word >> (owner[i] & 31).astype(jnp.uint32) & np.uint32(1)
        taken = is_repeated[i] | ((owner[i] >= 0) & (owner[i] < i) & (bit > 0))
        took_last[i // 32] = took_last[i // 32] | taken.astype(jnp.uint32) << np.uint32(i % 32)
        is_taken.append(taken)
    return jnp.where(degree > fanout, jnp.where(jnp.stack(is_taken), last, drawn), slot)


def _ascending(offsets: Array) -> Array:
    """Sorts each column of [fanout, rows], by counting the smaller entries of each."""
    slot = jnp.arange(offsets.shape[0], dtype=jnp.int32)[:, None]
    is_less = offsets[None, :] < offsets[:, None]
    is_less |= (offsets[None, :] == offsets[:, None]) & (slot > slot.T)[:, :, None]
    rank = lax.optimization_barrier(jnp.sum(is_less, axis=1, dtype=jnp.int32))
    is_at = rank[None, :] == slot[:, :, None]
    return jnp.sum(jnp.where(is_at, offsets[None, :], 0), axis=1, dtype=jnp.int32)


def _all_edges(rows: Rows, indptr: Array, slots: int) -> tuple[Array, Array]:
    """All edges of rows in their order: positions in the graph, -1 for padding, and rows."""
    slot = jnp.arange(slots, dtype=jnp.int32)
    row = row_ids(indptr, slots)
    inside = jnp.minimum(row, rows.first.shape[0] - 1)
    ranks = rows.first[inside] + (slot - indptr[inside])
    return rows.positions(jnp.where(slot < indptr[-1], ranks, -1)), row


def _then_by(order: Array | None, keys: Array, bound: int) -> Array:
    """Sorts places by another key, keeping the order of those of equal keys."""
    if order is None:
        return sort_rows(keys, bound)[1]
    return order[sort_rows(keys[order], bound)[1]]


def _offsets(counts: Array) -> Array:
    return jnp.concatenate([jnp.zeros((1,), jnp.int32), jnp.cumsum(counts, dtype=jnp.int32)])


def _empty(slots: int) -> Array:
    return jnp.full((slots,), -1, jnp.int32)
