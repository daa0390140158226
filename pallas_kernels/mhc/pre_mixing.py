"""The second of two passes of ``mhc_pre``: coefficients and the layer's input, from projections.

``mhc.wide_sums`` is the first pass, for tokens that are too wide for a single one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.arguments.mhc import MHCConstants, MHCParams
from pallas_kernels.mhc.streams import READ_BYTES, combine, read_once, sum_terms
from pallas_kernels.mhc.wide_sums import Sums
from pallas_kernels.simt.blocks import striding_blocks
from pallas_kernels.simt.values import Array, Value
from pallas_kernels.simt.warp import LANES, Warp


@dataclass(frozen=True)
class MixingTile:
    """Division of the tokens among blocks.

    Attributes:
      tokens: tokens that a block processes at once.
      warps: warps of a block.
    """

    tokens: int = 2
    warps: int = 8

    def shared(self, n: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Arrays in shared memory of a block: sums of each token, and weights of its streams."""
        shapes = {"sums": (self.tokens, n * n + 2 * n + 1), "weights": (self.tokens, n)}
        return {name: jax.ShapeDtypeStruct(s, jnp.float32) for name, s in shapes.items()}


class _Tokens(NamedTuple):
    """The tokens that a block processes at once: the first of them, and how many there are."""

    first: Value
    count: Value


def result_shapes(x: jax.Array) -> list[jax.ShapeDtypeStruct]:
    """Shapes of all results of ``mhc_pre`` for ``x`` [tokens, n, dim]."""
    tokens, n, dim = x.shape
    shapes = [(tokens, n), (tokens, n, n), (tokens,), (tokens, n * n + 2 * n)]
    of_tokens = [jax.ShapeDtypeStruct(shape, jnp.dtype(jnp.float32)) for shape in shapes]
    return [jax.ShapeDtypeStruct((tokens, dim), x.dtype), *of_tokens]


def mix_streams(
    x: jax.Array,
    sums: Sums,
    params: MHCParams,
    constants: MHCConstants,
    tile: MixingTile = MixingTile(),
) -> tuple[jax.Array, ...]:
    """All results of ``mhc_pre``, from the products of the streams with phi and their squares.

    Args:
      x: the streams, [tokens, n, dim], of a dtype of 16 bits.
      sums: partial sums of the products and squares of ``x``.
      params: parameters of ``mhc_pre``; ``phi`` is not read.
      constants: constants of ``mhc_pre``.
      tile: how blocks share the tokens.
    """
    tokens, n, dim = x.shape
    return simt.launch(
        _Mix(Mixing(n, constants), tile),
        (x.reshape(tokens, n * dim), *sums, params.alpha, params.bias),
        result_shapes(x),
        name="mhc_pre_mix",
        grid=simt.Grid(striding_blocks(tokens, tile.tokens), tile.warps),
        block_shared=tile.shared(n),
    )


@dataclass(frozen=True)
class Mixing:
    """Coefficients and mixed streams of some tokens, computed by all warps of a block.

    Attributes:
      n: number of streams.
      constants: constants of ``mhc_pre``.
    """

    n: int
    constants: MHCConstants

    @property
    def rows(self) -> int:
        """Number of rows of phi."""
        return self.n * self.n + 2 * self.n

    def run(self, warp: Warp, inputs, sums: Array, first, count, weights: Array, outputs) -> None:
        """Computes and writes all results except ``h_mix``.

        Args:
          warp: a warp of the block.
          inputs: x [tokens, n dim], alpha and bias.
          sums: products with the rows of phi, then the sum of squares, [tokens, rows + 1] in shared
            memory.
          first: first of the tokens.
          count: number of tokens.
          weights: weights of the streams, [tokens, n] in shared memory; written here.
          outputs: all results in the order of ``result_shapes``.
        """
        x, *parameters = inputs
        h_in, *coefficients, _ = outputs
        tokens = _Tokens(first, count)
        self._coefficients(warp, tokens, parameters, sums, x.shape[1], weights, coefficients)
        warp.barrier()
        self._combine(warp, tokens, x, weights, h_in)

    def _coefficients(self, warp, tokens: _Tokens, given, sums, size: int, weights, to) -> None:
        """Computes the coefficients of tokens of ``size`` entries, one row of phi in a lane."""
        (first, count), (alpha, bias), (h_post, h_res, inv_rms) = tokens, given, to
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

    def _combine(self, warp: Warp, tokens: _Tokens, x: Array, weights: Array, h_in: Array) -> None:
        """Writes the weighted sums of the streams, 16 bytes of a token in a lane."""
        first, count = tokens
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
    """Adds the partial sums of some tokens in each block, then computes their results."""

    mixing: Mixing
    tile: MixingTile

    def __call__(self, warp: Warp, inputs, *outputs: Array, sums: Array, weights: Array) -> None:
        x, *partial_sums, alpha, bias = inputs
        tokens, at_once = x.shape[0], self.tile.tokens

        def take(block, _):
            first = block * at_once
            count = (tokens - first).at_most(at_once)
            self._add_up(warp, partial_sums, sums, outputs[-1], first, count)
            warp.barrier()
            self.mixing.run(warp, (x, alpha, bias), sums, first, count, weights, outputs)

        blocks = warp.count * LANES // warp.threads
        warp.loop(warp.block, -(-tokens // at_once), blocks, (), take)

    def _add_up(self, warp: Warp, partial_sums, sums: Array, h_mix: Array, first, count) -> None:
        """Adds the partial sums of all shares to shared memory, and writes ``h_mix``."""
        products, squares = partial_sums
        rows, shares = self.mixing.rows, products.shape[0]

        def add_products(i, _):
            token = i // rows
            row, number = i - token * rows, first + token

            def read(share):
                return [products.row(share).row(number).load(row)]

            (total,) = sum_terms(warp, shares, 1, read)
            sums.store(token * (rows + 1) + row, total)
            h_mix.row(number).store(row, total)

        warp.loop(warp.thread, count * rows, warp.threads, (), add_products)

        def add_squares(token, _):
            (total,) = sum_terms(warp, shares, 1, lambda s: [squares.row(s).load(first + token)])
            sums.store(token * (rows + 1) + rows, total)

        warp.loop(warp.thread, count, warp.threads, (), add_squares)
