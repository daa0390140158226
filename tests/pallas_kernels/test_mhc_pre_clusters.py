"""``mhc_pre`` by clusters of blocks: every way to share columns, on the emulator and lowered."""

import functools

import jax
import jax.numpy as jnp
import pytest

from jaxgnn.ops.reference import mhc_pre as reference
from jaxgnn.testing import assert_close, to_float64
from pallas_kernels.mhc_pre import MhcPreClusterTile, MhcPreTile, mhc_pre
from tests.ops._mhc import parameters, streams
from tests.pallas_kernels._emulator import emulated

OPTIONS = {"norm_eps": 1e-6, "pre_eps": 1e-3, "post_scale": 2.0}
# Tokens, streams, width; tiles of one block and of several, that leave the last tokens over.
CASES = {
    "one token": ((1, 4, 64), MhcPreClusterTile(warps=1, cluster=2, clusters=1)),
    "no cluster": ((100, 4, 64), MhcPreClusterTile(warps=2, cluster=1, clusters=3)),
    "many tiles": ((150, 2, 64), MhcPreClusterTile(warps=1, cluster=2, clusters=1, ahead=1)),
    "three blocks": ((100, 4, 192), MhcPreClusterTile(warps=2, cluster=3, clusters=2)),
    "five blocks": ((50, 4, 320), MhcPreClusterTile(warps=2, cluster=5, clusters=2)),
    "eight warps": ((17, 4, 512), MhcPreClusterTile(warps=8, cluster=2, clusters=1, ahead=4)),
    "read twice": ((40, 4, 192), MhcPreTile(fragments=2, warps=4)),
    "read twice by few": ((70, 2, 64), MhcPreTile(fragments=4, warps=4)),
}


@pytest.mark.parametrize("shape, tile", CASES.values(), ids=CASES)
def test_every_tile_gives_the_values(shape, tile):
    tokens, n, dim = shape
    inputs = streams((tokens,), n, dim, "bfloat16", 3.0), *parameters(n, dim)
    x, phi, alpha, bias, gamma = inputs
    with emulated():
        made = mhc_pre(x, phi * gamma.reshape(-1), alpha, bias, **OPTIONS, tile=tile)
    with jax.enable_x64(True):
        exact, saved = jax.jit(functools.partial(reference.mhc_pre, **OPTIONS))(*to_float64(inputs))
    for i, (a, e) in enumerate(zip(made, [*exact, *saved], strict=True)):
        assert_close(a, e, reduction_length=n * dim, err_msg=f"result {i}")


@pytest.mark.parametrize("dim", [64, 128, 192, 256, 320, 512, 1280, 2048, 2560, 3072])
@pytest.mark.parametrize("tokens", [1, 131_072])
def test_the_heuristic_shares_all_columns_and_keeps_to_shared_memory(tokens, dim):
    tile = MhcPreClusterTile.choose(tokens, 4, dim, jnp.bfloat16)
    assert tile is not None
    assert tile.warps * tile.cluster * 32 == dim
    assert tile.cluster <= 8 and tile.warps <= 12
    assert tile.shared_bytes(4) <= 224 * 1024
    assert 1 <= tile.clusters <= -(-tokens // 16)


@pytest.mark.parametrize(
    "n, dim, dtype", [(8, 512, "bfloat16"), (4, 512, "float32"), (4, 8192, "bfloat16")]
)
def test_what_registers_do_not_hold_is_left_to_the_other_kernel(n, dim, dtype):
    assert MhcPreClusterTile.choose(4096, n, dim, dtype) is None


def test_clusters_reach_the_compiler():
    n, dim = 4, 1280
    shapes = ((16_384, n, dim), "bfloat16"), ((24, n * dim), "float32")
    arguments = [jax.ShapeDtypeStruct(*s) for s in (*shapes, ((3,), "float32"), ((24,), "float32"))]
    traced = jax.jit(functools.partial(mhc_pre, **OPTIONS)).trace(*arguments)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("mosaic_gpu_v2") == 1
    assert "barrier.cluster.arrive.release" in text and "cp.async.cg.shared.global" in text
