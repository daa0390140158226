"""Gradients to the streams and to phi, by tensor cores that the copy engine feeds.

What ``mhc.tokens.backward`` makes without an ``mhc_post``, for streams of bfloat16. Each of the
warpgroups of a block, see ``mhc.slices.shapes``, has some of the streams, and a ring of pieces of
its own: a piece is one stream of one tile, read ahead, and its gradient leaves from where it was
read.

Where an ``mhc_post`` reads the streams too, its part of their gradient is either read with them, to
be added, or made here: of the gradients to the new streams, which then come with what there is of a
tile's tokens.
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

from pallas_kernels import tensor_cores as tc
from pallas_kernels.chip import Chip
from pallas_kernels.mhc.slices import shapes as common
from pallas_kernels.mhc.slices.shapes import FEW_PARTS, Slices, TokenParts, Walker
from pallas_kernels.mhc.slices.shares import Shares
from pallas_kernels.tensor_cores import COLUMNS, ROWS
from pallas_kernels.tensor_cores.bfloat16_parts import PARTS, products

_STREAMS = (2, 4)  # of more, a block's part of phi leaves no room to read ahead


class Behind(NamedTuple):
    """The ``mhc_post`` that reads the streams too, and the gradient to what it makes.

    Attributes:
      h_post: as in ``mhc_post``.
      h_res: as in ``mhc_post``.
      dy: the gradient, like the streams.
      transposed: as in ``mhc_post``.
    """

    h_post: jax.Array
    h_res: jax.Array
    dy: jax.Array
    transposed: bool


@dataclass(frozen=True)
class SlicesTile:
    """How blocks and warpgroups share tokens and streams.

    Attributes:
      shares: which blocks have which tiles.
      warpgroups: of a block, a divisor of the streams.
      pieces: that each of them has in shared memory, as many as it has streams and two at least.
      slots: tiles of whose tokens it has ``dh_in``, ``dh_mix``, the coefficients, and ``dy`` where
        it is mixed; two at least.
      backwards: see ``Walker``.
    """

    shares: Shares
    warpgroups: int
    pieces: int
    slots: int
    backwards: bool = True

    @classmethod
    def choose(cls, chip: Chip, tokens: int, form: Slices, dtype) -> SlicesTile | None:
        """The one heuristic: one wave of blocks, reading ahead; None for the other kernel."""
        if form.n not in _STREAMS or not common.runs_here(chip, tokens, dtype):
            return None
        # Of those with one to add: with another, an H200 took as long for 1280 columns, and 4 %
        # longer for 7168; with one less, a quarter longer.
        pieces = 4 if form.mixes else 3 if form.adds else 6
        return cls(Shares.even(chip, form.slices, tokens), warpgroups=2, pieces=pieces, slots=2)

    def scratch(self, form: Slices, dtype) -> dict[str, Any]:
        """Shared memory, and barriers."""
        ring = (self.warpgroups, self.pieces)
        piece = (*ring, ROWS, COLUMNS)
        added = [tc.tiles(dtype, *piece)] * form.adds
        return {
            **form.shared_of_tokens(self.slots, form.coefficients, self.warpgroups, dtype),
            "phi": common.factors(dtype, FEW_PARTS, form.n, form.padded, COLUMNS),
            "loaded": tc.Barrier(num_arrivals=FEW_PARTS * form.n),
            "streams": [common.factors(dtype, *piece), *added],
            "full": tc.Barrier(num_arrivals=1 + form.adds, num_barriers=ring),
        }


def slices_backward(
    x: jax.Array,
    dh_in: jax.Array,
    dx: jax.Array | None,
    weight: jax.Array,
    token: TokenParts,
    tile: SlicesTile,
    behind: Behind | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Terms of the gradient to phi, and the gradient to the streams.

    Args:
      x: the streams, [tokens, n, dim] bfloat16, tokens a multiple of 8.
      dh_in: [tokens, dim].
      dx: like ``x``, a part of its gradient, or None.
      weight: as in ``mhc_pre``.
      token: what there is of tokens beside these; with ``of_post`` if something is behind.
      tile: as ``SlicesTile.choose`` gives it.
      behind: instead of ``dx``, what it is to be made of.
    """
    tokens, n, dim = x.shape
    form = Slices(n, dim, adds=dx is not None, mixes=behind is not None)
    flat = jax.ShapeDtypeStruct((tokens, n * dim), x.dtype)
    sums = jax.ShapeDtypeStruct((tile.shares.parts, n * dim, form.rows), jnp.float32)
    call = tc.launch(
        functools.partial(_backward, form, tile, bool(behind and behind.transposed)),
        "mhc_pre_backward",
        (flat, sums),
        (tile.shares.blocks(form.slices), 1),
        tile.warpgroups,
        tile.scratch(form, x.dtype),
        barriers=False,
    )
    mixed = {"dy": behind.dy.reshape(flat.shape)} if behind else {}
    of_tokens = {"dh_in": dh_in, **token._asdict(), **mixed}
    streams = [a.reshape(flat.shape) for a in (x, dx) if a is not None]
    made, sums = call(of_tokens, streams, form.parts_of_phi(weight))
    return sums, made.reshape(x.shape)


