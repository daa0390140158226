"""Which edges are left out for a head: a hash of the seed, the edge's slot and the head.

It is ``jaxgnn.ops._attention.reference.dropout`` in the vocabulary of a warp.
"""

from __future__ import annotations

from dataclasses import dataclass

from pallas_kernels.attention.lanes import Lanes
from pallas_kernels.simt.values import Array, Value

# Odd multipliers of a mixing function of low bias (https://nullprogram.com/blog/2018/07/31/), and
# the golden ratio, which spreads the numbers of heads over all bits.
_FIRST, _SECOND, _HEADS = 0x7FEB352D, 0x846CA68B, 0x9E3779B9


@dataclass(frozen=True)
class Dropout:
    """What decides about edges.

    Attributes:
      lanes: places of the lanes.
      seed: two words, [2] uint32.
      dropped: of the 2^32 words of the hash, how many leave an edge out.
    """

    lanes: Lanes
    seed: Array
    dropped: int

    def keeps(self, slot: Value) -> Value:
        """Returns whether an edge counts for the lane's head; of its slot 32 bits count."""
        edge = _mix(self.seed.load(0) ^ slot.to("i32").bits("u32"))
        number = self.seed.load(1) + self.lanes.head.bits("u32") * _HEADS
        return _mix(edge ^ number) >= self.dropped


def _mix(word: Value) -> Value:
    word = (word ^ (word >> 16)) * _FIRST
    word = (word ^ (word >> 15)) * _SECOND
    return word ^ (word >> 16)
