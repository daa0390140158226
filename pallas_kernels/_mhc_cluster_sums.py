"""From the sums of a cluster's warps to the coefficients of tokens, by warps that do only this.

The sums of a tile make two hops. A block adds up those of its warps and sends those of each token
to one block of the cluster, which adds up those of the blocks, makes the coefficients, and sends
the weights of the token's streams to all. Everything is in flight at the same time: nobody waits
at a barrier, and each signal tells only that certain numbers have come.

No buffer is written before all have read what was in it, without a signal for that, since a block
is never far ahead of another:

* Weights, ``behind + 1`` buffers. They are sent for tile ``i`` when all blocks' sums have come,
  and no warp sums tile ``i`` before it has mixed tile ``i - behind - 1``.
* Sums of blocks, two buffers for each helper. A helper sends those of tile ``i`` when it is done
  with its last tile, ``i - helpers``. So all blocks had sent theirs of that tile, and were done
  with their tiles before that, ``i - 2 helpers``: what they read of these is in numbers that they
  sent before.

And as each block waits for everything that is sent to it, none ends too early.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from pallas_kernels._mhc_cluster_tile import FLOATS, ROWS, SPAN, SUMMED, TOKENS, MhcPreClusterTile
from pallas_kernels._values import Array, Signals, Value
from pallas_kernels._warp import LANES, Warp

_QUARTERS = 4  # lanes that have sums of the same token


@dataclass(frozen=True)
class Sums:
    """Where sums and weights of the tiles are; see ``shared`` of the tile.

    Attributes:
      warp: of the lanes.
      tile: who does what.
      n: streams.
      sums: of the warps.
      totals: of the blocks.
      weights: of the streams.
      summed: the sums of all warps have come.
      taken: these were read.
      gathered: the sums of all blocks have come.
      weighted: the weights of all tokens have come.
    """

    warp: Warp
    tile: MhcPreClusterTile
    n: int
    sums: Array
    totals: Array
    weights: Array
    summed: Signals
    taken: Signals
    gathered: Signals
    weighted: Signals

    @classmethod
    def of(cls, warp: Warp, tile: MhcPreClusterTile, n: int, **shared: Array) -> Sums:
        """Of the arrays in shared memory."""
        signals = ("summed", "taken", "gathered", "weighted")
        made = {k: Signals(a) if k in signals else a for k, a in shared.items()}
        return cls(warp, tile, n, **made)  # pyrefly: ignore[bad-argument-type]

    def begin(self) -> None:
        """Before anything else, by all warps of the block; then each has ``cluster_wait``."""

        def make():
            self.summed.make(self.tile.warps)
            for signals in (self.taken, self.gathered, self.weighted):
                signals.make(1)

        self.warp.when(self.warp.thread == 0, make)
        self.warp.cluster_arrive()

    def put(self, i: Value, halves: list[list[Value]]) -> None:
        """What a warp has of tile ``i``: floats of the two tokens of each lane."""
        warp = self.warp
        # The first ones find empty buffers.
        warp.when(i >= SUMMED, lambda: self.taken.wait(i - SUMMED))
        for piece, values in enumerate(_pieces(warp, halves)):
            place = self._place(i, warp.thread // LANES, piece)
            self.sums.store(place, *values)
        warp.sync()
        warp.when(warp.lane == 0, lambda: self.summed.give(i))

    def take(self, i: Value) -> list[list[Value]]:
        """The sums of the block for tile ``i``, in the order of its warps; pieces as of ``put``."""
        self.summed.wait(i)
        pieces = []
        for piece in range(2 * self.tile.pieces(self.n)):
            parts = []
            for number in range(self.tile.warps):
                place = self._place(i, self.warp.i32(number), piece)
                parts.append(_floats(self.sums, place))
            pieces.append(_add(parts))
        self.warp.sync()
        self.warp.when(self.warp.lane == 0, lambda: self.taken.give(i))
        return pieces

    def _place(self, i: Value, number: Value, piece: int) -> Value:
        pieces = 2 * self.tile.pieces(self.n)
        row = (i % SUMMED * self.tile.warps + number) * pieces + piece
        return (row * LANES + self.warp.lane) * FLOATS

    def announce(self, i: Value) -> None:
        """Tells how many bytes of tile ``i`` this block is going to get."""
        warp, tile = self.warp, self.tile

        def give():
            own = (warp.i32(TOKENS + tile.cluster - 1) - warp.rank) // tile.cluster
            size = tile.cluster * _QUARTERS * tile.pieces(self.n) * FLOATS * 4
            self.gathered.give(i, own * size)
            self.weighted.give(i, warp.i32(TOKENS * self.n * 4))

        warp.when(warp.lane == 0, give)

    def scatter(self, i: Value, pieces: list[list[Value]]) -> None:
        """Sends the block's sums of tile ``i`` to the blocks that have its tokens."""
        warp, tile = self.warp, self.tile
        count = tile.pieces(self.n)
        for piece, values in enumerate(pieces):
            token = warp.lane // _QUARTERS + piece // count * (TOKENS // 2)
            slot = token // tile.cluster
            place = self._total_place(i, warp.rank, slot, warp.lane % _QUARTERS, piece % count)
            rank = token - slot * tile.cluster
            self.totals.send(rank, place, values, self.gathered, i)

    def gather(self, i: Value, slot: Value) -> list[Value]:
        """What a lane has of the cluster's sums of tile ``i``, of one token."""
        lane = self.warp.lane % _QUARTERS
        values = []
        for piece in range(self.tile.pieces(self.n)):
            parts = []
            for rank in range(self.tile.cluster):
                place = self._total_place(i, self.warp.i32(rank), slot, lane, piece)
                parts.append(_floats(self.totals, place))
            values += _add(parts)
        return values

    def _total_place(self, i: Value, rank: Value, slot: Value, lane: Value, piece: int) -> Value:
        tile = self.tile
        row = (i % tile.gathered * tile.cluster + rank) * tile.slots + slot
        return ((row * _QUARTERS + lane) * tile.pieces(self.n) + piece) * FLOATS

    def spread(self, i: Value, token: Value, stream: Value, values: list[Value]) -> None:
        """Sends weights of neighbouring streams, of a token of tile ``i``, to all blocks."""
        place = (i % self.tile.weighted * TOKENS + token) * self.n + stream
        for rank in range(self.tile.cluster):
            self.weights.send(rank, place, values, self.weighted, i)

    def weights_of(self, i: Value, token: Value) -> list[Value]:
        """Of the streams; after ``weighted.wait``."""
        place = (i % self.tile.weighted * TOKENS + token) * self.n
        return _floats(self.weights, place, self.n)


