"""Numbers in the whole graph of the edges of one device's rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt32

from jaxgnn._arrays.arrays import KeepsArrays

_HALF = np.uint32(16)
_LOW = np.uint32(0xFFFF)
_WORD = np.uint64(0xFFFFFFFF)


class Words(NamedTuple):
    """Unsigned integers of 64 bits, as two words of 32: JAX has no 64-bit integers by default."""

    high: UInt32[Array, "*shape"] | np.ndarray
    low: UInt32[Array, "*shape"] | np.ndarray

    @classmethod
    def of_host(cls, numbers: np.ndarray) -> Words:
        """Returns numbers of numpy, which are not negative."""
        numbers = numbers.astype(np.uint64)
        low = (numbers & _WORD).astype(np.uint32)
        return cls((numbers >> np.uint64(32)).astype(np.uint32), low)

    def plus(self, others: Words) -> Words:
        """Sums of these numbers and others, which are broadcast against each other."""
        low = self.low + others.low
        carried = (low < others.low).astype(jnp.uint32)
        return Words(self.high + others.high + carried, low)

    def times(self, factor: int) -> Words:
        """Returns each number times ``factor``, which is at most 2^16."""
        small = (self.low & _LOW) * np.uint32(factor)
        large = (self.low >> _HALF) * np.uint32(factor) + (small >> _HALF)
        high = self.high * np.uint32(factor) + (large >> _HALF)
        return Words(high, (large << _HALF) | (small & _LOW))


def totals_before(counts: UInt32[Array, " n"], total: int) -> UInt32[Array, "n 2"]:
    """Returns the sum of the counts before each one, in two words, the higher one first.

    ``total`` is a bound of their sum. Below 2^32 one word is enough, and its sums take one pass.
    """
    zeros = jnp.zeros_like(counts)
    if total < 1 << 32:
        ends = Words(zeros, jnp.cumsum(counts, dtype=jnp.uint32))
    else:
        ends = jax.lax.associative_scan(Words.plus, Words(zeros, counts))
    return jnp.stack([jnp.pad(word[:-1], (1, 0)) for word in ends], axis=1)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class EdgeNumbers(KeepsArrays):
    """Numbers of the edges of each row of a device among the edge slots of the whole graph.

    Attributes:
      first: number of the first edge of each row in two words, the higher one first, uint32
        [rows, 2]; zero for padding rows. The others of the row follow.
      total: number of edge slots of the whole graph.
    """

    first: UInt32[Array, "rows 2"]
    total: int = field(metadata={"static": True})

    def of_slots(self, indptr: Int[Array, " rows+1"], receivers: Int[Array, " edges"]) -> Words:
        """Returns the number of each edge slot of the device; undefined for padding slots."""
        rows = jnp.minimum(receivers, self.first.shape[0] - 1)
        behind = jnp.arange(receivers.shape[0], dtype=indptr.dtype) - indptr[rows]
        first = self.first[rows]
        return Words(first[:, 0], first[:, 1]).plus(
            Words(jnp.zeros((), jnp.uint32), behind.astype(jnp.uint32))
        )
