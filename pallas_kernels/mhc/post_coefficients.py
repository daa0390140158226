"""The coefficients of ``mhc_post`` in the layout of kernels that process tiles of tokens."""

from __future__ import annotations

import jax

from pallas_kernels import simt
from pallas_kernels.mhc.streams import load_floats
from pallas_kernels.simt.blocks import striding_blocks
from pallas_kernels.simt.values import Array
from pallas_kernels.simt.warp import LANES, Warp

_WARPS = 4


def stack_coefficients(h_post: jax.Array, h_res: jax.Array) -> jax.Array:
    """Stacks and transposes coefficients: ``h_post``, then ``h_res``, [n + n n, tokens].

    It is one kernel, as XLA would launch three. Those took 0.005 ms for 8192 tokens on an H200.

    Args:
      h_post: [tokens, n] float32.
      h_res: [tokens, n n] float32.
    """
    tokens, rows = h_post.shape[0], h_post.shape[1] + h_res.shape[1]
    return simt.launch(
        _transpose,
        (h_post, h_res),
        [jax.ShapeDtypeStruct((rows, tokens), h_post.dtype)],
        name="mhc_post_coefficients",
        grid=simt.Grid(striding_blocks(tokens, _WARPS * LANES), _WARPS),
    )[0]


def _transpose(warp: Warp, inputs: tuple[Array, Array], stacked: Array) -> None:
    """Copies the coefficients of one token in each lane."""
    tokens = stacked.shape[1]

    def take(first, _):
        token = first + warp.lane
        held = [load_floats(array.row(token.at_most(tokens - 1))) for array in inputs]

        def store():
            for row, value in enumerate([*held[0], *held[1]]):
                stacked.row(warp.i32(row)).store(token, value)

        warp.when(token < tokens, store)

    warp.loop(warp.number * LANES, tokens, warp.count * LANES, (), take)
