"""Gradients to the streams and to phi, by SIMT code, for all shapes and dtypes.

A block has some columns of all streams, and a range of the tokens. Its part of phi stays in shared
memory, and the inputs of the next tokens are copied while lanes process the present ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.chip import Chip
from pallas_kernels.mhc.arguments import PostInputs
from pallas_kernels.mhc.streams import combine
from pallas_kernels.mhc.tokens.columns import Columns, Inputs, Phi
from pallas_kernels.mhc.tokens.tile import (
    FLOATS,
    FRAGMENT,
    GROUP,
    TOKENS_PER_LANE,
    WARPS,
    Form,
    StreamsTile,
)
from pallas_kernels.simt.values import Array, Value
from pallas_kernels.simt.warp import LANES, Warp
from pallas_kernels.tensor_cores.bfloat16_parts import split


class Token(NamedTuple):
    """Coefficients of each token in the backward pass of ``mhc_pre``, float32.

    Attributes:
      h_pre: weights of the streams, [tokens, n].
      scale: factor of the streams in their own gradient, [tokens].
      dh_mix: gradient of ``h_mix``, [tokens, rows].
    """

    h_pre: jax.Array
    scale: jax.Array
    dh_mix: jax.Array


def streams_backward(
    x: jax.Array,
    dh_in: jax.Array,
    dx: jax.Array | None,
    phi: jax.Array,
    token: Token,
    post: PostInputs | None = None,
    *,
    transposed: bool = False,
    tile: StreamsTile | None = None,
) -> tuple[jax.Array, ...]:
    """The gradient to phi; and that to the streams, or through the ``mhc_post`` that computed them.

    Args:
      x: the streams, [tokens, n, dim].
      dh_in: gradient of the layer's input, [tokens, dim].
      dx: another gradient of the streams to be added, [tokens, n, dim], or None.
      phi: projection with ``gamma`` folded in, [n n + 2 n, n dim] float32.
      token: coefficients of each token.
      post: inputs of the ``mhc_post`` that computed the streams, four of them; or None.
      transposed: whether the matrices ``h_res`` of ``post`` are transposed.
      tile: how blocks share the work; by default chosen for the shapes.

    Returns:
      The gradient to ``phi``; then that to ``x``, or those to the arrays of ``post``.
    """
    tokens, n, dim = x.shape
    form = Form(n, dim, x.dtype.itemsize, adds=dx is not None, posts=post is not None)
    tile = tile or StreamsTile.choose(Chip.current(), tokens, form)
    if tile is None:
        raise NotImplementedError(f"{n} streams need more shared memory than this GPU has")
    inputs = _inputs(form, (x, dh_in, dx), phi, token, post)
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


def _inputs(form: Form, arrays, phi: jax.Array, token: Token, post: PostInputs | None) -> Inputs:
    """Splits and pads the factors of tensor cores; ``arrays`` are ``x``, ``dh_in`` and ``dx``."""
    x, dh_in, dx = arrays
    padded = -x.shape[0] % form.step, -form.rows % FRAGMENT
    dh_mix = split(jnp.pad(token.dh_mix, ((0, padded[0]), (0, padded[1]))))
    return Inputs(
        x,
        dh_in,
        dx,
        token.h_pre,
        token.scale,
        by_token=dh_mix[: form.parts],
        by_row=dh_mix[:, :, : form.rows].swapaxes(1, 2),
        by_column=split(jnp.pad(phi.T, ((0, 0), (0, padded[1]))), form.parts),
        post=post,
    )


@dataclass(frozen=True)
class _Kernel:
    """The kernel: a block processes its range of tokens, step after step.

    Attributes:
      tile: how blocks share the work.
      form: shapes of the streams.
      transposed: whether the matrices ``h_res`` are transposed.
    """

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
        columns = Columns(warp, tile, inputs, in_block % form.n, column, shared["ring"], phi)
        begin = part * tile.tokens
        count = ((inputs.x.shape[0] - begin).at_most(tile.tokens) + (form.step - 1)) // form.step

        def first(i: Value) -> Value:
            return begin + i * form.step + share * FRAGMENT

        def load(i: Value) -> None:
            warp.when(i < count, lambda: columns.load(i, first(i)))
            warp.commit_copies()

        for i in range(tile.ahead):
            load(warp.i32(i))
        if form.posts:
            end = _Post(
                columns, inputs.post, self.transposed, shared["totals"], share, place, outputs
            )
        else:
            end = _Store(columns, outputs[0])

        def step(i, sums):
            load(i + tile.ahead)
            warp.wait_for_copies(tile.ahead)
            # In the first step the block's part of phi has arrived as well.
            warp.when(i == 0, warp.barrier)
            total, sums = columns.gradients(i, first(i), sums)
            end(i, first(i), total)
            return sums

        sums = warp.loop(warp.i32(0), count, 1, columns.zeros(), step)
        columns.store(sums, weights.row(part * form.shares + share))


@dataclass(frozen=True)
class _Store:
    """Writes the gradient to the streams, without an ``mhc_post``."""

    columns: Columns
    dx: Array

    def __call__(self, i: Value, first: Value, total: list[list[Value]]) -> None:
        columns = self.columns
        for t, values in enumerate(total):
            token = columns.token(first, t)

            def store(token=token, values=values):
                self.dx.row(token).store(columns.flat_column, *values)

            columns.warp.when(token < columns.inputs.x.shape[0], store)


@dataclass(frozen=True)
class _Post:
    """The backward pass of ``mhc_post``, from the gradients to the new streams.

    The warps of a share have different streams of the same tokens and columns, and exchange their
    gradients through shared memory, lane by lane. Each warp then computes the gradient to one old
    stream, and that to the layer's output for one of the four tokens of each lane.

    Attributes:
      columns: columns of this lane.
      post: inputs of ``mhc_post``.
      transposed: whether the matrices ``h_res`` are transposed.
      totals: gradients to the new streams, [shares, streams, tokens, quads, lanes, 4] in shared
        memory.
      share: number of this warp's share of the tokens.
      slice: number of the block's slice of the columns.
      outputs: dx, df, and inner products for ``h_post`` and ``h_res`` over each slice of columns.
    """

    columns: Columns
    post: PostInputs
    transposed: bool
    totals: Array
    share: Value
    slice: Value
    outputs: tuple[Array, ...]

    def __call__(self, i: Value, first: Value, total: list[list[Value]]) -> None:
        warp = self.columns.warp
        warp.barrier()  # all warps have read the previous gradients
        for t, values in enumerate(total):
            for quad in range(self.totals.shape[3]):
                index = self._index(self.columns.stream, t, quad)
                self.totals.store(index, *values[quad * FLOATS : (quad + 1) * FLOATS])
        warp.barrier()
        for t in range(TOKENS_PER_LANE):
            self._old_stream(i, self.columns.token(first, t), t)
        self._layer(i, self.columns.token(first, self.columns.stream))

    def _index(self, stream: Any, token: Any, quad: int) -> Value:
        """Index in ``totals`` of four neighbouring columns of this lane."""
        _, n, tokens, quads, _, _ = self.totals.shape
        number = ((self.share * n + stream) * tokens + token) * quads + quad
        return (number * LANES + self.columns.warp.lane) * FLOATS

    def _gradients(self, token: Any) -> list[list[Value]]:
        """Gradients to the new streams of a token, [stream][column]."""
        made = []
        for stream in range(self.totals.shape[1]):
            indices = [self._index(stream, token, quad) for quad in range(self.totals.shape[3])]
            words = [self.totals.load_words(index, FLOATS) for index in indices]
            made.append([word.bits("f32") for quad in words for word in quad])
        return made

    def _old_stream(self, i: Value, token: Value, t: int) -> None:
        """Writes the gradient to this warp's old stream of a token, and the products with it."""
        columns, (dx, _, _, dh_res) = self.columns, self.outputs
        n, dy = self.totals.shape[1], self._gradients(t)
        number = TOKENS_PER_LANE * (2 + (columns.inputs.dx is not None)) + t
        x = columns.unpack(columns.vector(i, number))
        row = self.post.h_res.row(columns.clamped(token))
        places = [self._entry(o) for o in range(n)]
        values = combine(columns.warp, [row.load(place) for place in places], dy)
        products = [self._product(dy[o], x) for o in range(n)]
        self._store(token, lambda: dx.row(token).store(columns.flat_column, *values))
        self._store_sums(token, products, places, dh_res)

    def _layer(self, i: Value, token: Value) -> None:
        """Writes the gradient to the layer's output of a token, and the products with it."""
        columns, (_, df, dh_post, _) = self.columns, self.outputs
        n, dy = self.totals.shape[1], self._gradients(columns.stream)
        f = columns.unpack(columns.vector(i, self.columns.ring.shape[2] - 1))
        row = self.post.h_post.row(columns.clamped(token))
        values = combine(columns.warp, [row.load(o) for o in range(n)], dy)
        products = [self._product(dy[o], f) for o in range(n)]
        self._store(token, lambda: df.row(token).store(columns.column, *values))
        self._store_sums(token, products, [columns.warp.i32(o) for o in range(n)], dh_post)

    def _entry(self, o: int) -> Value:
        """Entry of ``h_res`` with which this warp's old stream enters the new stream ``o``."""
        n, stream = self.totals.shape[1], self.columns.stream
        return stream * n + o if self.transposed else stream + o * n

    def _product(self, a: list[Value], b: list[Value]) -> Value:
        """The inner product over this lane's columns."""
        total = a[0] * b[0]
        for x, y in zip(a[1:], b[1:], strict=True):
            total = self.columns.warp.fma(x, y, total)
        return total

    def _store(self, token: Value, store) -> None:
        """Calls ``store()`` unless the token is past the last one."""
        self.columns.warp.when(token < self.columns.inputs.x.shape[0], store)

    def _store_sums(self, token: Value, products, places, target: Array) -> None:
        """Sums inner products over the block's columns; some lanes write one each."""
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
