"""What a lane has in the backward pass of whole tokens: its columns of a stream, and of phi."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from pallas_kernels.mhc.tokens.tile import FLOATS, FRAGMENT, GROUP, OF_LANE, PADDING, StreamsTile
from pallas_kernels.simt.values import Array, Value
from pallas_kernels.simt.warp import LANES, Warp
from pallas_kernels.tensor_cores.bfloat16_parts import add_products, split_words


class Post(NamedTuple):
    """The ``mhc_post`` that made the streams, whose backward pass follows.

    Attributes:
      x: its streams, [tokens, n, dim].
      f: its layer's output, [tokens, dim].
      h_post: [tokens, n].
      h_res: [tokens, n, n].
    """

    x: Any
    f: Any
    h_post: Any
    h_res: Any


class Inputs(NamedTuple):
    """What the kernel reads; in it each is an ``Array``.

    Parts are bfloat16 and add up; rows and tokens are padded with zeros.

    Attributes:
      x: [tokens, n, dim].
      dh_in: [tokens, dim].
      dx: [tokens, n, dim], or None.
      h_pre: [tokens, n].
      scale: [tokens].
      by_token: parts of dh_mix, [parts, tokens, rows].
      by_row: the same, [parts, rows, tokens].
      by_column: parts of weight, [parts, columns, rows].
      post: see ``Post``; or None.
    """

    x: Any
    dh_in: Any
    dx: Any
    h_pre: Any
    scale: Any
    by_token: Any
    by_row: Any
    by_column: Any
    post: Post | None


@dataclass(frozen=True)
class Phi:
    """A block's columns of phi, in parts, in shared memory.

    Attributes:
      warp: of the lanes.
      entries: neighbouring columns of a lane.
      n: streams.
      array: [parts, streams and lanes, columns of a lane and rows].
    """

    warp: Warp
    entries: int
    n: int
    array: Array

    @property
    def rows(self) -> int:
        """Rows, padded."""
        return (self.array.shape[2] - PADDING) // self.entries

    def load(self, source: Array, first: Value, dim: int) -> None:
        """Begins to copy what the block needs; ``first`` is its first column of a stream."""
        span, pieces = GROUP * self.entries, self.rows // GROUP
        pitch = self.array.shape[2] // GROUP
        columns = self.n * span

        def copy(i, _):
            number = i // pieces
            part = number // columns
            column = number - part * columns
            stream = column // span
            local = column - stream * span
            lanes = local // self.entries
            to = (part * self.array.shape[1] + stream * GROUP + lanes) * pitch
            to = to + (local - lanes * self.entries) * pieces + (i - number * pieces)
            at = (part * (self.n * dim) + stream * dim + first + local) * pieces
            self.array.copy_from(to, source, at + (i - number * pieces))

        count = self.array.shape[0] * columns * pieces
        self.warp.loop(self.warp.thread, count, self.warp.threads, (), copy)

    def fragments(self, part: int, stream: Value, entry: int) -> list[list[Value]]:
        """Two words of each sixteen rows, of a lane's column."""
        lane = self.warp.lane
        group = (stream + part * self.n) * GROUP + lane // 4
        first = group * self.array.shape[2] + (entry * self.rows + lane % 4 * 4)
        return [self.array.load_words(first + row, 4) for row in range(0, self.rows, FRAGMENT)]


