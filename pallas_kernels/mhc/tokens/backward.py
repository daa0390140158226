"""Gradients to the streams and to phi: the part of a backward pass that reads whole tokens.

A block has some columns of all streams and a range of the tokens. What its lanes need of the next
tokens is on its way while they work on the present ones; its part of phi stays in shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.chip import Chip
from pallas_kernels.mhc.streams import combine
from pallas_kernels.mhc.tokens.columns import Columns, Inputs, Phi, Post
from pallas_kernels.mhc.tokens.tile import (
    FLOATS,
    FRAGMENT,
    GROUP,
    OF_LANE,
    WARPS,
    Form,
    StreamsTile,
)
from pallas_kernels.simt.values import Array, Value
from pallas_kernels.simt.warp import LANES, Warp
from pallas_kernels.tensor_cores.bfloat16_parts import split


class Token(NamedTuple):
    """What the backward pass of ``mhc_pre`` has for each token.

    Attributes:
      h_pre: [tokens, n].
      scale: factor of the streams in their own gradient, [tokens].
      dh_mix: [tokens, rows].
    """

    h_pre: jax.Array
    scale: jax.Array
    dh_mix: jax.Array


def streams_backward(
    x: jax.Array,
    dh_in: jax.Array,
    dx: jax.Array | None,
    weight: jax.Array,
    token: Token,
    post: Post | None = None,
    *,
    transposed: bool = False,
    tile: StreamsTile | None = None,
) -> tuple[jax.Array, ...]:
    """The gradient to the streams, or through the ``mhc_post`` that made them; and that to phi.

    Args:
      x: the streams, [tokens, n, dim].
      dh_in: [tokens, dim].
      dx: like ``x``, a part of its gradient, or None.
      weight: as in ``mhc_pre``.
      token: coefficients and their cotangents.
      post: for four streams, or None.
      transposed: as in ``mhc_post``.
      tile: by default what suits the shapes.

    Returns:
      The gradient to ``weight``; then that to ``x``, or those to ``post``.
    """
    tokens, n, dim = x.shape
    form = Form(n, dim, x.dtype.itemsize, adds=dx is not None, posts=post is not None)
    tile = tile or StreamsTile.choose(Chip.current(), tokens, form)
    if tile is None:
        raise NotImplementedError(f"{n} streams need more shared memory than this GPU has")
    padded = -tokens % form.step, -form.rows % FRAGMENT
    dh_mix = split(jnp.pad(token.dh_mix, ((0, padded[0]), (0, padded[1]))))
    inputs = Inputs(
        x,
        dh_in,
        dx,
        token.h_pre,
        token.scale,
        by_token=dh_mix[: form.parts],
        by_row=dh_mix[:, :, : form.rows].swapaxes(1, 2),
        by_column=split(jnp.pad(weight.T, ((0, 0), (0, padded[1]))), form.parts),
        post=post,
    )
    slices = dim // (GROUP * tile.entries)
    f32 = jnp.dtype(jnp.float32)
    outputs = [jax.ShapeDtypeStruct((tile.ranges * form.shares, form.rows, n * dim), f32)]
    outputs.append(jax.ShapeDtypeStruct(x.shape, x.dtype))
    if post is not None:
        outputs.append(jax.ShapeDtypeStruct(post.f.shape, x.dtype))
        outputs += [jax.ShapeDtypeStruct((slices, tokens, size), f32) for size in (n, n * n)]
    dtypes = {"ring": x.dtype, "phi": jnp.dtype(jnp.bfloat16), "totals": f32}
    shapes = form.shared(tile.entries, tile.ahead).items()
    weights, dx, *rest = simt.launch(
        _Kernel(tile, form, transposed),
        inputs,
        outputs,
        name="mhc_post_pre_backward" if post else "mhc_pre_backward",
        grid=simt.Grid(slices * tile.ranges, WARPS),
        block_shared={name: jax.ShapeDtypeStruct(shape, dtypes[name]) for name, shape in shapes},
    )
    if post is None:
        return jnp.sum(weights, axis=0), dx
    df, *partial = rest
    dh_post, dh_res = (jnp.sum(sums, axis=0) for sums in partial)
    return jnp.sum(weights, axis=0), dx, df, dh_post, dh_res.reshape(tokens, n, n)


@dataclass(frozen=True)
class _Kernel:
    tile: StreamsTile
    form: Form
    transposed: bool

    def __call__(self, warp: Warp, inputs, weights: Array, *outputs: Array, **shared) -> None:
        tile, form = self.tile, self.form
        span, in_block = GROUP * tile.entries, warp.thread // LANES
        slices = form.dim // span
        part, share = warp.block // slices, in_block // form.n
        place = warp.block - part * slices
        column = place * span + warp.lane // 4 * tile.entries
        phi = Phi(warp, tile.entries, form.n, shared["phi"])
        phi.load(inputs.by_column, place * span, form.dim)
        some = Columns(warp, tile, inputs, in_block % form.n, column, shared["ring"], phi)
        begin = part * tile.tokens
        count = ((inputs.x.shape[0] - begin).at_most(tile.tokens) + (form.step - 1)) // form.step

        def first(i: Value) -> Value:
            return begin + i * form.step + share * FRAGMENT

        def load(i: Value) -> None:
            warp.when(i < count, lambda: some.load(i, first(i)))
            warp.commit_copies()

        for i in range(tile.ahead):
            load(warp.i32(i))
        if form.posts:
            end = _Post(some, inputs.post, self.transposed, shared["totals"], share, place, outputs)
        else:
            end = _Store(some, outputs[0])

        def step(i, sums):
            load(i + tile.ahead)
            warp.wait_for_copies(tile.ahead)
            # The first time it is the block's part of phi that has come.
            warp.when(i == 0, warp.barrier)
            total, sums = some.take(i, first(i), sums)
            end(i, first(i), total)
            return sums

        sums = warp.loop(warp.i32(0), count, 1, some.zeros(), step)
        some.store(sums, weights.row(part * form.shares + share))


@dataclass(frozen=True)
class _Store:
    """The gradient to the streams is what is asked for."""

    columns: Columns
    dx: Array

    def __call__(self, i: Value, first: Value, total: list[list[Value]]) -> None:
        some = self.columns
        for t, values in enumerate(total):
            token = some.token(first, t)

            def store(token=token, values=values):
                self.dx.row(token).store(some.place, *values)

            some.warp.when(token < some.inputs.x.shape[0], store)


@dataclass(frozen=True)
class _Post:
    """The backward pass of ``mhc_post``.

    The warps of a share have different streams of the same tokens and columns: equal lanes give
    each other what they have. Each goes on with its own stream of those that came before, and with
    one of the four tokens of the layer's output.

    Attributes:
      columns: of a lane.
      post: what it has read.
      transposed: see ``mhc_post``.
      totals: gradients to the streams, [shares, streams, tokens, pieces, lanes, 4].
      share: of this warp.
      slice: of the block's columns.
      outputs: dx, df, and sums for ``h_post`` and ``h_res`` of each slice of the columns.
    """

    columns: Columns
    post: Post
    transposed: bool
    totals: Array
    share: Value
    slice: Value
    outputs: tuple[Array, ...]

    def __call__(self, i: Value, first: Value, total: list[list[Value]]) -> None:
        warp = self.columns.warp
        warp.barrier()  # the last ones have been read
        for t, values in enumerate(total):
            for piece in range(self.totals.shape[3]):
                place = self._place(self.columns.stream, t, piece)
                self.totals.store(place, *values[piece * FLOATS : (piece + 1) * FLOATS])
        warp.barrier()
        for t in range(OF_LANE):
            self._old_streams(i, self.columns.token(first, t), t)
        self._layer(i, self.columns.token(first, self.columns.stream))

    def _place(self, stream: Any, token: Any, piece: int) -> Value:
        _, n, tokens, pieces, _, _ = self.totals.shape
        number = ((self.share * n + stream) * tokens + token) * pieces + piece
        return (number * LANES + self.columns.warp.lane) * FLOATS

    def _gradients(self, token: Any) -> list[list[Value]]:
        """To the new streams of a token, [stream][column]."""
        made = []
        for stream in range(self.totals.shape[1]):
            places = [self._place(stream, token, p) for p in range(self.totals.shape[3])]
            words = [self.totals.load_words(place, FLOATS) for place in places]
            made.append([word.bits("f32") for piece in words for word in piece])
        return made

    def _old_streams(self, i: Value, token: Value, t: int) -> None:
        some, (dx, _, _, dh_res) = self.columns, self.outputs
        n, dy = self.totals.shape[1], self._gradients(t)
        number = OF_LANE * (2 + (some.inputs.dx is not None)) + t
        x = some.unpack(some.piece(i, number))
        row = self.post.h_res.row(some.known(token))
        places = [self._entry(o) for o in range(n)]
        values = combine(some.warp, [row.load(place) for place in places], dy)
        products = [self._product(dy[o], x) for o in range(n)]
        self._store(token, lambda: dx.row(token).store(some.place, *values))
        self._store_sums(token, products, places, dh_res)

    def _layer(self, i: Value, token: Value) -> None:
        some, (_, df, dh_post, _) = self.columns, self.outputs
        n, dy = self.totals.shape[1], self._gradients(some.stream)
        f = some.unpack(some.piece(i, self.columns.ring.shape[2] - 1))
        row = self.post.h_post.row(some.known(token))
        values = combine(some.warp, [row.load(o) for o in range(n)], dy)
        products = [self._product(dy[o], f) for o in range(n)]
        self._store(token, lambda: df.row(token).store(some.column, *values))
        self._store_sums(token, products, [some.warp.i32(o) for o in range(n)], dh_post)

    def _entry(self, o: int) -> Value:
        """Of ``h_res``: what the new stream ``o`` has of this warp's old one."""
        n, stream = self.totals.shape[1], self.columns.stream
        return stream * n + o if self.transposed else stream + o * n

    def _product(self, a: list[Value], b: list[Value]) -> Value:
        total = a[0] * b[0]
        for x, y in zip(a[1:], b[1:], strict=True):
            total = self.columns.warp.fma(x, y, total)
        return total

    def _store(self, token: Value, store) -> None:
        self.columns.warp.when(token < self.columns.inputs.x.shape[0], store)

    def _store_sums(self, token: Value, products, places, target: Array) -> None:
        """Over the block's columns; each of some lanes stores one of them."""
        warp = self.columns.warp
        totals = [warp.sum_groups(product, 4) for product in products]
        place, value = places[0], totals[0]
        for o in range(1, len(places)):
            mine = warp.lane // 4 == o
            place = warp.select(mine, places[o], place)
            value = warp.select(mine, totals[o], value)
        stores = warp.lane // 4 < len(places)
        target = target.row(self.slice)
        warp.when(stores, lambda: self._store(token, lambda: target.row(token).store(place, value)))
