"""Assignment of tiles of tokens to blocks, in the kernels by slices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from pallas_kernels import tensor_cores as tc
from pallas_kernels.chip import Chip
from pallas_kernels.tensor_cores import BLOCK, ROWS


class Turn(NamedTuple):
    """Tiles of one slice that a block processes one after the other.

    Attributes:
      range_number: number of the block's range among those of the slice.
      slice_number: number of the slice.
      first: first tile.
      step: distance from one tile to the next.
      count: number of tiles.
    """

    range_number: Any
    slice_number: Any
    first: Any
    step: Any
    count: Any


@dataclass(frozen=True)
class Shares:
    """Division of the tiles of all slices among blocks.

    Attributes:
      ranges: blocks that share a slice, whose tiles they take in turn.
      rest: last tiles of each slice, one more range, which blocks without a slice process.
      others: number of blocks without a slice, which take the slices in turn.
    """

    ranges: int
    rest: int = 0
    others: int = 0

    @classmethod
    def even(cls, chip: Chip, slices: int, tokens: int) -> Shares:
        """Balances the blocks, in one wave if there are at least as many multiprocessors as slices.

        The block with the most tiles has as few as possible.
        """
        tiles = -(-tokens // ROWS)
        ranges = min(max(1, chip.multiprocessors // slices), tiles)
        others = chip.multiprocessors - ranges * slices
        if others <= 0:
            return cls(ranges)

        def longest(rest: int) -> int:
            # The blocks without a slice load phi for each slice, which takes as long as a tile.
            longest_other = -(-slices // others) * (rest + 1) if rest else 0
            return max(-(-(tiles - rest) // ranges), longest_other)

        rest = min(range(tiles - ranges + 1), key=longest)
        return cls(ranges, rest, others if rest else 0)

    def blocks(self, slices: int) -> int:
        """Number of all blocks."""
        return slices * self.ranges + self.others

    @property
    def parts(self) -> int:
        """Ranges of a slice, including that of the rest."""
        return self.ranges + (self.rest > 0)

    def turns(self, slices: int):
        """Number of turns of the block that runs this, if there is a rest."""
        other = lax.axis_index(BLOCK) - slices * self.ranges
        return jnp.where(other < 0, 1, tc.count_strided(slices, other, self.others))

    def turn(self, slices: int, tiles: int, k) -> Turn:
        """The ``k``-th turn of the block that runs this."""
        block = lax.axis_index(BLOCK)
        range_number, slice_number = block // slices, lax.rem(block, slices)
        kept = tiles - self.rest
        count = tc.count_strided(kept, range_number, self.ranges)
        own = Turn(range_number, slice_number, range_number, self.ranges, count)
        if not self.rest:
            return own
        other = block - slices * self.ranges
        rest = Turn(self.ranges, other + k * self.others, kept, 1, self.rest)
        pairs = zip(own, rest, strict=True)
        return Turn(*(jnp.where(other < 0, *map(jnp.int32, pair)) for pair in pairs))
