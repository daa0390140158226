"""Inputs of each token for the backward pass by slices, computed by one kernel.

A group of lanes processes a token. It computes the inner products of the streams with the gradient
of the layer's input, and from these the gradient of ``h_mix`` and the coefficients, in the layout
that the kernels by slices read. Each lane of the group has one or several rows of phi.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.arguments.mhc import MHCConstants, MHCParams
from pallas_kernels.chip import Chip
from pallas_kernels.mhc.slices.shapes import Slices, TokenParts
from pallas_kernels.mhc.streams import READ_BYTES
from pallas_kernels.simt.values import Array, Value
from pallas_kernels.simt.warp import LANES, Warp
from pallas_kernels.tensor_cores.bfloat16_parts import PARTS

_WARPS = 8
# Lanes of a token at most. A warp then has two tokens, whose rows of phi it processes at once.
_MOST_LANES = LANES // 2
# Each block writes sums. With half as many blocks, an H200 took 8 % longer for 7168 columns, and
# equally long for 512.
_BLOCKS_EACH = 6  # blocks of each multiprocessor


def token_parts(
    x: jax.Array,
    params: MHCParams,
    saved: Sequence[jax.Array],
    cotangents: Sequence[jax.Array],
    constants: MHCConstants,
    of_post: tuple[jax.Array, jax.Array] | None = None,
    *,
    reverse: bool = False,
    zeros: bool = False,
) -> tuple[TokenParts, jax.Array, jax.Array | None]:
    """Inputs of each token, and partial sums of the gradients to ``alpha`` and ``bias``.

    Args:
      x: the streams, [tokens, n, dim], of a dtype of 16 bits.
      params: parameters of ``mhc_pre``; ``phi`` is not read.
      saved: ``inv_rms`` and ``h_mix`` of the forward pass.
      cotangents: gradients of ``h_in``, ``h_post`` and ``h_res``.
      constants: constants of ``mhc_pre``.
      of_post: ``h_post`` [tokens, n] and ``h_res`` [tokens, n n] of an ``mhc_post``, to be appended
        to the coefficients; or None.
      reverse: whether to process the last tokens first. The kernel by slices should use the other
        order, so that it begins with tokens that are still in a cache.
      zeros: whether to also write zeros, to which the kernel by slices adds inner products.

    Returns:
      The inputs of tokens. For each block, sums over its tokens of the gradient of each logit, and
      of that gradient times the factor of ``alpha``, [blocks, 2, padded rows]. Zeros,
      [n + n n, tokens], or None.
    """
    tokens, n, dim = x.shape
    form, f32 = Slices(n, dim), jnp.dtype(jnp.float32)
    lanes = math.gcd(dim // (READ_BYTES // x.dtype.itemsize), _MOST_LANES)
    most = _BLOCKS_EACH * Chip.current().multiprocessors
    blocks = min(-(-tokens // (LANES // lanes * _WARPS)), most)
    dh_in, dh_post, dh_res = cotangents
    small = dh_post, dh_res.reshape(tokens, n * n)
    more = 0 if of_post is None else n + n * n
    parts, coefficients, sums, *zero = simt.launch(
        _Tokens(form, lanes, reverse, constants),
        (x, dh_in, *saved, *small, params.alpha, params.bias, of_post),
        [
            jax.ShapeDtypeStruct((tokens, form.width), jnp.dtype(jnp.bfloat16)),
            jax.ShapeDtypeStruct((n + 1 + more, tokens), f32),
            jax.ShapeDtypeStruct((blocks, 2, form.padded), f32),
            *[jax.ShapeDtypeStruct((n + n * n, tokens), f32)] * zeros,
        ],
        name="mhc_pre_backward_tokens",
        grid=simt.Grid(blocks, _WARPS),
        block_shared={"warp_sums": jax.ShapeDtypeStruct((_WARPS, 2, form.padded), f32)},
    )
    return TokenParts(parts, coefficients), sums, zero[0] if zero else None


class _Row(NamedTuple):
    """A lane's row of phi: its number, whether it exists, and its gain and bias."""

    number: Value
    exists: Value
    alpha: Value
    bias: Value


class _Given(NamedTuple):
    """A token's entries for a row of phi: of ``h_mix``, and of the gradients of coefficients."""

    h_mix: Value
    dh_post: Value
    dh_res: Value


