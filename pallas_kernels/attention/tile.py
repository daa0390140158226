"""How the warps of a kernel of attention share edges, heads and columns."""

from __future__ import annotations

from dataclasses import dataclass

from pallas_kernels.chip import Chip
from pallas_kernels.simt.warp import LANES

_LOAD_BYTES = 16
# A lane has so many columns, in at most so many loads, where a head is wide enough for all lanes.
_COLUMNS, _LOADS = 8, 2
# What edges gather in one slice should fit this part of the second-level cache, if rows have so
# many edges that passing over them once more costs little.
_CACHE_SHARE = 0.8
_MANY_EDGES = 64
# Neighbours that a lane may read at once, most first, and the registers for them.
_AHEAD = (4, 2)
_REGISTERS = 32


@dataclass(frozen=True)
class AttentionTile:
    """How the warps share the work of one pass over the edges.

    The lanes of a warp are ``groups`` times ``heads`` teams of ``lanes`` lanes. Each group has a
    neighbour of its own, each team one of its heads, and each lane some columns of that head.

    Attributes:
      lanes: lanes of a team, a power of two.
      heads: heads that a warp has at once, a power of two; the others come in other slices.
      ahead: neighbours that a lane reads before it uses them.
      warps: warps of a block.
    """

    lanes: int
    heads: int
    ahead: int
    warps: int = 8

    @property
    def groups(self) -> int:
        """How many neighbours a warp has at once."""
        return LANES // (self.lanes * self.heads)

    def slices(self, heads: int) -> int:
        """Returns how many passes over the edges there are, each for other heads."""
        return -(-heads // self.heads)

    @classmethod
    def choose(cls, chip: Chip, rows: int, cols: int, edges: int, work: Work) -> AttentionTile:
        """The one heuristic, for a pass over ``edges`` edges of ``rows`` rows.

        A lane has eight columns. A warp has all heads at once, or fewer where that keeps what is
        gathered of the ``cols`` neighbours in the second-level cache.
        """
        entries = entries_at_once(work.width, work.itemsize)
        loads = -(-work.width // entries)
        each = max(1, min(_LOADS, _COLUMNS // entries))
        lanes = min(LANES, _power_of_two(-(-loads // each)))
        heads = min(LANES // lanes, _power_of_two(work.heads))
        node_bytes = work.arrays * work.width * work.itemsize
        if edges >= _MANY_EDGES * rows:
            cached = _CACHE_SHARE * chip.cache_bytes
            while heads > 1 and cols * heads * node_bytes > cached:
                heads //= 2
        columns = work.arrays * entries * -(-loads // lanes)
        groups = LANES // (lanes * heads)
        average = edges // max(rows, 1) + 1
        enough = (n for n in _AHEAD if average >= n * groups and n * columns <= _REGISTERS)
        return cls(lanes, heads, next(enough, 1))


@dataclass(frozen=True)
class Work:
    """What a pass reads of each neighbour.

    Attributes:
      heads: how many heads there are.
      width: columns of a head.
      arrays: arrays of so many columns that are gathered.
      itemsize: bytes of an entry.
    """

    heads: int
    width: int
    arrays: int
    itemsize: int


def entries_at_once(width: int, itemsize: int) -> int:
    """Returns how many neighbouring columns of a head a lane loads at once: 16 bytes, or fewer."""
    return min(_LOAD_BYTES // itemsize, width & -width)


def _power_of_two(count: int) -> int:
    """Returns the least power of two that is not below ``count``."""
    return 1 << (count - 1).bit_length()
