"""Reduces the sums of a cluster's warps and computes the coefficients of tokens, in helper warps.

The sums of a tile are reduced in two steps. Each block adds the sums of its warps and sends those
of each token to one block of the cluster. That block adds the sums of all blocks, computes the
coefficients of the token, and sends the weights of its streams to all blocks. There is no barrier
for a whole block or cluster: each signal only says that certain numbers have arrived.

No signal says that a buffer may be overwritten. None is needed, since no block is far ahead of
another:

* Weights have ``behind + 1`` buffers for each team. Those of tile ``i`` are sent when the sums of
  all blocks have arrived, and no team sums a tile before it has mixed the one ``behind + 1`` turns
  before.
* Sums of blocks have two buffers for each helper, and twice as many if ``delay`` is one. A
  helper sends those of tile ``i`` when it has computed the weights of a tile half as many buffers
  before. So all blocks had sent their sums of that tile, and before that the weights of the tile
  whose buffer tile ``i`` reuses. They had read that buffer to compute these weights.

No block exits too early, as each waits for everything that is sent to it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from pallas_kernels.arguments.mhc import MHCConstants
from pallas_kernels.mhc.cluster.tile import PAIRS, ROWS, SPAN, TOKENS, MhcPreClusterTile
from pallas_kernels.simt.values import Array, Signals, Value
from pallas_kernels.simt.warp import LANES, Warp

_PAIRS_AT_ONCE = LANES // ROWS  # pairs of tokens that a helper processes at once


@dataclass(frozen=True)
class Sums:
    """The sums and weights of tiles in shared memory, and their exchange among blocks.

    ``MhcPreClusterTile.shared`` describes the arrays.

    Attributes:
      warp: the warp that runs this.
      tile: how blocks and warps share the work.
      n: number of streams.
      sums: sums of the warps of this block.
      totals: sums of the blocks of the cluster, for the tokens of this block.
      weights: weights of the streams.
      summed: signals that the sums of all warps have arrived.
      taken: signals that the sums of all warps were read.
      gathered: signals that the sums of all blocks have arrived.
      weighted: signals that the weights of all tokens have arrived.
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
        """Wraps the arrays in shared memory, by their names."""
        signals = ("summed", "taken", "gathered", "weighted")
        made = {k: Signals(a) if k in signals else a for k, a in shared.items()}
        return cls(warp, tile, n, **made)  # pyrefly: ignore[bad-argument-type]

    def make_signals(self) -> None:
        """Initializes the signals; one lane of the block calls it."""
        self.summed.init(self.tile.warps)
        for signals in (self.taken, self.gathered, self.weighted):
            signals.init(1)

    def put(self, i: Value, products: list[list[Value]], squares: list[Value]) -> None:
        """Writes the sums of this warp for tile ``i``.

        Args:
          i: number of the tile.
          products: for each group of rows, the products of row ``lane // 4`` with the tokens
            ``2 q``, ``2 q + 1``, ``2 q + 8`` and ``2 q + 9``, with ``q = lane % 4``.
          squares: sums of squares of the tokens ``lane // 4`` and ``lane // 4 + 8``.
        """
        warp = self.warp
        is_odd, (upper, lower) = (warp.lane & 1) == 1, squares
        # Neighbouring lanes have the same tokens: one adds the squares of the upper half of the
        # tile, the other those of the lower.
        other = warp.shuffle_xor(warp.select(is_odd, upper, lower), 1)
        square = warp.select(is_odd, lower, upper) + other
        # The first tiles find empty buffers.
        count, warps = self.tile.summed, self.tile.warps
        warp.when(i >= count, lambda: self.taken.wait(i - count))
        places = self._lane_entries(i % count * warps + warp.thread // LANES % warps)
        for (array, at, _), values in zip(places, [*products, [square]], strict=True):
            array.store(at, *values)
        # One lane signals for all: the stores happen before ``sync``, which happens before the
        # signal. A checker that only orders the accesses of the signalling lane itself, such as
        # compute-sanitizer, reports the stores of the other 31 lanes as races with their readers.
        warp.sync()
        warp.when(warp.lane == 0, lambda: self.summed.arrive(i))

    def take(self, i: Value) -> list[list[Value]]:
        """Reads the sums of the warps for tile ``i``, added in the order of the warps.

        Returns:
          The products in the layout of ``put``; and one sum of squares, of token
          ``lane // 4 + 8 (lane % 2)``, to which the caller adds that of the lane two further on.
        """
        self.summed.wait(i)
        size = self.sums.shape[1]
        sums = [
            _add([_floats(array, at + k * size, count) for k in range(self.tile.warps)])
            for array, at, count in self._lane_entries(i % self.tile.summed * self.tile.warps)
        ]
        self.warp.sync()  # all lanes have read, before one of them signals
        self.warp.when(self.warp.lane == 0, lambda: self.taken.arrive(i))
        return sums

    def _lane_entries(self, number: Value) -> list[tuple[Array, int, int]]:
        """Array, first entry and count of a lane's sums: of each group of rows, then of squares."""
        row, lane, groups = self.sums.row(number), self.warp.lane, self._rows // ROWS
        fours, ones = row.shifted(lane * 4), row.shifted(lane)
        products = [(fours, group * (4 * LANES), 4) for group in range(groups)]
        return [*products, (ones, groups * (4 * LANES), 1)]

    @property
    def _rows(self) -> int:
        """Number of rows of phi."""
        return self.totals.shape[3] - 1

    def expect(self, i: Value) -> None:
        """Announces to the signals the bytes of tile ``i`` that this block will receive."""
        warp, tile = self.warp, self.tile

        def give():
            own = (warp.i32(PAIRS + tile.cluster - 1) - warp.rank) // tile.cluster
            self.gathered.arrive(i, own * (tile.cluster * 8 * (self._rows + 1)))
            self.weighted.arrive(i, warp.i32(TOKENS * self.n * 4))

        warp.when(warp.lane == 0, give)

    def scatter(self, i: Value, sums: list[list[Value]]) -> None:
        """Sends this block's sums of tile ``i`` to the blocks that gather its tokens."""
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
        """Sends numbers to the block that gathers a pair of tokens."""
        slot = pair // self.tile.cluster
        rank = pair - slot * self.tile.cluster
        place = place + self._total_index(i, self.warp.rank, slot)
        self.totals.send(rank, place, values, self.gathered, i)

    def gather(self, i: Value, slot: Value, row: Value) -> tuple[list[list[Value]], list[Value]]:
        """The cluster's sums of tile ``i`` for a pair of tokens, added in the order of the blocks.

        Returns:
          Products of row ``row`` of each group for both tokens; and their sums of squares.
        """
        pair = self.totals.shifted(self._total_index(i, self.warp.i32(0), slot))
        of_row, size = pair.shifted(row * 2), self.tile.slots * (2 * (self._rows + 1))

        def add(array: Array, at: int) -> list[Value]:
            return _add([_floats(array, at + k * size, 2) for k in range(self.tile.cluster)])

        products = [add(of_row, first * 2) for first in range(0, self._rows, ROWS)]
        return products, add(pair, self._rows * 2)

    def _total_index(self, i: Value, rank: Value, slot: Value) -> Value:
        """Index in ``totals`` of the sums of one block for a pair of tokens of tile ``i``."""
        tile = self.tile
        number = (i % tile.gathered * tile.cluster + rank) * tile.slots + slot
        return number * (2 * (self._rows + 1))

    def send_weights(self, i: Value, rank: Value, token: Value, values: list[Value]) -> None:
        """Sends a token's weights of tile ``i`` to a block."""
        place = (i % self.tile.weighted * TOKENS + token) * self.n
        self.weights.send(rank, place, values, self.weighted, i)

    def weights_of(self, i: Value, half: int) -> list[Value]:
        """Weights of the streams for token ``lane // 4 + 8 half``; wait for them before."""
        place = (i % self.tile.weighted * TOKENS + self.warp.lane // 4) * self.n
        return _floats(self.weights.shifted(place), half * (PAIRS * self.n), self.n)


@dataclass(frozen=True)
class Coefficients:
    """Computes coefficients from sums, in a helper warp.

    A lane has the row ``lane % 8`` of each group of eight rows of phi, for two tokens.

    Attributes:
      sums: the sums and weights in shared memory.
      outputs: ``h_post``, ``h_res``, ``inv_rms`` and ``h_mix``.
      tokens: number of tokens of all clusters.
      constants: constants of ``mhc_pre``.
      affine: gain and bias of each of the lane's rows.
    """

    sums: Sums
    outputs: tuple[Array, ...]
    tokens: int
    constants: MHCConstants
    affine: list[tuple[Value, Value]]

    @classmethod
    def of(cls, sums: Sums, alpha: Array, bias: Array, outputs, tokens: int, constants):
        """Loads gain and bias of this lane's rows."""
        affine = []
        for group in range(bias.shape[0] // ROWS):
            row = sums.warp.lane % ROWS + group * ROWS
            part = (row >= sums.n).to("i32") + (row >= 2 * sums.n).to("i32")
            affine.append((alpha.load(part), bias.load(row)))
        return cls(sums, outputs, tokens, constants, affine)

    def run(self, number: Value, count: Value, first: Callable, taken: Callable) -> None:
        """Processes the tiles of one helper.

        Args:
          number: number of the helper in its block.
          count: number of tiles of the cluster.
          first: gives the first token of a tile.
          taken: called with a tile when the sums of its warps were read.
        """
        warp, tile = self.sums.warp, self.sums.tile

        def begin(i):
            self._reduce_block(i)
            taken(i)

        def step(i, _):
            if not tile.delay:
                begin(i)
                self._compute(i, first(i))
                return
            warp.when(i < count, lambda: begin(i))
            before = i - tile.delay
            warp.when(before >= 0, lambda: self._compute(before, first(before)))

        warp.loop(number, count + tile.delay, tile.helpers, (), step)

    def _reduce_block(self, i: Value) -> None:
        """Adds the sums of this block's warps for tile ``i``, and sends them."""
        taken = self.sums.take(i)
        self.sums.expect(i)
        self.sums.scatter(i, taken)

    def _compute(self, i: Value, first: Value) -> None:
        """Waits for the sums of all blocks for tile ``i``, and computes its coefficients."""
        self.sums.gathered.wait(i)
        for begin in range(0, self.sums.tile.slots, _PAIRS_AT_ONCE):
            self._compute_pairs(i, first, begin)

    def _compute_pairs(self, i: Value, first: Value, begin: int) -> None:
        """Computes the coefficients of some of this block's pairs of tokens, from ``begin`` on."""
        sums, warp = self.sums, self.sums.warp
        cluster, row = sums.tile.cluster, warp.lane % ROWS
        slot = warp.lane // ROWS + begin
        # Slots past the last pair of a block are clamped to it.
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
        self._send_weights(i, begin, [sigmoid + pre_eps for sigmoid in sigmoids])
        pair = slot * cluster + warp.rank
        for k in (0, 1):
            number = first + pair * 2 + k
            rows, of_rows = ([group[k] for group in groups] for groups in (products, logits))
            post = sigmoids[k] * post_scale
            store = functools.partial(self._store, number, scales[k], rows, of_rows, post)
            warp.when((pair < PAIRS) & (number < self.tokens), store)

    def _send_weights(self, i: Value, begin: int, weights: list[Value]) -> None:
        """Sends weights of pairs to all blocks; a lane sends those of a token to a block."""
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
        warp.when(is_one, lambda: sums.send_weights(i, rank, token, values))

    def _store(self, number: Value, scale: Value, products, logits, post: Value) -> None:
        """Writes this lane's rows of the coefficients of a token."""
        warp, n = self.sums.warp, self.sums.n
        h_post, h_res, inv_rms, h_mix = self.outputs
        lane = warp.lane % ROWS
        warp.when(lane == 0, lambda: inv_rms.store(number, scale))
        warp.when((lane >= n) & (lane < 2 * n), lambda: h_post.row(number).store(lane - n, post))
        for group, (product, logit) in enumerate(zip(products, logits, strict=True)):
            row = lane + group * ROWS
            h_mix.row(number).store(row, product)
            store_logit = functools.partial(h_res.row(number).store, row - 2 * n, logit)
            # Only the first group also has rows of the other parts.
            warp.when(row >= 2 * n, store_logit)


def _floats(array: Array, place: int, count: int) -> list[Value]:
    """Loads neighbouring float32 numbers."""
    words = array.load_words(place, count)
    return [array.unpack(words, k) for k in range(count)]


def _add(parts: list[list[Value]]) -> list[Value]:
    """Adds lists of numbers entry by entry, in the order of the lists."""
    return [functools.reduce(Value.__add__, entries) for entries in zip(*parts, strict=True)]
