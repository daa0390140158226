"""Forward pass of ``mhc_post`` and ``mhc_pre`` for four bfloat16 streams, read and written once.

The kernel is that of ``mhc.cluster.pre``, with one step more. A lane has the same columns of all
streams, so that it can mix them when its copies have completed. The new streams replace the old
ones in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Self

import jax
import jax.numpy as jnp

from pallas_kernels.chip import Chip
from pallas_kernels.mhc.cluster.pre import Forward
from pallas_kernels.mhc.cluster.streams import Streams, lane_offset
from pallas_kernels.mhc.cluster.tile import COLUMNS, FLOATS, TOKENS, MhcPreClusterTile
from pallas_kernels.mhc.streams import combine
from pallas_kernels.simt.values import Array, Signals, Value
from pallas_kernels.simt.warp import LANES, Warp

_STREAMS = 4  # with other numbers the weights of a token would not be multiples of 16 bytes


@dataclass(frozen=True)
class MhcPostPreClusterTile(MhcPreClusterTile):
    """Division of the work; shared memory also has the arrays of ``mhc_post``."""

    # With 16384 tokens, 1280 wide, an H200 took 0.113 ms, and 0.116 ms with one more tile ahead.
    depths: ClassVar[tuple[tuple[int, int, int], ...]] = ((2, 1, 2), (1, 1, 2))

    @classmethod
    def choose(cls, chip: Chip, tokens: int, n: int, dim: int, dtype: jnp.dtype) -> Self | None:
        """The only heuristic: that of ``mhc_pre`` for four streams; None for other numbers."""
        return super().choose(chip, tokens, n, dim, dtype) if n == _STREAMS else None

    @property
    def coefficient_stages(self) -> int:
        """Stages of the ring of coefficients of ``mhc_post`` in shared memory."""
        return (2 + self.ahead) * self.teams

    def shared(self, n: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Arrays in shared memory, with the layer's output, coefficients, and signals for these."""
        layer = (self.workers, 1 + self.ahead, 1, 2, LANES, COLUMNS)
        posts, matrices = (
            jax.ShapeDtypeStruct((self.coefficient_stages, TOKENS, size), jnp.float32)
            for size in (n, n * n)
        )
        made = {"layer": jax.ShapeDtypeStruct(layer, jnp.bfloat16), "posts": posts}
        come = jax.ShapeDtypeStruct((self.coefficient_stages, 2), jnp.uint32)
        of_pre = super().shared(n)
        # Targets of copies are aligned to 128 bytes, as in global memory.
        return {"ring": of_pre["ring"], **made, **of_pre, "matrices": matrices, "come": come}


@dataclass(frozen=True)
class BoundaryForward(Forward):
    """The kernel: the warps of a cluster process all of its tiles.

    Attributes:
      transposed: whether the matrices ``h_res`` are transposed.
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
    """The tiles of the new streams, which ``mhc_post`` computes in shared memory.

    Attributes:
      y: the new streams in global memory, [tokens, n dim].
      sources: the layer's output [tokens, dim], ``h_post`` [tokens, n] and ``h_res`` [tokens, n n].
      rings: these in shared memory. A lane has its own columns of the layer's output; all lanes
        share the coefficients.
      come: signals that the coefficients of a tile have arrived.
      transposed: whether the matrices ``h_res`` are transposed.
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
        """Initializes the signals of coefficients; the first lane of a helper calls it."""
        self.come.init(1)

    def start_helper(self, count: Value, first: Callable[[Value], Value]) -> None:
        """Begins to copy the coefficients of the first tiles, as many as the ring has stages."""
        warp, size = self.warp, self.rings[1].shape[0]
        is_first = warp.thread == self.tile.workers * LANES
        every = count.at_most(size)
        fetch = lambda i, _: self._fetch(i, first(i))  # noqa: E731
        warp.when(is_first, lambda: warp.loop(warp.i32(0), every, 1, (), fetch))

    def tile_summed(self, i: Value, count: Value, first: Callable[[Value], Value]) -> None:
        """Begins to copy coefficients into the stage of tile ``i``, which were used."""
        after = i + self.rings[1].shape[0]
        is_one = (self.warp.lane == 0) & (after < count)
        self.warp.when(is_one, lambda: self._fetch(after, first(after)))

    def _fetch(self, i: Value, first: Value) -> None:
        """Begins to copy the coefficients of tile ``i``."""
        tokens = (self.x.shape[0] - first).at_most(TOKENS)
        rings, sources = self.rings[1:], self.sources[1:]
        sizes = [source.shape[1] // FLOATS for source in sources]
        self.come.arrive(i, tokens * (16 * sum(sizes)))
        for source, ring, size in zip(sources, rings, sizes, strict=True):
            to = i % ring.shape[0] * (TOKENS * size)
            ring.bulk_copy_from(to, source, first * size, tokens * size, self.come, i)

    def wait(self, i: Value) -> None:
        """Waits until tile ``i`` and its coefficients have arrived."""
        super().wait(i)
        self.come.wait(i)

    def words(self, i: Value, first: Value, half: int) -> list[list[Value]]:
        """Computes the new streams, writes them, and replaces the old ones in shared memory."""
        dim = self.sources[0].shape[1]
        token, words = first + self.token(half), self._mix(i, half)
        for stream, values in enumerate(words):
            self.lane_part(self.ring, i).store_words(lane_offset(stream, half), values, COLUMNS)

        def store():
            for stream, values in enumerate(words):
                self.y.row(token).store_words(self.column + stream * dim, values, COLUMNS)

        self.warp.when(token < self.x.shape[0], store)
        return words

    def _mix(self, i: Value, half: int) -> list[list[Value]]:
        """Words of the new streams of this lane's token in a half of tile ``i``."""
        layer, posts, matrices = self.rings
        n, token = self.n, i % posts.shape[0] * TOKENS + self.token(half)
        weights, matrix = (_floats(ring, token) for ring in (posts, matrices))
        rows = [
            [matrix[s * n + o if self.transposed else o * n + s] for s in range(n)] + [weights[o]]
            for o in range(n)
        ]
        words = [self.read(i, stream, half) for stream in range(n)]
        words.append(self.lane_part(layer, i).load_words(lane_offset(0, half), COLUMNS))
        made: list[list[Value]] = [[] for _ in range(n)]
        for pair in zip(*words, strict=True):  # a word has two columns
            streams = [[self.x.unpack([word], e) for e in (0, 1)] for word in pair]
            for o, row in enumerate(rows):
                made[o] += self.y.pack(*combine(self.warp, row, streams))
        return made


def _floats(ring: Array, token: Value) -> list[Value]:
    """The coefficients of a token, numbered through all stages of a ring."""
    size = ring.shape[-1]
    words = ring.load_words(token * size, size)
    return [ring.unpack(words, i) for i in range(size)]
