"""The backward pass of hyper-connections by slices: interpreted against float64, and lowered."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from jaxgnn.ops import _pallas_mhc as pallas
from jaxgnn.ops.reference import mhc_pre as reference
from jaxgnn.testing import assert_close, random_array, to_float64
from pallas_kernels import _mhc_slices_backward as slices
from pallas_kernels._dense_stack import SHARED_BYTES, aligned
from pallas_kernels._mhc_slices_backward import Slices, SlicesTile, slices_backward
from pallas_kernels._mhc_streams_backward import Token
from tests.ops._mhc import outputs, parameters, streams, streams_gradients
from tests.pallas_kernels._emulator import emulated

# (tokens, n, dim), whether there is a gradient to add, and a tile: one step, several in rings that
# come round, ranges of which some are shorter, a last tile that is cut off.
CASES = {
    "one tile": ((8, 4, 64), True, SlicesTile(1, warpgroups=2, pieces=4, slots=2)),
    "ranges": ((264, 4, 128), True, SlicesTile(2, warpgroups=2, pieces=3, slots=2)),
    "nothing to add": ((200, 4, 64), False, SlicesTile(1, warpgroups=1, pieces=3, slots=2)),
    "two streams": ((328, 2, 64), True, SlicesTile(1, warpgroups=2, pieces=2, slots=3)),
    "a stream each": ((136, 4, 64), False, SlicesTile(2, warpgroups=4, pieces=2, slots=2)),
}


def _exactly(function, *arguments, **options):
    """In float64."""
    with jax.enable_x64(True):
        return jax.jit(functools.partial(function, **options))(*to_float64(arguments))


def _assert_all_close(actual, expected, length):
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert_close(a, e, reduction_length=length, err_msg=f"result {i}")


@pytest.mark.parametrize("shape, adds, tile", CASES.values(), ids=CASES)
def test_every_tile_gives_the_gradients(shape, adds, tile):
    tokens, n, dim = shape
    rows = n * n + 2 * n
    shapes = shape, (tokens, dim), shape
    x, dh_in, dx = (random_array(s, "bfloat16", seed=k) for k, s in enumerate(shapes))
    shapes = (rows, n * dim), (tokens, n), (tokens,), (tokens, rows)
    weight, *token = (random_array(s, "float32", seed=k + 3) for k, s in enumerate(shapes))
    given = x, dh_in, dx if adds else None, weight
    with plgpu.force_gpu_interpret_mode():
        made = slices_backward(*given, Token(*token), tile)
    exact = _exactly(streams_gradients, *given, *token)
    _assert_all_close(made, exact, max(n * dim, tokens))


def test_the_op_takes_them():
    shape, options = (72, 4, 64), {"norm_eps": 1e-6, "pre_eps": 1e-3, "post_scale": 2.0}
    inputs = streams(shape[:1], *shape[1:], "bfloat16"), *parameters(*shape[1:])
    _, saved = reference.mhc_pre(*inputs, **options)
    dx_streams = random_array(shape, "bfloat16", seed=9)
    given = *inputs, saved, outputs(shape[:1], *shape[1:], "bfloat16"), dx_streams
    with emulated(), plgpu.force_gpu_interpret_mode():
        made = pallas.mhc_pre_backward(*given, **options)
    exact = _exactly(reference.mhc_pre_backward, *given, **options)
    _assert_all_close(made, exact, 72 * 64)


def _tile(tokens, n, dim, adds=True, dtype="bfloat16"):
    return SlicesTile.choose(tokens, Slices(n, dim, adds), jnp.dtype(dtype))


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("tokens, dim", [(8, 64), (16384, 1280), (8192, 7168), (100_000, 8192)])
def test_tiles_are_one_wave_within_shared_memory(tokens, dim, n, adds):
    tile = _tile(tokens, n, dim, adds)
    assert 1 <= tile.ranges * (dim // 64) <= 132
    assert tile.ranges <= -(-tokens // 64)
    form, piece = Slices(n, dim, adds), 64 * 64 * 2
    held = tile.warpgroups * tile.pieces * piece * (1 + adds) + 2 * n * form.padded * 128
    of_tokens = piece + 64 * form.width * 2 + aligned((n + 1) * 64 * 4)
    assert held + tile.slots * of_tokens <= SHARED_BYTES


def test_what_it_does_not_take_is_left_to_the_other_kernel(monkeypatch):
    refused = [(12, 4, 64), (0, 4, 64), (64, 8, 64)]
    assert all(_tile(*shape) is None for shape in refused)
    assert _tile(64, 4, 64, dtype="float32") is None
    assert _tile(64, 4, 64) is not None
    monkeypatch.setattr(slices, "compute_capability", lambda: "10.0")
    assert _tile(64, 4, 64) is None


@pytest.mark.parametrize("tokens, n, dim", [(16384, 4, 1280), (8192, 2, 7168)])
def test_it_lowers_at_real_shapes(tokens, n, dim):
    """Lowering refuses too much shared memory."""
    rows, f32 = n * n + 2 * n, "float32"
    x = jax.ShapeDtypeStruct((tokens, n, dim), "bfloat16")
    dh_in = jax.ShapeDtypeStruct((tokens, dim), "bfloat16")
    weight = jax.ShapeDtypeStruct((rows, n * dim), f32)
    token = Token(*(jax.ShapeDtypeStruct((tokens, *s), f32) for s in ((n,), (), (rows,))))
    for dx in (None, x):
        tile = _tile(tokens, n, dim, dx is not None)
        function = jax.jit(functools.partial(slices_backward, tile=tile))
        traced = function.trace(x, dh_in, dx, weight, token)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
        assert text.count("mosaic_gpu_v2") == 1