@dataclass(frozen=True)
class Coefficients:
    """What a helper does.

    A lane has rows ``8 k + 2 q`` and ``8 k + 2 q + 1`` of a token's products, ``q = lane % 4``, and
    then a part of its sum of squares.

    Attributes:
      sums: where they are.
      outputs: ``h_post``, ``h_res``, ``inv_rms`` and ``h_mix``.
      tokens: of all clusters.
      constants: ``norm_eps``, ``pre_eps`` and ``post_scale`` of ``mhc_pre``.
      affine: for the lane's rows, their gain and bias.
    """

    sums: Sums
    outputs: tuple[Array, ...]
    tokens: int
    constants: tuple[float, float, float]
    affine: list[tuple[Value, Value]]

    @classmethod
    def of(cls, sums: Sums, alpha: Array, bias: Array, outputs, tokens: int, constants):
        """Loads gain and bias."""
        warp, n = sums.warp, sums.n
        affine = []
        for group in range(bias.shape[0] // ROWS):
            for row in _rows(warp, group):
                part = (row >= n).to("i32") + (row >= 2 * n).to("i32")
                affine.append((alpha.load(part), bias.load(row)))
        return cls(sums, outputs, tokens, constants, affine)

    def run(self, i: Value, first: Value) -> None:
        """All of tile ``i``, of tokens from ``first`` on."""
        sums, warp = self.sums, self.sums.warp
        pieces = sums.take(i)
        sums.announce(i)
        sums.scatter(i, pieces)
        sums.gathered.wait(i)
        for begin in range(0, sums.tile.slots, LANES // _QUARTERS):
            self._tokens(i, first, begin + warp.lane // _QUARTERS)

    def _tokens(self, i: Value, first: Value, slot: Value) -> None:
        sums, warp, n = self.sums, self.sums.warp, self.sums.n
        cluster = sums.tile.cluster
        # Behind its last token a block has that again.
        token = slot * cluster + warp.rank
        is_own, last = token < TOKENS, (warp.i32(TOKENS - 1) - warp.rank) // cluster
        values = sums.gather(i, slot.least(last))
        products, squares = values[: len(self.affine)], values[len(self.affine)]
        size = n * sums.tile.warps * cluster * SPAN
        norm_eps, pre_eps, post_scale = self.constants
        mean = warp.sum_lanes(squares, _QUARTERS)
        scale = warp.rsqrt(warp.fma(mean, warp.f32(1 / size), warp.f32(norm_eps)))
        logits = [
            warp.fma(gain, product * scale, bias)
            for product, (gain, bias) in zip(products, self.affine, strict=True)
        ]
        row = warp.lane % _QUARTERS * 2
        sigmoids = [warp.sigmoid(logit) for logit in logits[:2]]  # of two parts: one group of rows
        weights = [sigmoid + pre_eps for sigmoid in sigmoids]
        warp.when(is_own & (row < n), lambda: sums.spread(i, token, row, weights))

        def store():
            number = first + token
            self._store(number, products, scale, logits, [s * post_scale for s in sigmoids])

        warp.when(is_own & (first + token < self.tokens), store)

    def _store(self, number: Value, products, scale, logits, posts) -> None:
        warp, n = self.sums.warp, self.sums.n
        h_post, h_res, inv_rms, h_mix = self.outputs
        warp.when(warp.lane % _QUARTERS == 0, lambda: inv_rms.store(number, scale))
        for group in range(len(products) // 2):
            row, _ = _rows(warp, group)
            pair = slice(2 * group, 2 * group + 2)
            h_mix.row(number).store(row, *products[pair])

            def store_matrix(row=row, pair=pair):
                h_res.row(number).store(row - 2 * n, *logits[pair])

            if group:
                store_matrix()
                continue
            warp.when(row >= 2 * n, store_matrix)
            is_post = (row >= n) & (row < 2 * n)
            warp.when(is_post, lambda row=row: h_post.row(number).store(row - n, *posts))


def _rows(warp: Warp, group: int) -> tuple[Value, Value]:
    """Of phi, that a lane has of a group."""
    row = warp.lane % _QUARTERS * 2 + group * ROWS
    return row, row + 1


def _pieces(warp: Warp, halves: list[list[Value]]) -> list[list[Value]]:
    """Fours of each half, filled up."""
    pieces = []
    for values in halves:
        filled = [*values, *[warp.f32(0.0)] * (-len(values) % FLOATS)]
        pieces += [filled[k : k + FLOATS] for k in range(0, len(filled), FLOATS)]
    return pieces


def _floats(array: Array, place: Value, count: int = FLOATS) -> list[Value]:
    words = array.load_words(place, count)
    return [array.unpack(words, k) for k in range(count)]


def _add(parts: list[list[Value]]) -> list[Value]:
    """The sums of their entries, in the order of the parts."""
    return [functools.reduce(Value.__add__, entries) for entries in zip(*parts, strict=True)]
