"""Ranks of ids among the distinct ids of an array, under ``jit``: two implementations.

The ids of a batch are relabelled by them. Both give the same ranks. Sorting takes time in
proportion to the ids. Marks take time and memory in proportion to the nodes of the graph too.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int32

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
    found = words.at[word].get(mode="clip")
    rank = ends.at[word].get(mode="clip") - lax.population_count(found & ~below).astype(jnp.int32)
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
