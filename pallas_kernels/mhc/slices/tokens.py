"""What there is of each token in the backward pass of ``mhc_pre`` by slices, in one kernel.

A group of lanes takes a token: its inner products with the layer's cotangent, and from these what
the kernels of slices want, in the layout in which they read it. Its lanes have a row of phi each,
or several.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.chip import Chip
from pallas_kernels.mhc.slices.shapes import Slices, TokenParts
from pallas_kernels.mhc.streams import READ_BYTES
from pallas_kernels.simt.values import Array, Value
from pallas_kernels.simt.warp import LANES, Warp
from pallas_kernels.tensor_cores.bfloat16_parts import PARTS

_WARPS = 8
# Of a token. A warp has two, and makes at once what comes behind their inner products.
_MOST_LANES = LANES // 2
# Each writes sums. With half as many an H200 took 8 % longer, 7168 wide, and as long 512 wide.
_BLOCKS_EACH = 6  # of a multiprocessor


def token_parts(
    x: jax.Array,
    alpha: jax.Array,
    bias: jax.Array,
    saved: Sequence[jax.Array],
    cotangents: Sequence[jax.Array],
    of_post: tuple[jax.Array, jax.Array] | None = None,
    *,
    backwards: bool = False,
    zeros: bool = False,
    pre_eps: float,
    post_scale: float,
) -> tuple[TokenParts, jax.Array, jax.Array | None]:
    """What there is of each token, and terms of the gradients to ``alpha`` and ``bias``.

    Args:
      x: [tokens, n, dim], of a dtype of 16 bits.
      alpha: as in ``mhc_pre``.
      bias: as in ``mhc_pre``.
      saved: ``inv_rms`` and ``h_mix``.
      cotangents: of ``h_in``, ``h_post`` and ``h_res``.
      of_post: ``h_post`` and ``h_res`` of the ``mhc_post`` that made ``x``, to be kept with the
        coefficients; or None.
      backwards: whether the last tokens come first. Where they come last, the kernel of slices
        begins with them, of which caches still have something; and the other way round.
      zeros: whether to make zeros too, to which inner products are to be added.
      pre_eps: as in ``mhc_pre``.
      post_scale: as in ``mhc_pre``.

    Returns:
      What there is; and sums of blocks, of the gradient to each logit, and of this times what
      ``alpha`` multiplies, [blocks, 2, padded rows]. Zeros, [n + n n, tokens], or None.
    """
    tokens, n, dim = x.shape
    form, f32 = Slices(n, dim), jnp.dtype(jnp.float32)
    lanes = math.gcd(dim // (READ_BYTES // x.dtype.itemsize), _MOST_LANES)
    most = _BLOCKS_EACH * Chip.current().multiprocessors
    blocks = min(-(-tokens // (LANES // lanes * _WARPS)), most)
    dh_in, dh_post, dh_res = cotangents
    more = 0 if of_post is None else n + n * n
    parts, coefficients, sums, *zero = simt.launch(
        _Tokens(form, lanes, backwards, pre_eps, post_scale),
        (x, dh_in, *saved, dh_post, dh_res.reshape(tokens, n * n), alpha, bias, of_post),
        [
            jax.ShapeDtypeStruct((tokens, form.width), jnp.dtype(jnp.bfloat16)),
            jax.ShapeDtypeStruct((n + 1 + more, tokens), f32),
            jax.ShapeDtypeStruct((blocks, 2, form.padded), f32),
            *[jax.ShapeDtypeStruct((n + n * n, tokens), f32)] * zeros,
        ],
        name="mhc_pre_backward_tokens",
        grid=simt.Grid(blocks, _WARPS),
        block_shared={"of_warps": jax.ShapeDtypeStruct((_WARPS, 2, form.padded), f32)},
    )
    return TokenParts(parts, coefficients), sums, zero[0] if zero else None


class _Row(NamedTuple):
    """A lane's row of phi: its number, whether there is such, and its alpha and bias."""

    number: Value
    exists: Value
    alpha: Value
    bias: Value


class _Given(NamedTuple):
    """What is read of a token for a row: of h_mix, and of both small cotangents."""

    h_mix: Value
    dh_post: Value
    dh_res: Value


