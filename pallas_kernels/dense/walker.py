"""Walkers: warpgroups that go through tiles of rows, and compute ``dz`` and ``dx``.

The members of a team work on the same tile, and share its chunks of 64 columns. Tiles of float32
numbers are first split into the terms that tensor cores multiply.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import tensor_cores as tc
from pallas_kernels.dense.gradient_maker import GradientMaker
from pallas_kernels.dense.plan import BackwardPlan, BackwardTile
from pallas_kernels.dense.terms import Tile
from pallas_kernels.tensor_cores import BLOCK, Ring


@dataclass(frozen=True)
class Walker(GradientMaker):
    """A warpgroup that goes through the tiles of its team.

    Attributes:
      tile: how the work is divided.
      ring: the ring of the inputs that are summed.
      terms: the terms of the ring's tiles, for each input; None if numbers are not split.
      read_once: the ring of the other inputs, or None if there are none.
      team: number of its team.
    """

    tile: BackwardTile
    ring: Ring
    terms: Sequence
    read_once: Ring | None
    team: Any

    def run(self, count) -> None:
        """Computes every tile of the block whose number is the team's, modulo teams."""
        tile, team = self.tile, self.team
        made = tc.count_strided(count, team, tile.teams)
        summed = self.scratch["summed"].at[team]

        def load(ring, slots, i):
            place = (team, lax.rem(i, slots))
            if self.member == 0:
                pl.when(i < made)(lambda: ring.load(self._rows(i), place))

        def reuse(i):
            """Waits until the tile before has been summed, and loads another into its slot."""

            def wait():
                tc.barrier_wait(summed)
                load(self.ring, tile.slots, i - 1 + tile.slots)

            if tile.overlay:  # ``_make_dx_in_place_of_dz`` has waited for the sums
                tc.wait_smem_to_gmem(0, wait_read_only=True)
            else:
                pl.when(i > 0)(wait)

        for i in range(tile.slots):
            load(self.ring, tile.slots, jnp.int32(i))
        for i in range(tile.read_once_slots if self.read_once else 0):
            load(self.read_once, tile.read_once_slots, jnp.int32(i))
        tc.barrier_wait(self.scratch["loaded"])

        @pl.loop(0, made)
        def _(i):
            self._compute_tile(i, load, functools.partial(reuse, i))

        # Every completion of a barrier is waited for, also the last one.
        if not tile.overlay:
            pl.when(made > 0)(lambda: tc.barrier_wait(summed))
        tc.wait_smem_to_gmem(0)

    def _rows(self, i):
        """Returns the rows of the i-th tile of the team."""
        number = lax.axis_index(BLOCK) + (self.team + i * self.tile.teams) * self.tile.blocks
        return tc.rows_of(number)

    def _compute_tile(self, i, load, reuse) -> None:
        """Computes dz and dx of the i-th tile of the team.

        ``load(ring, slots, i)`` loads another tile of the team, and ``reuse()`` waits until the
        results of the tile before may be overwritten.
        """
        tile, team = self.tile, self.team
        inputs, held = self._input_tiles(i), self._held(i)
        if self.plan.terms.split:
            self._split(inputs, held["zero"])
        if self.plan.walker_outputs:
            self._make_dz(inputs, held, reuse)
            tc.commit_smem()
        else:
            reuse()
        # Even if nothing was computed: otherwise a summer that runs ahead could arrive twice at the
        # barrier of the sums before the walkers do.
        tc.barrier_arrive(self.scratch["made"].at[team])
        if self.plan.walker_outputs and tile.members > 1:
            tc.barrier_wait(self.scratch["made"].at[team])
        if self.read_once:
            load(self.read_once, tile.read_once_slots, i + tile.read_once_slots)
        if tile.overlay:
            self._make_dx_in_place_of_dz(inputs, held, self.scratch["summed"].at[team])
            load(self.ring, tile.slots, i + tile.slots)
            tc.commit_smem()
            self._write(held, self._rows(i))
        else:
            self._make_dx(inputs, held, self._rows(i))

    def _input_tiles(self, i) -> dict[str, Tile]:
        """Waits for the i-th tile of the team, and returns its inputs by name."""
        place = (self.team, lax.rem(i, self.tile.slots))
        self.ring.wait(place)
        held = input_tiles_at(self.plan, self.ring, self.terms, place)
        if self.read_once:
            place = (self.team, lax.rem(i, self.tile.read_once_slots))
            self.read_once.wait(place)
            held |= zip(
                self.plan.read_once_inputs, map(Tile, self.read_once.tiles(place)), strict=True
            )
        return held

    def _split(self, inputs: dict[str, Tile], zero) -> None:
        """Splits the inputs that are multiplied into terms, and waits for the other members."""
        for name, width in self.plan.summed_inputs.items():
            self._split_input(inputs[name], width, zero)
        tc.commit_smem()
        if self.tile.members > 1:
            tc.barrier_arrive(self.scratch["split"].at[self.team])
            tc.barrier_wait(self.scratch["split"].at[self.team])

    def _held(self, i) -> dict[str, Any]:
        """Returns the other tiles in shared memory by name: the kernels, and the team's results."""
        zero = tc.opaque_zero(i)
        team = self.team if self.tile.teams > 1 else zero
        each = self.plan.terms.each
        kernels = [each(kernel.at[zero]) for kernel in self.scratch["kernels"]]
        kept = {name: each(tile.at[team]) for name, tile in self.scratch["kept"].items()}
        staged, copied = (face.at[team] for face in tc.tile_views(self.scratch["dx"]))
        return {"zero": zero, "kernels": kernels, "dx": staged, "copied_dx": copied} | kept

    def _make_dz(self, inputs: dict, held: dict, reuse) -> None:
        """Computes dz of the first layer, and the hidden tile if there are two layers.

        ``reuse`` is called before any of them is overwritten.
        """
        stack = self.plan.stack
        activation = stack.activation(0)

        def make(chunk, columns, is_first):
            reuse_once = functools.partial(pl.when(is_first), reuse)
            # A slope leaves no registers for dh before the hidden tile has been stored.
            if activation is None or activation.of_output:
                hidden, known = self._output(inputs, held, chunk, columns)
                dh = self._dh(inputs, held, chunk, columns)
                reuse_once()
                self._keep("hidden", held, columns, hidden)
            else:
                hidden, known = self._hidden_and_slope(
                    activation, inputs, held, columns, reuse_once
                )
                self._keep("hidden", held, columns, hidden)
                dh = self._dh(inputs, held, chunk, columns)
            self._keep("dz", held, columns, self._dz(known, dh))

        self._own_chunks(stack.widths[1], held["zero"], make)

    def _make_dx(self, inputs: dict, held: dict, rows) -> None:
        """Computes the member's chunks of dx, and lets the copy engine store them."""

        def make(chunk, columns, is_first):
            made = self._dx(inputs, held, chunk, columns)
            pl.when(is_first)(lambda: tc.wait_smem_to_gmem(0, wait_read_only=True))
            self._stage(held, chunk, made)

        self._own_chunks(self.plan.columns_per_part, held["zero"], make)
        tc.barrier_arrive(self.scratch["summed"].at[self.team])
        tc.commit_smem()
        self._write(held, rows)

    def _make_dx_in_place_of_dz(self, inputs: dict, held: dict, summed) -> None:
        """Computes dx, of one chunk, and stages it in the memory of dz, which has been summed."""
        made = self._dx(inputs, held, held["zero"], tc.columns_at(0, held["zero"]))
        tc.barrier_arrive(summed)
        tc.barrier_wait(summed)
        self._stage(held, held["zero"], made)


def input_tiles_at(
    plan: BackwardPlan, ring: Ring, terms: Sequence, place: tuple
) -> dict[str, Tile]:
    """Returns the tiles of the inputs that are summed, in a slot of their ring, by name."""
    held = zip(ring.tiles(place), terms, strict=True)
    tiles = [Tile(numbers, None if term is None else term.at[place]) for numbers, term in held]
    return dict(zip(plan.summed_inputs, tiles, strict=True))
