"""What the kernels by slices share: shapes, and what there is of a tile's tokens.

A block has 64 columns of every stream, a slice, and some of the tiles of 64 tokens; some blocks
have several slices, one after the other: see ``mhc.slices.shares``. Its warpgroups share, in a
ring, what there is of a tile's tokens: ``dh_in``, the parts of ``dh_mix``, the coefficients, and
``dy`` where that is mixed; one of them asks for it.

Warps of a warpgroup meet only where it says so. A warp overwrites only rows that it alone has read
since; before the copy engine overwrites what warps have read, or reads what they wrote, they meet:
in ``commit_smem``, in ``wait_smem_to_gmem``, or as all their threads arrive at a barrier.
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

# Of phi and of dh_mix, in the gradient to the streams: what is lost is less than its rounding.
FEW_PARTS = PARTS - 1
AT_ONCE = 8  # columns of which a thread has two, in the layout of sums
# Bytes that lie together of all that tensor cores multiply: rows of phi are padded to so many.
_SWIZZLE = 64
_DEPTH = _SWIZZLE // 2
_CAPABILITY = "9.0"  # others have other tensor cores


@dataclass(frozen=True)
class Slices:
    """Shapes, and what is to be done.

    Attributes:
      n: streams.
      dim: their width.
      adds: whether there is a gradient to add.
      mixes: whether there are instead gradients to what an ``mhc_post`` makes of the streams, to be
        mixed by its coefficients.
    """

    n: int
    dim: int
    adds: bool = True
    mixes: bool = False

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
    def h_res(self) -> int:
        """Where the coefficients of a token that ``TokenParts`` has with ``h_res`` have it."""
        return 2 * self.n + 1

    @property
    def coefficients(self) -> int:
        """Rows of the coefficients that ``mhc.slices.backward`` reads."""
        return self.h_res + self.n * self.n if self.mixes else self.n + 1

    @property
    def slices(self) -> int:
        """Blocks that share a token."""
        return self.dim // COLUMNS

    def parts_of_phi(self, weight: jax.Array) -> jax.Array:
        """[parts, padded rows, columns]."""
        return split(jnp.pad(weight, ((0, self.padded - self.rows), (0, 0))), FEW_PARTS)

    def shared_of_tokens(
        self, slots: int, coefficients: int, readers: int, dtype
    ) -> dict[str, Any]:
        """Shared memory and barriers for what there is of the tokens of ``slots`` tiles.

        Args:
          slots: how many.
          coefficients: of a token.
          readers: warpgroups that read it.
          dtype: of the streams.
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
    """What the kernels of slices have of each token.

    Attributes:
      dh_mix: its bfloat16 parts side by side, each with zeros for further rows of phi,
        [tokens, parts * padded rows].
      coefficients: h_pre, and the factor of the streams in their own gradient, [n + 1, tokens];
        then those of the ``mhc_post`` that made the streams, if that is asked for: h_post and
        h_res, [n + n n, tokens].
    """

    dh_mix: jax.Array
    coefficients: jax.Array


def runs_here(chip: Chip, tokens: int, dtype) -> bool:
    """Whether there are such tensor cores, and the copy engine can tell the tokens apart."""
    divides = tokens > 0 and tokens % tc.GROUP == 0
    return divides and dtype == jnp.bfloat16 and chip.capability == _CAPABILITY


def factors(dtype, *shape: int):
    """Shared memory for matrices whose columns or rows, 32 at a time, are multiplied."""
    return tc.tiles(dtype, *shape, swizzle=_SWIZZLE)


