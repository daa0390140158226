"""``mhc_post`` and then ``mhc_pre``, of four streams in bfloat16, which are read and written once.

As ``mhc.cluster.pre``: a lane has the same columns of all streams, so that it mixes them when
they have come, and keeps the new streams in the place of the old.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Self

import jax
import jax.numpy as jnp

from pallas_kernels.chip import Chip
from pallas_kernels.mhc.cluster.pre import Forward
from pallas_kernels.mhc.cluster.streams import Streams, entry
from pallas_kernels.mhc.cluster.tile import COLUMNS, FLOATS, TOKENS, MhcPreClusterTile
from pallas_kernels.mhc.streams import combine
from pallas_kernels.simt.values import Array, Signals, Value
from pallas_kernels.simt.warp import LANES, Warp

_STREAMS = 4  # of other numbers the weights of a token would not be whole 16 bytes


@dataclass(frozen=True)
class MhcPostPreClusterTile(MhcPreClusterTile):
    """As for ``mhc_pre``, with more in shared memory."""

    # 16384 tokens, 1280 wide, took an H200 0.116 ms with one more tile ahead, and 0.113 ms so.
    depths: ClassVar[tuple[tuple[int, int, int], ...]] = ((2, 1, 2), (1, 1, 2))

    @classmethod
    def choose(cls, chip: Chip, tokens: int, n: int, dim: int, dtype: jnp.dtype) -> Self | None:
        """As for ``mhc_pre``; None for other numbers of streams than four."""
        return super().choose(chip, tokens, n, dim, dtype) if n == _STREAMS else None

    @property
    def coming(self) -> int:
        """Tiles whose coefficients are in shared memory: they are mixed at once."""
        return (2 + self.ahead) * self.teams

    def shared(self, n: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Also the layer's output, as each lane has it; and coefficients, and that they came."""
        layer = (self.workers, 1 + self.ahead, 1, 2, LANES, COLUMNS)
        posts, matrices = (
            jax.ShapeDtypeStruct((self.coming, TOKENS, size), jnp.float32) for size in (n, n * n)
        )
        made = {"layer": jax.ShapeDtypeStruct(layer, jnp.bfloat16), "posts": posts}
        come = jax.ShapeDtypeStruct((self.coming, 2), jnp.uint32)
        of_pre = super().shared(n)
        # What lanes copy begins at whole lines of 128 bytes, as in global memory.
        return {"ring": of_pre["ring"], **made, **of_pre, "matrices": matrices, "come": come}


@dataclass(frozen=True)
class BoundaryForward(Forward):
    """All of a cluster's tiles.

    Attributes:
      transposed: see ``mhc_post``.
    """

    transposed: bool

    def __call__(self, warp: Warp, inputs, y: Array, *outputs: Array, ring, **shared) -> None:
        x, *sources, phi, alpha, bias = inputs
        rings = tuple(shared.pop(name) for name in ("layer", "posts", "matrices"))
        own = tuple(sources), rings, Signals(shared.pop("come")), self.transposed
        streams = _MixedStreams(warp, self.tile, self.n, x, ring, y, *own)
        self.run(streams, (phi, alpha, bias), outputs, **shared)


@dataclass(frozen=True)
class _MixedStreams(Streams):
    """The new streams.

    Attributes:
      y: where they go, [tokens, n dim].
      sources: the layer's output [tokens, dim] and its weights, [tokens, n] and [tokens, n n].
      rings: of these, in shared memory; a lane has its columns, and all have the weights.
      come: the weights are there.
      transposed: see ``mhc_post``.
    """

    y: Array
    sources: tuple[Array, ...]
    rings: tuple[Array, ...]
    come: Signals
    transposed: bool

    def load(self, i: Value, first: Value) -> None:
        """Begins to copy the old streams and the layer's output of tile ``i``."""
        super().load(i, first)
        self.load_columns(self.rings[0], i, self.sources[0], first, 1)

    def make_signals(self) -> None:
        """By the first lane of the first helper."""
        self.come.init(1)

    def help_first(self, count: Value, first: Callable[[Value], Value]) -> None:
        """Begins to copy as many weights as there is room for: with signals of this lane's own."""
        warp, size = self.warp, self.rings[1].shape[0]
        is_first = warp.thread == self.tile.workers * LANES
        every = count.at_most(size)
        fetch = lambda i, _: self._fetch(i, first(i))  # noqa: E731
        warp.when(is_first, lambda: warp.loop(warp.i32(0), every, 1, (), fetch))

    def help(self, i: Value, count: Value, first: Callable[[Value], Value]) -> None:
        """Those of tile ``i`` were used."""
        after = i + self.rings[1].shape[0]
        is_one = (self.warp.lane == 0) & (after < count)
        self.warp.when(is_one, lambda: self._fetch(after, first(after)))

    def _fetch(self, i: Value, first: Value) -> None:
        """Begins to copy the weights of tile ``i``."""
        tokens = (self.x.shape[0] - first).at_most(TOKENS)
        rings, sources = self.rings[1:], self.sources[1:]
        sizes = [source.shape[1] // FLOATS for source in sources]
        self.come.arrive(i, tokens * (16 * sum(sizes)))
        for source, ring, size in zip(sources, rings, sizes, strict=True):
            to = i % ring.shape[0] * (TOKENS * size)
            ring.bulk_copy_from(to, source, first * size, tokens * size, self.come, i)

    def wait(self, i: Value) -> None:
        """Waits for tile ``i``."""
        super().wait(i)
        self.come.wait(i)

    def words(self, i: Value, first: Value, half: int) -> list[list[Value]]:
        """Makes the new streams of the old, which they replace, and writes them."""
        dim = self.sources[0].shape[1]
        token, words = first + self.token(half), self._mix(i, half)
        for stream, of_stream in enumerate(words):
            self.of_lane(self.ring, i).store_words(entry(stream, half), of_stream, COLUMNS)

        def store():
            for stream, of_stream in enumerate(words):
                self.y.row(token).store_words(self.column + stream * dim, of_stream, COLUMNS)

        self.warp.when(token < self.x.shape[0], store)
        return words

    def _mix(self, i: Value, half: int) -> list[list[Value]]:
        """Words of a token's new streams."""
        layer, posts, matrices = self.rings
        n, token = self.n, i % posts.shape[0] * TOKENS + self.token(half)
        weights, matrix = (_floats(ring, token) for ring in (posts, matrices))
        rows = [
            [matrix[s * n + o if self.transposed else o * n + s] for s in range(n)] + [weights[o]]
            for o in range(n)
        ]
        words = [self.read(i, stream, half) for stream in range(n)]
        words.append(self.of_lane(layer, i).load_words(entry(0, half), COLUMNS))
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
