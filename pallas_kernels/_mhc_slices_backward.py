"""Gradients to the streams and to phi, by tensor cores that the copy engine feeds.

What ``_mhc_streams_backward`` makes without an ``mhc_post``, for streams of bfloat16. Each of the
warpgroups of a block, see ``_mhc_slices``, has some of the streams, and a ring of pieces of its
own: a piece is one stream of one tile, read ahead, and its gradient leaves from where it was read.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import _dense_stack as dense
from pallas_kernels import _mhc_slices as common
from pallas_kernels._bfloat16_parts import PARTS
from pallas_kernels._dense_stack import COLUMNS, ROWS
from pallas_kernels._mhc_slices import FEW_PARTS, Slices, TokenParts, Walker
from pallas_kernels._mhc_slices_shares import Shares

_STREAMS = (2, 4)  # of more, a block's part of phi leaves no room to read ahead


@dataclass(frozen=True)
class SlicesTile:
    """How blocks and warpgroups share tokens and streams.

    Attributes:
      shares: which blocks have which tiles.
      warpgroups: of a block, a divisor of the streams.
      pieces: that each of them has in shared memory.
      slots: tiles whose tokens' cotangents and coefficients are there, two at least.
      backwards: see ``Walker``.
    """

    shares: Shares
    warpgroups: int
    pieces: int
    slots: int
    backwards: bool = True

    @classmethod
    def choose(cls, tokens: int, form: Slices, dtype) -> SlicesTile | None:
        """The one heuristic: one wave of blocks, reading ahead; None for the other kernel."""
        if form.n not in _STREAMS or not common.runs_here(tokens, dtype):
            return None
        # With another one an H200 took as long for 1280 columns, and 4 % longer for 7168; with one
        # less, a quarter longer.
        pieces = 3 if form.adds else 6
        return cls(Shares.even(form.slices, tokens), warpgroups=2, pieces=pieces, slots=2)

    def scratch(self, form: Slices, dtype) -> dict[str, Any]:
        """Shared memory, and barriers."""
        ring = (self.warpgroups, self.pieces)
        piece = (*ring, ROWS, COLUMNS)
        added = [dense.tiles(dtype, *piece)] * form.adds
        return {
            **form.shared_of_tokens(self.slots, form.n + 1, self.warpgroups, dtype),
            "phi": common.factors(dtype, FEW_PARTS, form.n, form.padded, COLUMNS),
            "loaded": plgpu.Barrier(num_arrivals=FEW_PARTS * form.n),
            "streams": [common.factors(dtype, *piece), *added],
            "full": plgpu.Barrier(num_arrivals=1 + form.adds, num_barriers=ring),
        }


def slices_backward(
    x: jax.Array,
    dh_in: jax.Array,
    dx: jax.Array | None,
    weight: jax.Array,
    token: TokenParts,
    tile: SlicesTile,
) -> tuple[jax.Array, jax.Array]:
    """Terms of the gradient to phi, and the gradient to the streams.

    Args:
      x: the streams, [tokens, n, dim] bfloat16, tokens a multiple of 8.
      dh_in: [tokens, dim].
      dx: like ``x``, a part of its gradient, or None.
      weight: as in ``mhc_pre``.
      token: what there is of tokens beside these.
      tile: as ``SlicesTile.choose`` gives it.
    """
    tokens, n, dim = x.shape
    form = Slices(n, dim, adds=dx is not None)
    flat = jax.ShapeDtypeStruct((tokens, n * dim), x.dtype)
    sums = jax.ShapeDtypeStruct((tile.shares.parts, n * dim, form.rows), jnp.float32)
    call = dense.launch(
        functools.partial(_backward, form, tile),
        "mhc_pre_backward",
        (flat, sums),
        (tile.shares.blocks(form.slices), 1),
        tile.warpgroups,
        tile.scratch(form, x.dtype),
        barriers=False,
    )
    of_tokens = {"dh_in": dh_in, **token._asdict()}
    streams = [a.reshape(flat.shape) for a in (x, dx) if a is not None]
    made, sums = call(of_tokens, streams, form.parts_of_phi(weight))
    return sums, made.reshape(x.shape)


def _backward(form: Slices, tile: SlicesTile, scratch, of_tokens, streams, phi, dx, sums) -> None:
    """A warpgroup's part."""
    arrays = {"streams": streams, "phi": phi, "dx": dx, "sums": sums}
    _Walker.here(form, tile, scratch, of_tokens, **arrays).take_turns()


