"""Warpgroups that go through tiles of rows, and make ``dz`` and ``dx``.

The members of a team are at the same tile, and share its chunks of 64 columns. Of float32 numbers
they first make the terms that tensor cores multiply.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import _dense_stack as dense
from pallas_kernels._dense_activations import Activation
from pallas_kernels._dense_plan import BackwardTile, Work
from pallas_kernels._dense_stack import BLOCK, COLUMNS, PART, Ring
from pallas_kernels._dense_terms import Tile

_STRIPS = [slice(first, first + 16) for first in range(0, COLUMNS, 16)]


@dataclass(frozen=True)
class Walker:
    """One of them.

    Attributes:
      work: what there is to do.
      tile: who does what.
      scratch: shared memory.
      ring: of the streams that are summed.
      terms: of their tiles; None each if these are not split.
      brief: of the others, None if there are none.
      dx: the result.
      below: what made x, if the gradient to its preactivation is asked for.
      team: its number.
      member: the number in the team.
    """

    work: Work
    tile: BackwardTile
    scratch: dict
    ring: Ring
    terms: Sequence
    brief: Ring | None
    dx: Any
    below: Activation | None
    team: Any
    member: int

    def run(self, count) -> None:
        """All tiles of the block whose number is the team's, modulo teams."""
        tile, team = self.tile, self.team
        made = dense.own(count, team, tile.teams)
        summed = self.scratch["summed"].at[team]

        def rows(i):
            return dense.rows_of(lax.axis_index(BLOCK) + (team + i * tile.teams) * tile.blocks)

        def load(ring, slots, i):
            place = (team, lax.rem(i, slots))
            if self.member == 0:
                pl.when(i < made)(lambda: ring.load(rows(i), place))

        def reuse(i):
            """Waits until the tile before is summed, and reads into its place."""

            def wait():
                plgpu.barrier_wait(summed)
                load(self.ring, tile.slots, i - 1 + tile.slots)

            pl.when(i > 0)(wait)

        for i in range(tile.slots):
            load(self.ring, tile.slots, jnp.int32(i))
        for i in range(tile.brief if self.brief else 0):
            load(self.brief, tile.brief, jnp.int32(i))
        plgpu.barrier_wait(self.scratch["loaded"])

        @pl.loop(0, made)
        def _(i):
            streams, held = self._streams(i), self._held(i)
            if self.work.terms.split:
                self._split(streams, held["zero"])
            if self.work.kept:
                self._make_dz(streams, held, functools.partial(reuse, i))
                plgpu.commit_smem()
            else:
                reuse(i)
            # Also if there is nothing to wait for: a summer that ran ahead would be counted twice.
            plgpu.barrier_arrive(self.scratch["made"].at[team])
            if self.work.kept and tile.members > 1:
                plgpu.barrier_wait(self.scratch["made"].at[team])
            if self.brief:
                load(self.brief, tile.brief, i + tile.brief)
            self._make_dx(streams, held, rows(i))

        # Every completion is waited for, also the last.
        pl.when(made > 0)(lambda: plgpu.barrier_wait(summed))
        plgpu.wait_smem_to_gmem(0)

    def _streams(self, i) -> dict[str, Tile]:
        """The tile's, once they are there."""
        place = (self.team, lax.rem(i, self.tile.slots))
        self.ring.wait(place)
        held = streams_of(self.work, self.ring, self.terms, place)
        if self.brief:
            place = (self.team, lax.rem(i, self.tile.brief))
            self.brief.wait(place)
            held |= zip(self.work.brief, map(Tile, self.brief.held(place)), strict=True)
        return held

    def _split(self, streams: dict[str, Tile], zero) -> None:
        """Those that are multiplied; until all members have done it."""
        for name, width in self.work.summed.items():
            split = streams[name].split
            self._own_chunks(width, zero, lambda chunk, *_, split=split: split(chunk))
        plgpu.commit_smem()
        if self.tile.members > 1:
            plgpu.barrier_arrive(self.scratch["split"].at[self.team])
            plgpu.barrier_wait(self.scratch["split"].at[self.team])

    def _held(self, i) -> dict[str, Any]:
        """What else is in shared memory: the kernels, and what the team makes."""
        zero = dense.zero_in(i)
        team = self.team if self.tile.teams > 1 else zero
        each = self.work.terms.each
        kernels = [each(kernel.at[zero]) for kernel in self.scratch["kernels"]]
        kept = {name: each(tile.at[team]) for name, tile in self.scratch["kept"].items()}
        staged, copied = (face.at[team] for face in dense.faces(self.scratch["dx"]))
        return {"zero": zero, "kernels": kernels, "dx": staged, "copied_dx": copied} | kept

    def _own_chunks(self, width: int, zero, make) -> None:
        """``make(chunk, columns, is_first)`` for those of the member."""
        member, members = self.member, self.tile.members
        count = dense.own(width // COLUMNS, member, members)
        if count == 1:
            make(member + zero, dense.columns_at(0, member + zero), True)
            return

        @pl.loop(0, count)
        def _(turn):
            chunk = member + turn * members
            make(chunk, dense.columns_at(0, chunk), turn == 0)

    def _make_dz(self, streams: dict, held: dict, reuse) -> None:
        """That of the first layer, and the hidden tile if there is one.

        ``reuse`` is called before any of either is overwritten.
        """
        stack = self.work.stack
        activation = stack.activation(0)

        def make(chunk, columns, is_first):
            reuse_once = functools.partial(pl.when(is_first), reuse)
            # A slope leaves no registers for more before the hidden tile is out of them.
            if activation is None or activation.of_output:
                hidden, known = self._output(streams, held, chunk, columns)
                dh = self._dh(streams, held, chunk, columns)
                reuse_once()
                self._keep("hidden", held, columns, hidden)
            else:
                hidden, known = self._hidden_and_slope(
                    activation, streams, held, columns, reuse_once
                )
                self._keep("hidden", held, columns, hidden)
                dh = self._dh(streams, held, chunk, columns)
            if activation is not None:
                parts = [(known[:, part].astype(jnp.float32), dh[:, part]) for part in _STRIPS]
                dz = jnp.concatenate([activation.pull_back(*part) for part in parts], axis=1)
            else:
                dz = dh
            self._keep("dz", held, columns, dz)

        self._own_chunks(stack.widths[1], held["zero"], make)

    def _preactivation(self, streams: dict, held: dict, columns):
        """Of the first layer."""
        kernel = [term.at[:, columns] for term in held["kernels"][0]]
        z = self.work.terms.product(*streams["x"].by_chunks(kernel))
        return dense.add_bias(z, self.work.stack.bias_of(self.scratch["biases"], 0), columns)

    def _output(self, streams: dict, held: dict, chunk, columns):
        """The first layer's, once as the hidden tile if there is one."""
        if "y" in streams:
            return None, streams["y"].load(chunk)
        activation = self.work.stack.activation(0)
        z = self._preactivation(streams, held, columns)
        hidden = (z if activation is None else activation.value(z)).astype(self.work.stack.dtype)
        return hidden, hidden

    def _hidden_and_slope(self, activation: Activation, streams: dict, held: dict, columns, reuse):
        """The hidden tile if there is one, and the slope of what made it."""
        z = self._preactivation(streams, held, columns)
        # Half of the columns at a time, and a wait between: registers would not hold all of it.
        made = [activation.value_and_slope(z[:, : COLUMNS // 2])]
        reuse()
        made.append(activation.value_and_slope(z[:, COLUMNS // 2 :]))
        hidden, slope = (jnp.concatenate(parts, axis=1) for parts in zip(*made, strict=True))
        return (hidden.astype(self.work.stack.dtype) if "hidden" in held else None), slope

    def _keep(self, name: str, held: dict, columns, made) -> None:
        if made is not None:
            self.work.terms.store([term.at[:, columns] for term in held[name]], made)

    def _dh(self, streams: dict, held: dict, chunk, columns):
        """The gradient behind the activation of the first layer."""
        if self.work.stack.layers == 1:
            return streams["dy"].load(chunk)
        kernel = [term.at[columns].T for term in held["kernels"][1]]
        return self.work.terms.product(*streams["dy"].by_chunks(kernel))

    def _make_dx(self, streams: dict, held: dict, rows) -> None:
        size = held["dx"].shape[-1]

        def make(chunk, columns, is_first):
            kernel = [term.at[columns].T for term in held["kernels"][0]]
            known = [(held["dz"], kernel)] if "dz" in held else streams["dy"].by_chunks(kernel)
            made = self.work.terms.product(*known)
            if self.below is not None:
                made = self.below.pull_back(streams["x"].load(chunk), made)
            pl.when(is_first)(lambda: plgpu.wait_smem_to_gmem(0, wait_read_only=True))
            for part, columns in enumerate(dense.columns_of(COLUMNS, size)):
                target = held["dx"].at[chunk * (COLUMNS // size) + part]
                target[...] = made[:, columns].astype(self.work.stack.dtype)

        self._own_chunks(self.work.share, held["zero"], make)
        plgpu.barrier_arrive(self.scratch["summed"].at[self.team])
        plgpu.commit_smem()
        first = lax.axis_index(PART) * self.work.share

        def write(chunk, columns, is_first):
            del columns, is_first
            for part in range(COLUMNS // size):
                place = chunk * (COLUMNS // size) + part
                target = self.dx.at[rows, dense.columns_at(first, place, size)]
                plgpu.copy_smem_to_gmem(held["copied_dx"].at[place], target)

        self._own_chunks(self.work.share, held["zero"], write)


def streams_of(work: Work, ring: Ring, terms: Sequence, place: tuple) -> dict[str, Tile]:
    """The tiles of the streams that are summed, in this place of their ``ring``."""
    held = zip(ring.held(place), terms, strict=True)
    tiles = [Tile(numbers, None if term is None else term.at[place]) for numbers, term in held]
    return dict(zip(work.summed, tiles, strict=True))
