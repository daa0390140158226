"""Tokens too wide for a cluster: both passes forward, interpreted against float64, and lowered."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn.ops._mhc import pallas
from jaxgnn.ops._mhc.reference import mhc_post, mhc_pre
from jaxgnn.testing import assert_close
from pallas_kernels.arguments.mhc import MHCConstants, MHCParams, PostInputs
from pallas_kernels.chip import Chip
from pallas_kernels.mhc import wide_sums as wide
from pallas_kernels.mhc.pre_mixing import MixingTile, mix_streams
from pallas_kernels.mhc.wide_sums import Sums, WideTile, wide_sums
from tests.ops.mhc._mhc import exactly, outputs, parameters, streams
from tests.pallas_kernels._chips import H100
from tests.pallas_kernels._emulator import emulated

# (tokens, n, dim), whether an mhc_post comes before, whether it is transposed, and a tile: tokens
# that are cut off, of either warpgroup; shares of different lengths; rings that come round.
CASES = {
    "three chunks for two": ((264, 4, 192), True, False, WideTile(2)),
    "one share": ((136, 4, 256), False, False, WideTile(1, chunks=2, phi_stages=2)),
    "two streams": ((72, 2, 128), True, True, WideTile(1, chunks=3, phi_stages=5)),
    "a chunk each": ((128, 4, 128), True, False, WideTile(2, chunks=3)),
}
CONSTANTS = MHCConstants(norm_eps=1e-6, pre_eps=1e-3, post_scale=2.0)


@pytest.mark.costly
@pytest.mark.parametrize("shape, posts, transposed, tile", CASES.values(), ids=CASES)
def test_every_tile_gives_streams_and_sums(interpreted, shape, posts, transposed, tile):
    tokens, n, dim = shape
    x, weight = streams((tokens,), n, dim, "bfloat16"), parameters(n, dim)[0]
    post = outputs((tokens,), n, dim, "bfloat16") if posts else None
    with emulated(), interpreted():
        y, sums = wide_sums(x, weight, post, tile, transposed=transposed)
    if post is None:
        assert y is x
    else:
        exact = exactly(mhc_post.mhc_post, x, *post, transposed=transposed)
        assert_close(y, exact, reduction_length=n + 1)
    # Of the streams as they are rounded.
    flat = np.asarray(y, "float64").reshape(tokens, -1)
    products, squares = (jnp.sum(a, axis=0)[:tokens] for a in sums)
    assert_close(products, flat @ np.asarray(weight, "float64").T, reduction_length=n * dim)
    assert_close(squares, np.sum(flat**2, axis=1), reduction_length=n * dim)


# Blocks that take turns, with fewer tokens in the last; more shares than are read at once; more
# sums than there are tokens.
@pytest.mark.emulated
@pytest.mark.parametrize("tokens, n, shares, tile", [(5, 4, 11, MixingTile(2, 2)), (3, 2, 1, None)])
def test_the_second_pass_makes_of_the_sums_what_mhc_pre_does(tokens, n, shares, tile):
    dim = 64
    x, (phi, alpha, bias, _) = streams((tokens,), n, dim, "bfloat16"), parameters(n, dim)
    flat = np.asarray(x, "float64").reshape(tokens, -1)
    more = np.full((shares, tokens + 3, phi.shape[0] + 1), np.nan, "float32")
    chunks = np.array_split(np.arange(n * dim), shares)
    for share, columns in enumerate(chunks):
        part = flat[:, columns]
        more[share, :tokens, :-1] = part @ np.asarray(phi, "float64")[:, columns].T
        more[share, :tokens, -1] = np.sum(part**2, axis=1)
    sums = Sums(jnp.asarray(more[:, :, :-1]), jnp.asarray(more[:, :, -1]))
    with emulated():
        tiles = () if tile is None else (tile,)
        made = mix_streams(x, sums, MHCParams(phi, alpha, bias), CONSTANTS, *tiles)
    exact, saved = exactly(mhc_pre.mhc_pre, x, MHCParams(phi, alpha, bias), constants=CONSTANTS)
    for i, (a, e) in enumerate(zip(made, (*exact, *saved), strict=True)):
        assert_close(a, e, reduction_length=n * dim, err_msg=f"result {i}")


@pytest.mark.again("tests/pallas_kernels/mhc/test_mhc.py")
def test_the_ops_take_them(interpreted, monkeypatch):
    monkeypatch.setattr(wide, "_LEAST_WIDTH", {True: 64, False: 64})
    tokens, n, dim = 72, 4, 64
    params, of_post = MHCParams(*parameters(n, dim)), outputs((tokens,), n, dim, "bfloat16")
    x = streams((tokens,), n, dim, "bfloat16")
    with emulated(), interpreted():
        made, saved = pallas.mhc_pre(x, params, constants=CONSTANTS)
        inputs, options = PostInputs(x, *of_post), {"transposed": False, "constants": CONSTANTS}
        (y, *behind), _ = pallas.mhc_post_pre(inputs, params, **options)
    exact, exact_saved = exactly(mhc_pre.mhc_pre, x, params, constants=CONSTANTS)
    of_y, _ = exactly(mhc_pre.mhc_pre, y, params, constants=CONSTANTS)
    exact_y = exactly(mhc_post.mhc_post, x, *of_post, transposed=False)
    pairs = zip((*made, *saved, *behind), (*exact, *exact_saved, *of_y), strict=True)
    for i, (a, e) in enumerate(pairs):
        assert_close(a, e, reduction_length=n * dim, err_msg=f"result {i}")
    assert_close(y, exact_y, reduction_length=n + 1)


@pytest.mark.parametrize("posts", [False, True])
@pytest.mark.parametrize(
    "tokens, shares", [(8, 112), (256, 56), (640, 23), (4096, 4), (8192, 2), (16384, 1), (20000, 5)]
)
def test_shares_keep_all_multiprocessors_busy_within_shared_memory(tokens, shares, posts):
    tile = WideTile.choose(H100, tokens, 4, 7168, "bfloat16", posts=posts)
    assert tile.shares == shares
    chunk, phi = 64 * 64 * 2 * (4 + posts), wide.PARTS * 4 * 24 * 32 * 2
    coefficients = posts * 20 * 64 * 4
    assert 2 * (tile.chunks * chunk + coefficients) + tile.phi_stages * phi <= H100.shared_bytes


def test_what_they_do_not_take_is_left_to_other_kernels():
    def choose(tokens=64, n=4, dim=8192, dtype="bfloat16", posts=True, chip=H100):
        return WideTile.choose(chip, tokens, n, dim, dtype, posts=posts)

    assert choose(dim=3072) and choose(dim=4096, posts=False)
    refused = {"tokens": 12, "n": 2, "dim": 3008, "dtype": "float32"}
    assert all(choose(**{name: value}) is None for name, value in refused.items())
    assert choose(dim=4032, posts=False) is None
    assert choose(chip=Chip.named("B200")) is None


@pytest.mark.again("tests/pallas_kernels/test_lowering.py")
@pytest.mark.lowers
@pytest.mark.parametrize("posts", [False, True])
def test_they_lower_at_real_shapes(posts):
    """Lowering refuses too much shared memory."""
    tokens, n, dim = 8192, 4, 7168

    def struct(*shape, dtype="float32"):
        return jax.ShapeDtypeStruct(shape, dtype)

    x, f = (struct(tokens, *s, dim, dtype="bfloat16") for s in ((n,), ()))
    post = (f, struct(tokens, n), struct(tokens, n, n)) if posts else None
    tile = WideTile.choose(H100, tokens, n, dim, "bfloat16", posts=posts)

    def both(x, weight, post, alpha, bias):
        y, sums = wide_sums(x, weight, post, tile)
        return y, mix_streams(y, sums, MHCParams(weight, alpha, bias), CONSTANTS)

    traced = jax.jit(both).trace(x, struct(24, n * dim), post, struct(3), struct(24))
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("mosaic_gpu_v2") == 2 + posts
