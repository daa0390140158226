"""Gradients to the streams and to phi, by tensor cores that the copy engine feeds.

What ``_mhc_streams_backward`` makes without an ``mhc_post``, for streams of bfloat16. A block has
64 columns of every stream, its slice, and some of the tiles of 64 tokens. Each of its warpgroups
has some of the streams, and a ring of pieces of its own: a piece is one stream of one tile, read
ahead, and its gradient leaves from where it was read. What there is of a tile's tokens lies in a
ring for all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import _dense_stack as dense
from pallas_kernels._bfloat16_parts import PARTS, products, split
from pallas_kernels._dense_stack import BLOCK, COLUMNS, ROWS, WARPGROUP
from pallas_kernels._mhc_streams_backward import Token
from pallas_kernels._simt import compute_capability

_STREAMS = (2, 4)  # of more, a block's part of phi leaves no room to read ahead
# Of phi and of dh_mix, in the gradient to the streams: what is lost is less than its rounding.
_FEW_PARTS = PARTS - 1
# Bytes that lie together of all that tensor cores multiply: rows of phi are padded to so many.
_SWIZZLE = 64
_DEPTH = _SWIZZLE // 2
_CAPABILITIES = ("9.0", "")  # others have other tensor cores; lowering needs no GPU


@dataclass(frozen=True)
class Slices:
    """Shapes, and what is to be done.

    Attributes:
      n: streams.
      dim: their width.
      adds: whether there is a gradient to add.
    """

    n: int
    dim: int
    adds: bool

    @property
    def rows(self) -> int:
        """Rows of phi."""
        return self.n * self.n + 2 * self.n

    @property
    def padded(self) -> int:
        """These, with rows of zeros."""
        return -(-self.rows // _DEPTH) * _DEPTH

    @property
    def width(self) -> int:
        """Columns of the parts of dh_mix, side by side."""
        return PARTS * self.padded

    def part(self, number: int) -> slice:
        """Columns of a part, among these."""
        return slice(number * self.padded, (number + 1) * self.padded)

    @property
    def slices(self) -> int:
        """Blocks that share a token."""
        return self.dim // COLUMNS

    @property
    def arrays(self) -> int:
        """That a piece is read from."""
        return 1 + self.adds


@dataclass(frozen=True)
class SlicesTile:
    """How blocks and warpgroups share tokens and streams.

    Attributes:
      ranges: blocks that share a slice, and take turns at its tiles.
      warpgroups: of a block, a divisor of the streams.
      pieces: that each of them has in shared memory.
      slots: tiles whose tokens' cotangents and coefficients are there, two at least.
    """

    ranges: int
    warpgroups: int
    pieces: int
    slots: int

    @classmethod
    def choose(cls, tokens: int, form: Slices, dtype) -> SlicesTile | None:
        """The one heuristic: one wave of blocks, reading ahead; None for the other kernel."""
        if form.n not in _STREAMS or dtype != jnp.bfloat16 or tokens == 0 or tokens % dense.GROUP:
            return None
        if compute_capability() not in _CAPABILITIES:
            return None
        ranges = min(max(1, dense.MULTIPROCESSORS // form.slices), -(-tokens // ROWS))
        return cls(ranges, warpgroups=2, pieces=4 if form.adds else 6, slots=2)

    def scratch(self, form: Slices, dtype) -> dict[str, Any]:
        """Shared memory, and barriers."""
        ring = (self.warpgroups, self.pieces)
        factors = functools.partial(dense.tiles, dtype, swizzle=_SWIZZLE)
        return {
            "phi": factors(_FEW_PARTS, form.n, form.padded, COLUMNS),
            "streams": [factors(*ring, ROWS, COLUMNS)]
            + [dense.tiles(dtype, *ring, ROWS, COLUMNS)] * form.adds,
            "dh_in": dense.tiles(dtype, self.slots, ROWS, COLUMNS),
            "dh_mix": factors(self.slots, ROWS, form.width),
            "coefficients": plgpu.SMEM((self.slots, form.n + 1, ROWS), jnp.float32),
            "loaded": plgpu.Barrier(num_arrivals=_FEW_PARTS * form.n),
            "full": plgpu.Barrier(num_arrivals=form.arrays, num_barriers=ring),
            "ready": plgpu.Barrier(num_arrivals=3, num_barriers=self.slots),
            "done": plgpu.Barrier(num_arrivals=self.warpgroups, num_barriers=self.slots),
        }


def slices_backward(
    x: jax.Array,
    dh_in: jax.Array,
    dx: jax.Array | None,
    weight: jax.Array,
    token: Token,
    tile: SlicesTile,
) -> tuple[jax.Array, jax.Array]:
    """The gradient to phi, and that to the streams.

    Args:
      x: the streams, [tokens, n, dim] bfloat16, tokens a multiple of 8.
      dh_in: [tokens, dim].
      dx: like ``x``, a part of its gradient, or None.
      weight: as in ``mhc_pre``.
      token: coefficients and their cotangents.
      tile: as ``SlicesTile.choose`` gives it.
    """
    tokens, n, dim = x.shape
    form = Slices(n, dim, adds=dx is not None)
    flat = jax.ShapeDtypeStruct((tokens, n * dim), x.dtype)
    sums = jax.ShapeDtypeStruct((tile.ranges, n * dim, form.rows), jnp.float32)
    call = dense.launch(
        functools.partial(_backward, form, tile),
        "mhc_pre_backward",
        (flat, sums),
        (form.slices * tile.ranges, 1),
        tile.warpgroups,
        tile.scratch(form, x.dtype),
    )
    streams = [a.reshape(flat.shape) for a in (x, dx) if a is not None]
    phi = jnp.pad(weight, ((0, form.padded - form.rows), (0, 0)))
    of_tokens = {"dh_in": dh_in, **_of_tokens(form, token)}
    made, sums = call(streams, of_tokens, split(phi, _FEW_PARTS))
    return jnp.sum(sums, axis=0).T, made.reshape(x.shape)


def _of_tokens(form: Slices, token: Token) -> dict[str, jax.Array]:
    """Parts of dh_mix side by side, [tokens, width]; h_pre and scale, [n + 1, tokens]."""
    dh_mix = jnp.pad(token.dh_mix, ((0, 0), (0, form.padded - form.rows)))
    return {
        "dh_mix": jnp.concatenate([*split(dh_mix)], axis=1),
        "coefficients": jnp.concatenate([token.h_pre.T, token.scale[None]]),
    }


class _Arrays(NamedTuple):
    """What the kernel reads and writes.

    Attributes:
      streams: x, and the gradient to add if there is one; [tokens, columns].
      of_tokens: dh_in, parts of dh_mix and coefficients, by their names in shared memory.
      phi: its parts, [parts, rows, columns].
      dx: the gradient to the streams.
      sums: that to phi of each range, [ranges, columns, rows].
    """

    streams: Sequence
    of_tokens: dict
    phi: Any
    dx: Any
    sums: Any


def _backward(form: Slices, tile: SlicesTile, scratch, *references) -> None:
    """A warpgroup's part."""
    block, arrays = lax.axis_index(BLOCK), _Arrays(*references)
    part, place = block // form.slices, lax.rem(block, form.slices)
    count = dense.own_tiles(arrays.dx.shape[0], part, tile.ranges)
    number = lax.axis_index(WARPGROUP)
    _Walker(form, tile, scratch, arrays, part, place, number, count).run()


