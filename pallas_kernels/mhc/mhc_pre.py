"""The part of hyper-connections before a layer: coefficients, and the layer's input.

The forward pass has three kernels: ``mhc.cluster.pre`` for widths that its
clusters divide, ``mhc.wide_sums`` for wide tokens, and that of this module for all other widths.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.arguments.mhc import MHCConstants, MHCParams
from pallas_kernels.chip import Chip
from pallas_kernels.mhc.cluster.pre import Forward as _ForwardByClusters
from pallas_kernels.mhc.cluster.streams import PARTS as FEW_PARTS
from pallas_kernels.mhc.cluster.tile import LEAST_ENTRIES, MhcPreClusterTile
from pallas_kernels.mhc.pre_backward import mhc_pre_backward
from pallas_kernels.mhc.pre_mixing import Mixing, mix_streams, result_shapes
from pallas_kernels.mhc.wide_sums import WideTile, wide_sums
from pallas_kernels.simt.blocks import striding_blocks
from pallas_kernels.simt.values import Array, Value
from pallas_kernels.simt.warp import LANES, Warp
from pallas_kernels.tensor_cores.bfloat16_parts import PARTS, add_products, split

__all__ = ["MhcPreClusterTile", "MhcPreTile", "mhc_pre", "mhc_pre_backward"]

_ROWS = 16  # Tokens of a fragment of Warp.mma.
_COLUMNS = 8  # Rows of phi of a fragment, and neighbouring columns of x in a lane.
_SPAN_BYTES = 128  # Bytes of a token that a warp reads at once.
_FEW_BLOCKS = 96
# Entries of a wide token of 16 bits, from which on blocks have 16 warps. On an H200, 8192 tokens of
# four streams, 3072 wide, took 0.128 ms with 2 fragments and 16 warps, and 0.154 ms with 4 and 8;
# 7168 wide, 0.307 and 0.353 ms. No width between these and the narrow ones was timed.
_LEAST_WIDE = 4 * 2048


@dataclass(frozen=True)
class MhcPreTile:
    """Division of the columns of a block's tokens among its warps.

    Attributes:
      fragments: fragments of 16 tokens that a block processes at once; they share reads of phi.
      warps: warps of a block.
      parts: bfloat16 numbers whose sum represents an entry of phi.
    """

    fragments: int
    warps: int
    parts: int = PARTS

    @classmethod
    def choose(cls, tokens: int, n: int, dim: int) -> MhcPreTile:
        """The only heuristic: as many tokens as registers hold, but enough blocks."""
        narrow = 2 * n * dim <= 4 * _SPAN_BYTES
        fragments, warps = (2, 16) if n * dim >= _LEAST_WIDE else (4, 4 if narrow else 8)
        while fragments > 1 and tokens < _FEW_BLOCKS * _ROWS * fragments:
            fragments //= 2
        parts = FEW_PARTS if n * dim >= LEAST_ENTRIES else PARTS
        return cls(fragments, warps, parts)

    @property
    def tokens(self) -> int:
        """Tokens that a block processes at once."""
        return _ROWS * self.fragments

    def shared(self, n: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Arrays in shared memory of a block: sums of each warp, and weights of the streams."""
        sums = (self.warps, self.tokens, n * n + 2 * n + 1)
        shapes = {"sums": sums, "weights": (self.tokens, n)}
        return {name: jax.ShapeDtypeStruct(s, jnp.float32) for name, s in shapes.items()}


