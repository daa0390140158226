"""Division of edges, heads and columns among the warps of a kernel of attention."""

from __future__ import annotations

from dataclasses import dataclass

from pallas_kernels.chip import Chip
from pallas_kernels.simt.warp import LANES

_LOAD_BYTES = 16
# Most columns of a lane, where a head is wide enough for all lanes.
_COLUMNS = 8
# The data that edges gather from an array in one slice should be at most this multiple of the
# second-level cache, if rows have so many edges that another pass over them costs little. The
# multiple is above one, since in real graphs most edges end at a few nodes.
_CACHE_SHARE = 1.5
_MANY_EDGES = 64
# How many neighbours a lane reads at once, most first: the first number is used whose registers do
# not exceed this limit, and for which the average row has edges for this many steps.
_AHEAD = ((4, 72), (2, 80))
_STEPS = 2
# Numbers of 16 bits take half a register as they are read, and one more when they are used.
_REGISTERS = {2: 1.5, 4: 1.0}


@dataclass(frozen=True)
class AttentionTile:
    """Division of the work of one pass over the edges among warps.

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
        """Number of neighbours that a warp has at once."""
        return LANES // (self.lanes * self.heads)

    def slices(self, heads: int) -> int:
        """Returns how many passes over the edges there are, each for other heads."""
        return -(-heads // self.heads)

    @classmethod
    def choose(cls, chip: Chip, rows: int, cols: int, edges: int, work: Work) -> AttentionTile:
        """The one heuristic, for a pass over ``edges`` edges of ``rows`` rows.

        A warp has all heads at once, or fewer where that keeps what is gathered of the ``cols``
        neighbours in the second-level cache.
        """
        entries = entries_at_once(work.width, work.itemsize)
        loads = -(-work.width // entries)
        each = max(1, min(work.loads, _COLUMNS // entries))
        lanes = min(LANES, _power_of_two(-(-loads // each)))
        heads = min(LANES // lanes, _power_of_two(work.heads))
        if edges >= _MANY_EDGES * rows:
            cached = _CACHE_SHARE * chip.cache_bytes
            while heads > 1 and cols * heads * work.width * work.itemsize > cached:
                heads //= 2
        columns = entries * -(-loads // lanes)
        groups = LANES // (lanes * heads)
        average = edges // max(rows, 1) + 1
        for ahead, most in _AHEAD:
            registers = ahead * work.arrays * _REGISTERS[work.itemsize] + work.own
            if registers * columns <= most and average >= _STEPS * ahead * groups:
                return cls(lanes, heads, ahead)
        return cls(lanes, heads, 1)


@dataclass(frozen=True)
class Work:
    """The numbers that a pass reads of each neighbour, and keeps of the own end.

    Attributes:
      heads: how many heads there are.
      width: columns of a head.
      itemsize: bytes of an entry.
      arrays: arrays of this width that are gathered.
      own: how many numbers a lane keeps for each of its columns, sums among them.
      loads: how often a lane loads of a row of an array, at most.
    """

    heads: int
    width: int
    itemsize: int
    arrays: int
    own: int
    loads: int


def entries_at_once(width: int, itemsize: int) -> int:
    """Returns how many neighbouring columns of a head a lane loads at once: 16 bytes, or fewer."""
    return min(_LOAD_BYTES // itemsize, width & -width)


def _power_of_two(count: int) -> int:
    """Returns the least power of two that is not below ``count``."""
    return 1 << (count - 1).bit_length()
