"""``mhc_pre`` of few streams in bfloat16: it reads them once.

The blocks of a cluster share the columns. Each keeps its part of phi in registers, walks over the
tokens sixteen at a time, and leaves the sums of its columns where the others can read them; what it
read of the tokens stays in shared memory until all sums are there. Meanwhile it sums the next
sixteen, and the ones after these are on their way.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from dataclasses import dataclass
from typing import Self

import jax
import jax.numpy as jnp

from pallas_kernels._bfloat16_parts import add_products, split_words
from pallas_kernels._simt import Grid, most_shared_bytes
from pallas_kernels._streams import READ_BYTES, combine
from pallas_kernels._values import Array, Value
from pallas_kernels._warp import LANES, Warp

TOKENS = 16  # of a fragment of Warp.mma, which is a tile
_ROWS = 8  # of phi of a fragment
COLUMNS = 8  # of a lane
_SPAN = 4 * COLUMNS  # of a warp, of every stream
# The error of two parts, 2^-17 of each entry of phi, is that of sums of thousands in float32.
_PARTS = 2
# A lane keeps 96 words of phi of four streams: more warps would have too few registers. For two
# blocks of few warps a multiprocessor has enough.
_MOST_STREAMS, _MOST_WARPS, _MOST_CLUSTER = 4, 12, 8
_SMALL, _SMALL_BLOCKS = 4, 2
# Sums of a tile are written before it is certain that the others have read those of the last three.
_BUFFERS = 4
# An H100 or H200 has eight parts of 16 or 18 multiprocessors, and a cluster is in one of them.
_PARTS_OF_GPU, _MULTIPROCESSORS = 8, 16


@dataclass(frozen=True)
class MhcPreClusterTile:
    """How blocks and warps share the columns, and clusters the tokens.

    Attributes:
      warps: of a block; each has 32 columns of every stream.
      cluster: blocks of a cluster.
      clusters: how many; each takes every so many-th sixteen of tokens.
      ahead: sixteens of tokens that are on their way while one is summed.
    """

    warps: int
    cluster: int
    clusters: int
    ahead: int = 2

    @classmethod
    def choose(cls, tokens: int, n: int, dim: int, dtype: jnp.dtype) -> Self | None:
        """The one heuristic: the smallest cluster that holds phi and the tiles, or None."""
        if jnp.dtype(dtype) != jnp.bfloat16 or n > _MOST_STREAMS or dim % _SPAN:
            return None
        slices = dim // _SPAN
        sizes = [size for size in range(1, _MOST_CLUSTER + 1) if slices % size == 0]
        for ahead, size in itertools.product((2, 1), sizes):
            tile = cls(slices // size, size, clusters=1, ahead=ahead)
            room = most_shared_bytes() // tile.shared_bytes(n)
            if tile.warps <= _MOST_WARPS and room:
                side_by_side = min(room, _SMALL_BLOCKS if tile.warps <= _SMALL else 1)
                clusters = _PARTS_OF_GPU * (_MULTIPROCESSORS * side_by_side // size)
                return dataclasses.replace(tile, clusters=min(clusters, -(-tokens // TOKENS)))
        return None

    @property
    def stages(self) -> int:
        """Tiles in shared memory: the last and the present one, and those on their way."""
        return 2 + self.ahead

    @property
    def grid(self) -> Grid:
        """Blocks and warps."""
        return Grid(self.clusters * self.cluster, self.warps, cluster=self.cluster)

    def shared_bytes(self, n: int) -> int:
        """Bytes of ``shared``."""
        return sum(form.size * form.dtype.itemsize for form in self.shared(n).values())

    def shared(self, n: int) -> dict[str, jax.ShapeDtypeStruct]:
        """What a block has in shared memory.

        Tiles, as each lane has them; sums of a tile and warp, of a tile and block; the weights of
        the streams; and gain and bias of each coefficient.
        """
        sums = (TOKENS, n * n + 2 * n + 1)
        ring = (self.warps, self.stages, n, 2, LANES, COLUMNS)
        shapes = {
            "sums": (self.warps, *sums),
            "totals": (_BUFFERS, *sums),
            "weights": (TOKENS, n),
            "affine": (2, n * n + 2 * n),
        }
        made = {name: jax.ShapeDtypeStruct(s, jnp.float32) for name, s in shapes.items()}
        return {"ring": jax.ShapeDtypeStruct(ring, jnp.bfloat16), **made}


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

    def __call__(self, warp: Warp, inputs, *outputs: Array, ring: Array, **scratch: Array) -> None:
        x, *parameters = inputs
        self.run(Streams(warp, self.tile, self.n, x, ring), parameters, outputs, **scratch)

    def run(self, streams: Streams, parameters, outputs, *, sums, totals, weights, affine) -> None:
        """Everything; see ``shared`` of the tile for the arrays in shared memory."""
        phi, alpha, bias = parameters
        warp = streams.warp
        cluster = warp.block // self.tile.cluster
        tiles = -(-streams.x.shape[0] // TOKENS)
        # The cluster's own tiles are numbered from 0.
        count = (tiles - cluster + (self.tile.clusters - 1)) // self.tile.clusters

        def first(i: Value) -> Value:
            return (cluster + i * self.tile.clusters) * TOKENS

        def load(i: Value) -> None:
            warp.when(i < count, lambda: streams.load(i, first(i)))
            warp.end_copies()

        project = _Projection(warp, self.tile, streams, streams.rows_of(phi), sums, totals)
        apply = functools.partial(self._apply, streams, affine, totals, weights, outputs)
        for i in range(self.tile.ahead):
            load(warp.i32(i))
        self._load_affine(warp, alpha, bias, affine)
        project.run(warp.i32(0), first(warp.i32(0)))
        warp.cluster_arrive()
        load(warp.i32(self.tile.ahead))
        warp.barrier()

        def step(i, _):
            project.run(i, first(i))
            warp.cluster_wait()
            # It may wait for what is being copied: new copies come after it.
            warp.cluster_arrive()
            load(i + self.tile.ahead)
            apply(i - 1, first(i - 1))

        warp.loop(warp.i32(1), count, 1, (), step)
        warp.barrier()
        warp.cluster_wait()
        apply(count - 1, first(count - 1))
        # No block may end while others read what it has in shared memory.
        warp.cluster_arrive()
        warp.cluster_wait()

    def _load_affine(self, warp: Warp, alpha: Array, bias: Array, affine: Array) -> None:
        def load(row, _):
            part = (row >= self.n).to("i32") + (row >= 2 * self.n).to("i32")
            affine.store(row, alpha.load(part))
            affine.store(row + bias.shape[0], bias.load(row))

        warp.loop(warp.thread, bias.shape[0], warp.threads, (), load)

    def _apply(self, streams, affine, totals, weights, outputs, i: Value, first) -> None:
        warp, n = streams.warp, self.n
        tokens = streams.x.shape[0]
        h_in, *coefficients = outputs
        totals = totals.row(i % _BUFFERS)
        self._coefficients(warp, totals, affine, weights, coefficients, first, tokens)
        warp.barrier()
        for half in (0, 1):
            token = streams.token(half)
            words = [streams.read(i, stream, half) for stream in range(n)]
            factors = [weights.load(token * n + s) for s in range(n)]
            values = [[streams.x.unpack(part, e) for e in range(COLUMNS)] for part in words]
            mixed = combine(warp, factors, values)

            def store(number=first + token, mixed=mixed):
                h_in.row(number).store(streams.column, *mixed)

            warp.when(first + token < tokens, store)

    def _coefficients(self, warp, totals, affine, weights, outputs, first, tokens) -> None:
        """Weights of the streams, in every block; the rest of a token in one of them."""
        h_post, h_res, inv_rms, h_mix = outputs
        n, cluster = self.n, warp.cluster
        rows = n * n + 2 * n
        needed, columns = TOKENS * n, h_mix.shape[1] + 1
        blocks = [totals.of_block(rank) for rank in range(cluster)]

        def total(place: Value) -> Value:
            return functools.reduce(Value.__add__, [block.load(place) for block in blocks])

        def make(i, _):
            is_needed = i < needed
            j = warp.select(is_needed, i, i - needed)
            width = warp.select(is_needed, n, warp.i32(rows))
            token = j // width
            row = j - token * width
            token = warp.select(is_needed, token, token * cluster + warp.rank)
            number = first + token
            place = token.least(TOKENS - 1) * columns
            projected, squares = (total(place + at) for at in (row, warp.i32(rows)))
            size = self.n * self.tile.warps * cluster * _SPAN
            scale = warp.rsqrt(warp.fma(squares, warp.f32(1 / size), warp.f32(self.norm_eps)))
            part = (row >= n).to("i32") + (row >= 2 * n).to("i32")
            logit = warp.fma(affine.load(row), projected * scale, affine.load(row + rows))
            sigmoid = warp.sigmoid(logit)
            warp.when(is_needed, lambda: weights.store(token * n + row, sigmoid + self.pre_eps))

            def store():
                h_mix.row(number).store(row, projected)
                warp.when(row == 0, lambda: inv_rms.store(number, scale))
                post = sigmoid * self.post_scale
                warp.when(part == 1, lambda: h_post.row(number).store(row - n, post))
                warp.when(part == 2, lambda: h_res.row(number).store(row - 2 * n, logit))

            warp.when(~is_needed & (number < tokens) & (token < TOKENS), store)

        own = -(-TOKENS // cluster) * rows
        warp.loop(warp.thread, needed + own, warp.threads, (), make)


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
        return number * _SPAN + warp.lane % 4 * COLUMNS

    def token(self, half: int) -> Value:
        """Of the tile."""
        return self.warp.lane // 4 + 8 * half

    def known(self, token: Value) -> Value:
        """Behind the last token, it again."""
        return token.least(self.x.shape[0] - 1)

    def stage(self, i: Value) -> Value:
        """Of this warp in a ring, for tile ``i``."""
        return self.warp.thread // LANES * self.tile.stages + i % self.tile.stages

    def place(self, i: Value, stream: int, half: int) -> Value:
        """In the ring, counted in sixteen bytes."""
        return ((self.stage(i) * self.n + stream) * 2 + half) * LANES + self.warp.lane

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

    def rows_of(self, phi: Array) -> list[list[list[list[list[Value]]]]]:
        """Right fragments, [stream][group of rows][part]: of the same columns."""
        dim = self.x.shape[1] // self.n
        return [
            [self._fragments(phi, group, self.column + stream * dim) for group in self._groups(phi)]
            for stream in range(self.n)
        ]

    def _groups(self, phi: Array) -> range:
        return range(phi.shape[0] // _ROWS)

    def _fragments(self, phi: Array, group: int, at: Value) -> list[list[list[Value]]]:
        row = phi.row(self.warp.lane // 4 + group * _ROWS)
        entries = READ_BYTES // phi.itemsize
        values = [
            phi.unpack(words, e)
            for words in (row.load_words(at + k, entries) for k in range(0, COLUMNS, entries))
            for e in range(entries)
        ]
        return [[part[:2], part[2:]] for part in split_words(self.warp, values, _PARTS)]


@dataclass(frozen=True)
class _Projection:
    """The products of a tile with the rows of phi, and its sums of squares, of a block's columns.

    A lane's eight neighbouring columns, ``8 q`` on, are the columns ``2 q``, ``2 q + 1``,
    ``2 q + 8`` and ``2 q + 9`` of two fragments, of the tokens as of phi.

    Attributes:
      warp: of the lanes.
      tile: who does what.
      streams: the tiles.
      phi: fragments, as of ``Streams.rows_of``.
      sums: [warps, tokens, rows + 1] for what the warps have.
      totals: [buffers, tokens, rows + 1] for what the block has.
    """

    warp: Warp
    tile: MhcPreClusterTile
    streams: Streams
    phi: list[list[list[list[list[Value]]]]]
    sums: Array
    totals: Array

    def run(self, i: Value, first: Value) -> None:
        """Waits for tile ``i``, of tokens from ``first`` on, and sums it."""
        warp = self.warp
        warp.wait_for_copies(self.tile.ahead - 1)
        products = [[warp.f32(0.0)] * 4 for _ in self.phi[0]]
        squares = [warp.f32(0.0)] * 2
        self.streams.prepare(i, first)
        for stream, groups in enumerate(self.phi):
            halves = upper, lower = [self.streams.read(i, stream, half) for half in (0, 1)]
            left = [[[upper[k], lower[k], upper[k + 1], lower[k + 1]] for k in (0, 2)]]
            products = [
                add_products(warp, total, left, right)
                for total, right in zip(products, groups, strict=True)
            ]
            squares = [self._add_squares(*pair) for pair in zip(halves, squares, strict=True)]
        self._store(products, squares)
        warp.barrier()
        self._add_up(i)

    def _add_squares(self, words: list[Value], total: Value) -> Value:
        for e in range(COLUMNS):
            value = self.streams.x.unpack(words, e)
            total = self.warp.fma(value, value, total)
        return total

    def _store(self, products: list[list[Value]], squares: list[Value]) -> None:
        """What this warp has."""
        warp, lane = self.warp, self.warp.lane
        own, width = self.sums.row(warp.thread // LANES), self.sums.shape[2]
        for half, square in enumerate(squares):
            row = self.streams.token(half) * width
            for group, total in enumerate(products):
                for k in (0, 1):
                    own.store(row + lane % 4 * 2 + (group * _ROWS + k), total[2 * half + k])
            square = warp.sum_lanes(square, 4)
            warp.when(lane % 4 == 0, lambda r=row, s=square: own.store(r + (width - 1), s))

    def _add_up(self, i: Value) -> None:
        """What the block has, in the order of its warps."""
        warp, count = self.warp, TOKENS * self.sums.shape[2]
        totals = self.totals.row(i % _BUFFERS)

        def add(j, _):
            parts = [self.sums.load(j + k * count) for k in range(self.tile.warps)]
            totals.store(j, functools.reduce(Value.__add__, parts))

        warp.loop(warp.thread, count, warp.threads, (), add)
