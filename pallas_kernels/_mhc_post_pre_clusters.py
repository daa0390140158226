"""``mhc_post`` and then ``mhc_pre``, of four streams in bfloat16, which are read and written once.

As ``_mhc_pre_clusters``: a lane has the same columns of all streams, so that it mixes them when
they have come, and keeps the new streams in the place of the old.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import jax
import jax.numpy as jnp

from pallas_kernels._mhc_cluster_streams import Streams
from pallas_kernels._mhc_cluster_tile import COLUMNS, FLOATS, TOKENS, MhcPreClusterTile
from pallas_kernels._mhc_pre_clusters import Forward
from pallas_kernels._streams import combine
from pallas_kernels._values import Array, Signals, Value
from pallas_kernels._warp import Warp

_STREAMS = 4  # of other numbers the weights of a token would not be whole 16 bytes


@dataclass(frozen=True)
class MhcPostPreClusterTile(MhcPreClusterTile):
    """As for ``mhc_pre``, with more in shared memory."""

    @classmethod
    def choose(cls, tokens: int, n: int, dim: int, dtype: jnp.dtype) -> Self | None:
        """As for ``mhc_pre``; None for other numbers of streams than four."""
        return super().choose(tokens, n, dim, dtype) if n == _STREAMS else None

    @property
    def coming(self) -> int:
        """Tiles of which the layer's output is in shared memory: it is mixed at once."""
        return (1 + self.ahead) * self.teams

    def shared(self, n: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Also the layer's output, the coefficients, and signals that these were used."""
        layer = jax.ShapeDtypeStruct((self.coming, self.stream, COLUMNS), jnp.bfloat16)
        posts, matrices = (
            jax.ShapeDtypeStruct((self.coming, TOKENS, size), jnp.float32) for size in (n, n * n)
        )
        made = {"layer": layer, "posts": posts, "matrices": matrices}
        return {
            **super().shared(n),
            **made,
            "used": jax.ShapeDtypeStruct((self.coming, 2), jnp.uint32),
        }


@dataclass(frozen=True)
class BoundaryForward(Forward):
    """All of a cluster's tiles.

    Attributes:
      transposed: see ``mhc_post``.
    """

    transposed: bool

    def __call__(self, warp: Warp, inputs, y: Array, *outputs: Array, ring, **shared) -> None:
        x, *sources, phi, alpha, bias = inputs
        come, mixed, used = (Signals(shared.pop(name)) for name in ("come", "mixed", "used"))
        rings = tuple(shared.pop(name) for name in ("layer", "posts", "matrices"))
        streams = _MixedStreams(
            warp,
            self.tile,
            self.n,
            x,
            ring,
            come,
            mixed,
            y,
            tuple(sources),
            rings,
            used,
            self.transposed,
        )
        self.run(streams, (phi, alpha, bias), outputs, **shared)


@dataclass(frozen=True)
class _MixedStreams(Streams):
    """The new streams.

    Attributes:
      y: where they go, [tokens, n dim].
      sources: the layer's output [tokens, dim] and its weights, [tokens, n] and [tokens, n n].
      rings: of these, in shared memory.
      used: they are not needed any more.
      transposed: see ``mhc_post``.
    """

    y: Array
    sources: tuple[Array, ...]
    rings: tuple[Array, ...]
    used: Signals
    transposed: bool

    def make_signals(self) -> None:
        """By the first lane of the warp that fetches."""
        super().make_signals()
        self.used.make(self.tile.warps)

    def fetch(self, i: Value, first: Value) -> None:
        """Begins to copy the old streams, the layer's output and the weights of tile ``i``."""
        super().fetch(i, first)
        warp, (f, *coefficients) = self.warp, self.sources
        layer, *rings = self.rings
        coming = layer.shape[0]
        warp.when(i >= coming, lambda: self.used.wait(i - coming))
        self.fetch_rows(i, first, f, layer, i % coming, 1)

        def fetch_coefficients():
            tokens = self._tokens(first)
            for source, ring in zip(coefficients, rings, strict=True):
                size = source.shape[1] // FLOATS
                to, at = i % coming * (TOKENS * size), first * size
                ring.fetch(to, source, at, tokens * size, self.come, i)

        warp.when(warp.lane == 0, fetch_coefficients)

    def expected(self, first: Value) -> Value:
        """Bytes of a tile, and of what is mixed with it."""
        floats = sum(source.shape[1] for source in self.sources[1:])
        layer = TOKENS * self.tile.pitch * 16
        return super().expected(first) + layer + self._tokens(first) * (4 * floats)

    def _tokens(self, first: Value) -> Value:
        """Of a tile."""
        return (self.x.shape[0] - first).least(TOKENS)

    def words(self, i: Value, first: Value, half: int) -> list[list[Value]]:
        """Makes the new streams of the old, which they replace, and writes them."""
        dim = self.sources[0].shape[1]
        token, words = first + self.token(half), self._mix(i, half)
        for stream, of_stream in enumerate(words):
            self.tile_of_lane(i).store_words(self.entry(stream, half), of_stream, COLUMNS)

        def store():
            for stream, of_stream in enumerate(words):
                self.y.row(token).store_words(self.column + stream * dim, of_stream, COLUMNS)

        self.warp.when(token < self.x.shape[0], store)
        return words

    def used_up(self, i: Value) -> None:
        """What tile ``i`` was mixed with is not needed any more."""
        self.warp.sync()
        self.warp.when(self.warp.lane == 0, lambda: self.used.give(i))

    def free(self, i: Value) -> None:
        """This warp does not need tile ``i`` any more."""
        self.warp.before_fetch()
        super().free(i)

    def _mix(self, i: Value, half: int) -> list[list[Value]]:
        """Words of a token's new streams."""
        layer, posts, matrices = self.rings
        n, stage = self.n, i % layer.shape[0]
        token = stage * TOKENS + self.token(half)
        weights, matrix = (_floats(ring, token) for ring in (posts, matrices))
        rows = [
            [matrix[s * n + o if self.transposed else o * n + s] for s in range(n)] + [weights[o]]
            for o in range(n)
        ]
        words = [self.read(i, stream, half) for stream in range(n)]
        words.append(self.of_lane(layer, stage).load_words(self.entry(0, half), COLUMNS))
        made: list[list[Value]] = [[] for _ in range(n)]
        for pair in zip(*words, strict=True):  # a word has two columns
            streams = [[self.x.unpack([word], e) for e in (0, 1)] for word in pair]
            for o, row in enumerate(rows):
                made[o] += self.y.pack(*combine(self.warp, row, streams))
        return made


def _floats(ring: Array, token: Value) -> list[Value]:
    """A token's coefficients; the tokens of all stages are counted."""
    size = ring.shape[-1]
    words = ring.load_words(token * size, size)
    return [ring.unpack(words, i) for i in range(size)]
