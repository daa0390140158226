"""Adds the partial sums of the blocks of a backward pass by slices, each sum in a fixed order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.mhc.slices.shapes import Slices
from pallas_kernels.mhc.streams import sum_terms
from pallas_kernels.simt.blocks import striding_blocks
from pallas_kernels.simt.values import Array, Value
from pallas_kernels.simt.warp import LANES, Warp

_WARPS = 8
_FLOATS = 4  # neighbouring numbers that a lane loads and adds


class Partial(NamedTuple):
    """Partial sums of gradients.

    Attributes:
      phi: gradient to phi over each range of tokens, [ranges, n dim, rows].
      tokens: gradients to the bias, and to the gain of each row, over the tokens of each block of
        ``token_parts``, [blocks, 2, padded rows].
      products: inner products of each token over each slice of columns, for ``h_post`` and then for
        ``h_res``, [slices, n + n n, tokens]; [1, n + n n, tokens] if they are already summed; or
        None.
    """

    phi: Any
    tokens: Any
    products: Any = None


def add_up(form: Slices, partial: Partial) -> tuple[jax.Array, ...]:
    """Gradients to phi [rows, n dim], alpha and bias; and to ``h_post`` and ``h_res``, if given.

    Args:
      form: shapes of the streams.
      partial: the partial sums; with products, gradients to ``h_post`` and ``h_res`` are results.
    """
    n, rows = form.n, form.rows
    shapes = [(rows, n * form.dim), (3,), (rows,)]
    if partial.products is not None:
        tokens = partial.products.shape[2]
        shapes += [(tokens, n), (tokens, n, n)]
    kernel = _AddUp(form)
    f32 = jnp.dtype(jnp.float32)
    return simt.launch(
        kernel,
        partial,
        [jax.ShapeDtypeStruct(shape, f32) for shape in shapes],
        name="mhc_backward_sums",
        grid=simt.Grid(striding_blocks(sum(kernel.tasks(partial)), _WARPS), _WARPS),
        block_shared={"warp_sums": jax.ShapeDtypeStruct((_WARPS, 2, form.padded), f32)},
    )


@dataclass(frozen=True)
class _AddUp:
    """Adds partial sums: each warp four rows of 32 columns or tokens, the first block the gains."""

    form: Slices

    def tasks(self, partial: Partial) -> tuple[int, int]:
        """Numbers of tasks of a warp: for phi, and for products."""
        of_phi = self.form.rows // _FLOATS * (self.form.n * self.form.dim // LANES)
        if partial.products is None:
            return of_phi, 0
        _, products, tokens = partial.products.shape
        return of_phi, products // _FLOATS * -(-tokens // LANES)

    def __call__(self, warp: Warp, partial: Partial, dphi, dalpha, dbias, *post, warp_sums):
        of_phi, of_products = self.tasks(partial)

        def take(number, _):
            warp.when(number < of_phi, lambda: self._phi(warp, number, partial.phi, dphi))
            if post:
                products = partial.products
                other = number - of_phi
                warp.when(other >= 0, lambda: self._products(warp, other, products, *post))

        warp.loop(warp.number, of_phi + of_products, warp.count, (), take)
        gains = dalpha, dbias
        warp.when(warp.block == 0, lambda: self._gains(warp, partial.tokens, warp_sums, *gains))

    def _phi(self, warp: Warp, number: Value, phi: Array, dphi: Array) -> None:
        """Adds four neighbouring rows of the gradient to phi, for 32 columns."""
        ranges, columns, _ = phi.shape
        quad = number // (columns // LANES)
        column = (number - quad * (columns // LANES)) * LANES + warp.lane

        def read(i):
            words = phi.row(i).row(column).load_words(quad * _FLOATS, _FLOATS)
            return [phi.unpack(words, k) for k in range(_FLOATS)]

        for k, total in enumerate(sum_terms(warp, ranges, _FLOATS, read)):
            dphi.row(quad * _FLOATS + k).store(column, total)

    def _products(
        self, warp: Warp, number: Value, products: Array, dh_post: Array, dh_res: Array
    ) -> None:
        """Adds four neighbouring inner products, for 32 tokens."""
        slices, _, tokens = products.shape
        spans = -(-tokens // LANES)
        quad = number // spans
        token = (number - quad * spans) * LANES + warp.lane
        known = token.at_most(tokens - 1)

        def read(i):
            rows = [products.row(i).row(quad * _FLOATS + k) for k in range(_FLOATS)]
            return [row.load(known) for row in rows]

        totals = sum_terms(warp, slices, _FLOATS, read)
        inside, at = token < tokens, quad * _FLOATS
        is_post, n = at < self.form.n, self.form.n
        warp.when(inside & is_post, lambda: dh_post.row(token).store(at, *totals))
        warp.when(inside & ~is_post, lambda: dh_res.row(token).store(at - n, *totals))

    def _gains(
        self, warp: Warp, tokens: Array, warp_sums: Array, dalpha: Array, dbias: Array
    ) -> None:
        """Adds the gradients to bias and gains, with a row of phi in each lane."""
        blocks, _, padded = tokens.shape
        number = warp.thread // LANES

        def read(turn):
            i = turn * _WARPS + number
            row = tokens.row(i.at_most(blocks - 1))
            values = [row.load(warp.lane + kind * padded) for kind in (0, 1)]
            return [warp.select(i < blocks, value, warp.f32(0.0)) for value in values]

        for kind, total in enumerate(sum_terms(warp, -(-blocks // _WARPS), 2, read)):
            warp_sums.row(number).store(warp.lane + kind * padded, total)
        warp.barrier()

        def finish():
            bias, gain = sum_terms(
                warp, _WARPS, 2, lambda i: self._read_warp_sums(warp, warp_sums, i)
            )
            n, lane = self.form.n, warp.lane
            exists = lane < self.form.rows
            warp.when(exists, lambda: dbias.store(lane, bias))
            gain = warp.select(exists, gain, warp.f32(0.0))
            part = (lane >= n).to("i32") + (lane >= 2 * n).to("i32")
            for k in range(3):
                total = warp.sum_lanes(warp.select(part == k, gain, warp.f32(0.0)), LANES)
                warp.when(lane == 0, lambda k=k, total=total: dalpha.store(k, total))

        warp.when(number == 0, finish)

    def _read_warp_sums(self, warp: Warp, warp_sums: Array, i: Value) -> list[Value]:
        """The sums of warp ``i`` for this lane's row: of the bias and of the gain."""
        row = warp_sums.row(i)
        return [row.load(warp.lane + kind * self.form.padded) for kind in (0, 1)]
