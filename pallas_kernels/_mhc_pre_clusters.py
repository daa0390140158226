"""``mhc_pre`` of few streams in bfloat16: it reads them once.

The blocks of a cluster share the columns. Each warp keeps its part of phi in registers and walks
over the tokens, sixteen at a time. It sums their products and leaves what it read in shared memory;
some sixteens later, when other warps have made weights of the sums of the whole cluster, it mixes
the streams. Meanwhile further ones are on their way. Its columns are its own: it waits for no
other warp but for the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pallas_kernels._bfloat16_parts import split_words
from pallas_kernels._mhc_cluster_sums import Coefficients, Sums
from pallas_kernels._mhc_cluster_tile import COLUMNS, ROWS, SPAN, TOKENS, MhcPreClusterTile
from pallas_kernels._streams import READ_BYTES, combine
from pallas_kernels._values import Array, Value
from pallas_kernels._warp import LANES, Warp

# The error of two parts, 2^-17 of each entry of phi, is that of sums of thousands in float32.
_PARTS = 2


@dataclass(frozen=True)
class Forward:
    """All of a cluster's tiles; see the module.

    Attributes:
      tile: who does what.
      n: streams.
      norm_eps: see ``mhc_pre``.
      pre_eps: see ``mhc_pre``.
      post_scale: see ``mhc_pre``.
    """

    tile: MhcPreClusterTile
    n: int
    norm_eps: float
    pre_eps: float
    post_scale: float

    def __call__(self, warp: Warp, inputs, *outputs: Array, ring: Array, **shared: Array) -> None:
        x, *parameters = inputs
        self.run(Streams(warp, self.tile, self.n, x, ring), parameters, outputs, **shared)

    def run(self, streams: Streams, parameters, outputs, **shared: Array) -> None:
        """Everything; see ``shared`` of the tile for the arrays in shared memory."""
        warp, tile = streams.warp, self.tile
        sums = Sums.of(warp, tile, self.n, **shared)
        cluster = warp.block // tile.cluster
        tiles = -(-streams.x.shape[0] // TOKENS)
        # The cluster's own tiles are numbered from 0.
        count = (tiles - cluster + (tile.clusters - 1)) // tile.clusters

        def first(i: Value) -> Value:
            return (cluster + i * tile.clusters) * TOKENS

        phi, alpha, bias = parameters
        h_in, *coefficients = outputs
        sums.begin()

        def mix():
            _Mixing(streams, sums, h_in, first, count).run(phi)

        def help_out():
            constants = self.norm_eps, self.pre_eps, self.post_scale
            tokens = streams.x.shape[0]
            helper = Coefficients.of(sums, alpha, bias, coefficients, tokens, constants)
            warp.cluster_wait()
            own = warp.thread // LANES - tile.warps
            warp.loop(own, count, tile.helpers, (), lambda i, _: helper.run(i, first(i)))

        warp.roles((tile.warps, mix), (tile.helpers, help_out))


@dataclass(frozen=True)
class Streams:
    """What a lane has of a tile: eight neighbouring columns of every stream, of two tokens.

    These are ``lane // 4`` and that plus eight. Only the lane itself reads what it copies.

    Attributes:
      warp: of the lanes.
      tile: who does what.
      n: streams.
      x: [tokens, n dim].
      ring: the tiles in shared memory.
    """

    warp: Warp
    tile: MhcPreClusterTile
    n: int
    x: Array
    ring: Array

    @property
    def column(self) -> Value:
        """The first, of a stream."""
        warp = self.warp
        number = warp.rank * self.tile.warps + warp.thread // LANES
        return number * SPAN + warp.lane % 4 * COLUMNS

    def token(self, half: int) -> Value:
        """Of the tile."""
        return self.warp.lane // 4 + 8 * half

    def known(self, token: Value) -> Value:
        """Behind the last token, it again."""
        return token.least(self.x.shape[0] - 1)

    def place(self, i: Value, stream: int, half: int) -> Value:
        """Of tile ``i`` in the ring, counted in sixteen bytes."""
        return ((self.stage(i, self.ring) * self.n + stream) * 2 + half) * LANES + self.warp.lane

    def stage(self, i: Value, ring: Array) -> Value:
        """Of this warp in a ring of [warps, stages, ...], for tile ``i``."""
        stages = ring.shape[1]
        return self.warp.thread // LANES * stages + i % stages

    def load(self, i: Value, first: Value) -> None:
        """Begins to copy tile ``i``."""
        size = self.x.shape[1]
        for half in (0, 1):
            token = self.known(first + self.token(half))
            for stream in range(self.n):
                at = (self.column + stream * (size // self.n)) // COLUMNS
                number = token.to("i64") * (size // COLUMNS) + at
                self.ring.copy_from(self.place(i, stream, half), self.x, number)

    def read(self, i: Value, stream: int, half: int) -> list[Value]:
        """Words of a token of tile ``i``."""
        return self.ring.load_words(self.place(i, stream, half) * COLUMNS, COLUMNS)

    def prepare(self, i: Value, first: Value) -> None:
        """What there is to do when tile ``i``, of tokens from ``first`` on, has come."""

    def fragments_of(self, phi: Array) -> list[list[list[list[Value]]]]:
        """Left fragments, [stream][tile][fragment along the columns]: of the same columns.

        The groups of rows, of the first part and then of the second, fill up the tiles.
        """
        dim = self.x.shape[1] // self.n
        made = []
        for stream in range(self.n):
            at = self.column + stream * dim
            groups = [self._words(phi, g, at) for g in range(phi.shape[0] // ROWS)]
            halves = [words for part in zip(*groups, strict=True) for words in part]
            made.append(
                [_interleave(*pair) for pair in zip(halves[::2], halves[1::2], strict=True)]
            )
        return made

    def _words(self, phi: Array, group: int, at: Value) -> list[list[Value]]:
        """For each part, the words of the lane's columns."""
        row = phi.row(self.warp.lane // 4 + group * ROWS)
        entries = READ_BYTES // phi.itemsize
        values = [
            phi.unpack(words, e)
            for words in (row.load_words(at + k, entries) for k in range(0, COLUMNS, entries))
            for e in range(entries)
        ]
        return split_words(self.warp, values, _PARTS)


def _interleave(upper: list[Value], lower: list[Value]) -> list[list[Value]]:
    """Left fragments of eight rows and eight rows more, of 16 columns each."""
    return [[upper[k], lower[k], upper[k + 1], lower[k + 1]] for k in (0, 2)]


@dataclass(frozen=True)
class _Mixing:
    """What a warp with columns does.

    A lane's eight neighbouring columns, ``8 q`` on, are the columns ``2 q``, ``2 q + 1``,
    ``2 q + 8`` and ``2 q + 9`` of two fragments, of phi, which is on the left, as of the tokens:
    so a right fragment is two words that were read together.

    Attributes:
      streams: the tiles.
      sums: where sums go to, and weights come from.
      h_in: [tokens, dim].
      first: the first token of a tile.
      count: of tiles.
    """

    streams: Streams
    sums: Sums
    h_in: Array
    first: Callable[[Value], Value]
    count: Value

    def run(self, phi: Array) -> None:
        """Everything."""
        warp, tile = self.streams.warp, self.streams.tile
        for i in range(tile.ahead):
            self._load(warp.i32(i))
        fragments = self.streams.fragments_of(phi)
        warp.cluster_wait()

        def step(i, _):
            self._load(i + tile.ahead)
            warp.when(i < self.count, lambda: self._project(i, fragments))
            warp.when(i >= tile.behind, lambda: self._apply(i - tile.behind))

        warp.loop(warp.i32(0), self.count + tile.behind, 1, (), step)

    def _load(self, i: Value) -> None:
        warp = self.streams.warp
        warp.when(i < self.count, lambda: self.streams.load(i, self.first(i)))
        warp.end_copies()

    def _project(self, i: Value, phi: list[list[list[list[Value]]]]) -> None:
        """Waits for tile ``i`` and sums its products with the rows of phi, and its squares."""
        streams, warp = self.streams, self.streams.warp
        warp.wait_for_copies(streams.tile.ahead)
        streams.prepare(i, self.first(i))
        squares = [warp.f32(0.0)] * 2
        # Tensor cores cut off what they add; so few sums go into one another that it is no more
        # than one rounding.
        totals = [[[warp.f32(0.0)] * 4 for _ in squares] for _ in phi[0]]
        for stream, tiles in enumerate(phi):
            halves = [streams.read(i, stream, half) for half in (0, 1)]
            for fragments, of_tile in zip(tiles, totals, strict=True):
                for half, words in enumerate(halves):
                    for k, left in enumerate(fragments):
                        right = words[2 * k : 2 * k + 2]
                        of_tile[half] = warp.mma(left, right, of_tile[half])
            squares = [self._add_squares(*pair) for pair in zip(halves, squares, strict=True)]
        self.sums.put(i, _products(totals), squares)

    def _add_squares(self, words: list[Value], total: Value) -> Value:
        for e in range(COLUMNS):
            value = self.streams.x.unpack(words, e)
            total = self.streams.warp.fma(value, value, total)
        return total

    def _apply(self, i: Value) -> None:
        """Waits for the weights of tile ``i``, and adds up its streams."""
        streams, warp = self.streams, self.streams.warp
        self.sums.weighted.wait(i)
        for half in (0, 1):
            token = streams.token(half)
            words = [streams.read(i, stream, half) for stream in range(streams.n)]
            values = [[streams.x.unpack(part, e) for e in range(COLUMNS)] for part in words]
            mixed = combine(warp, self.sums.weights_of(i, token), values)
            number = self.first(i) + token

            def store(number=number, mixed=mixed):
                self.h_in.row(number).store(streams.column, *mixed)

            warp.when(number < streams.x.shape[0], store)


def _products(totals: list[list[list[Value]]]) -> list[list[Value]]:
    """For each group of rows, what a lane has of four tokens: both parts together."""
    groups = [
        [value for of_half in of_tile for value in of_half[2 * k : 2 * k + 2]]
        for of_tile in totals
        for k in (0, 1)
    ]
    size = len(groups) // _PARTS
    return [
        [large + small for large, small in zip(*pair, strict=True)]
        for pair in zip(groups[:size], groups[size:], strict=True)
    ]
