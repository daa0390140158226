"""``mhc_pre`` of few streams in bfloat16: it reads them once.

The blocks of a cluster share the columns. Each warp keeps its part of phi in registers and walks
over the tokens, sixteen at a time. It sums their products and leaves what it read in shared memory;
some sixteens later, when other warps have made weights of the sums of the whole cluster, it mixes
the streams. Meanwhile further ones are on their way. Its columns are its own: it waits for no
other warp but for the weights.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from pallas_kernels.mhc.cluster.streams import PARTS, Streams
from pallas_kernels.mhc.cluster.sums import Coefficients, Sums
from pallas_kernels.mhc.cluster.tile import COLUMNS, TOKENS, MhcPreClusterTile
from pallas_kernels.mhc.streams import combine
from pallas_kernels.simt.values import Array, Value
from pallas_kernels.simt.warp import LANES, Warp


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

        def make_signals():
            streams.make_signals()
            sums.make_signals()

        warp.when(warp.thread == tile.workers * LANES, make_signals)
        warp.cluster_arrive()

        def mix():
            _Mixing(streams, sums, h_in, first, count).run(phi)

        def help_out():
            streams.help_first(count, first)
            constants = self.norm_eps, self.pre_eps, self.post_scale
            tokens = streams.x.shape[0]
            helper = Coefficients.of(sums, alpha, bias, coefficients, tokens, constants)
            warp.cluster_wait()
            number = warp.thread // LANES - tile.workers
            helper.run(number, count, first, lambda i: streams.help(i, count, first))

        warp.roles((tile.workers, mix), (tile.helpers, help_out))


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
        team = warp.thread // LANES // tile.warps
        ahead, behind = tile.ahead * tile.teams, tile.behind * tile.teams
        for turn in range(tile.ahead):
            self._load(team + turn * tile.teams)
        fragments = self.streams.fragments_of(phi)
        warp.cluster_wait()

        def step(i, _):
            self._load(warp.opaque_copy(i + ahead))
            warp.when(i < self.count, lambda: self._project(warp.opaque_copy(i), fragments))
            warp.when(i >= behind, lambda: self._apply(warp.opaque_copy(i - behind)))

        warp.loop(team, self.count + behind, tile.teams, (), step)

    def _load(self, i: Value) -> None:
        warp = self.streams.warp
        warp.when(i < self.count, lambda: self.streams.load(i, self.first(i)))
        warp.commit_copies()

    def _project(self, i: Value, phi: list[list[list[list[Value]]]]) -> None:
        """Waits for tile ``i`` and sums its products with the rows of phi, and its squares."""
        streams, warp = self.streams, self.streams.warp
        streams.wait(i)
        squares, halves = [], []
        for half in (0, 1):
            # Tensor cores cut off what they add; so few sums go into one another that it is no
            # more than one rounding.
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
        for e in range(COLUMNS):
            value = self.streams.x.unpack(words, e)
            total = self.streams.warp.fma(value, value, total)
        return total

    def _apply(self, i: Value) -> None:
        """Waits for the weights of tile ``i``, and adds up its streams."""
        streams, warp = self.streams, self.streams.warp
        self.sums.weighted.wait(i)
        for half in (0, 1):
            words = self._mix(i, half)
            number = self.first(i) + streams.token(half)
            row = self.h_in.row(number)
            store = functools.partial(row.store_words, streams.column, words, COLUMNS)
            warp.when(number < streams.x.shape[0], store)

    def _mix(self, i: Value, half: int) -> list[Value]:
        """Words of a token's sum."""
        x = self.streams.x
        words = [self.streams.read(i, stream, half) for stream in range(self.streams.n)]
        values = [[x.unpack(part, e) for e in range(COLUMNS)] for part in words]
        weights = self.sums.weights_of(i, half)
        return self.h_in.pack(*combine(self.streams.warp, weights, values))


def _add_parts(totals: list[list[Value]]) -> list[list[Value]]:
    """For each group of rows, what a lane has of two tokens: both parts of phi together."""
    groups = [of_tile[k : k + 2] for of_tile in totals for k in (0, 2)]
    size = len(groups) // PARTS
    return [
        [large + small for large, small in zip(*pair, strict=True)]
        for pair in zip(groups[:size], groups[size:], strict=True)
    ]
