"""Warpgroups that add tiles up to the gradients of kernels and biases, in their registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import _dense_stack as dense
from pallas_kernels._dense_plan import MARKS, BackwardTile, Work
from pallas_kernels._dense_stack import BLOCK, COLUMNS, PART, ROWS, Ring

_MOST_COLUMNS = 128  # of a product: more sums at a time are refused where threads share registers


@dataclass(frozen=True)
class Summer:
    """One of them.

    Attributes:
      work: what there is to do.
      tile: who does what.
      scratch: shared memory.
      ring: of the streams that are summed.
      number: among the summers.
    """

    work: Work
    tile: BackwardTile
    scratch: dict
    ring: Ring
    number: int

    def run(self, count, kernel_sums: Sequence, bias_sums: Any = None) -> None:
        """Adds all tiles of the block up, and writes the sums."""
        units, bias_units = self.work.share_of(self.number)
        width = self.work.stack.widths[1]
        shapes = [(COLUMNS, width)] * len(units) + [(COLUMNS, MARKS)] * bool(bias_units)

        def accumulate(*sums):
            @pl.loop(0, count)
            def _(n):
                self._add(n, units, bias_units, sums)

            block, part = lax.axis_index(BLOCK), lax.axis_index(PART)
            for unit, made in zip(units, sums, strict=False):
                first = part * self.work.share if unit.layer == 0 else 0
                rows = dense.columns_at(first, unit.chunk)
                kernel_sums[unit.layer].at[block, rows][...] = made[...]
            if bias_units:
                bias_sums.at[block, part, self.number][...] = sums[-1][...]

        pl.run_scoped(accumulate, *(plgpu.ACC(shape, jnp.float32) for shape in shapes))

    def _add(self, n, units, bias_units, sums) -> None:
        """A tile of the block."""
        team, turn = lax.rem(n, self.tile.teams), n // self.tile.teams
        place = (team, lax.rem(turn, self.tile.slots))
        self.ring.wait(place)
        plgpu.barrier_wait(self.scratch["made"].at[team])
        streams = dict(zip(self.work.summed, self.ring.held(place), strict=True))
        # Of an only team the number is known.
        zero = dense.zero_in(n)
        kept = {
            name: tile.at[team if self.tile.teams > 1 else zero]
            for name, tile in self.scratch["kept"].items()
        }
        for unit, own in zip(units, sums, strict=False):
            tile, other = (streams["x"], "dz") if unit.layer == 0 else (streams["dy"], "hidden")
            self._multiply(own, tile.at[unit.chunk].T, kept.get(other, streams.get("dy")))
        for mark, unit in enumerate(bias_units):
            chunk = self.work.bias_chunk(unit, lax.axis_index(PART))
            if unit.layer == 0 and "dz" in kept:
                tile = kept["dz"].at[:, dense.columns_at(0, chunk)]
            else:
                tile = streams["dy"].at[chunk]
            plgpu.wgmma(sums[-1], tile.T, self.scratch["marks"].at[zero + mark].T)
        plgpu.wgmma_wait(0)
        plgpu.barrier_arrive(self.scratch["summed"].at[team])

    def _multiply(self, sums: Any, left, right) -> None:
        """``right`` is one matrix, or in chunks of columns; not all of its columns at once."""
        width = self.work.stack.widths[1]
        if right.shape[0] != ROWS:
            for chunk, part in enumerate(dense.columns_of(width)):
                plgpu.wgmma(sums.at[:, part], left, right.at[chunk])
            return
        for first in range(0, width, _MOST_COLUMNS):
            part = slice(first, min(width, first + _MOST_COLUMNS))
            plgpu.wgmma(sums.at[:, part], left, right.at[:, part])
