"""Warpgroups that add tiles up to the gradients of kernels and biases, in their registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import tensor_cores as tc
from pallas_kernels.dense.plan import MARKS, BackwardTile, Work
from pallas_kernels.dense.terms import Tile
from pallas_kernels.dense.walker import streams_of
from pallas_kernels.tensor_cores import BLOCK, COLUMNS, PART, Ring

_MOST_COLUMNS = 128  # of a product: more sums at a time are refused where threads share registers


class Tiles(Protocol):
    """Those of a block, one after the other."""

    def take(self, n) -> tuple[dict[str, Tile], dict[str, Sequence], Any]:
        """Waits for one: its streams, the terms of what walkers made of it, and a hidden zero."""
        ...

    def done(self, n) -> None:
        """It is no longer needed."""
        ...


@dataclass(frozen=True)
class TilesOfTeams:
    """Those that teams of walkers go through in turn.

    Attributes:
      work: what there is to do.
      tile: who does what.
      scratch: shared memory.
      ring: of the streams that are summed.
      terms: of their tiles; None each if these are not split.
    """

    work: Work
    tile: BackwardTile
    scratch: dict
    ring: Ring
    terms: Sequence

    def take(self, n) -> tuple[dict[str, Tile], dict[str, Sequence], Any]:
        """See ``Tiles``."""
        team, turn = lax.rem(n, self.tile.teams), n // self.tile.teams
        place = (team, lax.rem(turn, self.tile.slots))
        self.ring.wait(place)
        tc.barrier_wait(self.scratch["made"].at[team])
        streams = streams_of(self.work, self.ring, self.terms, place)
        # Of an only team the number is known.
        zero = tc.opaque_zero(n)
        kept: dict[str, Sequence] = {
            name: self.work.terms.each(tile.at[team if self.tile.teams > 1 else zero])
            for name, tile in self.scratch["kept"].items()
        }
        return streams, kept, zero

    def done(self, n) -> None:
        """See ``Tiles``."""
        tc.barrier_arrive(self.scratch["summed"].at[lax.rem(n, self.tile.teams)])


@dataclass(frozen=True)
class Summer:
    """One of them.

    Attributes:
      work: what there is to do.
      scratch: shared memory.
      tiles: what it adds up.
      number: among the summers.
    """

    work: Work
    scratch: dict
    tiles: Tiles
    number: int

    def run(self, count, kernel_sums: Sequence, bias_sums: Any = None) -> None:
        """Adds all tiles of the block up, and writes the sums."""
        units, bias_units = self.work.share_of(self.number)
        width = self.work.stack.widths[1]
        marks = self.work.marks[0] if bias_units else 0
        shapes = [(COLUMNS, width)] * len(units) + [(COLUMNS, MARKS)] * marks

        def accumulate(*sums):
            @pl.loop(0, count)
            def _(n):
                self._add(n, units, bias_units, sums)

            block, part = lax.axis_index(BLOCK), lax.axis_index(PART)
            for unit, made in zip(units, sums, strict=False):
                first = part * self.work.share if unit.layer == 0 else 0
                rows = tc.columns_at(first, unit.chunk)
                kernel_sums[unit.layer].at[block, rows][...] = made[...]
            for mark, made in enumerate(sums[len(units) :]):
                bias_sums.at[block, part, self.number, mark][...] = made[...]

        pl.run_scoped(accumulate, *(tc.ACC(shape, jnp.float32) for shape in shapes))

    def _add(self, n, units, bias_units, sums) -> None:
        """A tile of the block."""
        streams, kept, zero = self.tiles.take(n)
        for unit, own in zip(units, sums, strict=False):
            tile, other = (streams["x"], "dz") if unit.layer == 0 else (streams["dy"], "hidden")
            left = tile.matrices(unit.chunk)
            for a, b in self.work.terms.pairs:
                right = self._columns(kept[other][b] if other in kept else (streams["dy"], b))
                for columns, matrix in right:
                    tc.wgmma(own.at[:, columns], left[a].T, matrix)
        for number, unit in enumerate(bias_units):
            chunk = self.work.bias_chunk(unit, lax.axis_index(PART))
            if unit.layer == 0 and "dz" in kept:
                tiles = [term.at[:, tc.columns_at(0, chunk)] for term in kept["dz"]]
            else:
                tiles = streams["dy"].matrices(chunk)
            marked, matrix = self.work.mark_of(number)
            for tile in reversed(tiles):
                marks = self.scratch["marks"].at[zero + matrix].T
                tc.wgmma(sums[len(units) + marked], tile.T, marks)
        tc.wgmma_wait(0)
        self.tiles.done(n)

    def _columns(self, matrix) -> list[tuple[slice, Any]]:
        """Of a matrix, or of a term of a stream, so many as are multiplied at once."""
        width = self.work.stack.widths[1]
        if isinstance(matrix, tuple):
            tile, term = matrix
            parts = enumerate(tc.columns_of(width))
            return [(part, tile.matrices(chunk)[term]) for chunk, part in parts]
        firsts = range(0, width, _MOST_COLUMNS)
        parts = [slice(first, min(width, first + _MOST_COLUMNS)) for first in firsts]
        return [(part, matrix.at[:, part]) for part in parts]