@dataclass(frozen=True)
class _Tokens:
    form: Slices
    lanes: int
    backwards: bool
    pre_eps: float
    post_scale: float

    def __call__(
        self, warp: Warp, inputs, parts: Array, coefficients: Array, sums: Array, *cleared, of_warps
    ):
        x, dh_in, inv_rms, *small, alpha, bias, of_post = inputs
        tokens, step = x.shape[0], LANES // self.lanes
        rows = [self._row(warp, k, alpha, bias) for k in range(self.form.padded // self.lanes)]

        def take(first, totals):
            # Groups behind the last token repeat it and store nothing.
            mine = first + warp.lane // self.lanes
            token, inside = mine.at_most(tokens - 1), mine < tokens
            token = tokens - 1 - token if self.backwards else token
            given = [self._read(token, row, small) for row in rows]
            scale = inv_rms.load(token)
            kept = [of_post and self._read_of_post(warp, token, row, of_post) for row in rows]
            dots = self._dots(warp, x.row(token), dh_in.row(token))
            made, factor = self._gradients(warp, rows, given, scale, dots)

            def store():
                for row, (_, _, sigmoid, dt), of_row in zip(rows, made, kept, strict=True):
                    self._store_parts(warp, parts.row(token), row, dt * scale)
                    values = sigmoid + self.pre_eps, factor, of_row
                    self._store_coefficient(warp, coefficients, token, row.number, values)
                    for array in cleared:
                        self._store_zero(warp, array, token, row.number)

            warp.when(inside, store)
            zero = warp.f32(0.0)
            return [
                [
                    total + warp.select(inside, more, zero)
                    for total, more in zip(pair, new[:2], strict=True)
                ]
                for pair, new in zip(totals, made, strict=True)
            ]

        zeros = [[warp.f32(0.0)] * 2 for _ in rows]
        begin, stride = warp.number * step, warp.count * step
        self._store_sums(warp, warp.loop(begin, tokens, stride, zeros, take), rows, of_warps, sums)

    def _row(self, warp: Warp, k: int, alpha: Array, bias: Array) -> _Row:
        n, rows = self.form.n, self.form.rows
        number = warp.lane % self.lanes + k * self.lanes
        part = (number >= n).to("i32") + (number >= 2 * n).to("i32")
        return _Row(number, number < rows, alpha.load(part), bias.load(number.at_most(rows - 1)))

    def _read(self, token: Value, row: _Row, small: Sequence[Array]) -> _Given:
        n, last = self.form.n, self.form.rows - 1
        firsts, lasts = (0, n, 2 * n), (last, 2 * n - 1, last)
        return _Given(
            *(
                array.row(token).load(row.number.at_most(end).at_least(first) - first)
                for array, first, end in zip(small, firsts, lasts, strict=True)
            )
        )

    def _dots(self, warp: Warp, x: Array, dh_in: Array) -> list[Value]:
        """``⟨dh_in, x_i⟩``, in all lanes of the token."""
        (n, dim), entries = x.shape, READ_BYTES // x.itemsize

        def add(column, sums):
            words = [x.load_words(column + i * dim, entries) for i in range(n)]
            cotangent = dh_in.load_words(column, entries)
            for e in range(entries):
                d = dh_in.unpack(cotangent, e)
                pairs = zip(words, sums, strict=True)
                sums = [warp.fma(d, x.unpack(part, e), total) for part, total in pairs]
            return sums

        begin = warp.lane % self.lanes * entries
        sums = warp.loop(begin, dim, self.lanes * entries, [warp.f32(0.0)] * n, add)
        return [warp.sum_lanes(total, self.lanes) for total in sums]

    def _gradients(self, warp: Warp, rows, given, inv_rms: Value, dots):
        """Of each row: dlogit, dlogit t, the sigmoid and dt; and the factor of the streams."""
        n, zero = self.form.n, warp.f32(0.0)
        made, total = [], zero
        for row, (h_mix, dh_post, dh_res) in zip(rows, given, strict=True):
            t = h_mix * inv_rms
            sigmoid = warp.sigmoid(warp.fma(row.alpha, t, row.bias))
            d = dh_post * self.post_scale
            for i, dot in enumerate(dots):
                d = warp.select(row.number == i, dot, d)
            dlogit = warp.select(row.number < 2 * n, d * (sigmoid * (1.0 - sigmoid)), dh_res)
            dt = warp.select(row.exists, row.alpha * dlogit, zero)
            total = total + warp.select(row.exists, dt * h_mix, zero)
            made.append((dlogit, dlogit * t, sigmoid, dt))
        total = warp.sum_lanes(total, self.lanes)
        return made, total * (inv_rms * inv_rms * inv_rms) * (-1.0 / (n * self.form.dim))

    def _store_parts(self, warp: Warp, parts: Array, row: _Row, value: Value) -> None:
        for part in range(PARTS):
            bits = warp.to_bfloat16(value, warp.f32(0.0))
            parts.store_words(row.number + part * self.form.padded, [bits])
            value = value - (bits << 16).bits("f32")

    def _store_coefficient(self, warp: Warp, coefficients: Array, token, number, values) -> None:
        """One of h_pre, the factor of the streams, or what is kept: by the number of the row."""
        n, last = self.form.n, coefficients.shape[0] - 1
        h_pre, factor, kept = values
        value = warp.select(number < n, h_pre, factor)
        value = value if kept is None else warp.select(number > n, kept, value)
        store = coefficients.row(number.at_most(last)).store
        warp.when(number <= last, lambda: store(token, value))

    def _store_zero(self, warp: Warp, zeros: Array, token: Value, number: Value) -> None:
        last = zeros.shape[0] - 1
        store = zeros.row(number.at_most(last)).store
        warp.when(number <= last, lambda: store(token, warp.f32(0.0)))

    def _read_of_post(self, warp: Warp, token: Value, row: _Row, of_post) -> Value:
        """What is kept in the place of the row, behind the coefficients of ``mhc_pre``."""
        n, at = self.form.n, row.number - (self.form.n + 1)
        h_post, h_res = (array.row(token) for array in of_post)
        first = h_post.load(at.at_least(0).at_most(n - 1))
        second = h_res.load((at - n).at_least(0).at_most(n * n - 1))
        return warp.select(at < n, first, second)

    def _store_sums(self, warp: Warp, totals, rows, of_warps: Array, sums: Array) -> None:
        """Of the block: the warps' go through shared memory, and are added in a fixed order."""
        padded, count = self.form.padded, 2 * self.form.padded
        first = warp.thread // LANES * count
        for row, pair in zip(rows, totals, strict=True):
            for kind, total in enumerate(pair):
                value = warp.sum_groups(total, self.lanes)
                place = first + row.number + kind * padded
                warp.when(warp.lane < self.lanes, lambda p=place, v=value: of_warps.store(p, v))
        warp.barrier()

        def add(i, _):
            total = of_warps.load(i)
            for other in range(1, _WARPS):
                total = total + of_warps.load(i + other * count)
            sums.row(warp.block).store(i, total)

        warp.loop(warp.thread, count, warp.threads, (), add)