def mhc_pre(
    x: jax.Array,
    params: MHCParams,
    constants: MHCConstants,
    tile: MhcPreTile | MhcPreClusterTile | WideTile | None = None,
) -> tuple[jax.Array, ...]:
    """Projects the streams to coefficients and mixes them: see ``jaxgnn.ops.mhc_pre``.

    Args:
      x: the streams, [tokens, n, dim] bfloat16, dim a multiple of 64.
      params: parameters with ``gamma`` folded into ``phi``.
      constants: constants of the op.
      tile: how blocks share the work; by default chosen for the shapes.

    Returns:
      ``h_in`` [tokens, dim], ``h_post`` [tokens, n], ``h_res`` [tokens, n, n]; and for the backward
      pass ``inv_rms`` [tokens], ``h_mix`` [tokens, n n + 2 n].
    """
    tokens, n, dim = x.shape
    phi, alpha, bias, _ = params
    outputs = result_shapes(x)
    if tokens == 0:
        return tuple(jnp.zeros(form.shape, form.dtype) for form in outputs)
    tile = tile or MhcPreClusterTile.choose(Chip.current(), tokens, n, dim, x.dtype)
    tile = tile or WideTile.choose(Chip.current(), tokens, n, dim, x.dtype, posts=False)
    if isinstance(tile, WideTile):
        _, sums = wide_sums(x, phi, None, tile)
        return mix_streams(x, sums, params, constants)
    tile = tile or MhcPreTile.choose(tokens, n, dim)
    if isinstance(tile, MhcPreClusterTile):
        kernel, grid = _ForwardByClusters(tile, n, constants), tile.grid
    else:
        kernel, phi = _Forward(tile, Mixing(n, constants)), split(phi, tile.parts)
        grid = simt.Grid(striding_blocks(tokens, tile.tokens), tile.warps)
    return simt.launch(
        kernel,
        (x.reshape(tokens, n * dim), phi, alpha, bias),
        outputs,
        name="mhc_pre",
        grid=grid,
        block_shared=tile.shared(n),
    )


