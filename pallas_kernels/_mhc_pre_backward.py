"""The backward pass of ``mhc_pre``: two kernels, and plain JAX for what is small between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import _simt
from pallas_kernels._bfloat16_parts import PARTS, add_products, split, split_words
from pallas_kernels._pieces import striding_blocks
from pallas_kernels._streams import READ_BYTES, read_once
from pallas_kernels._values import Array, Value
from pallas_kernels._warp import LANES, Warp

_FRAGMENT = 16  # tokens that a warp takes at once; also rows of phi are padded to so many
_GROUP = 8  # rows of phi of a fragment
_WARPS = 8
# Of an H200; and what the partial sums of the gradient to phi may take.
_MULTIPROCESSORS, _PARTIAL_BYTES = 132, 48 * 2**20


@dataclass(frozen=True)
class MhcPreBackwardTile:
    """How blocks share tokens and columns; the warps of a block have different streams.

    Attributes:
      entries: neighbouring columns that a lane has of a token.
      ranges: how many parts the tokens are cut into.
      tokens: of a range, a multiple of 16.
    """

    entries: int
    ranges: int
    tokens: int

    @classmethod
    def choose(cls, tokens: int, n: int, dim: int, itemsize: int) -> MhcPreBackwardTile:
        """The one heuristic: the cut that leaves the fewest multiprocessors idle at the end."""
        # A lane has all rows of phi for each column: of 8 streams these are many.
        entries = 4 if n == 8 else READ_BYTES // itemsize
        slices, shares = dim // (_GROUP * entries), _WARPS // n
        fragments = -(-tokens // _FRAGMENT)
        bytes_of_range = 4 * shares * (n * n + 2 * n) * n * dim
        most = max(1, min(_PARTIAL_BYTES // bytes_of_range, -(-fragments // shares)))

        def duration(ranges: int) -> int:
            # Partial sums, written and read, cost about as much as two steps.
            steps = -(-fragments // (ranges * shares)) + 2
            return -(-slices * ranges // _MULTIPROCESSORS) * steps

        ranges = min(range(1, most + 1), key=duration)
        length = -(-fragments // ranges)
        return cls(entries, -(-fragments // length), length * _FRAGMENT)


class Gradients(NamedTuple):
    """Gradients of ``mhc_pre``.

    Attributes:
      x: like ``x``.
      weight: to ``phi gamma``, float32.
      alpha: like ``alpha``.
      bias: like ``bias``.
    """

    x: jax.Array
    weight: jax.Array
    alpha: jax.Array
    bias: jax.Array


def mhc_pre_backward(
    x: jax.Array,
    weight: jax.Array,
    alpha: jax.Array,
    bias: jax.Array,
    saved: Sequence[jax.Array],
    cotangents: Sequence[jax.Array],
    *,
    pre_eps: float,
    post_scale: float,
    tile: MhcPreBackwardTile | None = None,
) -> Gradients:
    """Gradients; all sums in a fixed order.

    Args:
      x: as in ``mhc_pre``.
      weight: as in ``mhc_pre``.
      alpha: as in ``mhc_pre``.
      bias: as in ``mhc_pre``.
      saved: ``inv_rms`` and ``h_mix``.
      cotangents: of ``h_in``, ``h_post`` and ``h_res``.
      pre_eps: as in ``mhc_pre``.
      post_scale: as in ``mhc_pre``.
      tile: by default what suits the shapes.
    """
    tokens, n, dim = x.shape
    if tokens == 0:
        return Gradients(*(jnp.zeros_like(a) for a in (x, weight, alpha, bias)))
    dh_in, dh_post, dh_res = cotangents
    dots = _dots(x, dh_in)
    small = _small(
        alpha,
        bias,
        saved,
        (dots, dh_post, dh_res.reshape(tokens, n * n)),
        columns=n * dim,
        pre_eps=pre_eps,
        post_scale=post_scale,
    )
    tile = tile or MhcPreBackwardTile.choose(tokens, n, dim, x.dtype.itemsize)
    dx, partial = _large(tile, x, dh_in, weight, small)
    return Gradients(dx, jnp.sum(partial, axis=0), small.dalpha, small.dbias)


class _Small(NamedTuple):
    """What the backward pass has for each token, and sums of that.

    Attributes:
      h_pre: [tokens, n].
      scale: factor of ``x`` in ``dx``, [tokens].
      dh_mix: [tokens, rows].
      dalpha: [3].
      dbias: [rows].
    """

    h_pre: jax.Array
    scale: jax.Array
    dh_mix: jax.Array
    dalpha: jax.Array
    dbias: jax.Array


def _small(alpha, bias, saved, dcoefficients, *, columns, pre_eps, post_scale) -> _Small:
    inv_rms, h_mix = saved
    dh_pre, dh_post, dh_res = dcoefficients
    n = dh_pre.shape[1]
    normed = h_mix * inv_rms[:, None]
    parts = jnp.split(normed, [n, 2 * n], axis=1)
    biases = jnp.split(bias, [n, 2 * n])
    s_pre, s_post = (jax.nn.sigmoid(alpha[k] * parts[k] + biases[k]) for k in (0, 1))
    dlogits = (
        dh_pre * s_pre * (1 - s_pre),
        dh_post * post_scale * s_post * (1 - s_post),
        dh_res,
    )
    dalpha = jnp.stack([jnp.sum(d * t) for d, t in zip(dlogits, parts, strict=True)])
    dt = jnp.concatenate([alpha[k] * d for k, d in enumerate(dlogits)], axis=1)
    scale = -jnp.sum(dt * h_mix, axis=1) * inv_rms**3 / columns
    dbias = jnp.sum(jnp.concatenate(dlogits, axis=1), axis=0)
    return _Small(s_pre + pre_eps, scale, dt * inv_rms[:, None], dalpha, dbias)


# -- inner products of the layer's cotangent and the streams -------------------------------------


def _dots(x: jax.Array, dh_in: jax.Array) -> jax.Array:
    """``⟨dh_in, x_i⟩``, [tokens, n]."""
    tokens, n, dim = x.shape
    lanes = math.gcd(dim // (READ_BYTES // x.dtype.itemsize), LANES)
    return _simt.launch(
        _Dots(lanes),
        (x, dh_in),
        [jax.ShapeDtypeStruct((tokens, n), jnp.float32)],
        name="mhc_pre_backward_dots",
        grid=_simt.Grid(striding_blocks(tokens, LANES // lanes * _WARPS), _WARPS),
    )[0]


@dataclass(frozen=True)
class _Dots:
    """A group of lanes takes a token."""

    lanes: int

    def __call__(self, warp: Warp, inputs, dots: Array) -> None:
        x, dh_in = inputs
        (tokens, n, dim), entries, step = x.shape, READ_BYTES // x.itemsize, LANES // self.lanes

        def take(first, _):
            # Groups behind the last token repeat it and store nothing.
            mine = first + warp.lane // self.lanes
            token = mine.least(tokens - 1)

            def add(column, sums):
                row = x.row(token)
                words = [row.load_words(column + i * dim, entries) for i in range(n)]
                cotangent = dh_in.row(token).load_words(column, entries)
                for e in range(entries):
                    d = dh_in.unpack(cotangent, e)
                    pairs = zip(words, sums, strict=True)
                    sums = [warp.fma(d, x.unpack(part, e), total) for part, total in pairs]
                return sums

            zeros = [warp.f32(0.0)] * n
            begin = warp.lane % self.lanes * entries
            sums = warp.loop(begin, dim, self.lanes * entries, zeros, add)
            for i, total in warp.sum_each(sums, self.lanes):
                store = (mine < tokens) & (i < n)
                warp.when(store, lambda i=i, total=total: dots.row(token).store(i, total))

        warp.loop(warp.number * step, tokens, warp.count * step, (), take)


# -- gradients to the streams and to phi ---------------------------------------------------------


def _large(tile: MhcPreBackwardTile, x, dh_in, weight, small: _Small):
    """``dx``, and partial sums of the gradient to ``weight``, [parts, rows, columns]."""
    tokens, n, dim = x.shape
    rows = n * n + 2 * n
    # What dx loses with two parts of both factors is less than its rounding to bfloat16.
    exact = PARTS if x.dtype == jnp.float32 else PARTS - 1
    padded = -tokens % _FRAGMENT, -rows % _FRAGMENT
    dh_mix = split(jnp.pad(small.dh_mix, ((0, padded[0]), (0, padded[1]))))
    columns = split(jnp.pad(weight.T, ((0, 0), (0, padded[1]))), exact)
    inputs = _Inputs(
        x,
        dh_in,
        small.h_pre,
        small.scale,
        by_token=dh_mix[:exact],
        by_row=dh_mix[:, :, :rows].swapaxes(1, 2),
        by_column=columns,
    )
    partial = jax.ShapeDtypeStruct((tile.ranges * (_WARPS // n), rows, n * dim), jnp.float32)
    slices = dim // (_GROUP * tile.entries)
    return _simt.launch(
        _Large(tile),
        inputs,
        [jax.ShapeDtypeStruct(x.shape, x.dtype), partial],
        name="mhc_pre_backward",
        grid=_simt.Grid(slices * tile.ranges, _WARPS),
    )


class _Inputs(NamedTuple):
    """What ``_Large`` reads; in a kernel each is an ``Array``.

    Parts are bfloat16 and add up; rows and tokens are padded with zeros.

    Attributes:
      x: [tokens, n, dim].
      dh_in: [tokens, dim].
      h_pre: [tokens, n].
      scale: [tokens].
      by_token: parts of dh_mix, [parts, tokens, rows].
      by_row: the same, [parts, rows, tokens].
      by_column: parts of weight, [parts, columns, rows].
    """

    x: Any
    dh_in: Any
    h_pre: Any
    scale: Any
    by_token: Any
    by_row: Any
    by_column: Any


@dataclass(frozen=True)
class _Large:
    """A block has some columns of all streams, and a range of tokens that its warps share."""

    tile: MhcPreBackwardTile

    def __call__(self, warp: Warp, inputs, dx: Array, partial: Array) -> None:
        tokens, n, dim = inputs.x.shape
        shares, span = _WARPS // n, _GROUP * self.tile.entries
        slices, in_block = dim // span, warp.thread // LANES
        part, share = warp.block // slices, in_block // n
        column = (warp.block - part * slices) * span + warp.lane // 4 * self.tile.entries
        some = _Columns(warp, self.tile.entries, inputs, in_block % n, column)
        begin = part * self.tile.tokens
        end = (begin + self.tile.tokens).least(tokens)
        sums = warp.loop(
            begin + share * _FRAGMENT,
            end,
            shares * _FRAGMENT,
            some.zeros(),
            lambda first, sums: some.take(first, sums, dx),
        )
        some.store(sums, partial.row(part * shares + share))


@dataclass(frozen=True)
class _Columns:
    """A lane's neighbouring columns of one stream.

    Of sixteen tokens, a lane has the four ``4 q`` on, with ``q = lane % 4``: to ``Warp.mma`` these
    are ``2 q``, ``2 q + 1``, ``2 q + 8`` and ``2 q + 9`` where it sums over tokens, and ``2 q`` and
    ``2 q + 1`` of two fragments where it does not. Two of a lane's columns are the rows ``g`` and
    ``g + 8`` of a fragment, and the rows of phi are permuted as the tokens are.

    Attributes:
      warp: of the lanes.
      entries: how many columns.
      inputs: as in ``_Inputs``.
      stream: which.
      column: the first, of the stream.
    """

    warp: Warp
    entries: int
    inputs: _Inputs
    stream: Value
    column: Value

    @property
    def pairs(self) -> int:
        """Pairs of columns."""
        return self.entries // 2

    @property
    def rows(self) -> int:
        """Rows of phi."""
        return self.inputs.by_row.shape[1]

    @property
    def place(self) -> Value:
        """Of the first column among those of all streams."""
        return self.stream * self.inputs.x.shape[2] + self.column

    def zeros(self):
        """Sums of each pair of columns and each eight rows of phi."""
        zero = [self.warp.f32(0.0)] * 4
        return [[zero for _ in range(self.rows // _GROUP)] for _ in range(self.pairs)]

    def take(self, first: Value, sums, dx: Array):
        """Writes ``dx`` of sixteen tokens, and adds their part of the other gradient."""
        warp, inputs = self.warp, self.inputs
        last = inputs.x.shape[0] - 1
        mine = [first + (warp.lane % 4 * 4 + i) for i in range(4)]
        # Behind the last token it is read again, and nothing is stored.
        read = [token.least(last) for token in mine]
        # All loads come before the first use of one of them.
        words = [read_once(inputs.x, token, self.place, self.entries) for token in read]
        cotangents = [
            inputs.dh_in.row(token).load_words(self.column, self.entries) for token in read
        ]
        weights = [inputs.h_pre.row(token).load(self.stream) for token in read]
        scales = [inputs.scale.load(token) for token in read]
        x, dh_in = (
            [[array.unpack(w, e) for e in range(self.entries)] for w in of_tokens]
            for array, of_tokens in ((inputs.x, words), (inputs.dh_in, cotangents))
        )
        direct = [
            [warp.fma(weight, d, scale * v) for v, d in zip(*both, strict=True)]
            for *both, weight, scale in zip(x, dh_in, weights, scales, strict=True)
        ]
        made = self._through_phi(first, direct)
        for token, values in zip(mine, made, strict=True):

            def store(token=token, values=values):
                dx.row(token).store(self.place, *values)

            warp.when(token <= last, store)
        return self._add(first, words, x, sums)

    def _through_phi(self, first: Value, direct: list[list[Value]]) -> list[list[Value]]:
        """``direct`` plus ``dh_mix weight``, [token][column]."""
        made = [list(values) for values in direct]
        cotangents = [self._cotangents(first, half) for half in (0, 1)]
        for pair in range(self.pairs):
            weights = self._weights(pair)
            for half, cotangent in enumerate(cotangents):
                places = [(2 * half + t, 2 * pair + c) for c in (0, 1) for t in (0, 1)]
                total = [direct[token][column] for token, column in places]
                total = add_products(self.warp, total, weights, cotangent)
                for (token, column), value in zip(places, total, strict=True):
                    made[token][column] = value
        return made

    def _cotangents(self, first: Value, half: int) -> list[list[list[Value]]]:
        """Right fragments of each part: of eight tokens, along the rows of phi."""
        g, parts = self.warp.lane // 4, self.inputs.by_token
        token = first + (g // 2 * 4 + g % 2 + 2 * half)
        return [self._along_rows(part.row(token)) for part in self._parts(parts)]

    def _weights(self, pair: int) -> list[list[list[Value]]]:
        """Left fragments of each part: of two columns, along the rows of phi."""
        made = []
        for part in self._parts(self.inputs.by_column):
            columns = [self._along_rows(part.row(self.place + (2 * pair + c))) for c in (0, 1)]
            made.append([[a[0], b[0], a[1], b[1]] for a, b in zip(*columns, strict=True)])
        return made

    def _parts(self, array: Array) -> list[Array]:
        return [array.row(self.warp.i32(part)) for part in range(array.shape[0])]

    def _along_rows(self, array: Array) -> list[list[Value]]:
        """Two words of each sixteen rows of phi, of which a lane has four neighbours."""
        q = self.warp.lane % 4
        return [array.load_words(q * 4 + row, 4) for row in range(0, array.shape[0], _FRAGMENT)]

    def _add(self, first: Value, words, x, sums):
        """``sums`` plus the products of ``x`` and ``dh_mix``, over sixteen tokens."""
        at = first + self.warp.lane % 4 * 4
        cotangents = [
            [
                [part.row(self.warp.lane // 4 + group * _GROUP).load_words(at, 4)]
                for part in self._parts(self.inputs.by_row)
            ]
            for group in range(self.rows // _GROUP)
        ]
        columns = [self._transposed(pair, words, x) for pair in range(self.pairs)]
        return [
            [
                add_products(self.warp, total, left, right)
                for total, right in zip(totals, cotangents, strict=True)
            ]
            for left, totals in zip(columns, sums, strict=True)
        ]

    def _transposed(self, pair: int, words, x) -> list[list[list[Value]]]:
        """Left fragments of each part of ``x``: of two columns, along the tokens."""
        if self.inputs.x.itemsize == 2:
            a, b, c, d = (of_token[pair] for of_token in words)
            low = [upper << 16 | lower & 0xFFFF for lower, upper in ((a, b), (c, d))]
            high = [upper & 0xFFFF0000 | lower >> 16 for lower, upper in ((a, b), (c, d))]
            return [[[low[0], high[0], low[1], high[1]]]]
        order = [(token + t, 2 * pair + c) for token in (0, 2) for c in (0, 1) for t in (0, 1)]
        values = [x[token][column] for token, column in order]
        return [[fragment] for fragment in split_words(self.warp, values)]

    def store(self, sums, partial: Array) -> None:
        """Writes the sums, [rows, columns], neighbouring columns together."""
        for group in range(self.rows // _GROUP):
            for i in (0, 1):
                row = self.warp.lane % 4 * 2 + (group * _GROUP + i)
                values = [totals[group][2 * c + i] for totals in sums for c in (0, 1)]
                for e in range(0, self.entries, 4):
                    partial.row(row).store(self.place + e, *values[e : e + 4])
