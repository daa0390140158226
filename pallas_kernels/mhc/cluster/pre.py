"""Forward pass of ``mhc_pre`` for few streams in bfloat16, which are read once.

The blocks of a cluster share the columns. Each warp keeps its part of phi in registers and
processes tiles of 16 tokens. It multiplies a tile by phi and keeps it in shared memory. Some tiles
later, when helper warps have computed the weights from the sums of the whole cluster, it mixes the
streams of the tile. Meanwhile the next tiles are copied. No other warp has its columns, so it waits
for others only to get the weights.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from pallas_kernels.arguments.mhc import MHCConstants
from pallas_kernels.mhc.cluster.streams import PARTS, Streams
from pallas_kernels.mhc.cluster.sums import Coefficients, Sums
from pallas_kernels.mhc.cluster.tile import COLUMNS, TOKENS, MhcPreClusterTile
from pallas_kernels.mhc.streams import combine
from pallas_kernels.simt.values import Array, Value
from pallas_kernels.simt.warp import LANES, Warp


@dataclass(frozen=True)
class Forward:
    """The kernel: the warps of a cluster process all of its tiles.

    Attributes:
      tile: how blocks and warps share the work.
      n: number of streams.
      constants: constants of ``mhc_pre``.
    """

    tile: MhcPreClusterTile
    n: int
    constants: MHCConstants

    def __call__(self, warp: Warp, inputs, *outputs: Array, ring: Array, **shared: Array) -> None:
        x, *parameters = inputs
        self.run(Streams(warp, self.tile, self.n, x, ring), parameters, outputs, **shared)

    def run(self, streams: Streams, parameters, outputs, **shared: Array) -> None:
        """Starts the warps in their roles.

        Args:
          streams: the tiles of this lane.
          parameters: phi, alpha and bias.
          outputs: ``h_in``, ``h_post``, ``h_res``, ``inv_rms`` and ``h_mix``.
          **shared: arrays in shared memory, as ``MhcPreClusterTile.shared`` describes them.
        """
        warp, tile = streams.warp, self.tile
        sums = Sums.of(warp, tile, self.n, **shared)
        cluster = warp.block // tile.cluster
        tiles = -(-streams.x.shape[0] // TOKENS)
        # The tiles of a cluster are numbered from 0.
        count = (tiles - cluster + (tile.clusters - 1)) // tile.clusters

        def first(i: Value) -> Value:
            return (cluster + i * tile.clusters) * TOKENS

        phi, alpha, bias = parameters
        h_in, *coefficients = outputs

        def make_signals():
            streams.make_signals()
            sums.make_signals()

        warp.when(warp.thread == tile.workers * LANES, make_signals)
        warp.cluster_arrive()

        def mix():
            _Mixing(streams, sums, h_in, first, count).run(phi)

        def compute_coefficients():
            streams.start_helper(count, first)
            tokens = streams.x.shape[0]
            helper = Coefficients.of(sums, alpha, bias, coefficients, tokens, self.constants)
            warp.cluster_wait()
            number = warp.thread // LANES - tile.workers
            helper.run(number, count, first, lambda i: streams.tile_summed(i, count, first))

        warp.roles((tile.workers, mix), (tile.helpers, compute_coefficients))


@dataclass(frozen=True)
class _Mixing:
    """Projects and mixes tiles of tokens, in a warp that has columns.

    A lane's eight neighbouring columns, from ``8 q`` on, serve as the columns ``2 q``, ``2 q + 1``,
    ``2 q + 8`` and ``2 q + 9`` of two fragments, both of phi, the left factor, and of the tokens.
    So a right fragment is two words that were read together.

    Attributes:
      streams: the tiles in shared memory.
      sums: takes the sums of a tile, and gives its weights.
      h_in: the layer's input, [tokens, dim].
      first: the first token of a tile.
      count: number of tiles of the cluster.
    """

    streams: Streams
    sums: Sums
    h_in: Array
    first: Callable[[Value], Value]
    count: Value

    def run(self, phi: Array) -> None:
        """Processes the tiles of this warp's team."""
        warp, tile = self.streams.warp, self.streams.tile
        team = warp.thread // LANES // tile.warps
        ahead, behind = tile.ahead * tile.teams, tile.behind * tile.teams
        for turn in range(tile.ahead):
            self._load(team + turn * tile.teams)
        fragments = self.streams.fragments_of(phi)
        warp.cluster_wait()

        def step(i, _):
            self._load(warp.opaque_copy(i + ahead))
            warp.when(i < self.count, lambda: self._project(warp.opaque_copy(i), fragments))
            warp.when(i >= behind, lambda: self._mix_tile(warp.opaque_copy(i - behind)))

        warp.loop(team, self.count + behind, tile.teams, (), step)

    def _load(self, i: Value) -> None:
        """Begins to copy tile ``i``, if there is one, and commits the copies."""
        warp = self.streams.warp
        warp.when(i < self.count, lambda: self.streams.load(i, self.first(i)))
        warp.commit_copies()

    def _project(self, i: Value, phi: list[list[list[list[Value]]]]) -> None:
        """Waits for tile ``i``, and sums its products with the rows of phi and its squares."""
        streams, warp = self.streams, self.streams.warp
        streams.wait(i)
        squares, halves = [], []
        for half in (0, 1):
            # Tensor cores truncate when they add. The chains are so short that the error is that of
            # one rounding.
            totals = [[warp.f32(0.0)] * 4 for _ in phi[0]]
            square = warp.f32(0.0)
            for tiles, words in zip(phi, streams.words(i, self.first(i), half), strict=True):
                for number, fragments in enumerate(tiles):
                    for k, left in enumerate(fragments):
                        right = words[2 * k : 2 * k + 2]
                        totals[number] = warp.mma(left, right, totals[number])
                square = self._add_squares(words, square)
            squares.append(square)
            halves.append(_add_parts(totals))
        products = [first + second for first, second in zip(*halves, strict=True)]
        self.sums.put(i, products, squares)

    def _add_squares(self, words: list[Value], total: Value) -> Value:
        """``total`` plus the squares of a lane's columns."""
        for e in range(COLUMNS):
            value = self.streams.x.unpack(words, e)
            total = self.streams.warp.fma(value, value, total)
        return total

    def _mix_tile(self, i: Value) -> None:
        """Waits for the weights of tile ``i``, and writes the weighted sum of its streams."""
        streams, warp = self.streams, self.streams.warp
        self.sums.weighted.wait(i)
        for half in (0, 1):
            words = self._mixed(i, half)
            number = self.first(i) + streams.token(half)
            row = self.h_in.row(number)
            store = functools.partial(row.store_words, streams.column, words, COLUMNS)
            warp.when(number < streams.x.shape[0], store)

    def _mixed(self, i: Value, half: int) -> list[Value]:
        """Words of the weighted sum of a token's streams, in this lane's columns."""
        x = self.streams.x
        words = [self.streams.read(i, stream, half) for stream in range(self.streams.n)]
        values = [[x.unpack(part, e) for e in range(COLUMNS)] for part in words]
        weights = self.sums.weights_of(i, half)
        return self.h_in.pack(*combine(self.streams.warp, weights, values))


def _add_parts(totals: list[list[Value]]) -> list[list[Value]]:
    """For each group of rows, a lane's products for two tokens, summed over the parts of phi."""
    groups = [of_tile[k : k + 2] for of_tile in totals for k in (0, 2)]
    size = len(groups) // PARTS
    return [
        [large + small for large, small in zip(*pair, strict=True)]
        for pair in zip(groups[:size], groups[size:], strict=True)
    ]
