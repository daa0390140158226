"""A lane's part of the backward pass by SIMT code: columns of a stream, and of phi."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from pallas_kernels.mhc.tokens.tile import (
    FLOATS,
    FRAGMENT,
    GROUP,
    PADDING,
    TOKENS_PER_LANE,
    StreamsTile,
)
from pallas_kernels.simt.values import Array, Value
from pallas_kernels.simt.warp import LANES, Warp
from pallas_kernels.tensor_cores.bfloat16_parts import add_products, split_words


class Inputs(NamedTuple):
    """The inputs of the kernel; inside of it, each is an ``Array``.

    Parts are bfloat16 numbers whose sum represents a float32 number. Rows of phi and tokens are
    padded with zeros in them.

    Attributes:
      x: the streams, [tokens, n, dim].
      dh_in: gradient of the layer's input, [tokens, dim].
      dx: another gradient of the streams to be added, [tokens, n, dim], or None.
      h_pre: weights of the streams, [tokens, n].
      scale: factor of the streams in their own gradient, [tokens].
      by_token: parts of the gradient of ``h_mix``, [parts, tokens, rows].
      by_row: the same parts transposed, [parts, rows, tokens].
      by_column: parts of phi, [parts, columns, rows].
    """

    x: Any
    dh_in: Any
    dx: Any
    h_pre: Any
    scale: Any
    by_token: Any
    by_row: Any
    by_column: Any


@dataclass(frozen=True)
class Phi:
    """The parts of a block's columns of phi in shared memory.

    Attributes:
      warp: the warp that runs this.
      entries: neighbouring columns of a lane.
      n: number of streams.
      array: [parts, streams * lanes, columns of a lane * rows + padding].
    """

    warp: Warp
    entries: int
    n: int
    array: Array

    @property
    def rows(self) -> int:
        """Number of rows of phi, padded to whole fragments."""
        return (self.array.shape[2] - PADDING) // self.entries

    def load(self, source: Array, first: Value, dim: int) -> None:
        """Begins to copy the block's columns, from column ``first`` of each stream on."""
        span, vectors = GROUP * self.entries, self.rows // GROUP
        pitch = self.array.shape[2] // GROUP
        columns = self.n * span

        def copy(i, _):
            number = i // vectors
            part = number // columns
            column = number - part * columns
            stream = column // span
            local = column - stream * span
            lanes = local // self.entries
            to = (part * self.array.shape[1] + stream * GROUP + lanes) * pitch
            to = to + (local - lanes * self.entries) * vectors + (i - number * vectors)
            at = (part * (self.n * dim) + stream * dim + first + local) * vectors
            self.array.copy_from(to, source, at + (i - number * vectors))

        count = self.array.shape[0] * columns * vectors
        self.warp.loop(self.warp.thread, count, self.warp.threads, (), copy)

    def fragments(self, part: int, stream: Value, entry: int) -> list[list[Value]]:
        """Two words of each 16 rows of phi, for one of a lane's columns."""
        lane = self.warp.lane
        group = (stream + part * self.n) * GROUP + lane // 4
        first = group * self.array.shape[2] + (entry * self.rows + lane % 4 * 4)
        return [self.array.load_words(first + row, 4) for row in range(0, self.rows, FRAGMENT)]


