"""Warpgroups that add tiles up to the gradients of kernels and biases, in their registers."""

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

_MOST_COLUMNS = 128  # of a product: more sums at a time are refused where threads share registers


class Tiles(Protocol):
    """Those of a block, one after the other."""

    def acquire(self, n) -> tuple[dict[str, Tile], dict[str, Sequence], Any]:
        """Waits for one: its inputs, the terms of what walkers made of it, and a hidden zero."""
        ...

    def release(self, n) -> None:
        """It is no longer needed."""
        ...


@dataclass(frozen=True)
class TilesOfTeams:
    """Those that teams of walkers go through in turn.

    Attributes:
      plan: what there is to do.
      tile: who does what.
      scratch: shared memory.
      ring: of the inputs that are summed.
      terms: of their tiles; None each if these are not split.
    """

    plan: BackwardPlan
    tile: BackwardTile
    scratch: dict
    ring: Ring
    terms: Sequence

    def acquire(self, n) -> tuple[dict[str, Tile], dict[str, Sequence], Any]:
        """See ``Tiles``."""
        team, turn = lax.rem(n, self.tile.teams), n // self.tile.teams
        place = (team, lax.rem(turn, self.tile.slots))
        self.ring.wait(place)
        tc.barrier_wait(self.scratch["made"].at[team])
        inputs = input_tiles_at(self.plan, self.ring, self.terms, place)
        # Of an only team the number is known.
        zero = tc.opaque_zero(n)
        kept: dict[str, Sequence] = {
            name: self.plan.terms.each(tile.at[team if self.tile.teams > 1 else zero])
            for name, tile in self.scratch["kept"].items()
        }
        return inputs, kept, zero

    def release(self, n) -> None:
        """See ``Tiles``."""
        tc.barrier_arrive(self.scratch["summed"].at[lax.rem(n, self.tile.teams)])


@dataclass(frozen=True)
class Summer:
    """One of them.

    Attributes:
      plan: what there is to do.
      scratch: shared memory.
      tiles: what it adds up.
      number: among the summers.
    """

    plan: BackwardPlan
    scratch: dict
    tiles: Tiles
    number: int

    def run(self, count, kernel_sums: Sequence, bias_sums: Any = None) -> None:
        """Adds all tiles of the block up, and writes the sums."""
        chunks, bias_chunks = self.plan.chunks_of_summer(self.number)
        width = self.plan.stack.widths[1]
        marks = self.plan.marks[0] if bias_chunks else 0
        shapes = [(COLUMNS, width)] * len(chunks) + [(COLUMNS, MARKS)] * marks

        def accumulate(*sums):
            @pl.loop(0, count)
            def _(n):
                self._add(n, chunks, bias_chunks, sums)

            block, part = lax.axis_index(BLOCK), lax.axis_index(PART)
            for layer_chunk, made in zip(chunks, sums, strict=False):
                first = part * self.plan.columns_per_part if layer_chunk.layer == 0 else 0
                rows = tc.columns_at(first, layer_chunk.chunk)
                kernel_sums[layer_chunk.layer].at[block, rows][...] = made[...]
            for mark, made in enumerate(sums[len(chunks) :]):
                bias_sums.at[block, part, self.number, mark][...] = made[...]

        pl.run_scoped(accumulate, *(tc.ACC(shape, jnp.float32) for shape in shapes))

    def _add(self, n, chunks, bias_chunks, sums) -> None:
        """A tile of the block."""
        inputs, kept, zero = self.tiles.acquire(n)
        for layer_chunk, own in zip(chunks, sums, strict=False):
            tile, other = (
                (inputs["x"], "dz") if layer_chunk.layer == 0 else (inputs["dy"], "hidden")
            )
            left = tile.matrices(layer_chunk.chunk)
            for a, b in self.plan.terms.pairs:
                right = self._columns(kept[other][b] if other in kept else (inputs["dy"], b))
                for columns, matrix in right:
                    tc.wgmma(own.at[:, columns], left[a].T, matrix)
        for number, layer_chunk in enumerate(bias_chunks):
            chunk = self.plan.bias_chunk(layer_chunk, lax.axis_index(PART))
            if layer_chunk.layer == 0 and "dz" in kept:
                tiles = [term.at[:, tc.columns_at(0, chunk)] for term in kept["dz"]]
            else:
                tiles = inputs["dy"].matrices(chunk)
            marked, matrix = self.plan.mark_of(number)
            for tile in reversed(tiles):
                marks = self.scratch["marks"].at[zero + matrix].T
                tc.wgmma(sums[len(chunks) + marked], tile.T, marks)
        tc.wgmma_wait(0)
        self.tiles.release(n)

    def _columns(self, matrix) -> list[tuple[slice, Any]]:
        """Of a matrix, or of a term of an array, so many as are multiplied at once."""
        width = self.plan.stack.widths[1]
        if isinstance(matrix, tuple):
            tile, term = matrix
            parts = enumerate(tc.columns_of(width))
            return [(part, tile.matrices(chunk)[term]) for chunk, part in parts]
        firsts = range(0, width, _MOST_COLUMNS)
        parts = [slice(first, min(width, first + _MOST_COLUMNS)) for first in firsts]
        return [(part, matrix.at[:, part]) for part in parts]
