"""From the sums of a cluster's warps to the coefficients of tokens, by warps that do only this.

The sums of a tile make two hops. A block adds up those of its warps and sends those of each token
to one block of the cluster, which adds up those of the blocks, makes the coefficients, and sends
the weights of the token's streams to all. Everything is in flight at the same time: nobody waits
at a barrier, and each signal tells only that certain numbers have come.

No buffer is written before all have read what was in it, without a signal for that, since a block
is never far ahead of another:

* Weights, ``behind + 1`` buffers for each team. They are sent for tile ``i`` when all blocks' sums
  have come, and no team sums a tile before it has mixed the one ``behind + 1`` turns before.
* Sums of blocks, two buffers for each helper, and twice as many if it is ``late``. A helper sends
  those of tile ``i`` when it has made the weights of a tile half as many buffers before. So all
  blocks had sent their sums of that one, and before that the weights of what was in the buffer of
  tile ``i``: what they read of it is in numbers that they sent.

And as each block waits for everything that is sent to it, none ends too early.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from pallas_kernels.mhc.cluster.tile import PAIRS, ROWS, SPAN, TOKENS, MhcPreClusterTile
from pallas_kernels.simt.values import Array, Signals, Value
from pallas_kernels.simt.warp import LANES, Warp

_PAIRS_AT_ONCE = LANES // ROWS  # of tokens, that a helper has


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

    def make_signals(self) -> None:
        """By one lane of the block."""
        self.summed.init(self.tile.warps)
        for signals in (self.taken, self.gathered, self.weighted):
            signals.init(1)

    def put(self, i: Value, products: list[list[Value]], squares: list[Value]) -> None:
        """What a warp has of tile ``i``.

        Args:
          i: the tile.
          products: of row ``lane // 4`` of each group, for tokens ``2 (lane % 4)``, this plus 1, 8
            and 9.
          squares: sums for tokens ``lane // 4`` and that plus 8.
        """
        warp = self.warp
        is_odd, (upper, lower) = (warp.lane & 1) == 1, squares
        # Neighbours have the same tokens: one adds up the upper half's, the other the lower's.
        other = warp.shuffle_xor(warp.select(is_odd, upper, lower), 1)
        square = warp.select(is_odd, lower, upper) + other
        # The first ones find empty buffers.
        count, warps = self.tile.summed, self.tile.warps
        warp.when(i >= count, lambda: self.taken.wait(i - count))
        places = self._of_lane(i % count * warps + warp.thread // LANES % warps)
        for (array, at, _), values in zip(places, [*products, [square]], strict=True):
            array.store(at, *values)
        # One lane's signal tells of what all stored: that came before ``sync``, which comes before
        # the signal, and order is transitive. A checker that follows only what a lane does itself,
        # as compute-sanitizer's, calls the other 31 lanes' numbers a race with those who read them.
        warp.sync()
        warp.when(warp.lane == 0, lambda: self.summed.arrive(i))

    def take(self, i: Value) -> list[list[Value]]:
        """The sums of the block for tile ``i``, in the order of its warps.

        As given to ``put``, but the last is one square, of token ``lane // 4 + 8 (lane % 2)``, to
        which that of two lanes on is to be added.
        """
        self.summed.wait(i)
        size = self.sums.shape[1]
        sums = [
            _add([_floats(array, at + k * size, count) for k in range(self.tile.warps)])
            for array, at, count in self._of_lane(i % self.tile.summed * self.tile.warps)
        ]
        self.warp.sync()  # as in ``put``
        self.warp.when(self.warp.lane == 0, lambda: self.taken.arrive(i))
        return sums

    def _of_lane(self, number: Value) -> list[tuple[Array, int, int]]:
        """A lane's sums, of each group of rows and the squares: array, first entry and how many."""
        row, lane, groups = self.sums.row(number), self.warp.lane, self._rows // ROWS
        fours, ones = row.shifted(lane * 4), row.shifted(lane)
        products = [(fours, group * (4 * LANES), 4) for group in range(groups)]
        return [*products, (ones, groups * (4 * LANES), 1)]

    @property
    def _rows(self) -> int:
        return self.totals.shape[3] - 1

    def announce(self, i: Value) -> None:
        """Tells how many bytes of tile ``i`` this block is going to get."""
        warp, tile = self.warp, self.tile

        def give():
            own = (warp.i32(PAIRS + tile.cluster - 1) - warp.rank) // tile.cluster
            self.gathered.arrive(i, own * (tile.cluster * 8 * (self._rows + 1)))
            self.weighted.arrive(i, warp.i32(TOKENS * self.n * 4))

        warp.when(warp.lane == 0, give)

    def scatter(self, i: Value, sums: list[list[Value]]) -> None:
        """Sends the block's sums of tile ``i`` to the blocks that have its tokens."""
        warp, (*products, squares) = self.warp, sums
        quarter, row = warp.lane % 4, warp.lane // 4
        for half in (0, 1):
            for group, values in enumerate(products):
                pair = values[2 * half : 2 * half + 2]
                self._send(i, half * 4 + quarter, 2 * (group * ROWS + row), pair)
        half, (square,) = quarter & 1, squares
        square = [square + warp.shuffle_xor(square, 2)]
        place = 2 * self._rows + row % 2
        warp.when(quarter < 2, lambda: self._send(i, half * 4 + row // 2, place, square))

    def _send(self, i: Value, pair: Value, place: Value, values: list[Value]) -> None:
        """To who has a pair of tokens."""
        slot = pair // self.tile.cluster
        rank = pair - slot * self.tile.cluster
        place = place + self._total_place(i, self.warp.rank, slot)
        self.totals.send(rank, place, values, self.gathered, i)

    def gather(self, i: Value, slot: Value, row: Value) -> tuple[list[list[Value]], list[Value]]:
        """The cluster's sums of tile ``i`` for two tokens, in the order of its blocks.

        Returns:
          Products of row ``row`` of each group; and squares.
        """
        pair = self.totals.shifted(self._total_place(i, self.warp.i32(0), slot))
        of_row, size = pair.shifted(row * 2), self.tile.slots * (2 * (self._rows + 1))

        def add(array: Array, at: int) -> list[Value]:
            return _add([_floats(array, at + k * size, 2) for k in range(self.tile.cluster)])

        products = [add(of_row, first * 2) for first in range(0, self._rows, ROWS)]
        return products, add(pair, self._rows * 2)

    def _total_place(self, i: Value, rank: Value, slot: Value) -> Value:
        tile = self.tile
        number = (i % tile.gathered * tile.cluster + rank) * tile.slots + slot
        return number * (2 * (self._rows + 1))

    def spread(self, i: Value, rank: Value, token: Value, values: list[Value]) -> None:
        """Sends a token's weights of tile ``i`` to a block."""
        place = (i % self.tile.weighted * TOKENS + token) * self.n
        self.weights.send(rank, place, values, self.weighted, i)

    def weights_of(self, i: Value, half: int) -> list[Value]:
        """Of the streams, for token ``lane // 4 + 8 half``; after ``weighted.wait``."""
        place = (i % self.tile.weighted * TOKENS + self.warp.lane // 4) * self.n
        return _floats(self.weights.shifted(place), half * (PAIRS * self.n), self.n)


@dataclass(frozen=True)
class Coefficients:
    """What a helper does.

    A lane has a row of each group of eight rows of phi, ``lane % 8``, for two tokens.

    Attributes:
      sums: where they are.
      outputs: ``h_post``, ``h_res``, ``inv_rms`` and ``h_mix``.
      tokens: of all clusters.
      constants: ``norm_eps``, ``pre_eps`` and ``post_scale`` of ``mhc_pre``.
      affine: gain and bias of the lane's rows.
    """

    sums: Sums
    outputs: tuple[Array, ...]
    tokens: int
    constants: tuple[float, float, float]
    affine: list[tuple[Value, Value]]

    @classmethod
    def of(cls, sums: Sums, alpha: Array, bias: Array, outputs, tokens: int, constants):
        """Loads gain and bias."""
        affine = []
        for group in range(bias.shape[0] // ROWS):
            row = sums.warp.lane % ROWS + group * ROWS
            part = (row >= sums.n).to("i32") + (row >= 2 * sums.n).to("i32")
            affine.append((alpha.load(part), bias.load(row)))
        return cls(sums, outputs, tokens, constants, affine)

    def run(self, number: Value, count: Value, first: Callable, taken: Callable) -> None:
        """What helper ``number`` does.

        Args:
          number: of the helper.
          count: of tiles.
          first: the first token of a tile.
          taken: called for a tile when its sums were read.
        """
        warp, tile = self.sums.warp, self.sums.tile

        def begin(i):
            self._begin(i)
            taken(i)

        def step(i, _):
            if not tile.late:
                begin(i)
                self._end(i, first(i))
                return
            warp.when(i < count, lambda: begin(i))
            before = i - tile.late
            warp.when(before >= 0, lambda: self._end(before, first(before)))

        warp.loop(number, count + tile.late, tile.helpers, (), step)

    def _begin(self, i: Value) -> None:
        taken = self.sums.take(i)
        self.sums.announce(i)
        self.sums.scatter(i, taken)

    def _end(self, i: Value, first: Value) -> None:
        self.sums.gathered.wait(i)
        for begin in range(0, self.sums.tile.slots, _PAIRS_AT_ONCE):
            self._pairs(i, first, begin)

    def _pairs(self, i: Value, first: Value, begin: int) -> None:
        """Of the block's pairs of tokens, those from ``begin`` on."""
        sums, warp = self.sums, self.sums.warp
        cluster, row = sums.tile.cluster, warp.lane % ROWS
        slot = warp.lane // ROWS + begin
        # Behind its last pair a block has that again.
        known = slot.at_most((warp.i32(PAIRS - 1) - warp.rank) // cluster)
        products, squares = sums.gather(i, known, row)
        norm_eps, pre_eps, post_scale = self.constants
        size = warp.f32(1 / (sums.n * sums.tile.warps * cluster * SPAN))
        scales = [warp.rsqrt(warp.fma(square, size, warp.f32(norm_eps))) for square in squares]
        logits = [
            [warp.fma(gain, p * s, bias) for p, s in zip(pair, scales, strict=True)]
            for pair, (gain, bias) in zip(products, self.affine, strict=True)
        ]
        sigmoids = [warp.sigmoid(logit) for logit in logits[0]]  # of rows of streams
        self._spread(i, begin, [sigmoid + pre_eps for sigmoid in sigmoids])
        pair = slot * cluster + warp.rank
        for k in (0, 1):
            number = first + pair * 2 + k
            rows, of_rows = ([group[k] for group in groups] for groups in (products, logits))
            post = sigmoids[k] * post_scale
            store = functools.partial(self._store, number, scales[k], rows, of_rows, post)
            warp.when((pair < PAIRS) & (number < self.tokens), store)

    def _spread(self, i: Value, begin: int, weights: list[Value]) -> None:
        """Sends the weights of the pairs' tokens to all blocks: each lane of one to one."""
        sums, warp = self.sums, self.sums.warp
        cluster = sums.tile.cluster
        number = warp.lane // cluster
        slot, k = number // 2, number % 2
        pair = (slot + begin) * cluster + warp.rank
        values = []
        for stream in range(sums.n):
            both = [warp.shuffle(weight, slot * ROWS + stream) for weight in weights]
            values.append(warp.select(k == 0, *both))
        is_one = (slot < min(sums.tile.slots - begin, _PAIRS_AT_ONCE)) & (pair < PAIRS)
        rank, token = warp.lane - number * cluster, pair * 2 + k
        warp.when(is_one, lambda: sums.spread(i, rank, token, values))

    def _store(self, number: Value, scale: Value, products, logits, post: Value) -> None:
        """A token's rows."""
        warp, n = self.sums.warp, self.sums.n
        h_post, h_res, inv_rms, h_mix = self.outputs
        lane = warp.lane % ROWS
        warp.when(lane == 0, lambda: inv_rms.store(number, scale))
        warp.when((lane >= n) & (lane < 2 * n), lambda: h_post.row(number).store(lane - n, post))
        for group, (product, logit) in enumerate(zip(products, logits, strict=True)):
            row = lane + group * ROWS
            h_mix.row(number).store(row, product)
            of_matrix = functools.partial(h_res.row(number).store, row - 2 * n, logit)
            # Only in the first group there are others.
            warp.when(row >= 2 * n, of_matrix)


def _floats(array: Array, place: int, count: int) -> list[Value]:
    words = array.load_words(place, count)
    return [array.unpack(words, k) for k in range(count)]


def _add(parts: list[list[Value]]) -> list[Value]:
    """The sums of their entries, in the order of the parts."""
    return [functools.reduce(Value.__add__, entries) for entries in zip(*parts, strict=True)]
