"""Ways of wide dense layers: results from registers, and two layers in clusters of two blocks."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn.ops._dense.reference import fused_mlp as mlp_reference
from jaxgnn.testing import assert_bit_equal, assert_close, random_array, to_float64
from pallas_kernels import simt
from pallas_kernels.dense import forward as dense_forward
from pallas_kernels.dense import fused_mlp
from pallas_kernels.dense import pair as dense_pair
from pallas_kernels.dense.forward import DenseTile
from pallas_kernels.dense.pair import PairTile
from pallas_kernels.dense.stack import Stack
from pallas_kernels.simt import Grid
from pallas_kernels.simt.warp import LANES
from pallas_kernels.tensor_cores.stores import (
    InitChannel,
    ReleaseSlot,
    SendChunk,
    StoreChunk,
    WaitForSlot,
    WaitForTile,
)
from tests.ops.dense._linear import features, layers
from tests.pallas_kernels._chips import H100
from tests.pallas_kernels._emulator import emulated
from tests.pallas_kernels.dense._dense import interpreted, kernels_of, structs

CHUNK = 64  # rows, and columns


def _words_of(warp, chunk):
    """A chunk in global memory as products of tensor cores lie in registers."""
    group, at = warp.lane // 4, 2 * (warp.lane % 4)
    row = warp.thread // LANES * 16 + group
    return [
        [chunk.load_words((row + 8 * half) * CHUNK + 8 * j + at, 2)[0] for half in range(2)]
        for j in range(8)
    ]


@pytest.mark.parametrize("rows", [1, 64, 100, 128])
def test_chunks_are_written_from_registers_up_to_the_last_row(rows):
    values = random_array((CHUNK, CHUNK), "bfloat16", seed=1)
    form = jax.ShapeDtypeStruct((rows, 2 * CHUNK), "bfloat16")

    def kernel(warp, chunk, result):
        words = _words_of(warp, chunk)
        for first, column in ((0, 0), (0, CHUNK), (CHUNK, CHUNK), (CHUNK, 0)):
            StoreChunk(column)(warp, warp.i32(first), result, words)

    with emulated():
        (made,) = simt.launch(kernel, values, [form], name="test", grid=Grid(1, 4))
    assert_bit_equal(made, jnp.tile(values, (2, 2))[:rows])


def _as_tensor_cores_want_it(chunk):
    """Pieces of sixteen bytes lie in another order in each of eight rows."""
    pieces = np.asarray(chunk).reshape(CHUNK, 8, 8)
    row, piece = np.mgrid[:CHUNK, :8]
    return pieces[row, piece ^ row % 8].reshape(CHUNK, CHUNK)


@pytest.mark.parametrize("seed, steps", [(0, 6), (1, 6), (2, 3)])
def test_blocks_pass_tiles_on_that_wait_for_places(seed, steps):
    """More tiles than places, in random order of what happens; the emulator looks for races."""
    tiles, slots = 7, 3
    values = random_array((tiles, CHUNK, CHUNK), "bfloat16", seed=2)
    options = {"steps": steps}
    shared = {
        "ring": jax.ShapeDtypeStruct((slots, CHUNK, CHUNK), "bfloat16"),
        "signals": jax.ShapeDtypeStruct(InitChannel(steps).signals, jnp.uint32),
    }

    def send(warp, source, ring, signals):
        for n in range(tiles):
            if n >= slots:
                WaitForSlot(**options)(warp, warp.i32(n - slots), signals)
            words = _words_of(warp, source.row(warp.i32(n)))
            place = warp.i32(n % slots), warp.i32(n)
            SendChunk(**options, rank=1)(warp, *place, ring, signals, words)

    def receive(warp, result, ring, signals):
        for n in range(tiles):
            nbytes = CHUNK * CHUNK * 2
            WaitForTile(**options, nbytes=nbytes)(warp, warp.i32(n), signals)
            for first in range(0, CHUNK * CHUNK, 8 * warp.threads):
                at = 8 * warp.thread + first
                words = ring.row(warp.i32(n % slots)).load_words(at, 8)
                result.row(warp.i32(n)).store_words(at, words, 8)
            warp.barrier()
            if n + slots < tiles:
                ReleaseSlot(**options)(warp, warp.i32(n), signals)

    def kernel(warp, source, result, ring, signals):
        def run():
            InitChannel(**options)(warp, warp.i32(0), signals)
            warp.when(warp.rank == 0, lambda: send(warp, source, ring, signals))
            warp.when(warp.rank == 1, lambda: receive(warp, result, ring, signals))

        warp.roles((4, run))

    form = jax.ShapeDtypeStruct(values.shape, values.dtype)
    with emulated(seed):
        grid = Grid(2, 4, cluster=2)
        (made,) = simt.launch(kernel, values, [form], name="test", grid=grid, block_shared=shared)
    assert_bit_equal(made, np.stack([_as_tensor_cores_want_it(chunk) for chunk in values]))


def _inputs(rows, widths, dtype):
    kernels, biases = layers(widths, dtype)
    return features((rows, widths[0]), dtype), kernels, biases


def _exactly(x, kernels, biases, activation):
    with jax.enable_x64(True):
        call = functools.partial(mlp_reference.fused_mlp, activation=activation, precision=None)
        return call(*to_float64((x, kernels, biases)))


DIRECT = [
    (1, (64, 64), DenseTile(2, 1, 2, direct=True)),
    (203, (64, 128), DenseTile(2, 1, 2, direct=True)),
    (330, (128, 64, 64), DenseTile(1, 2, 3, direct=True)),
]


@pytest.mark.parametrize("rows, widths, tile", DIRECT)
def test_results_are_written_from_registers(rows, widths, tile):
    x, kernels, biases = _inputs(rows, widths, "bfloat16")
    activations = (*["gelu"] * (len(kernels) - 1), None)
    with interpreted():
        made = dense_forward.forward(x, kernels, biases, activations, tile)
    exact = _exactly(x, kernels, biases, "gelu")
    assert_close(made, exact, reduction_length=max(widths), operands="bfloat16")


PAIRS = [
    (1, (64, 64, 64), "bfloat16", PairTile(2, 2, 3)),
    (700, (64, 128, 64), "float16", PairTile(1, 2, 3)),
    (330, (128, 64, 128), "bfloat16", PairTile(2, 1, 2)),
    (500, (64, 64, 128), "bfloat16", PairTile(1, 3, 3)),
]


@pytest.mark.costly
@pytest.mark.parametrize("rows, widths, dtype, tile", PAIRS)
def test_two_blocks_have_a_layer_each(rows, widths, dtype, tile):
    x, kernels, biases = _inputs(rows, widths, dtype)
    biases = (biases[0], None) if rows == 330 else biases
    with interpreted():
        made = dense_pair.forward(x, kernels, biases, ("gelu", None), tile)
    exact = _exactly(x, kernels, biases, "gelu")
    assert_close(made, exact, reduction_length=max(widths), operands=dtype)


def _structs(widths, dtype="bfloat16", rows=232_965):
    return jax.ShapeDtypeStruct((rows, widths[0]), dtype), *structs(layers(widths, dtype))


# What is one kernel: layers that fit one multiprocessor, or two that do not.
GROUPS = {
    (256,) * 3: [(0, 2)],
    (256,) * 4: [(0, 2), (2, 3)],
    (256,) * 5: [(0, 2), (2, 4)],
    (128,) * 5: [(0, 4)],
    (64, 256, 256, 64): [(0, 2), (2, 3)],
    (256, 256, 64, 64): [(0, 2), (2, 3)],
    (64, 64, 64, 256, 256): [(0, 3), (3, 4)],
}


@pytest.mark.parametrize("widths", GROUPS)
def test_wide_layers_are_kernels_of_pairs(widths):
    assert fused_mlp.forward_groups(_stack(widths)) == GROUPS[widths]


@pytest.mark.lowers
@pytest.mark.costly
@pytest.mark.parametrize("widths", [(256,) * 2, (256,) * 3, (256,) * 4])
def test_kernels_of_wide_layers_lower(widths):
    call = functools.partial(fused_mlp.fused_mlp, activation="gelu")
    assert len(kernels_of(call, *_structs(widths, "float16"))) == len(widths) // 2


# Where there are fewer tiles than two for each warpgroup, of one layer of 16 bits.
CHOSEN = {(256, 256): True, (128, 128): False, (256, 192): False, (128, 256, 128): False}


@pytest.mark.parametrize("widths", CHOSEN)
def test_few_tiles_are_written_from_registers(widths):
    assert DenseTile.choose(H100, _stack(widths)).direct == CHOSEN[widths]
    assert not DenseTile.choose_pull_back(H100, _stack((256, 256))).direct


def _stack(widths, dtype="bfloat16"):
    count = len(widths) - 1
    return Stack(widths, (True,) * count, ("relu",) * count, jnp.dtype(dtype))


@pytest.mark.parametrize("widths", [*itertools.product((64, 128, 192, 256), repeat=3)])
def test_two_blocks_hold_a_layer_each_and_read_ahead(widths):
    tile = PairTile.choose(H100, _stack(widths))
    assert tile.slots > tile.warpgroups and tile.limited_to(65).pairs == 2
    largest = max(a * b for a, b in itertools.pairwise(widths)) * 2
    assert largest + tile.slots * 64 * max(widths) * 2 <= H100.shared_bytes


@pytest.mark.parametrize(
    "stack",
    [_stack((64, 64)), _stack((64,) * 4), _stack((512, 64, 64)), _stack((64,) * 3, "float32")],
)
def test_what_no_pair_takes(stack):
    assert PairTile.choose(H100, stack) is None


@pytest.mark.parametrize("dtype, parts", [("bfloat16", 2), ("float32", 1)])
def test_results_that_registers_do_not_write_are_refused(dtype, parts):
    tile = DenseTile(1, 1, 2, parts, direct=True)
    x, kernels, biases = _inputs(64, (64, 64), dtype)
    precision = "tf32" if dtype == "float32" else None
    with pytest.raises(ValueError, match="from registers"):
        dense_forward.forward(x, kernels, biases, (None,), tile, precision)


@pytest.mark.parametrize("warpgroups, slots", [(1, 1), (3, 2), (2, 0)])
def test_tiles_that_read_nothing_ahead_are_refused(warpgroups, slots):
    with pytest.raises(ValueError, match=f"more than the {warpgroups} warpgroups, got {slots}"):
        DenseTile(2, warpgroups, slots)
    with pytest.raises(ValueError, match="slots"):
        dataclasses.replace(DenseTile(2, 2, 3), warpgroups=3)
