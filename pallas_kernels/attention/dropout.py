"""Dropout of edges for each head, by a hash of the seed, the edge's slot and the head.

It computes the same as ``jaxgnn.ops._attention.reference.dropout``, in SIMT code.
"""

from __future__ import annotations

from dataclasses import dataclass

from pallas_kernels.arguments.attention import Form
from pallas_kernels.attention.lanes import Lanes
from pallas_kernels.simt.values import Array, Value

# Odd multipliers of a mixing function with low bias (https://nullprogram.com/blog/2018/07/31/), and
# the golden ratio, which spreads the numbers of heads over all bits.
_FIRST, _SECOND, _HEADS = 0x7FEB352D, 0x846CA68B, 0x9E3779B9


@dataclass(frozen=True)
class Dropout:
    """The state that decides which edges are dropped, in the registers of a lane.

    Attributes:
      edges: word that numbers of edges are combined with, u32.
      head: word of the lane's head, u32.
      form: how many of the 2^32 words of the hash drop an edge.
    """

    edges: Value
    head: Value
    form: Form

    @classmethod
    def load(cls, lanes: Lanes, seed: Array | None, form: Form) -> Dropout | None:
        """Loads the two words of the seed, [2] uint32; returns None without one."""
        if seed is None:
            return None
        return cls(seed.load(0), seed.load(1) + lanes.head.bits("u32") * _HEADS, form)

    def kept(self, slot: Value, value: Value) -> Value:
        """Returns a value, or zero where the edge is dropped; only 32 bits of its slot are used."""
        edge = _mix(self.edges ^ slot.to("i32").bits("u32"))
        return value.warp.select(_mix(edge ^ self.head) >= self.form.dropped, value, 0.0)


def _mix(word: Value) -> Value:
    word = (word ^ (word >> 16)) * _FIRST
    word = (word ^ (word >> 15)) * _SECOND
    return word ^ (word >> 16)