@dataclass(frozen=True)
class _Walker(Walker):
    """A warpgroup, which takes its streams of a tile one after the other.

    Attributes:
      streams: x, and the gradient to add if there is one; [tokens, columns].
      phi: its parts, [parts, rows, columns].
      dx: the gradient to the streams.
      sums: that to phi of each range, and of the rest, [parts, columns, rows].
    """

    streams: Sequence
    phi: Any
    dx: Any
    sums: Any

    def run(self) -> None:
        """All tiles of a turn."""
        self._begin()
        totals = tuple(self.zeros() for _ in range(self._own))
        totals = lax.fori_loop(0, self.count, self._take, totals)
        for k, total in enumerate(totals):
            self.sums.at[self.part, self.columns(self._stream(k))][...] = total
        # Every completion is waited for, also the last.
        pl.when(self.number == 0)(functools.partial(self.reload_tokens, self.count))
        plgpu.wait_smem_to_gmem(0)

    @property
    def _own(self) -> int:
        """Streams of a warpgroup."""
        return self.form.n // self.tile.warpgroups

    def _stream(self, k: int):
        """The ``k``-th of this warpgroup."""
        return self.number * self._own + k

    def _ring(self, i, k):
        """Where the piece of the ``k``-th stream of tile ``i`` lies; ``k`` may count on."""
        return self.number, lax.rem(i * self._own + k, self.tile.pieces)

    def _begin(self) -> None:
        """Reads what comes first, and the block's part of phi."""
        for ahead in range(self.tile.pieces):
            self._load_piece(jnp.int32(0), ahead)

        def load():
            self.begin_tokens()
            for stream in range(self.form.n):
                for part in range(FEW_PARTS):
                    source = self.phi.at[part, :, self.columns(stream)]
                    target = self.scratch["phi"].at[part, stream]
                    plgpu.copy_gmem_to_smem(source, target, self.scratch["loaded"])

        pl.when(self.number == 0)(load)
        plgpu.barrier_wait(self.scratch["loaded"])

    def _load_piece(self, i, ahead: int) -> None:
        """The one ``ahead`` of the first of tile ``i``, if there is one."""
        tile, stream = i + ahead // self._own, self._stream(ahead % self._own)
        at = self._ring(i, ahead)

        def load():
            for source, target in zip(self.streams, self.scratch["streams"], strict=True):
                source = source.at[self.rows(tile), self.columns(stream)]
                plgpu.copy_gmem_to_smem(source, target.at[*at], self.scratch["full"].at[*at])

        pl.when(tile < self.count)(load)

    def _take(self, i, totals):
        """All pieces of tile ``i``; the sums with theirs."""
        slot = self.wait_for_tokens(i)
        made = []
        for k, total in enumerate(totals):
            plgpu.barrier_wait(self.scratch["full"].at[*self._ring(i, k)])
            dx, more = self._multiply(i, k, slot)
            made.append(total + more)
            if k == 0:
                pl.when(self.number == 0)(functools.partial(self.reload_tokens, i))
            self._leave(i, k, dx)
        plgpu.barrier_arrive(self.scratch["done"].at[slot])
        return tuple(made)

    def _multiply(self, i, k: int, slot) -> tuple[jax.Array, jax.Array]:
        """The gradient to a piece of a stream, and sums for its columns of phi.

        While tensor cores multiply, reads on into the piece before; once they have, if dx is to lie
        in the place of x.
        """
        at, stream = self._ring(i, k), self._stream(k)
        x, dh_mix = self.scratch["streams"][0].at[*at], self.scratch["dh_mix"].at[slot]
        phi = [self.scratch["phi"].at[part, stream] for part in range(FEW_PARTS)]

        def run(through_phi, sums):
            self.add_through_phi(through_phi, dh_mix, phi)
            self.add_for_phi(sums, x, dh_mix)
            direct = self._direct(at, slot, stream)
            if self.form.adds:
                self._reload_piece(i, k)
            dx = direct + plgpu.wgmma_accumulator_load(through_phi, wait_n=PARTS)
            more = sums[...][:, : self.form.rows]
            if not self.form.adds:  # dx is to lie where all warps' products read x: here they meet
                self._reload_piece(i, k)
            return dx, more

        shapes = (ROWS, COLUMNS), (COLUMNS, self.form.padded)
        return pl.run_scoped(run, *(plgpu.ACC(shape, jnp.float32) for shape in shapes))

    def _direct(self, at, slot, stream) -> jax.Array:
        """The gradient to a piece of a stream but for what comes through phi."""
        x, *more = (common.load(ring.at[*at]) for ring in self.scratch["streams"])
        scale, h_pre = (self.coefficient(slot, c, COLUMNS) for c in (self.form.n, stream))
        through_layer = h_pre * common.load(self.scratch["dh_in"].at[slot])
        # In this order all sums are those of products.
        return functools.reduce(jnp.add, [through_layer, *more]) + scale * x

    def _reload_piece(self, i, k: int) -> None:
        """Reads on into the piece before the ``k``-th of tile ``i``, once it has been written."""
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        ahead = k - 1 + self.tile.pieces
        pl.when(i * self._own + k > 0)(lambda: self._load_piece(i, ahead))

    def _leave(self, i, k: int, dx) -> None:
        """Writes ``dx`` from the piece."""
        staged = self.scratch["streams"][-1].at[*self._ring(i, k)]
        staged[...] = dx.astype(self.dx.dtype)
        plgpu.commit_smem()
        target = self.dx.at[self.rows(i), self.columns(self._stream(k))]
        plgpu.copy_smem_to_gmem(staged, target)
