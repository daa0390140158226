"""Parts of the sampler on the device: random numbers, draws of rows, ranks of ids."""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int32

from jaxgnn.graph.plan.sorting import row_ids
from jaxgnn.sampling.reference import EdgesLeft

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


Words = tuple[Array, Array]
"""Two arrays of uint32: a key, a counter, or the halves of random words of 64 bits."""


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


_PARITY = np.uint32(0x1BD11BDA)


_HALF, _LOW = np.uint32(16), np.uint32(0xFFFF)


def threefry_2x32(key: Words, counter: Words) -> Words:
    """Encrypts a counter of two uint32 words by a key of two words; arrays broadcast."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    first, second = counter[0] + keys[0], counter[1] + keys[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            first = first + second
            second = second << np.uint32(rotation) | second >> np.uint32(32 - rotation)
            second = second ^ first
        first = first + keys[(group + 1) % 3]
        second = second + keys[(group + 2) % 3] + np.uint32(group + 1)
    return first, second


def hop_key(seed: Words, epoch: Array, step: Array, hop: int, stream: int) -> Words:
    """The key of one stream of random numbers of one hop of a batch."""
    batch_key = threefry_2x32(seed, (epoch, step))
    return threefry_2x32(batch_key, (jnp.uint32(hop), jnp.uint32(stream)))


def draw(key: Words, nodes: Array, slots: Array) -> Words:
    """Random words for pairs of a node and a slot, both int32 and not negative; they broadcast."""
    return threefry_2x32(key, (nodes.astype(jnp.uint32), slots.astype(jnp.uint32)))


def below(words: Words, bounds: Array) -> Array:
    """Integers in [0, bound), int32: the upper half of word times bound."""
    high, low = words
    bounds = bounds.astype(jnp.uint32)
    across = high * bounds
    carried = across + _upper_product(low, bounds) < across
    return (_upper_product(high, bounds) + carried.astype(jnp.uint32)).astype(jnp.int32)


def mixed(words: Words, next_words: Words, factors: tuple[Array, Array]) -> Words:
    """Sums of the upper halves of two words times factors of at most 2^31."""
    now, then = (words[0], factors[0]), (next_words[0], factors[1])
    low = now[0] * now[1]
    total = low + then[0] * then[1]
    carried = (total < low).astype(jnp.uint32)
    return _upper_product(*now) + _upper_product(*then) + carried, total


def _upper_product(a: Array, b: Array) -> Array:
    """The upper 32 bits of products of uint32, from parts of 16 bits."""
    (a_high, a_low), (b_high, b_low) = ((x >> _HALF, x & _LOW) for x in (a, b))
    across, back = a_low * b_high, a_high * b_low
    carried = (a_low * b_low >> _HALF) + (across & _LOW) + (back & _LOW)
    return a_high * b_high + (across >> _HALF) + (back >> _HALF) + (carried >> _HALF)


Relabelling = Literal["sort", "marks"]
"""Implementation of ranks: a radix sort, or a mark for each node of the graph."""


_WORD = 32  # nodes of a word of marks


class Ranks(NamedTuple):
    """Ranks of ids.

    Attributes:
      rank: place of each id among the distinct ids, ascending; for padding anything.
      count: number of distinct ids.
      marks: the marks of all ids so far, or None.
    """

    rank: Int32[Array, " ids"]
    count: Int32[Array, ""]
    marks: Array | None


def new_marks(how: Relabelling, num_nodes: int) -> Array | None:
    """The marks for no ids: a byte for each node of the graph."""
    if how == "sort":
        return None
    return jnp.zeros((-(-num_nodes // _WORD) * _WORD,), jnp.uint8)


def dense_ranks(ids: Int32[Array, " ids"], num_nodes: int, marks: Array | None) -> Ranks:
    """Ranks ids; those that equal ``num_nodes`` are padding.

    Args:
      ids: ids of nodes. With marks they must include all ids of former calls.
      num_nodes: number of nodes of the graph.
      marks: the marks of a former call or of ``new_marks``; None to sort instead.
    """
    return _by_sorting(ids, num_nodes) if marks is None else _by_marks(ids, num_nodes, marks)


def _by_sorting(ids: Array, num_nodes: int) -> Ranks:
    keys, places = sort_rows(ids, num_nodes + 1)
    starts = jnp.concatenate([jnp.ones((1,), bool), keys[1:] != keys[:-1]])
    rank = jnp.zeros_like(ids).at[places].set(jnp.cumsum(starts, dtype=jnp.int32) - 1)
    return Ranks(rank, jnp.sum(starts & (keys < num_nodes), dtype=jnp.int32), None)


def _by_marks(ids: Array, num_nodes: int, marks: Array) -> Ranks:
    places = jnp.where(ids < num_nodes, ids, marks.shape[0])
    marks = marks.at[places].set(np.uint8(1), mode="drop")
    bits = jnp.arange(_WORD, dtype=jnp.uint32)
    words = jnp.sum(marks.reshape(-1, _WORD).astype(jnp.uint32) << bits, axis=1, dtype=jnp.uint32)
    ends = jnp.cumsum(lax.population_count(words), dtype=jnp.int32)
    word, below = ids // _WORD, (np.uint32(1) << (ids % _WORD).astype(jnp.uint32)) - np.uint32(1)
    # The ends of words and the bits of words that are not below a node in its own word.
    word_bits = words.at[word].get(mode="clip")
    rank = ends.at[word].get(mode="clip") - lax.population_count(word_bits & ~below).astype(
        jnp.int32
    )
    return Ranks(rank, ends[-1], marks)


def sort_rows(keys: Array, bound: int) -> tuple[Array, Array]:
    """Sorts integers from 0 to ``bound`` - 1, stably.

    XLA has a radix sort for unsigned keys of 32 bits with one more operand. Under ``vmap`` the
    arrays of all batches are sorted at once where 32 bits hold the number of a batch too, since XLA
    sorts each of several arrays by a single multiprocessor.

    Returns:
      The sorted keys, uint32, and their places before, int32.
    """

    @jax.custom_batching.custom_vmap
    def sort(keys):
        places = jnp.arange(keys.shape[0], dtype=jnp.int32)
        return lax.sort((keys, places), num_keys=1, is_stable=True)

    @sort.def_vmap
    def _of_batches(size, is_batched, keys):
        if not is_batched[0]:
            return sort(keys), (False, False)
        length = keys.shape[1]
        if size * bound > 2**32 or size * length >= 2**31:
            places = lax.broadcasted_iota(jnp.int32, keys.shape, 1)
            sorted_each = lax.sort((keys, places), dimension=1, num_keys=1, is_stable=True)
            return tuple(sorted_each), (True, True)
        first = (jnp.arange(size, dtype=jnp.uint32) * np.uint32(bound % 2**32))[:, None]
        joined, places = sort((keys + first).reshape(-1))
        joined, places = joined.reshape(keys.shape), places.reshape(keys.shape)
        begin = (jnp.arange(size, dtype=jnp.int32) * length)[:, None]
        return (joined - first, places - begin), (True, True)

    return sort(keys.astype(jnp.uint32))
