"""Adds up what the blocks of the backward pass by slices wrote, each sum in a fixed order."""

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
_FLOATS = 4  # that a lane adds up side by side


class Partial(NamedTuple):
    """Terms of sums.

    Attributes:
      phi: of the gradient to phi, of ranges of tokens and their rest, [parts, n dim, rows].
      tokens: of those to the bias, and to the gain of each row, as ``token_parts`` gives them,
        [blocks, 2, padded rows].
      products: inner products of each token, of slices of its columns: for ``h_post`` and then for
        ``h_res``, [slices, n + n n, tokens], or [1, n + n n, tokens] if they are sums of all slices
        already; or None.
    """

    phi: Any
    tokens: Any
    products: Any = None


def add_up(form: Slices, partial: Partial) -> tuple[jax.Array, ...]:
    """Gradients to phi, [rows, n dim], to alpha and to the bias; and to ``h_post`` and ``h_res``.

    The last two only if there are products.
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
        block_shared={"of_warps": jax.ShapeDtypeStruct((_WARPS, 2, form.padded), f32)},
    )


@dataclass(frozen=True)
class _AddUp:
    """A warp takes four neighbours of 32 columns of phi, or of 32 tokens; a block the gains."""

    form: Slices

    def tasks(self, partial: Partial) -> tuple[int, int]:
        """Of warps: for phi, and for products."""
        of_phi = self.form.rows // _FLOATS * (self.form.n * self.form.dim // LANES)
        if partial.products is None:
            return of_phi, 0
        _, products, tokens = partial.products.shape
        return of_phi, products // _FLOATS * -(-tokens // LANES)

    def __call__(self, warp: Warp, partial: Partial, dweight, dalpha, dbias, *post, of_warps):
        of_phi, of_products = self.tasks(partial)

        def take(number, _):
            warp.when(number < of_phi, lambda: self._phi(warp, number, partial.phi, dweight))
            if post:
                products = partial.products
                other = number - of_phi
                warp.when(other >= 0, lambda: self._products(warp, other, products, *post))

        warp.loop(warp.number, of_phi + of_products, warp.count, (), take)
        gains = dalpha, dbias
        warp.when(warp.block == 0, lambda: self._gains(warp, partial.tokens, of_warps, *gains))

    def _phi(self, warp: Warp, number: Value, phi: Array, dweight: Array) -> None:
        ranges, columns, _ = phi.shape
        piece = number // (columns // LANES)
        column = (number - piece * (columns // LANES)) * LANES + warp.lane

        def read(i):
            words = phi.row(i).row(column).load_words(piece * _FLOATS, _FLOATS)
            return [phi.unpack(words, k) for k in range(_FLOATS)]

        for k, total in enumerate(sum_terms(warp, ranges, _FLOATS, read)):
            dweight.row(piece * _FLOATS + k).store(column, total)

    def _products(
        self, warp: Warp, number: Value, products: Array, dh_post: Array, dh_res: Array
    ) -> None:
        slices, _, tokens = products.shape
        spans = -(-tokens // LANES)
        piece = number // spans
        token = (number - piece * spans) * LANES + warp.lane
        known = token.at_most(tokens - 1)

        def read(i):
            rows = [products.row(i).row(piece * _FLOATS + k) for k in range(_FLOATS)]
            return [row.load(known) for row in rows]

        totals = sum_terms(warp, slices, _FLOATS, read)
        inside, at = token < tokens, piece * _FLOATS
        of_post, n = at < self.form.n, self.form.n
        warp.when(inside & of_post, lambda: dh_post.row(token).store(at, *totals))
        warp.when(inside & ~of_post, lambda: dh_res.row(token).store(at - n, *totals))

    def _gains(
        self, warp: Warp, tokens: Array, of_warps: Array, dalpha: Array, dbias: Array
    ) -> None:
        """A lane has a row of phi."""
        blocks, _, padded = tokens.shape
        number = warp.thread // LANES

        def read(turn):
            i = turn * _WARPS + number
            row = tokens.row(i.at_most(blocks - 1))
            values = [row.load(warp.lane + kind * padded) for kind in (0, 1)]
            return [warp.select(i < blocks, value, warp.f32(0.0)) for value in values]

        for kind, total in enumerate(sum_terms(warp, -(-blocks // _WARPS), 2, read)):
            of_warps.row(number).store(warp.lane + kind * padded, total)
        warp.barrier()

        def finish():
            bias, gain = sum_terms(warp, _WARPS, 2, lambda i: self._of_warp(warp, of_warps, i))
            n, lane = self.form.n, warp.lane
            exists = lane < self.form.rows
            warp.when(exists, lambda: dbias.store(lane, bias))
            gain = warp.select(exists, gain, warp.f32(0.0))
            part = (lane >= n).to("i32") + (lane >= 2 * n).to("i32")
            for k in range(3):
                total = warp.sum_lanes(warp.select(part == k, gain, warp.f32(0.0)), LANES)
                warp.when(lane == 0, lambda k=k, total=total: dalpha.store(k, total))

        warp.when(number == 0, finish)

    def _of_warp(self, warp: Warp, of_warps: Array, i: Value) -> list[Value]:
        row = of_warps.row(i)
        return [row.load(warp.lane + kind * self.form.padded) for kind in (0, 1)]
