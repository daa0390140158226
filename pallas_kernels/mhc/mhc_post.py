"""The part of hyper-connections after a layer: mixes the streams and adds the layer's output."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.chip import Chip
from pallas_kernels.mhc.streams import READ_BYTES, combine, load_floats, read_once
from pallas_kernels.simt.blocks import striding_blocks
from pallas_kernels.simt.values import Array, Value
from pallas_kernels.simt.warp import LANES, Warp


@dataclass(frozen=True)
class MhcPostTile:
    """Division of tokens and their columns among the lanes of a warp.

    Attributes:
      entries: neighbouring columns of every stream that a lane loads at once.
      lanes: lanes that share the columns of a token; other lanes have other tokens or streams.
      parts: groups of such lanes that share the streams ``x`` of a token in the backward pass.
      warps: warps of a block.
      reverse: whether to process the last tokens first. ``mhc_pre`` has read them last, so that
        some of them are still in a cache.
    """

    entries: int
    lanes: int
    parts: int
    warps: int
    reverse: bool = True

    @classmethod
    def choose(cls, chip: Chip, n: int, dim: int, itemsize: int, *, backward: bool) -> MhcPostTile:
        """The only heuristic: 16 bytes for a lane, and as many lanes as divide the width."""
        entries = READ_BYTES // itemsize
        # Sums and coefficients of all pairs of 8 streams would not fit the registers of a lane.
        parts = 2 if backward and n == 8 else 1
        lanes = math.gcd(dim // entries, LANES // parts)
        # The backward pass needs many registers: smaller blocks leave fewer registers unused.
        return cls(entries, lanes, parts, warps=4 if backward else 8)

    def ordered(self, number: Value, count: int) -> Value:
        """Returns the index of the ``number``-th of ``count`` items, in reverse order or not."""
        return count - 1 - number if self.reverse else number


def mhc_post(
    x: jax.Array,
    f: jax.Array,
    h_post: jax.Array,
    h_res: jax.Array,
    *,
    transposed: bool,
    tile: MhcPostTile | None = None,
) -> jax.Array:
    """``y_o = Σ_i h_res[o, i] x_i + h_post[o] f``, accumulated in float32.

    Args:
      x: the streams, [tokens, n, dim], float32 or bfloat16, dim a multiple of 64.
      f: the layer's output, [tokens, dim], of the dtype of ``x``.
      h_post: weights of the layer's output, [tokens, n] float32.
      h_res: matrices that mix the streams, [tokens, n, n] float32.
      transposed: whether to use ``h_res[i, o]`` instead of ``h_res[o, i]``.
      tile: how lanes share the work; by default chosen for the shapes.

    Returns:
      The new streams, of the shape and dtype of ``x``.
    """
    tokens, n, dim = x.shape
    if tokens == 0:
        return jnp.zeros_like(x)
    tile = tile or MhcPostTile.choose(Chip.current(), n, dim, x.dtype.itemsize, backward=False)
    tasks = tokens * (dim // (tile.entries * tile.lanes))
    return simt.launch(
        _Forward(tile, transposed),
        (x, f, h_post, h_res),
        [jax.ShapeDtypeStruct(x.shape, x.dtype)],
        name="mhc_post",
        grid=simt.Grid(striding_blocks(tasks, LANES // tile.lanes * tile.warps), tile.warps),
    )[0]


@dataclass(frozen=True)
class _Forward:
    """Mixes the streams; a group of lanes processes the columns that it loads at once."""

    tile: MhcPostTile
    transposed: bool

    def __call__(self, warp: Warp, inputs, y: Array) -> None:
        x, f, h_post, h_res = inputs
        (tokens, n, dim), entries, lanes = x.shape, self.tile.entries, self.tile.lanes
        chunks, groups = dim // (entries * lanes), LANES // lanes

        def take(number, _):
            task = self.tile.ordered(number, tokens * chunks)
            token = task // chunks
            column = ((task - token * chunks) * lanes + warp.lane % lanes) * entries
            weights, matrix = (load_floats(a.row(token)) for a in (h_post, h_res))
            # All loads come before the first use of one of them.
            words = [read_once(x, token, i * dim + column, entries) for i in range(n)]
            words.append(read_once(f, token, column, entries))
            streams = [[x.unpack(part, e) for e in range(entries)] for part in words]
            for o in range(n):
                row = [matrix[i * n + o if self.transposed else o * n + i] for i in range(n)]
                mixed = combine(warp, [*row, weights[o]], streams)
                y.row(token).store(o * dim + column, *mixed)

        first = warp.number * groups + warp.lane // lanes
        warp.loop(first, tokens * chunks, warp.count * groups, (), take)


def mhc_post_backward(
    x: jax.Array,
    f: jax.Array,
    h_post: jax.Array,
    h_res: jax.Array,
    dy: jax.Array,
    *,
    transposed: bool,
    mixes: bool = True,
    tile: MhcPostTile | None = None,
) -> tuple[jax.Array, ...]:
    """Gradients to the first four arguments, in one pass; sums over columns in a fixed order.

    Args:
      x: the streams, [tokens, n, dim].
      f: the layer's output, [tokens, dim].
      h_post: weights of the layer's output, [tokens, n] float32.
      h_res: matrices that mix the streams, [tokens, n, n] float32.
      dy: gradient of the new streams, of the shape and dtype of ``x``.
      transposed: whether the forward pass used ``h_res[i, o]`` instead of ``h_res[o, i]``.
      mixes: whether to compute ``dx``; otherwise another kernel computes it from ``dy``.
      tile: how lanes share the work; by default chosen for the shapes.

    Returns:
      ``dx``, ``df``, ``dh_post`` and ``dh_res``, of the shapes and dtypes of the arguments; without
      ``dx`` unless ``mixes``.
    """
    inputs = (x, f, h_post, h_res)
    tokens, n, dim = x.shape
    results = inputs if mixes else inputs[1:]
    if tokens == 0:
        return tuple(jnp.zeros_like(a) for a in results)
    tile = tile or MhcPostTile.choose(Chip.current(), n, dim, x.dtype.itemsize, backward=True)
    at_once = LANES // (tile.lanes * tile.parts) * tile.warps
    return simt.launch(
        _Backward(tile, transposed),
        (*inputs, dy),
        [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in results],
        name="mhc_post_backward",
        grid=simt.Grid(striding_blocks(tokens, at_once), tile.warps),
    )


@dataclass(frozen=True)
class _Backward:
    """Gradients of a token in each group of lanes, whose parts have some of the streams ``x``."""

    tile: MhcPostTile
    transposed: bool

    def __call__(self, warp: Warp, inputs, *outputs: Array) -> None:
        tile, tokens = self.tile, inputs[0].shape[0]
        *to_streams, df, dh_post, dh_res = outputs
        dx = to_streams[0] if to_streams else None
        group = tile.lanes * tile.parts

        def take(first, _):
            number = first + warp.lane // group
            # Groups past the last token repeat it and store nothing.
            inside, token = number < tokens, tile.ordered(number.at_most(tokens - 1), tokens)
            of_token = _Token(warp, tile, self.transposed, inputs, token, inside)
            of_token.run(dx, df, dh_post, dh_res)

        step = LANES // group
        warp.loop(warp.number * step, tokens, warp.count * step, (), take)


@dataclass(frozen=True)
class _Token:
    """The backward pass of one token in a group of lanes.

    Attributes:
      warp: the warp that runs this.
      tile: how lanes share the columns.
      transposed: whether the forward pass used ``h_res[i, o]`` instead of ``h_res[o, i]``.
      inputs: x, f, h_post, h_res and dy.
      token: number of the token.
      inside: whether to store anything; false for lanes past the last token.
    """

    warp: Warp
    tile: MhcPostTile
    transposed: bool
    inputs: tuple[Array, ...]
    token: Value
    inside: Value

    @property
    def n(self) -> int:
        """Number of residual streams."""
        return self.inputs[0].shape[1]

    @property
    def own(self) -> int:
        """Number of streams ``x`` of a part of the group."""
        return self.n // self.tile.parts

    @property
    def part(self) -> Value:
        """Index of this lane's part in the group."""
        return self.warp.lane // self.tile.lanes % self.tile.parts

    def run(self, dx: Array | None, df: Array, dh_post: Array, dh_res: Array) -> None:
        """Processes all columns, then sums over lanes; does not compute ``dx`` if that is None."""
        warp, tile, n, own = self.warp, self.tile, self.n, self.own
        _, _, h_post, h_res, _ = (array.row(self.token) for array in self.inputs)
        weights, matrix = load_floats(h_post), self._matrix(h_res)
        dim, entries = df.shape[1], tile.entries
        mixed = range(own if dx is not None else 0)

        def add_columns(column, sums):
            streams, layer, cotangents = self._read(column)
            dx_columns, df_columns = [[] for _ in range(own)], []
            for e in range(entries):
                f_e, dy_e = layer[e], [stream[e] for stream in cotangents]
                for i in mixed:
                    factors = [matrix[o][i] for o in range(n)]
                    dx_columns[i] += combine(warp, factors, [[dy] for dy in dy_e])
                df_columns += combine(warp, weights, [[dy] for dy in dy_e])
                left = [*(stream[e] for stream in streams), f_e]
                sums = [
                    warp.fma(dy_e[k // (own + 1)], left[k % (own + 1)], total)
                    for k, total in enumerate(sums)
                ]
            first = self.part * (own * dim) + column

            def store():
                if dx is not None:
                    for i in mixed:
                        dx.row(self.token).store(first + i * dim, *dx_columns[i])
                is_first = self.part == 0
                warp.when(is_first, lambda: df.row(self.token).store(column, *df_columns))

            warp.when(self.inside, store)
            return sums

        lane = warp.lane % tile.lanes
        zeros = [warp.f32(0.0) for _ in range(n * (own + 1))]
        sums = warp.loop(lane * entries, dim, tile.lanes * entries, zeros, add_columns)
        self._store_sums(warp.sum_scatter(sums, tile.lanes), dh_post, dh_res)

    def _matrix(self, h_res: Array) -> list[list[Value]]:
        """The weight of ``dy_o`` in ``dx_i``, [o][i], for the streams i of this part."""
        n, own = self.n, self.own
        if self.transposed:
            rows = h_res.load_words(self.part * (own * n), own * n)
            return [[h_res.unpack(rows, i * n + o) for i in range(own)] for o in range(n)]
        rows = [h_res.load_words(self.part * own + o * n, own) for o in range(n)]
        return [[h_res.unpack(row, i) for i in range(own)] for row in rows]

    def _read(self, column: Value):
        """Loads this lane's columns of its streams ``x``, of ``f`` and of all streams ``dy``."""
        x, f, _, _, dy = self.inputs
        dim, entries = x.shape[2], self.tile.entries
        first = self.part * (self.own * dim) + column
        # All loads come before the first use of one of them.
        words = [read_once(x, self.token, first + i * dim, entries) for i in range(self.own)]
        words.append(read_once(f, self.token, column, entries))
        words += [read_once(dy, self.token, column + o * dim, entries) for o in range(self.n)]
        read = [[x.unpack(part, e) for e in range(entries)] for part in words]
        return read[: self.own], read[self.own], read[self.own + 1 :]

    def _store_sums(self, sums: list[tuple[Value, Value]], dh_post: Array, dh_res: Array) -> None:
        """Writes the sums of ``dy_o x_i`` and ``dy_o f``, numbered ``o (own + 1) + i``."""
        warp, n, own = self.warp, self.n, self.own
        for number, total in sums:
            o = number // (own + 1)
            i = number - o * (own + 1)
            exists = self.inside & (o < n)
            stream = self.part * own + i
            at = stream * n + o if self.transposed else o * n + stream

            def store_res(at=at, total=total):
                dh_res.row(self.token).store(at, total)

            def store_post(o=o, total=total):
                dh_post.row(self.token).store(o, total)

            warp.when(exists & (i < own), store_res)
            warp.when(exists & (i == own) & (self.part == 0), store_post)