@dataclass(frozen=True)
class _Forward:
    """Projects and then mixes some tokens at a time, which a block reads twice.

    The second read is served from a cache. In the first pass the warps share the columns; their
    partial sums go through shared memory, where they are added in a fixed order.
    """

    tile: MhcPreTile
    mixing: Mixing

    def __call__(self, warp: Warp, inputs, *outputs: Array, sums: Array, weights: Array) -> None:
        x, parts, alpha, bias = inputs
        tokens, at_once = x.shape[0], self.tile.tokens

        def take(block, _):
            first = block * at_once
            count = (tokens - first).at_most(at_once)
            _Projection(warp, self.tile, x, parts, first).run(sums)
            warp.barrier()
            self._add_up(warp, sums, outputs[-1], first, count)
            warp.barrier()
            self.mixing.run(warp, (x, alpha, bias), sums, first, count, weights, outputs)

        blocks = warp.count * LANES // warp.threads
        warp.loop(warp.block, -(-tokens // at_once), blocks, (), take)

    def _add_up(self, warp, sums, h_mix, first, count) -> None:
        """Adds the sums of all warps to those of the first, and writes ``h_mix``."""
        rows = self.mixing.rows
        width = rows + 1

        def add(i, _):
            total = sums.load(i)
            for other in range(1, self.tile.warps):
                total = total + sums.load(i + other * (self.tile.tokens * width))
            sums.store(i, total)
            token = i // width
            row = i - token * width
            warp.when(row < rows, lambda: h_mix.row(first + token).store(row, total))

        warp.loop(warp.thread, count * width, warp.threads, (), add)


@dataclass(frozen=True)
class _Projection:
    """The products of a block's tokens with the rows of phi, and their sums of squares.

    A lane reads eight neighbouring columns, from ``8 q`` on, of a token or of a row of phi. It uses
    them as the columns ``2 q``, ``2 q + 1``, ``2 q + 8`` and ``2 q + 9`` of two fragments. A sum
    may take its terms in any order that is the same for both factors.

    Attributes:
      warp: the warp that runs this.
      tile: how the warps of a block share its tokens.
      x: the streams, [tokens, columns].
      parts: bfloat16 parts of phi, [parts, rows, columns].
      first: first token of the block.
    """

    warp: Warp
    tile: MhcPreTile
    x: Array
    parts: Array
    first: Value

    @property
    def groups(self) -> int:
        """Groups of eight rows of phi."""
        return self.parts.shape[1] // _COLUMNS

    @property
    def chunks(self) -> int:
        """Reads of four lanes' columns that a warp has in flight for a token."""
        return _SPAN_BYTES // (4 * _COLUMNS * self.x.itemsize)

    def run(self, sums: Array) -> None:
        """Writes this warp's partial sums to shared memory, [warps, tokens, rows + 1]."""
        warp, size = self.warp, self.x.shape[1]
        zeros = [
            [[warp.f32(0.0)] * 4 for _ in range(self.groups)] for _ in range(self.tile.fragments)
        ]
        squares = [[warp.f32(0.0)] * 2 for _ in range(self.tile.fragments)]
        span = 4 * _COLUMNS * self.chunks
        begin = warp.thread // LANES * span
        products, squares = warp.loop(
            begin, size, self.tile.warps * span, (zeros, squares), self._add
        )
        self._store(sums, products, squares)

    def _add(self, column, carry):
        """Adds the products and squares of the columns from ``column`` on."""
        warp, (products, squares) = self.warp, carry
        at = column + warp.lane % 4 * _COLUMNS
        # All loads of x come before the first use of one of them.
        words = [
            [self._read(fragment, at + 4 * _COLUMNS * c) for c in range(self.chunks)]
            for fragment in range(self.tile.fragments)
        ]
        for c in range(self.chunks):
            weights = [self._weights(group, at + 4 * _COLUMNS * c) for group in range(self.groups)]
            values = [[self._unpack(row) for row in fragment[c]] for fragment in words]
            squares = [
                [self._add_squares(*pair) for pair in zip(*both, strict=True)]
                for both in zip(values, squares, strict=True)
            ]
            products = [
                [
                    add_products(warp, total, _left(fragment[c]), weight)
                    for total, weight in zip(totals, weights, strict=True)
                ]
                for fragment, totals in zip(words, products, strict=True)
            ]
        return products, squares

    def _read(self, fragment: int, at: Value) -> list[list[Value]]:
        """Words of eight columns of this lane's two tokens, which are clamped to the last token."""
        last = self.x.shape[0] - 1
        rows = [self.first + (_ROWS * fragment + 8 * half) + self.warp.lane // 4 for half in (0, 1)]
        return [self.x.row(row.at_most(last)).load_words(at, _COLUMNS) for row in rows]

    def _unpack(self, words: list[Value]) -> list[Value]:
        return [self.x.unpack(words, e) for e in range(_COLUMNS)]

    def _add_squares(self, values: list[Value], total: Value) -> Value:
        for value in values:
            total = self.warp.fma(value, value, total)
        return total

    def _weights(self, group: int, at: Value) -> list[list[list[Value]]]:
        """Right fragments of each part of a group of rows of phi."""
        row = self.warp.lane // 4 + group * _COLUMNS
        words = [
            self.parts.row(self.warp.i32(part)).row(row).load_words(at, _COLUMNS)
            for part in range(self.parts.shape[0])
        ]
        return [[part[:2], part[2:]] for part in words]

    def _store(self, sums: Array, products, squares) -> None:
        """Writes the products and squares of this warp to its part of ``sums``."""
        warp, width = self.warp, self.parts.shape[1] + 1
        first = warp.thread // LANES * self.tile.tokens
        for fragment, (totals, halves) in enumerate(zip(products, squares, strict=True)):
            for half in (0, 1):
                row = first + (_ROWS * fragment + 8 * half) + warp.lane // 4
                at = row * width + warp.lane % 4 * 2
                for group, total in enumerate(totals):
                    for i in (0, 1):
                        sums.store(at + (group * _COLUMNS + i), total[2 * half + i])
                total = warp.sum_lanes(halves[half], 4)
                place = row * width + (width - 1)
                warp.when(warp.lane % 4 == 0, lambda p=place, t=total: sums.store(p, t))


def _left(rows: list[list[Value]]) -> list[list[list[Value]]]:
    """Left fragments of the only part, from the words of two tokens, eight rows apart."""
    upper, lower = rows
    return [[[upper[k], lower[k], upper[k + 1], lower[k + 1]] for k in (0, 2)]]