def _backward(form, tile, transposed, scratch, of_tokens, streams, phi, dx, sums) -> None:
    """A warpgroup's part."""
    arrays = {"streams": streams, "phi": phi, "dx": dx, "sums": sums, "transposed": transposed}
    walker = _OneByOne if form.adds else _Together
    walker.here(form, tile, scratch, of_tokens, **arrays).take_turns()


@dataclass(frozen=True)
class _Walker(Walker):
    """A warpgroup, which has some of the streams.

    Attributes:
      transposed: see ``mhc_post``.
      streams: x, and the gradient to add if there is one; [tokens, columns].
      phi: its parts, [parts, rows, columns].
      dx: the gradient to the streams.
      sums: that to phi of each range, and of the rest, [parts, columns, rows].
    """

    transposed: bool
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
        tc.wait_smem_to_gmem(0)

    def _take(self, i, totals):
        """All pieces of tile ``i``; the sums with theirs."""
        raise NotImplementedError

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
                    tc.copy_gmem_to_smem(source, target, self.scratch["loaded"])

        pl.when(self.number == 0)(load)
        tc.barrier_wait(self.scratch["loaded"])

    def _load_piece(self, i, ahead: int) -> None:
        """The one ``ahead`` of the first of tile ``i``, if there is one."""
        tile, stream = i + ahead // self._own, self._stream(ahead % self._own)
        at = self._ring(i, ahead)

        def load():
            for source, target in zip(self.streams, self.scratch["streams"], strict=True):
                source = source.at[self.rows(tile), self.columns(stream)]
                tc.copy_gmem_to_smem(source, target.at[*at], self.scratch["full"].at[*at])

        pl.when(tile < self.count)(load)

    def _begin_to_multiply(self, pieces: Sequence[_Piece], slot) -> None:
        """Tensor cores: what comes through phi to all of them, then the sums for phi."""
        phi, dh_mix = self.scratch["phi"], self.scratch["dh_mix"].at[slot]
        for piece in pieces:
            parts = [phi.at[part, piece.stream] for part in range(FEW_PARTS)]
            self.add_through_phi(piece.through_phi, dh_mix, parts)
        for piece in pieces:
            self.add_for_phi(piece.for_phi, self.scratch["streams"][0].at[*piece.at], dh_mix)

    def _through_phi(self, pieces: Sequence[_Piece], k: int) -> jax.Array:
        """What comes to the ``k``-th of them, once it is there."""
        # Only on a GPU would a product be missing if this were more than there are behind it.
        later = len(pieces) - 1 - k
        behind = later * len(products(FEW_PARTS, FEW_PARTS)) + len(pieces) * PARTS
        return tc.wgmma_accumulator_load(pieces[k].through_phi, wait_n=behind)

    def _multiply(self, i, own: Sequence[int], body):
        """``body`` of some pieces of tile ``i``, with sums for tensor cores; waits for these.

        Returns:
          What ``body`` does, and the sums for phi.
        """
        shapes = [(ROWS, COLUMNS)] * len(own) + [(COLUMNS, self.form.padded)] * len(own)

        def run(*sums):
            pairs = zip(own, sums, sums[len(own) :], strict=False)
            pieces = [_Piece(self._stream(k), self._ring(i, k), *pair) for k, *pair in pairs]
            made = body(pieces)
            return made, [piece.for_phi[...][:, : self.form.rows] for piece in pieces]

        return pl.run_scoped(run, *(tc.ACC(shape, jnp.float32) for shape in shapes))

    def _leave(self, i, k: int, dx) -> Any:
        """Puts ``dx`` where the piece lay; the copy that is then to begin, once warps have met."""
        staged = self.scratch["streams"][-1].at[*self._ring(i, k)]
        staged[...] = dx.astype(self.dx.dtype)
        target = self.dx.at[self.rows(i), self.columns(self._stream(k))]
        return functools.partial(tc.copy_smem_to_gmem, staged, target)


