"""Gradients to the streams and to phi, by SIMT code, for all shapes and dtypes.

A block has some columns of all streams, and a range of the tokens. Its part of phi stays in shared
memory, and the inputs of the next tokens are copied while lanes process the present ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.chip import Chip
from pallas_kernels.mhc.tokens.columns import Columns, Inputs, Phi
from pallas_kernels.mhc.tokens.tile import (
    FRAGMENT,
    GROUP,
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
    *,
    tile: StreamsTile | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The gradients to phi and to the streams.

    Args:
      x: the streams, [tokens, n, dim].
      dh_in: gradient of the layer's input, [tokens, dim].
      dx: another gradient of the streams to be added, [tokens, n, dim], or None.
      phi: projection with ``gamma`` folded in, [n n + 2 n, n dim] float32.
      token: coefficients of each token.
      tile: how blocks share the work; by default chosen for the shapes.

    """
    tokens, n, dim = x.shape
    form = Form(n, dim, x.dtype.itemsize, adds=dx is not None)
    tile = tile or StreamsTile.choose(Chip.current(), tokens, form)
    if tile is None:
        raise NotImplementedError(f"{n} streams need more shared memory than this GPU has")
    inputs = _inputs(form, (x, dh_in, dx), phi, token)
    slices = dim // (GROUP * tile.entries)
    f32 = jnp.dtype(jnp.float32)
    outputs = [jax.ShapeDtypeStruct((tile.ranges * form.shares, form.rows, n * dim), f32)]
    outputs.append(jax.ShapeDtypeStruct(x.shape, x.dtype))
    dtypes = {"ring": x.dtype, "phi": jnp.dtype(jnp.bfloat16)}
    shapes = form.shared(tile.entries, tile.ahead).items()
    weights, dx = simt.launch(
        _Kernel(tile, form),
        inputs,
        outputs,
        name="mhc_pre_backward",
        grid=simt.Grid(slices * tile.ranges, WARPS),
        block_shared={name: jax.ShapeDtypeStruct(shape, dtypes[name]) for name, shape in shapes},
    )
    return jnp.sum(weights, axis=0), dx


def _inputs(form: Form, arrays, phi: jax.Array, token: Token) -> Inputs:
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
    )


@dataclass(frozen=True)
class _Kernel:
    """The kernel: a block processes its range of tokens, step after step.

    Attributes:
      tile: how blocks share the work.
      form: shapes of the streams.
    """

    tile: StreamsTile
    form: Form

    def __call__(self, warp: Warp, inputs, weights: Array, dx: Array, **shared) -> None:
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

        def step(i, sums):
            load(i + tile.ahead)
            warp.wait_for_copies(tile.ahead)
            # In the first step the block's part of phi has arrived as well.
            warp.when(i == 0, warp.barrier)
            total, sums = columns.gradients(i, first(i), sums)
            _store(columns, dx, first(i), total)
            return sums

        sums = warp.loop(warp.i32(0), count, 1, columns.zeros(), step)
        columns.store(sums, weights.row(part * form.shares + share))


def _store(columns: Columns, dx: Array, first: Value, total: list[list[Value]]) -> None:
    """Writes the gradient to the streams of this lane's tokens from ``first`` on."""
    for t, values in enumerate(total):
        token = columns.token(first, t)

        def store(token=token, values=values):
            dx.row(token).store(columns.flat_column, *values)

        columns.warp.when(token < columns.inputs.x.shape[0], store)
