"""Summers: warpgroups that accumulate the gradients of kernels and biases in registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import tensor_cores as tc
from pallas_kernels.dense.plan import MARKS, BackwardPlan, BackwardTile
from pallas_kernels.dense.terms import Tile
from pallas_kernels.dense.walker import input_tiles_at
from pallas_kernels.tensor_cores import BLOCK, COLUMNS, PART, Ring

# Columns of one product: with more, compilation fails where warpgroups reallocate registers.
_MOST_COLUMNS = 128


class Tiles(Protocol):
    """The tiles of a block that a summer consumes, one after the other."""

    def acquire(self, n) -> tuple[dict[str, Tile], dict[str, Sequence], Any]:
        """Waits for tile n; returns its inputs, what walkers computed, and an opaque zero."""
        ...

    def release(self, n) -> None:
        """Signals to the walkers that tile n is no longer needed."""
        ...


@dataclass(frozen=True)
class TilesOfTeams:
    """The tiles of several teams of walkers, taken in turn; the usual ``Tiles``.

    Attributes:
      plan: what has to be computed.
      tile: how the work is divided.
      scratch: shared memory and barriers.
      ring: the ring of the inputs that are summed.
      terms: the terms of the ring's tiles, for each input; None if numbers are not split.
    """

    plan: BackwardPlan
    tile: BackwardTile
    scratch: dict
    ring: Ring
    terms: Sequence

    def acquire(self, n) -> tuple[dict[str, Tile], dict[str, Sequence], Any]:
        """Waits until tile n has been loaded and its team has computed the rest."""
        team, turn = lax.rem(n, self.tile.teams), n // self.tile.teams
        place = (team, lax.rem(turn, self.tile.slots))
        self.ring.wait(place)
        tc.barrier_wait(self.scratch["made"].at[team])
        inputs = input_tiles_at(self.plan, self.ring, self.terms, place)
        # The number of a single team is known statically; the opaque zero takes its place.
        zero = tc.opaque_zero(n)
        kept: dict[str, Sequence] = {
            name: self.plan.terms.each(tile.at[team if self.tile.teams > 1 else zero])
            for name, tile in self.scratch["kept"].items()
        }
        return inputs, kept, zero

    def release(self, n) -> None:
        """Arrives at the barrier that the team of tile n waits for."""
        tc.barrier_arrive(self.scratch["summed"].at[lax.rem(n, self.tile.teams)])


@dataclass(frozen=True)
class Summer:
    """A warpgroup that accumulates gradients over all tiles of its block.

    Attributes:
      plan: what has to be computed.
      scratch: shared memory and barriers.
      tiles: the tiles that it accumulates.
      number: its number among the summers.
    """

    plan: BackwardPlan
    scratch: dict
    tiles: Tiles
    number: int

    def run(self, count, kernel_sums: Sequence, bias_sums: Any = None) -> None:
        """Accumulates all tiles of the block, and stores the sums."""
        chunks, bias_chunks = self.plan.chunks_of_summer(self.number)
        width = self.plan.stack.widths[1]
        marks = self.plan.marks[0] if bias_chunks else 0
        shapes = [(COLUMNS, width)] * len(chunks) + [(COLUMNS, MARKS)] * marks

        def accumulate(*sums):
            @pl.loop(0, count)
            def _(n):
                self._add(n, chunks, bias_chunks, sums)

            block, part = lax.axis_index(BLOCK), lax.axis_index(PART)
            for chunk, made in zip(chunks, sums, strict=False):
                first = part * self.plan.columns_per_part if chunk.layer == 0 else 0
                rows = tc.columns_at(first, chunk.number)
                kernel_sums[chunk.layer].at[block, rows][...] = made[...]
            for mark, made in enumerate(sums[len(chunks) :]):
                bias_sums.at[block, part, self.number, mark][...] = made[...]

        pl.run_scoped(accumulate, *(tc.ACC(shape, jnp.float32) for shape in shapes))

    def _add(self, n, chunks, bias_chunks, sums) -> None:
        """Adds the products of tile n to the sums."""
        inputs, kept, zero = self.tiles.acquire(n)
        for chunk, own in zip(chunks, sums, strict=False):
            tile, other = (inputs["x"], "dz") if chunk.layer == 0 else (inputs["dy"], "hidden")
            left = tile.matrices(chunk.number)
            for a, b in self.plan.terms.pairs:
                right = self._columns(kept[other][b] if other in kept else (inputs["dy"], b))
                for columns, matrix in right:
                    tc.wgmma(own.at[:, columns], left[a].T, matrix)
        for number, chunk in enumerate(bias_chunks):
            index = self.plan.bias_chunk_index(chunk, lax.axis_index(PART))
            if chunk.layer == 0 and "dz" in kept:
                tiles = [term.at[:, tc.columns_at(0, index)] for term in kept["dz"]]
            else:
                tiles = inputs["dy"].matrices(index)
            marked, matrix = self.plan.mark_of(number)
            for tile in reversed(tiles):
                marks = self.scratch["marks"].at[zero + matrix].T
                tc.wgmma(sums[len(chunks) + marked], tile.T, marks)
        tc.wgmma_wait(0)
        self.tiles.release(n)

    def _columns(self, matrix) -> list[tuple[slice, Any]]:
        """Splits a right factor into columns that can be multiplied at once.

        The factor is a matrix, or a pair of an input's tile and the number of a term.
        """
        width = self.plan.stack.widths[1]
        if isinstance(matrix, tuple):
            tile, term = matrix
            parts = enumerate(tc.columns_of(width))
            return [(part, tile.matrices(chunk)[term]) for chunk, part in parts]
        firsts = range(0, width, _MOST_COLUMNS)
        parts = [slice(first, min(width, first + _MOST_COLUMNS)) for first in firsts]
        return [(part, matrix.at[:, part]) for part in parts]