@dataclass(frozen=True)
class _Walker:
    """A warpgroup, which takes its streams of a tile one after the other.

    The tiles of a block are ``part``, ``part + ranges`` and so on, numbered from 0 here.

    Attributes:
      form: shapes.
      tile: who does what.
      scratch: in shared memory.
      arrays: in memory.
      part: which range.
      place: which slice.
      number: of the warpgroup.
      count: tiles.
    """

    form: Slices
    tile: SlicesTile
    scratch: dict
    arrays: _Arrays
    part: Any
    place: Any
    number: Any
    count: Any

    def run(self) -> None:
        """All tiles of the block."""
        self._begin()
        zeros = jnp.zeros((COLUMNS, self.form.rows), jnp.float32)
        totals = tuple(plgpu.layout_cast(zeros, plgpu.Layout.WGMMA) for _ in range(self._own))
        totals = lax.fori_loop(0, self.count, self._take, totals)
        for k, total in enumerate(totals):
            self.arrays.sums.at[self.part, self._columns(self._stream(k))][...] = total
        self._reload_tokens(self.count)  # every completion is waited for, also the last
        plgpu.wait_smem_to_gmem(0)

    @property
    def _own(self) -> int:
        """Streams of a warpgroup."""
        return self.form.n // self.tile.warpgroups

    def _stream(self, k: int):
        """The ``k``-th of this warpgroup."""
        return self.number * self._own + k

    def _columns(self, stream):
        """Of the slice, among those of all streams."""
        first = stream * self.form.dim + self.place * COLUMNS
        return pl.ds(pl.multiple_of(first, COLUMNS), COLUMNS)

    def _rows(self, i):
        """Tokens of tile ``i``."""
        return dense.rows_of(self.part + i * self.tile.ranges)

    def _ring(self, i, k):
        """Where the piece of the ``k``-th stream of tile ``i`` lies; ``k`` may count on."""
        return self.number, lax.rem(i * self._own + k, self.tile.pieces)

    # -- what it reads

    def _begin(self) -> None:
        """Reads what comes first, and the block's part of phi."""
        for ahead in range(self.tile.pieces):
            self._load_piece(jnp.int32(0), ahead)

        def load():
            for slot in range(self.tile.slots):
                self._load_tokens(jnp.int32(slot))
            self._load_phi()

        pl.when(self.number == 0)(load)
        plgpu.barrier_wait(self.scratch["loaded"])

    def _load_phi(self) -> None:
        """Columns of all streams."""
        for stream in range(self.form.n):
            for part in range(_FEW_PARTS):
                source = self.arrays.phi.at[part, :, self._columns(stream)]
                target = self.scratch["phi"].at[part, stream]
                plgpu.copy_gmem_to_smem(source, target, self.scratch["loaded"])

    def _load_piece(self, i, ahead: int) -> None:
        """The one ``ahead`` of the first of tile ``i``, if there is one."""
        tile, stream = i + ahead // self._own, self._stream(ahead % self._own)
        at = self._ring(i, ahead)

        def load():
            for source, target in zip(self.arrays.streams, self.scratch["streams"], strict=True):
                source = source.at[self._rows(tile), self._columns(stream)]
                plgpu.copy_gmem_to_smem(source, target.at[*at], self.scratch["full"].at[*at])

        pl.when(tile < self.count)(load)

    def _load_tokens(self, i) -> None:
        """Of tile ``i``, if there is one."""
        slot, rows, given = lax.rem(i, self.tile.slots), self._rows(i), self.arrays.of_tokens
        sources = {
            "dh_in": given["dh_in"].at[rows, self._columns(0)],
            "dh_mix": given["dh_mix"].at[rows],
            "coefficients": given["coefficients"].at[:, rows],
        }

        def load():
            for name, source in sources.items():
                target, ready = self.scratch[name].at[slot], self.scratch["ready"].at[slot]
                plgpu.copy_gmem_to_smem(source, target, ready)

        pl.when(i < self.count)(load)

    def _reload_tokens(self, i) -> None:
        """Where those of the tile before were, once all warpgroups are done with them."""

        def wait():
            plgpu.barrier_wait(self.scratch["done"].at[lax.rem(i - 1, self.tile.slots)])
            self._load_tokens(i - 1 + self.tile.slots)

        pl.when((self.number == 0) & (i > 0))(wait)

    # -- what it makes

    def _take(self, i, totals):
        """All pieces of tile ``i``; the sums with theirs."""
        slot = lax.rem(i, self.tile.slots)
        plgpu.barrier_wait(self.scratch["ready"].at[slot])
        made = []
        for k, total in enumerate(totals):
            at = self._ring(i, k)
            plgpu.barrier_wait(self.scratch["full"].at[*at])
            dx, more = self._multiply(at, slot, self._stream(k))
            made.append(total + more)
            if k == 0:
                self._reload_tokens(i)
            self._leave(i, k, dx)
        plgpu.barrier_arrive(self.scratch["done"].at[slot])
        return tuple(made)

    def _multiply(self, at, slot, stream):
        """The gradient to a piece of a stream, and sums for that to phi."""
        form, scratch = self.form, self.scratch
        x, dh_mix = scratch["streams"][0].at[*at], scratch["dh_mix"].at[slot]

        def multiply(through_phi, sums):
            for a, b in products(_FEW_PARTS, _FEW_PARTS):
                part = dh_mix.at[:, form.part(a)]
                plgpu.wgmma(through_phi, part, scratch["phi"].at[b, stream])
            plgpu.wgmma(sums, x.T, dh_mix)
            # Meanwhile, what needs no product.
            direct = self._direct(at, slot, stream)
            dx = direct + plgpu.wgmma_accumulator_load(through_phi, wait_n=1)
            found = sums[...]
            parts = [found[:, form.part(p)][:, : form.rows] for p in reversed(range(PARTS))]
            return dx, functools.reduce(jnp.add, parts)

        shapes = (ROWS, COLUMNS), (COLUMNS, form.width)
        return pl.run_scoped(multiply, *(plgpu.ACC(shape, jnp.float32) for shape in shapes))

    def _direct(self, at, slot, stream):
        """The gradient to a piece of a stream but for what comes through phi."""

        def of_token(number):
            reference = self.scratch["coefficients"].at[slot, number]
            layout = plgpu.Layout.WGMMA.reduce(1)
            column = plgpu.load(reference, layout=layout, optimized=False)
            return lax.broadcast_in_dim(column, (ROWS, COLUMNS), (0,))

        x, *more = (_load(ring.at[*at]) for ring in self.scratch["streams"])
        direct = of_token(self.form.n) * x + of_token(stream) * _load(
            self.scratch["dh_in"].at[slot]
        )
        return functools.reduce(jnp.add, more, direct)

    def _leave(self, i, k: int, dx) -> None:
        """Writes ``dx`` from the piece; reads on into the one before, which has been written."""
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        ahead = k - 1 + self.tile.pieces
        pl.when(i * self._own + k > 0)(lambda: self._load_piece(i, ahead))
        staged = self.scratch["streams"][-1].at[*self._ring(i, k)]
        staged[...] = dx.astype(self.arrays.dx.dtype)
        plgpu.commit_smem()
        target = self.arrays.dx.at[self._rows(i), self._columns(self._stream(k))]
        plgpu.copy_smem_to_gmem(staged, target)


def _load(matrix):
    return plgpu.load(matrix, layout=plgpu.Layout.WGMMA).astype(jnp.float32)