class _Piece(NamedTuple):
    """A piece of a stream: which, where it lies, and sums through and for its columns of phi."""

    stream: Any
    at: Any
    through_phi: Any
    for_phi: Any


@dataclass(frozen=True)
class _OneByOne(_Walker):
    """Takes its pieces one after the other; gradients leave from where those to add were."""

    def _take(self, i, totals):
        slot, made = self.wait_for_tokens(i), []
        for k, total in enumerate(totals):
            tc.barrier_wait(self.scratch["full"].at[*self._ring(i, k)])
            dx, (more,) = self._multiply(i, [k], functools.partial(self._gradient, i, k, slot))
            made.append(total + more)
            if k == 0:
                pl.when(self.number == 0)(functools.partial(self.reload_tokens, i))
            leave = self._leave(i, k, dx)
            tc.commit_smem()
            leave()
        tc.barrier_arrive(self.scratch["done"].at[slot])
        return tuple(made)

    def _gradient(self, i, k: int, slot, pieces: Sequence[_Piece]) -> jax.Array:
        """To a piece; reads on into the one before while tensor cores multiply."""
        self._begin_to_multiply(pieces, slot)
        direct = self._direct(slot, *pieces)
        tc.wait_smem_to_gmem(0, wait_read_only=True)
        ahead = k - 1 + self.tile.pieces
        pl.when(i * self._own + k > 0)(lambda: self._load_piece(i, ahead))
        return direct + self._through_phi(pieces, 0)

    def _direct(self, slot, piece: _Piece) -> jax.Array:
        """All but what comes through phi."""
        x, added = (common.load(ring.at[*piece.at]) for ring in self.scratch["streams"])
        numbers = self.form.n, piece.stream
        scale, h_pre = (self.coefficient(slot, number, COLUMNS) for number in numbers)
        # In this order all sums are those of products.
        return h_pre * common.load(self.scratch["dh_in"].at[slot]) + added + scale * x


@dataclass(frozen=True)
class _Together(_Walker):
    """Takes its pieces of a tile together: they share what else they are made of.

    On an H200, taking them one after the other 16384 tokens, 1280 wide, took 0.160 ms for 0.139.
    """

    def _take(self, i, totals):
        own = range(self._own)
        pl.when(i > 0)(functools.partial(self._read_on, i))
        slot = self.wait_for_tokens(i)
        for k in own:
            tc.barrier_wait(self.scratch["full"].at[*self._ring(i, k)])
        gradients, sums = self._multiply(i, own, functools.partial(self._gradients, slot))
        tc.commit_smem()  # dx is to lie where all warps' products have read x
        tc.barrier_arrive(self.scratch["done"].at[slot])
        copies = [self._leave(i, k, dx) for k, dx in enumerate(gradients)]
        tc.commit_smem()
        for copy in copies:
            copy()
        return tuple(total + more for total, more in zip(totals, sums, strict=True))

    def _read_on(self, i) -> None:
        """Into the pieces of the tile before, once they have been written."""
        tc.wait_smem_to_gmem(0, wait_read_only=True)
        for k in range(self._own):
            self._load_piece(i - 1, k + self.tile.pieces)
        pl.when(self.number == 0)(functools.partial(self.reload_tokens, i))

    def _gradients(self, slot, pieces: Sequence[_Piece]) -> list[jax.Array]:
        self._begin_to_multiply(pieces, slot)
        direct = self._direct(slot, pieces)
        return [a + self._through_phi(pieces, k) for k, a in enumerate(direct)]

    def _direct(self, slot, pieces: Sequence[_Piece]) -> list[jax.Array]:
        """All but what comes through phi."""
        n, load = self.form.n, functools.partial(self.coefficient, slot, columns=COLUMNS)
        dh_in = common.load(self.scratch["dh_in"].at[slot])
        made = [load(piece.stream) * dh_in for piece in pieces]
        for new in range(n * self.form.mixes):
            dy = common.load(self.scratch["dy"].at[slot, new])
            weights = [load(self._h_res(piece.stream, new)) for piece in pieces]
            made = [total + weight * dy for total, weight in zip(made, weights, strict=True)]
        streams = [common.load(self.scratch["streams"][0].at[*piece.at]) for piece in pieces]
        return [total + load(n) * x for total, x in zip(made, streams, strict=True)]

    def _h_res(self, old, new: int):
        """Which coefficient it is."""
        n = self.form.n
        return self.form.h_res + (old * n + new if self.transposed else new * n + old)
