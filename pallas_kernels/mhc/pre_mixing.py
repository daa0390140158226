"""What ``mhc_pre`` makes of the sums of its tokens: coefficients, and the layer's input.

Second of two passes forward; ``mhc.wide_sums`` has the first, where a token is too wide for one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.mhc.streams import READ_BYTES, combine, read_once, sum_terms
from pallas_kernels.mhc.wide_sums import Sums
from pallas_kernels.simt.blocks import striding_blocks
from pallas_kernels.simt.values import Array
from pallas_kernels.simt.warp import LANES, Warp


@dataclass(frozen=True)
class MixingTile:
    """What a block does.

    Attributes:
      tokens: that it takes at once.
      warps: that it has.
    """

    tokens: int = 2
    warps: int = 8

    def shared(self, n: int) -> dict[str, jax.ShapeDtypeStruct]:
        """What a block has in shared memory: sums, and weights of the streams."""
        shapes = {"sums": (self.tokens, n * n + 2 * n + 1), "weights": (self.tokens, n)}
        return {name: jax.ShapeDtypeStruct(s, jnp.float32) for name, s in shapes.items()}


class Constants(NamedTuple):
    """Those of ``mhc_pre``."""

    norm_eps: float
    pre_eps: float
    post_scale: float


def result_shapes(x: jax.Array) -> list[jax.ShapeDtypeStruct]:
    """Of all that ``mhc_pre`` makes of ``x`` [tokens, n, dim]."""
    tokens, n, dim = x.shape
    shapes = [(tokens, n), (tokens, n, n), (tokens,), (tokens, n * n + 2 * n)]
    of_tokens = [jax.ShapeDtypeStruct(shape, jnp.dtype(jnp.float32)) for shape in shapes]
    return [jax.ShapeDtypeStruct((tokens, dim), x.dtype), *of_tokens]


def mix_streams(
    x: jax.Array,
    sums: Sums,
    alpha: jax.Array,
    bias: jax.Array,
    constants: Constants,
    tile: MixingTile = MixingTile(),
) -> tuple[jax.Array, ...]:
    """What ``mhc_pre`` makes, from the sums.

    Args:
      x: [tokens, n, dim], of a dtype of 16 bits.
      sums: of these.
      alpha: as in ``mhc_pre``.
      bias: as in ``mhc_pre``.
      constants: likewise.
      tile: what a block does.
    """
    tokens, n, dim = x.shape
    return simt.launch(
        _Mix(Mixing(n, constants), tile),
        (x.reshape(tokens, n * dim), *sums, alpha, bias),
        result_shapes(x),
        name="mhc_pre_mix",
        grid=simt.Grid(striding_blocks(tokens, tile.tokens), tile.warps),
        block_shared=tile.shared(n),
    )


@dataclass(frozen=True)
class Mixing:
    """What all warps of a block do with some tokens.

    Attributes:
      n: streams.
      constants: see there.
    """

    n: int
    constants: Constants

    @property
    def rows(self) -> int:
        """Rows of phi."""
        return self.n * self.n + 2 * self.n

    def run(self, warp: Warp, inputs, sums: Array, first, count, weights: Array, outputs) -> None:
        """Makes all but ``h_mix``.

        Args:
          warp: one of the block.
          inputs: x, alpha and bias.
          sums: of products and then of squares, in shared memory, [tokens, rows + 1].
          first: of the tokens.
          count: of tokens.
          weights: of the streams, in shared memory, [tokens, n]; made here.
          outputs: as ``result_shapes`` has them.
        """
        x, *parameters = inputs
        h_in, *coefficients, _ = outputs
        self._coefficients(warp, parameters, sums, first, count, x.shape[1], weights, coefficients)
        warp.barrier()
        self._combine(warp, x, weights, h_in, first, count)

    def _coefficients(self, warp, given, sums, first, count, size: int, weights, to) -> None:
        (alpha, bias), (h_post, h_res, inv_rms) = given, to
        n, width, (norm_eps, pre_eps, post_scale) = self.n, self.rows + 1, self.constants

        def make(i, _):
            token = i // self.rows
            row, number = i - token * self.rows, first + token
            squares = sums.load(token * width + self.rows)
            scale = warp.rsqrt(warp.fma(squares, warp.f32(1 / size), warp.f32(norm_eps)))
            normed = sums.load(token * width + row) * scale
            part = (row >= n).to("i32") + (row >= 2 * n).to("i32")
            logit = warp.fma(alpha.load(part), normed, bias.load(row))
            sigmoid = warp.sigmoid(logit)
            warp.when(row == 0, lambda: inv_rms.store(number, scale))
            warp.when(part == 0, lambda: weights.store(token * n + row, sigmoid + pre_eps))

            def store_post():
                h_post.row(number).store(row - n, sigmoid * post_scale)

            warp.when(part == 1, store_post)
            warp.when(part == 2, lambda: h_res.row(number).store(row - 2 * n, logit))

        warp.loop(warp.thread, count * self.rows, warp.threads, (), make)

    def _combine(self, warp: Warp, x: Array, weights: Array, h_in: Array, first, count) -> None:
        """Adds the streams up, 16 bytes of a token's columns in a lane."""
        n, dim, entries = self.n, h_in.shape[1], READ_BYTES // x.itemsize
        reads = dim // entries

        def take(i, _):
            token = i // reads
            column = (i - token * reads) * entries
            number = first + token
            words = [read_once(x, number, column + s * dim, entries) for s in range(n)]
            factors = [weights.load(token * n + s) for s in range(n)]
            streams = [[x.unpack(part, e) for e in range(entries)] for part in words]
            h_in.row(number).store(column, *combine(warp, factors, streams))

        warp.loop(warp.thread, count * reads, warp.threads, (), take)


@dataclass(frozen=True)
class _Mix:
    """A block adds up what the shares have of some tokens, and goes on with the sums."""

    mixing: Mixing
    tile: MixingTile

    def __call__(self, warp: Warp, inputs, *outputs: Array, sums: Array, weights: Array) -> None:
        x, *of_shares, alpha, bias = inputs
        tokens, at_once = x.shape[0], self.tile.tokens

        def take(block, _):
            first = block * at_once
            count = (tokens - first).at_most(at_once)
            self._add_up(warp, of_shares, sums, outputs[-1], first, count)
            warp.barrier()
            self.mixing.run(warp, (x, alpha, bias), sums, first, count, weights, outputs)

        blocks = warp.count * LANES // warp.threads
        warp.loop(warp.block, -(-tokens // at_once), blocks, (), take)

    def _add_up(self, warp: Warp, of_shares, sums: Array, h_mix: Array, first, count) -> None:
        products, squares = of_shares
        rows, shares = self.mixing.rows, products.shape[0]

        def of_row(i, _):
            token = i // rows
            row, number = i - token * rows, first + token

            def read(share):
                return [products.row(share).row(number).load(row)]

            (total,) = sum_terms(warp, shares, 1, read)
            sums.store(token * (rows + 1) + row, total)
            h_mix.row(number).store(row, total)

        warp.loop(warp.thread, count * rows, warp.threads, (), of_row)

        def of_squares(token, _):
            (total,) = sum_terms(warp, shares, 1, lambda s: [squares.row(s).load(first + token)])
            sums.store(token * (rows + 1) + rows, total)

        warp.loop(warp.thread, count, warp.threads, (), of_squares)
