"""Shapes of the kernels by slices, and their pipeline of the inputs of each token.

A block has a slice of 64 columns of every stream, and some of the tiles of 64 tokens; some blocks
process several slices, one after the other: see ``mhc.slices.shares``. The warpgroups of a block
share a ring with the inputs of the tokens of a tile: ``dh_in``, the parts of ``dh_mix``, the
coefficients, and ``dy`` where that is mixed. One warpgroup fills the ring.

The warps of a warpgroup synchronize only where needed. A warp overwrites only rows that no other
warp reads. Before the copy engine overwrites what warps have read, or reads what they wrote, the
warps synchronize: in ``commit_smem``, in ``wait_smem_to_gmem``, or by arriving at a barrier.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from pallas_kernels import tensor_cores as tc
from pallas_kernels.chip import Chip
from pallas_kernels.mhc.slices.shares import Turn
from pallas_kernels.tensor_cores import COLUMNS, ROWS, WARPGROUP
from pallas_kernels.tensor_cores.bfloat16_parts import PARTS, products, split

# bfloat16 parts of phi and of dh_mix in the gradient to the streams: the error is less than that of
# rounding the gradient.
FEW_PARTS = PARTS - 1
AT_ONCE = 8  # columns of the accumulator layout in which a thread has two
# Swizzle span of all factors of tensor cores, in bytes; rows of phi are padded to it.
_SWIZZLE = 64
_DEPTH = _SWIZZLE // 2
_CAPABILITY = "9.0"  # other GPUs have other tensor cores


@dataclass(frozen=True)
class Slices:
    """Shapes of the streams, and the choice of another gradient that is added to theirs.

    Attributes:
      n: number of streams.
      dim: width of a stream.
      adds: whether a gradient of the streams is given, to be added.
      mixes: whether instead the gradient of the new streams of an ``mhc_post`` is given, to be
        mixed by its coefficients and added.
    """

    n: int
    dim: int
    adds: bool = True
    mixes: bool = False

    @property
    def rows(self) -> int:
        """Number of rows of phi."""
        return self.n * self.n + 2 * self.n

    @property
    def padded(self) -> int:
        """Rows of phi, padded with rows of zeros to the swizzle span."""
        return -(-self.rows // _DEPTH) * _DEPTH

    @property
    def width(self) -> int:
        """Columns of all parts of dh_mix side by side."""
        return PARTS * self.padded

    def part(self, number: int) -> slice:
        """Columns of one part of dh_mix among those of all parts."""
        return slice(number * self.padded, (number + 1) * self.padded)

    @property
    def h_res(self) -> int:
        """First row of ``h_res`` in the coefficients of ``TokenParts``."""
        return 2 * self.n + 1

    @property
    def coefficients(self) -> int:
        """Number of rows of the coefficients that ``mhc.slices.backward`` reads."""
        return self.h_res + self.n * self.n if self.mixes else self.n + 1

    @property
    def slices(self) -> int:
        """Number of slices of 64 columns."""
        return self.dim // COLUMNS

    def parts_of_phi(self, phi: jax.Array) -> jax.Array:
        """The bfloat16 parts of phi with padded rows, [parts, padded rows, columns]."""
        return split(jnp.pad(phi, ((0, self.padded - self.rows), (0, 0))), FEW_PARTS)

    def shared_of_tokens(
        self, slots: int, coefficients: int, readers: int, dtype
    ) -> dict[str, Any]:
        """Shared memory and barriers of the ring with the inputs of tokens.

        Args:
          slots: stages of the ring, one tile each.
          coefficients: number of coefficients of a token.
          readers: warpgroups that read the ring.
          dtype: dtype of the streams.
        """
        mixed = {"dy": tc.tiles(dtype, slots, self.n, ROWS, COLUMNS)}
        return {
            "dh_in": factors(dtype, slots, ROWS, COLUMNS),
            "dh_mix": factors(dtype, slots, ROWS, self.width),
            "coefficients": tc.SMEM((slots, coefficients, ROWS), jnp.float32),
            **(mixed if self.mixes else {}),
            "ready": tc.Barrier(num_arrivals=3 + self.n * self.mixes, num_barriers=slots),
            "done": tc.Barrier(num_arrivals=readers, num_barriers=slots),
        }


class TokenParts(NamedTuple):
    """The inputs of each token that ``token_parts`` computes for the kernels by slices.

    Attributes:
      dh_mix: the bfloat16 parts of the gradient of ``h_mix`` side by side, each padded with zeros,
        [tokens, parts * padded rows].
      coefficients: ``h_pre`` and the factor of the streams in their own gradient, [n + 1, tokens].
        With an ``mhc_post``, its ``h_post`` and ``h_res`` follow, [n + n n, tokens].
    """

    dh_mix: jax.Array
    coefficients: jax.Array


def runs_here(chip: Chip, tokens: int, dtype) -> bool:
    """Whether the chip has the tensor cores for this dtype, and there is a token."""
    return tokens > 0 and dtype == jnp.bfloat16 and chip.capability == _CAPABILITY


def padded_tokens[T](arrays: T) -> T:
    """Returns arrays of tokens with zeros up to a multiple of 8, which the copy engine addresses.

    A token of zeros with gradients of zero adds zero to the gradients of ``phi``, ``alpha`` and
    ``bias``, and is exact in them. Results of tokens behind the last one have to be cut off.
    """

    def pad(array: jax.Array) -> jax.Array:
        missing = -len(array) % tc.GROUP
        return jnp.pad(array, ((0, missing), *[(0, 0)] * (array.ndim - 1))) if missing else array

    return jax.tree.map(pad, arrays)


def factors(dtype, *shape: int):
    """Shared memory for matrices that tensor cores multiply, swizzled by 32 columns."""
    return tc.tiles(dtype, *shape, swizzle=_SWIZZLE)


@dataclass(frozen=True)
class Walker:
    """A warpgroup that processes tiles of a slice.

    The tiles ``first``, ``first + step`` and so on of a turn are numbered from 0 here.

    Attributes:
      form: shapes of the streams.
      tile: how blocks share the work, with ``shares``; ``slots``, the stages of the ring of inputs
        of tokens, two at least; and ``reverse``, whether the last tokens come first, some of which
        are still in a cache.
      scratch: arrays and barriers in shared memory.
      per_token: inputs of tokens in global memory, by their names in ``shared_of_tokens``.
      number: index of the warpgroup in its block.
      turn: the tiles to process.
    """

    form: Slices
    tile: Any
    scratch: dict
    per_token: Mapping[str, Any]
    number: Any
    turn: Turn

    @classmethod
    def current(cls, form: Slices, tile, scratch, per_token, **arrays):
        """Describes the warpgroup that runs this; ``arrays`` are the attributes of a subclass."""
        tiles, number = _tiles(per_token), lax.axis_index(WARPGROUP)
        turn = tile.shares.turn(form.slices, tiles, jnp.int32(0))
        return cls(form, tile, scratch, per_token, number, turn, **arrays)

    def run(self) -> None:
        """Processes all tiles of a turn, and leaves shared memory free for the next turn."""
        raise NotImplementedError

    def run_all_turns(self) -> None:
        """Runs all turns of the block."""
        shares, slices, tiles = self.tile.shares, self.form.slices, _tiles(self.per_token)
        if not shares.rest:
            self.run()
            return

        @pl.loop(0, shares.turns(slices))
        def _(k):
            dataclasses.replace(self, turn=shares.turn(slices, tiles, k)).run()

    @property
    def count(self):
        """Number of tiles of the turn."""
        return self.turn.count

    @property
    def range_number(self):
        """Number of the block's range among those of the slice."""
        return self.turn.range_number

    @property
    def slice_number(self):
        """Number of the slice."""
        return self.turn.slice_number

    def rows(self, i):
        """The tokens of tile ``i``, as an index of rows."""
        number, last = self.turn.first + i * self.turn.step, _tiles(self.per_token) - 1
        return tc.rows_of(last - number if self.tile.reverse else number)

    def columns(self, stream, half=0, count: int = COLUMNS):
        """The columns of the slice, or of a part of it, among the columns of all streams."""
        first = stream * self.form.dim + self.slice_number * COLUMNS + half * count
        return pl.ds(pl.multiple_of(first, count), count)

    def load_first_tokens(self) -> None:
        """Begins to copy the inputs of tokens of the first tiles, one for each stage."""
        for slot in range(self.tile.slots):
            self._load_tokens(jnp.int32(slot))

    def wait_for_tokens(self, i):
        """Waits for the inputs of tokens of tile ``i``; returns their stage of the ring."""
        slot = lax.rem(i, self.tile.slots)
        tc.barrier_wait(self.scratch["ready"].at[slot])
        return slot

    def refill_tokens(self, i) -> None:
        """Refills the stage of the previous tile, once all warpgroups have read it."""

        def wait():
            tc.barrier_wait(self.scratch["done"].at[lax.rem(i - 1, self.tile.slots)])
            self._load_tokens(i - 1 + self.tile.slots)

        pl.when(i > 0)(wait)

    def _load_tokens(self, i) -> None:
        """Begins to copy the inputs of tokens of tile ``i``, if there is one."""
        slot, rows, given = lax.rem(i, self.tile.slots), self.rows(i), self.per_token
        scratch, streams = self.scratch, range(self.form.n * self.form.mixes)
        copies = [
            (given["dh_in"].at[rows, self.columns(0)], scratch["dh_in"].at[slot]),
            (given["dh_mix"].at[rows], scratch["dh_mix"].at[slot]),
            (given["coefficients"].at[:, rows], scratch["coefficients"].at[slot]),
            *((given["dy"].at[rows, self.columns(s)], scratch["dy"].at[slot, s]) for s in streams),
        ]

        def load():
            for source, target in copies:
                tc.copy_gmem_to_smem(source, target, scratch["ready"].at[slot])

        pl.when(i < self.count)(load)

    def coefficient(self, slot, number, columns: int) -> jax.Array:
        """A coefficient of the tokens in a stage, broadcast to [tokens, columns]."""
        reference = self.scratch["coefficients"].at[slot, number]
        column = tc.load(reference, layout=tc.Layout.WGMMA.reduce(1), optimized=False)
        return lax.broadcast_in_dim(column, (ROWS, columns), (0,))

    def add_through_phi(self, through_phi, dh_mix, phi) -> None:
        """Starts the product of ``dh_mix`` and phi, the gradient of the streams through phi.

        Args:
          through_phi: accumulator, [tokens, columns].
          dh_mix: its parts side by side, [tokens, width].
          phi: its parts, each [padded rows, columns].
        """
        for a, b in products(FEW_PARTS, FEW_PARTS):
            tc.wgmma(through_phi, dh_mix.at[:, self.form.part(a)], phi[b])

    def add_for_phi(self, sums, x, dh_mix) -> None:
        """Starts the product of a stream and ``dh_mix``, the gradient of phi; smallest parts first.

        Args:
          sums: accumulator, [columns, padded rows].
          x: the stream, [tokens, columns].
          dh_mix: its parts side by side, [tokens, width].
        """
        for part in reversed(range(PARTS)):
            tc.wgmma(sums, x.T, dh_mix.at[:, self.form.part(part)])

    def zeros(self) -> jax.Array:
        """Zeros for the gradient of 64 columns of phi, in the layout of accumulators."""
        zeros = jnp.zeros((COLUMNS, self.form.rows), jnp.float32)
        return tc.layout_cast(zeros, tc.Layout.WGMMA)


def load(matrix) -> jax.Array:
    """Loads a matrix from shared memory as float32, in the layout of accumulators."""
    return tc.load(matrix, layout=tc.Layout.WGMMA).astype(jnp.float32)


def add_products(a: jax.Array, b: jax.Array) -> jax.Array:
    """Sums of ``a b`` over a thread's columns in the layout of accumulators, [rows, 8]."""
    columns = [slice(first, first + AT_ONCE) for first in range(0, a.shape[1], AT_ONCE)]
    return functools.reduce(jnp.add, [a[:, c] * b[:, c] for c in columns])


def _tiles(per_token: Mapping[str, Any]) -> int:
    """Number of tiles of all tokens."""
    return -(-per_token["dh_in"].shape[0] // ROWS)
