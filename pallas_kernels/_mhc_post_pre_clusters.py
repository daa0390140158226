"""``mhc_post`` and then ``mhc_pre``, of four streams in bfloat16, which are read and written once.

As ``_mhc_pre_clusters``: a lane has the same columns of all streams, so that it mixes them when
they have come, and keeps the new streams in the place of the old.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import jax
import jax.numpy as jnp

from pallas_kernels._mhc_cluster_tile import COLUMNS, FLOATS, TOKENS, MhcPreClusterTile
from pallas_kernels._mhc_pre_clusters import Forward, Streams
from pallas_kernels._streams import combine
from pallas_kernels._values import Array, Value
from pallas_kernels._warp import LANES, Warp

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
        return 1 + self.ahead

    def shared(self, n: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Also the layer's output, as each lane has it, and the coefficients, for each warp."""
        stages = self.warps, self.coming
        layer = jax.ShapeDtypeStruct((*stages, 2, LANES, COLUMNS), jnp.bfloat16)
        posts, matrices = (
            jax.ShapeDtypeStruct((*stages, TOKENS, size), jnp.float32) for size in (n, n * n)
        )
        return {**super().shared(n), "layer": layer, "posts": posts, "matrices": matrices}


@dataclass(frozen=True)
class BoundaryForward(Forward):
    """All of a cluster's tiles.

    Attributes:
      transposed: see ``mhc_post``.
    """

    transposed: bool

    def __call__(self, warp: Warp, inputs, y: Array, *outputs: Array, ring, **shared) -> None:
        x, f, h_post, h_res, *parameters = inputs
        rings = [shared.pop(name) for name in ("layer", "posts", "matrices")]
        streams = _MixedStreams(
            warp, self.tile, self.n, x, ring, y, (f, h_post, h_res), tuple(rings), self.transposed
        )
        self.run(streams, parameters, outputs, **shared)


@dataclass(frozen=True)
class _MixedStreams(Streams):
    """The new streams.

    Attributes:
      y: where they go, [tokens, n dim].
      sources: the layer's output [tokens, dim] and its weights, [tokens, n] and [tokens, n n].
      rings: of these, in shared memory; a lane has its columns, and a warp all weights.
      transposed: see ``mhc_post``.
    """

    y: Array
    sources: tuple[Array, ...]
    rings: tuple[Array, ...]
    transposed: bool

    def load(self, i: Value, first: Value) -> None:
        """Begins to copy the old streams, the layer's output and the weights of tile ``i``."""
        super().load(i, first)
        f, *coefficients = self.sources
        layer, *rings = self.rings
        for half in (0, 1):
            token = self.known(first + self.token(half)).to("i64")
            at = token * (f.shape[1] // COLUMNS) + self.column // COLUMNS
            layer.copy_from(self._layer_place(i, half), f, at)
        for source, ring in zip(coefficients, rings, strict=True):
            self._load_coefficients(source, ring, i, first)

    def _load_coefficients(self, source: Array, ring: Array, i: Value, first: Value) -> None:
        """The lanes of a warp side by side."""
        parts = source.shape[1] // FLOATS
        begin = self.stage(i, ring) * (TOKENS * parts)

        def copy(piece, _):
            token = piece // parts
            at = self.known(first + token).to("i64") * parts + (piece - token * parts)
            ring.copy_from(begin + piece, source, at)

        self.warp.loop(self.warp.lane, TOKENS * parts, LANES, (), copy)

    def _layer_place(self, i: Value, half: int) -> Value:
        """Of its columns in the ring, counted in sixteen bytes."""
        return (self.stage(i, self.rings[0]) * 2 + half) * LANES + self.warp.lane

    def prepare(self, i: Value, first: Value) -> None:
        """Makes the new streams of the old, which they replace, and writes them."""
        self.warp.sync()  # coefficients that other lanes have copied
        dim = self.sources[0].shape[1]
        for half in (0, 1):
            token = first + self.token(half)
            words = self._mix(i, half)
            for stream, of_stream in enumerate(words):
                self.ring.store_words(self.place(i, stream, half) * COLUMNS, of_stream, COLUMNS)

            def store(token=token, words=words):
                for stream, of_stream in enumerate(words):
                    self.y.row(token).store_words(self.column + stream * dim, of_stream, COLUMNS)

            self.warp.when(token < self.x.shape[0], store)

    def _mix(self, i: Value, half: int) -> list[list[Value]]:
        """Words of a token's new streams."""
        layer, posts, matrices = self.rings
        n, token = self.n, self.stage(i, posts) * TOKENS + self.token(half)
        weights, matrix = (_floats(ring, token) for ring in (posts, matrices))
        rows = [
            [matrix[s * n + o if self.transposed else o * n + s] for s in range(n)] + [weights[o]]
            for o in range(n)
        ]
        words = [self.read(i, stream, half) for stream in range(n)]
        words.append(layer.load_words(self._layer_place(i, half) * COLUMNS, COLUMNS))
        made: list[list[Value]] = [[] for _ in range(n)]
        for pair in zip(*words, strict=True):  # a word has two columns
            streams = [[self.x.unpack([word], e) for e in (0, 1)] for word in pair]
            for o, row in enumerate(rows):
                made[o] += self.y.pack(*combine(self.warp, row, streams))
        return made


def _floats(ring: Array, token: Value) -> list[Value]:
    """A token's coefficients; those of all warps and stages are counted."""
    size = ring.shape[-1]
    words = ring.load_words(token * size, size)
    return [ring.unpack(words, i) for i in range(size)]