@dataclass(frozen=True)
class Walker:
    """A warpgroup on its way through tiles of a slice.

    These are ``first``, ``first + step`` and so on, numbered from 0 here.

    Attributes:
      form: shapes.
      tile: with ``shares``; ``slots`` for what there is of tokens, two at least; and
        ``backwards`` if the last tokens come first, of which caches still have something.
      scratch: in shared memory.
      of_tokens: in memory, by their names in shared memory: see ``Slices.shared_of_tokens``.
      number: of the warpgroup.
      turn: which tiles.
    """

    form: Slices
    tile: Any
    scratch: dict
    of_tokens: Mapping[str, Any]
    number: Any
    turn: Turn

    @classmethod
    def here(cls, form: Slices, tile, scratch, of_tokens, **arrays):
        """The warpgroup that runs this; ``arrays`` are attributes of a subclass."""
        tiles, number = _tiles(of_tokens), lax.axis_index(WARPGROUP)
        turn = tile.shares.turn(form.slices, tiles, jnp.int32(0))
        return cls(form, tile, scratch, of_tokens, number, turn, **arrays)

    def run(self) -> None:
        """All tiles of a turn; leaves shared memory to the next."""
        raise NotImplementedError

    def take_turns(self) -> None:
        """All turns of the block."""
        shares, slices, tiles = self.tile.shares, self.form.slices, _tiles(self.of_tokens)
        if not shares.rest:
            self.run()
            return

        @pl.loop(0, shares.turns(slices))
        def _(k):
            dataclasses.replace(self, turn=shares.turn(slices, tiles, k)).run()

    @property
    def count(self):
        """Tiles."""
        return self.turn.count

    @property
    def part(self):
        """Which range."""
        return self.turn.part

    @property
    def place(self):
        """Which slice."""
        return self.turn.place

    def rows(self, i):
        """Tokens of tile ``i``."""
        number, last = self.turn.first + i * self.turn.step, _tiles(self.of_tokens) - 1
        return tc.rows_of(last - number if self.tile.backwards else number)

    def columns(self, stream, half=0, count: int = COLUMNS):
        """Of the slice, or of a part of it, among those of all streams."""
        first = stream * self.form.dim + self.place * COLUMNS + half * count
        return pl.ds(pl.multiple_of(first, count), count)

    def begin_tokens(self) -> None:
        """Reads what is there of the tokens of the first tiles."""
        for slot in range(self.tile.slots):
            self._load_tokens(jnp.int32(slot))

    def wait_for_tokens(self, i):
        """The slot in which tile ``i`` has what there is of its tokens."""
        slot = lax.rem(i, self.tile.slots)
        tc.barrier_wait(self.scratch["ready"].at[slot])
        return slot

    def reload_tokens(self, i) -> None:
        """Where those of the tile before were, once all warpgroups are done with them."""

        def wait():
            tc.barrier_wait(self.scratch["done"].at[lax.rem(i - 1, self.tile.slots)])
            self._load_tokens(i - 1 + self.tile.slots)

        pl.when(i > 0)(wait)

    def _load_tokens(self, i) -> None:
        """Of tile ``i``, if there is one."""
        slot, rows, given = lax.rem(i, self.tile.slots), self.rows(i), self.of_tokens
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
        """A coefficient of the tokens in a slot, [tokens, columns]."""
        reference = self.scratch["coefficients"].at[slot, number]
        column = tc.load(reference, layout=tc.Layout.WGMMA.reduce(1), optimized=False)
        return lax.broadcast_in_dim(column, (ROWS, columns), (0,))

    def add_through_phi(self, through_phi, dh_mix, phi) -> None:
        """Begins to add the product to sums, [tokens, columns].

        Args:
          through_phi: the sums.
          dh_mix: its parts, side by side, [tokens, width].
          phi: its parts, each [padded rows, columns].
        """
        for a, b in products(FEW_PARTS, FEW_PARTS):
            tc.wgmma(through_phi, dh_mix.at[:, self.form.part(a)], phi[b])

    def add_for_phi(self, sums, x, dh_mix) -> None:
        """Begins to add the product to sums [columns, padded rows], of the smallest parts first.

        Args:
          sums: what is added to.
          x: [tokens, columns].
          dh_mix: as above.
        """
        for part in reversed(range(PARTS)):
            tc.wgmma(sums, x.T, dh_mix.at[:, self.form.part(part)])

    def zeros(self) -> jax.Array:
        """Sums for 64 columns of phi."""
        zeros = jnp.zeros((COLUMNS, self.form.rows), jnp.float32)
        return tc.layout_cast(zeros, tc.Layout.WGMMA)


def load(matrix) -> jax.Array:
    """From shared memory, as tensor cores have their sums."""
    return tc.load(matrix, layout=tc.Layout.WGMMA).astype(jnp.float32)


def add_products(a: jax.Array, b: jax.Array) -> jax.Array:
    """Sums of a thread over the columns of ``a b``, as tensor cores have them: [rows, 8]."""
    columns = [slice(first, first + AT_ONCE) for first in range(0, a.shape[1], AT_ONCE)]
    return functools.reduce(jnp.add, [a[:, c] * b[:, c] for c in columns])


def _tiles(of_tokens: Mapping[str, Any]) -> int:
    """How many tiles the tokens are."""
    return -(-of_tokens["dh_in"].shape[0] // ROWS)