@dataclass(frozen=True)
class _Tokens:
    """The kernel: each group of ``lanes`` neighbouring lanes processes its tokens in turn."""

    form: Slices
    lanes: int
    reverse: bool
    constants: MHCConstants

    def __call__(
        self,
        warp: Warp,
        inputs,
        parts: Array,
        coefficients: Array,
        sums: Array,
        *cleared,
        warp_sums,
    ):
        x, dh_in, inv_rms, *small, alpha, bias, of_post = inputs
        tokens, step = x.shape[0], LANES // self.lanes
        rows = [self._row(warp, k, alpha, bias) for k in range(self.form.padded // self.lanes)]

        def take(first, totals):
            # Groups past the last token repeat it and store nothing.
            mine = first + warp.lane // self.lanes
            token, inside = mine.at_most(tokens - 1), mine < tokens
            token = tokens - 1 - token if self.reverse else token
            given = [self._read(token, row, small) for row in rows]
            scale = inv_rms.load(token)
            kept = [of_post and self._read_of_post(warp, token, row, of_post) for row in rows]
            dots = self._dots(warp, x.row(token), dh_in.row(token))
            made, factor = self._gradients(warp, rows, given, scale, dots)

            def store():
                for row, (_, _, sigmoid, dt), of_row in zip(rows, made, kept, strict=True):
                    self._store_parts(warp, parts.row(token), row, dt * scale)
                    values = sigmoid + self.constants.pre_eps, factor, of_row
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
        self._store_sums(warp, warp.loop(begin, tokens, stride, zeros, take), rows, warp_sums, sums)

    def _row(self, warp: Warp, k: int, alpha: Array, bias: Array) -> _Row:
        """This lane's ``k``-th row of phi."""
        n, rows = self.form.n, self.form.rows
        number = warp.lane % self.lanes + k * self.lanes
        part = (number >= n).to("i32") + (number >= 2 * n).to("i32")
        return _Row(number, number < rows, alpha.load(part), bias.load(number.at_most(rows - 1)))

    def _read(self, token: Value, row: _Row, small: Sequence[Array]) -> _Given:
        """Loads a token's entries for a row; clamped where an array has no entry for it."""
        n, last = self.form.n, self.form.rows - 1
        firsts, lasts = (0, n, 2 * n), (last, 2 * n - 1, last)
        return _Given(
            *(
                array.row(token).load(row.number.at_most(end).at_least(first) - first)
                for array, first, end in zip(small, firsts, lasts, strict=True)
            )
        )

    def _dots(self, warp: Warp, x: Array, dh_in: Array) -> list[Value]:
        """Inner products ``⟨dh_in, x_i⟩`` for each stream, in all lanes of the token."""
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
        """For each row dlogit, dlogit t, the sigmoid and dt; and the factor of the streams."""
        n, zero = self.form.n, warp.f32(0.0)
        made, total = [], zero
        for row, (h_mix, dh_post, dh_res) in zip(rows, given, strict=True):
            t = h_mix * inv_rms
            sigmoid = warp.sigmoid(warp.fma(row.alpha, t, row.bias))
            d = dh_post * self.constants.post_scale
            for i, dot in enumerate(dots):
                d = warp.select(row.number == i, dot, d)
            dlogit = warp.select(row.number < 2 * n, d * (sigmoid * (1.0 - sigmoid)), dh_res)
            dt = warp.select(row.exists, row.alpha * dlogit, zero)
            total = total + warp.select(row.exists, dt * h_mix, zero)
            made.append((dlogit, dlogit * t, sigmoid, dt))
        total = warp.sum_lanes(total, self.lanes)
        return made, total * (inv_rms * inv_rms * inv_rms) * (-1.0 / (n * self.form.dim))

    def _store_parts(self, warp: Warp, parts: Array, row: _Row, value: Value) -> None:
        """Writes the bfloat16 parts of a gradient of ``h_mix``."""
        for part in range(PARTS):
            bits = warp.to_bfloat16(value, warp.f32(0.0))
            parts.store_words(row.number + part * self.form.padded, [bits])
            value = value - (bits << 16).bits("f32")

    def _store_coefficient(self, warp: Warp, coefficients: Array, token, number, values) -> None:
        """Writes ``h_pre``, the factor of the streams, or a coefficient of ``mhc_post``."""
        n, last = self.form.n, coefficients.shape[0] - 1
        h_pre, factor, kept = values
        value = warp.select(number < n, h_pre, factor)
        value = value if kept is None else warp.select(number > n, kept, value)
        store = coefficients.row(number.at_most(last)).store
        warp.when(number <= last, lambda: store(token, value))

    def _store_zero(self, warp: Warp, zeros: Array, token: Value, number: Value) -> None:
        """Writes a zero, if the array has a row of this number."""
        last = zeros.shape[0] - 1
        store = zeros.row(number.at_most(last)).store
        warp.when(number <= last, lambda: store(token, warp.f32(0.0)))

    def _read_of_post(self, warp: Warp, token: Value, row: _Row, of_post) -> Value:
        """The coefficient of ``mhc_post`` that is stored in the row of this number."""
        n, at = self.form.n, row.number - (self.form.n + 1)
        h_post, h_res = (array.row(token) for array in of_post)
        first = h_post.load(at.at_least(0).at_most(n - 1))
        second = h_res.load((at - n).at_least(0).at_most(n * n - 1))
        return warp.select(at < n, first, second)

    def _store_sums(self, warp: Warp, totals, rows, warp_sums: Array, sums: Array) -> None:
        """Writes the sums of a block: those of its warps are added in a fixed order."""
        padded, count = self.form.padded, 2 * self.form.padded
        first = warp.thread // LANES * count
        for row, pair in zip(rows, totals, strict=True):
            for kind, total in enumerate(pair):
                value = warp.sum_groups(total, self.lanes)
                place = first + row.number + kind * padded
                warp.when(warp.lane < self.lanes, lambda p=place, v=value: warp_sums.store(p, v))
        warp.barrier()

        def add(i, _):
            total = warp_sums.load(i)
            for other in range(1, _WARPS):
                total = total + warp_sums.load(i + other * count)
            sums.row(warp.block).store(i, total)

        warp.loop(warp.thread, count, warp.threads, (), add)
