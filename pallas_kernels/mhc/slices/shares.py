"""Which blocks of the kernels by slices have which tiles of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from pallas_kernels import tensor_cores as tc
from pallas_kernels.chip import Chip
from pallas_kernels.tensor_cores import BLOCK, ROWS


class Turn(NamedTuple):
    """Tiles that a block takes one after the other.

    Attributes:
      part: which range of its slice.
      place: which slice.
      first: tile.
      step: from one to the next.
      count: of them.
    """

    part: Any
    place: Any
    first: Any
    step: Any
    count: Any


@dataclass(frozen=True)
class Shares:
    """How blocks share the tiles of all slices.

    Attributes:
      ranges: blocks that share a slice, and take turns at its tiles.
      rest: tiles of each slice that are left to blocks without a slice, as one more range.
      others: such blocks, which take turns at the slices.
    """

    ranges: int
    rest: int = 0
    others: int = 0

    @classmethod
    def even(cls, chip: Chip, slices: int, tokens: int) -> Shares:
        """One wave, up to a slice for each multiprocessor.

        Its longest block has as few tiles as can be.
        """
        tiles = -(-tokens // ROWS)
        ranges = min(max(1, chip.multiprocessors // slices), tiles)
        others = chip.multiprocessors - ranges * slices
        if others <= 0:
            return cls(ranges)

        def longest(rest: int) -> int:
            # The blocks without a slice begin anew with each, which takes about as long as a tile.
            of_others = -(-slices // others) * (rest + 1) if rest else 0
            return max(-(-(tiles - rest) // ranges), of_others)

        rest = min(range(tiles - ranges + 1), key=longest)
        return cls(ranges, rest, others if rest else 0)

    def blocks(self, slices: int) -> int:
        """All of them."""
        return slices * self.ranges + self.others

    @property
    def parts(self) -> int:
        """Ranges of a slice, with that of the rest."""
        return self.ranges + (self.rest > 0)

    def turns(self, slices: int):
        """Of the block that runs this, where there is a rest."""
        other = lax.axis_index(BLOCK) - slices * self.ranges
        return jnp.where(other < 0, 1, tc.count_strided(slices, other, self.others))

    def turn(self, slices: int, tiles: int, k) -> Turn:
        """The ``k``-th of the block that runs this."""
        block = lax.axis_index(BLOCK)
        part, place, kept = block // slices, lax.rem(block, slices), tiles - self.rest
        own = Turn(part, place, part, self.ranges, tc.count_strided(kept, part, self.ranges))
        if not self.rest:
            return own
        other = block - slices * self.ranges
        rest = Turn(self.ranges, other + k * self.others, kept, 1, self.rest)
        pairs = zip(own, rest, strict=True)
        return Turn(*(jnp.where(other < 0, *map(jnp.int32, pair)) for pair in pairs))