@dataclass(frozen=True)
class Columns:
    """A lane's neighbouring columns of one stream.

    Of 16 tokens, a lane has the four from ``4 q`` on, with ``q = lane % 4``. ``Warp.mma`` takes
    them as the tokens ``2 q``, ``2 q + 1``, ``2 q + 8`` and ``2 q + 9`` of a fragment where it sums
    over tokens, and otherwise as ``2 q`` and ``2 q + 1`` of two fragments. Two of a lane's columns
    are the rows ``g`` and ``g + 8`` of a fragment, with ``g = lane // 4``. Rows of phi are permuted
    in the same way as the tokens.

    Attributes:
      warp: the warp that runs this.
      tile: how blocks share the work.
      inputs: inputs of the kernel in global memory.
      stream: number of the stream.
      column: first of the lane's columns in the stream.
      ring: copies of inputs in shared memory, [warps, stages, vectors, lanes, columns].
      phi: parts of the block's columns of phi in shared memory.
    """

    warp: Warp
    tile: StreamsTile
    inputs: Inputs
    stream: Value
    column: Value
    ring: Array
    phi: Phi

    @property
    def pairs(self) -> int:
        """Number of pairs of this lane's columns."""
        return self.tile.entries // 2

    @property
    def rows(self) -> int:
        """Number of rows of phi."""
        return self.inputs.by_row.shape[1]

    @property
    def flat_column(self) -> Value:
        """Index of this lane's first column among the columns of all streams."""
        return self.stream * self.inputs.x.shape[2] + self.column

    def zeros(self):
        """Zeros for the gradient to phi: for each pair of columns and each group of eight rows."""
        zero = [self.warp.f32(0.0)] * 4
        return [[zero for _ in range(self.rows // GROUP)] for _ in range(self.pairs)]

    # -- inputs

    def token(self, first: Value, i: Any) -> Value:
        """The ``i``-th token of this lane; it may be past the last token."""
        return first + (self.warp.lane % 4 * TOKENS_PER_LANE + i)

    def clamped(self, token: Value) -> Value:
        """The token, or the last one if it is past that."""
        return token.at_most(self.inputs.x.shape[0] - 1)

    def load(self, i: Value, first: Value) -> None:
        """Begins to copy the inputs of step ``i``, for the 16 tokens from ``first`` on."""
        given = self.inputs
        arrays = [given.x, given.dh_in]
        arrays += [] if given.dx is None else [given.dx]
        vectors = [
            (array, self.token(first, t)) for array in arrays for t in range(TOKENS_PER_LANE)
        ]
        entries, nbytes = self.tile.entries, self.tile.entries * given.x.itemsize
        for number, (array, token) in enumerate(vectors):
            has_streams = len(array.shape) == 3
            at = self.clamped(token).to("i64") * (math.prod(array.shape[1:]) // entries)
            at = at + (self.flat_column if has_streams else self.column) // entries
            self.ring.copy_from(self._ring_index(i, number), array, at, nbytes)

    def vector(self, i: Value, number: int) -> list[Value]:
        """Words of one of the vectors that were copied for step ``i``.

        They are numbered in the order of ``load``: ``x``, ``dh_in``, and ``dx`` if it is given, of
        four tokens each.
        """
        entries = self.tile.entries
        return self.ring.load_words(self._ring_index(i, number) * entries, entries)

    def _ring_index(self, i: Value, vector: int) -> Value:
        """Index of a vector of step ``i`` in the ring, counted in vectors."""
        _, stages, vectors, _, _ = self.ring.shape
        stage = self.warp.thread // LANES * stages + i % stages
        return (stage * vectors + vector) * LANES + self.warp.lane

    def unpack(self, words: list[Value]) -> list[Value]:
        """The columns of a vector as float32."""
        return [self.inputs.x.unpack(words, e) for e in range(self.tile.entries)]

    # -- gradients

    def gradients(self, i: Value, first: Value, sums):
        """The gradient to the stream for this lane's tokens of step ``i``, and that to phi.

        Returns:
          The former, [token][column]; and ``sums`` plus the latter.
        """
        x, dh_in = (
            [self.vector(i, TOKENS_PER_LANE * k + t) for t in range(TOKENS_PER_LANE)]
            for k in (0, 1)
        )
        direct = []
        for t in range(TOKENS_PER_LANE):
            token = self.clamped(self.token(first, t))
            weight = self.inputs.h_pre.row(token).load(self.stream)
            scale = self.inputs.scale.load(token)
            values = [scale * value for value in self.unpack(x[t])]
            pairs = zip(self.unpack(dh_in[t]), values, strict=True)
            values = [self.warp.fma(weight, d, v) for d, v in pairs]
            if self.inputs.dx is not None:
                more = self.unpack(self.vector(i, 2 * TOKENS_PER_LANE + t))
                values = [a + b for a, b in zip(values, more, strict=True)]
            direct.append(values)
        return self._through_phi(first, direct), self._add(first, x, sums)

    def _through_phi(self, first: Value, direct: list[list[Value]]) -> list[list[Value]]:
        """``direct`` plus the gradient through phi, ``dh_mix phi``, [token][column]."""
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
        """Right fragments of each part of dh_mix: eight tokens, along the rows of phi."""
        g, q = self.warp.lane // 4, self.warp.lane % 4
        token = first + (g // 2 * 4 + g % 2 + 2 * half)
        rows = range(0, self.phi.rows, FRAGMENT)
        return [
            [part.row(token).load_words(q * 4 + row, 4) for row in rows]
            for part in self._parts(self.inputs.by_token)
        ]

    def _weights(self, pair: int) -> list[list[list[Value]]]:
        """Left fragments of each part of phi: two columns, along its rows."""
        made = []
        for part in range(self.inputs.by_column.shape[0]):
            columns = [self.phi.fragments(part, self.stream, 2 * pair + c) for c in (0, 1)]
            made.append([[a[0], b[0], a[1], b[1]] for a, b in zip(*columns, strict=True)])
        return made

    def _parts(self, array: Array) -> list[Array]:
        """The parts along the first axis of an array."""
        return [array.row(self.warp.i32(part)) for part in range(array.shape[0])]

    def _add(self, first: Value, words, sums):
        """``sums`` plus the products of ``x`` and ``dh_mix``, summed over 16 tokens."""
        at = self.token(first, 0)
        cotangents = [
            [
                [part.row(self.warp.lane // 4 + group * GROUP).load_words(at, 4)]
                for part in self._parts(self.inputs.by_row)
            ]
            for group in range(self.rows // GROUP)
        ]
        columns = [self._transposed(pair, words) for pair in range(self.pairs)]
        return [
            [
                add_products(self.warp, total, left, right)
                for total, right in zip(totals, cotangents, strict=True)
            ]
            for left, totals in zip(columns, sums, strict=True)
        ]

    def _transposed(self, pair: int, words) -> list[list[list[Value]]]:
        """Left fragments of each part of ``x``: two columns, along the tokens."""
        if self.inputs.x.itemsize == 2:
            a, b, c, d = (of_token[pair] for of_token in words)
            low = [upper << 16 | lower & 0xFFFF for lower, upper in ((a, b), (c, d))]
            high = [upper & 0xFFFF0000 | lower >> 16 for lower, upper in ((a, b), (c, d))]
            return [[[low[0], high[0], low[1], high[1]]]]
        x = [self.unpack(of_token) for of_token in words]
        order = [(token + t, 2 * pair + c) for token in (0, 2) for c in (0, 1) for t in (0, 1)]
        values = [x[token][column] for token, column in order]
        return [[fragment] for fragment in split_words(self.warp, values)]

    def store(self, sums, partial: Array) -> None:
        """Writes the gradient to phi, [rows, columns], neighbouring columns together."""
        for group in range(self.rows // GROUP):
            for i in (0, 1):
                row = self.warp.lane % 4 * 2 + (group * GROUP + i)
                values = [totals[group][2 * c + i] for totals in sums for c in (0, 1)]
                for e in range(0, self.tile.entries, FLOATS):
                    partial.row(row).store(self.flat_column + e, *values[e : e + FLOATS])