@dataclass(frozen=True)
class Columns:
    """A lane's neighbouring columns of one stream.

    Of sixteen tokens, a lane has the four ``4 q`` on, with ``q = lane % 4``: to ``Warp.mma`` these
    are ``2 q``, ``2 q + 1``, ``2 q + 8`` and ``2 q + 9`` where it sums over tokens, and ``2 q`` and
    ``2 q + 1`` of two fragments where it does not. Two of a lane's columns are the rows ``g`` and
    ``g + 8`` of a fragment, and the rows of phi are permuted as the tokens are.

    Attributes:
      warp: of the lanes.
      tile: how many columns.
      inputs: as in ``Inputs``.
      stream: which.
      column: the first, of the stream.
      ring: what has been read, [warps, stages, pieces, lanes, columns].
      phi: of the block's columns.
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
        """Pairs of columns."""
        return self.tile.entries // 2

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
        return [[zero for _ in range(self.rows // GROUP)] for _ in range(self.pairs)]

    # -- what it reads

    def token(self, first: Value, i: Any) -> Value:
        """The ``i``-th that this lane has; it may be behind the last."""
        return first + (self.warp.lane % 4 * OF_LANE + i)

    def known(self, token: Value) -> Value:
        """Behind the last token, it again."""
        return token.at_most(self.inputs.x.shape[0] - 1)

    def load(self, i: Value, first: Value) -> None:
        """Begins to copy what ``piece`` gives for the tokens from ``first`` on."""
        given, post = self.inputs, self.inputs.post
        arrays = [given.x, given.dh_in]
        arrays += [] if given.dx is None else [given.dx]
        arrays += [] if post is None else [post.x]
        pieces = [(array, self.token(first, t)) for array in arrays for t in range(OF_LANE)]
        if post is not None:
            pieces.append((post.f, self.token(first, self.stream)))
        entries, nbytes = self.tile.entries, self.tile.entries * given.x.itemsize
        for number, (array, token) in enumerate(pieces):
            of_streams = len(array.shape) == 3
            at = self.known(token).to("i64") * (math.prod(array.shape[1:]) // entries)
            at = at + (self.place if of_streams else self.column) // entries
            self.ring.copy_from(self._place(i, number), array, at, nbytes)

    def piece(self, i: Value, number: int) -> list[Value]:
        """Words that were read for step ``i``.

        Their order is that of ``load``: of four tokens ``x``, ``dh_in``, ``dx`` if there is one and
        ``post.x`` if it follows; then ``post.f``, of the token with the number of the stream.
        """
        entries = self.tile.entries
        return self.ring.load_words(self._place(i, number) * entries, entries)

    def _place(self, i: Value, piece: int) -> Value:
        """In the ring, counted in what a lane reads at once."""
        _, stages, pieces, _, _ = self.ring.shape
        stage = self.warp.thread // LANES * stages + i % stages
        return (stage * pieces + piece) * LANES + self.warp.lane

    def unpack(self, words: list[Value]) -> list[Value]:
        """The columns of a piece."""
        return [self.inputs.x.unpack(words, e) for e in range(self.tile.entries)]

    # -- what it makes

    def take(self, i: Value, first: Value, sums):
        """Gradient to the streams of sixteen tokens, [token][column]; sums for that to phi."""
        x, dh_in = ([self.piece(i, OF_LANE * k + t) for t in range(OF_LANE)] for k in (0, 1))
        direct = []
        for t in range(OF_LANE):
            token = self.known(self.token(first, t))
            weight = self.inputs.h_pre.row(token).load(self.stream)
            scale = self.inputs.scale.load(token)
            values = [scale * value for value in self.unpack(x[t])]
            pairs = zip(self.unpack(dh_in[t]), values, strict=True)
            values = [self.warp.fma(weight, d, v) for d, v in pairs]
            if self.inputs.dx is not None:
                more = self.unpack(self.piece(i, 2 * OF_LANE + t))
                values = [a + b for a, b in zip(values, more, strict=True)]
            direct.append(values)
        return self._through_phi(first, direct), self._add(first, x, sums)

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
        g, q = self.warp.lane // 4, self.warp.lane % 4
        token = first + (g // 2 * 4 + g % 2 + 2 * half)
        rows = range(0, self.phi.rows, FRAGMENT)
        return [
            [part.row(token).load_words(q * 4 + row, 4) for row in rows]
            for part in self._parts(self.inputs.by_token)
        ]

    def _weights(self, pair: int) -> list[list[list[Value]]]:
        """Left fragments of each part: of two columns, along the rows of phi."""
        made = []
        for part in range(self.inputs.by_column.shape[0]):
            columns = [self.phi.fragments(part, self.stream, 2 * pair + c) for c in (0, 1)]
            made.append([[a[0], b[0], a[1], b[1]] for a, b in zip(*columns, strict=True)])
        return made

    def _parts(self, array: Array) -> list[Array]:
        return [array.row(self.warp.i32(part)) for part in range(array.shape[0])]

    def _add(self, first: Value, words, sums):
        """``sums`` plus the products of ``x`` and ``dh_mix``, over sixteen tokens."""
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
        """Left fragments of each part of ``x``: of two columns, along the tokens."""
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
        """Writes the sums, [rows, columns], neighbouring columns together."""
        for group in range(self.rows // GROUP):
            for i in (0, 1):
                row = self.warp.lane % 4 * 2 + (group * GROUP + i)
                values = [totals[group][2 * c + i] for totals in sums for c in (0, 1)]
                for e in range(0, self.tile.entries, FLOATS):
                    partial.row(row).store(self.place + e, *values[e : e + FLOATS])
