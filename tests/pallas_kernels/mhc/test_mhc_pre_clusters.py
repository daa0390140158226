"""Kernels of hyper-connections that share columns or take steps: every tile, on the emulator."""

import functools

import jax
import jax.numpy as jnp
import pytest

from jaxgnn.ops._mhc.reference import mhc_post
from jaxgnn.ops._mhc.reference import mhc_pre as reference
from jaxgnn.testing import assert_bit_equal, assert_close
from pallas_kernels.arguments.mhc import MHCConstants, MHCParams, PostInputs
from pallas_kernels.mhc import mhc_post_pre
from pallas_kernels.mhc.cluster.post_pre import MhcPostPreClusterTile as BoundaryTile
from pallas_kernels.mhc.mhc_pre import MhcPreClusterTile, MhcPreTile, mhc_pre
from tests.ops.mhc._mhc import exactly, outputs, parameters, streams
from tests.pallas_kernels._chips import H100
from tests.pallas_kernels._emulator import emulated
from tests.pallas_kernels._numpy_warp import NumpyWarp

CONSTANTS = MHCConstants(norm_eps=1e-6, pre_eps=1e-3, post_scale=2.0)
# Tokens, streams, width; tiles of one block and of several, that leave the last tokens over.
CASES = {
    "one token": ((1, 4, 64), MhcPreClusterTile(warps=1, cluster=2, clusters=1)),
    "three clusters": ((100, 4, 64), MhcPreClusterTile(warps=1, cluster=2, clusters=3)),
    "many tiles": (
        (150, 2, 64),
        MhcPreClusterTile(warps=1, cluster=2, clusters=1, ahead=1, behind=1),
    ),
    "three teams": (
        (150, 4, 64),
        MhcPreClusterTile(warps=1, cluster=2, clusters=1, helpers=2, teams=3),
    ),
    "three blocks": ((100, 4, 192), MhcPreClusterTile(warps=2, cluster=3, clusters=2, helpers=2)),
    "five blocks": ((150, 4, 320), MhcPreClusterTile(warps=2, cluster=5, clusters=1, helpers=2)),
    "two helpers": ((150, 4, 128), MhcPreClusterTile(warps=2, cluster=2, clusters=1, helpers=2)),
    "eight warps": (
        (17, 4, 512),
        MhcPreClusterTile(warps=8, cluster=2, clusters=1, ahead=4, behind=1),
    ),
    "read twice": ((40, 4, 192), MhcPreTile(fragments=2, warps=4)),
    "read twice by few": ((70, 2, 64), MhcPreTile(fragments=4, warps=4)),
}


@pytest.mark.costly
@pytest.mark.emulated
@pytest.mark.parametrize("shape, tile", CASES.values(), ids=CASES)
def test_every_tile_gives_the_values(shape, tile):
    tokens, n, dim = shape
    x, params = streams((tokens,), n, dim, "bfloat16", 3.0), MHCParams(*parameters(n, dim))
    with emulated():
        made = mhc_pre(x, params.folded(), CONSTANTS, tile)
    exact, saved = exactly(reference.mhc_pre, x, params, constants=CONSTANTS)
    _assert_all_close(made, [*exact, *saved], n * dim)


def _made(case, seed=0):
    (tokens, n, dim), tile = CASES[case]
    x, params = streams((tokens,), n, dim, "bfloat16", 3.0), MHCParams(*parameters(n, dim)[:3])
    with emulated(seed):
        return mhc_pre(x, params, CONSTANTS, tile)


@pytest.mark.emulated
@pytest.mark.parametrize("case", ["many tiles", "three teams"])
def test_what_comes_in_any_order_gives_the_same_bits(case):
    expected = _made(case)
    for seed in (1, 2):
        for actual, exact in zip(_made(case, seed), expected, strict=True):
            assert_bit_equal(actual, exact)


# Too few buffers, of which each is written when others may still read it; no order of lanes.
RACES = {
    "weights": (MhcPreClusterTile, "weighted", property(lambda tile: tile.behind * tile.teams)),
    "sums of blocks": (MhcPreClusterTile, "gathered", property(lambda tile: tile.helpers)),
    "tiles": (MhcPreClusterTile, "stages", property(lambda tile: tile.behind)),
    "lanes": (NumpyWarp, "sync", lambda warp: None),
    "signals": (NumpyWarp, "wait_for_signal", lambda *arguments: None),
}


@pytest.mark.emulated
@pytest.mark.parametrize("race", RACES)
def test_the_emulator_finds_races(race, monkeypatch):
    monkeypatch.setattr(*RACES[race])
    with pytest.raises(AssertionError, match=r"before|given|phase|copies|under way|wait"):
        _made("many tiles")


@pytest.mark.emulated
def test_the_emulator_finds_a_helper_that_does_not_know_of_the_turn_before(monkeypatch):
    """Three helpers and two teams: one team may be behind when a helper waits for its next tile."""
    monkeypatch.setattr(MhcPreClusterTile, "__post_init__", lambda tile: None)
    tile = MhcPreClusterTile(warps=1, cluster=2, clusters=1, helpers=3, teams=2)
    monkeypatch.setitem(CASES, "three helpers", ((200, 4, 64), tile))
    with pytest.raises(AssertionError, match=r"without knowing|after the next|missed"):
        _made("three helpers")


BOUNDARIES = {
    "two clusters": ((100, 4, 64), (1, 2, 2)),
    "three blocks": ((100, 4, 192), (2, 3, 1)),
    "one ahead": ((90, 4, 128), (2, 2, 1, 1, 1, 1, 1, 1)),
    "two teams": ((150, 4, 64), (1, 2, 1, 1, 1, 2, 2)),
}


@pytest.mark.again("test_every_tile_gives_the_values")
@pytest.mark.costly
@pytest.mark.emulated
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape, tile", BOUNDARIES.values(), ids=BOUNDARIES)
def test_every_tile_of_the_boundary_gives_the_values(shape, tile, transposed):
    tokens, n, dim = shape
    old = streams((tokens,), n, dim, "bfloat16"), *outputs((tokens,), n, dim, "bfloat16")
    params, options = MHCParams(*parameters(n, dim)), {"transposed": transposed}
    with emulated():
        y, *made = mhc_post_pre.mhc_post_pre(
            PostInputs(*old), params.folded(), CONSTANTS, **options, tile=BoundaryTile(*tile)
        )
    assert_close(y, exactly(mhc_post.mhc_post, *old, **options), reduction_length=n + 1)
    exact, saved = exactly(reference.mhc_pre, y, params, constants=CONSTANTS)
    _assert_all_close(made, [*exact, *saved], n * dim)


def _assert_all_close(actual, expected, length):
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert_close(a, e, reduction_length=length, err_msg=f"result {i}")


@pytest.mark.parametrize("dim", [128, 192, 256, 320, 512, 1280, 2048, 2560])
@pytest.mark.parametrize("tokens", [1, 131_072])
def test_the_heuristic_shares_all_columns_and_keeps_to_shared_memory(tokens, dim):
    tile = MhcPreClusterTile.choose(H100, tokens, 4, dim, jnp.bfloat16)
    assert tile is not None
    assert tile.warps * tile.cluster * 32 == dim
    assert 2 <= tile.cluster <= 8 and tile.warps * tile.teams + tile.helpers <= 12
    assert tile.shared_bytes(4) <= 226 * 1024
    assert 1 <= tile.clusters <= -(-tokens // 16)


@pytest.mark.parametrize("tile", [MhcPreClusterTile, BoundaryTile])
@pytest.mark.parametrize(
    "dim, cluster, warps, ahead",
    [(512, 2, 8, 2), (1280, 5, 8, 2), (2048, 8, 8, 2), (2560, 8, 10, 1), (640, 2, 10, 1)],
)
def test_blocks_of_eight_warps_are_preferred_to_small_clusters(tile, dim, cluster, warps, ahead):
    chosen = tile.choose(H100, 16_384, 4, dim, jnp.bfloat16)
    clusters = {2: 64, 5: 22, 8: 14}[cluster]
    ahead = 1 if tile is BoundaryTile else ahead
    assert chosen == tile(warps, cluster, clusters, ahead=ahead, behind=2, helpers=2)


@pytest.mark.parametrize(
    "n, dim, dtype",
    [
        (8, 512, "bfloat16"),
        (4, 512, "float32"),
        (4, 64, "bfloat16"),
        (4, 3072, "bfloat16"),
        (4, 8192, "bfloat16"),
    ],
)
def test_what_registers_do_not_hold_or_is_not_exact_enough_is_left_to_the_other_kernel(
    n, dim, dtype
):
    assert MhcPreClusterTile.choose(H100, 4096, n, dim, dtype) is None


@pytest.mark.parametrize("helpers, teams, buffers", [(2, 1, 1), (3, 2, 2)])
def test_a_helper_has_buffers_of_its_own(helpers, teams, buffers):
    """Else one would wait for a signal two turns ahead, and take the last turn's for it."""
    told = f"{helpers} helpers would not always find the same of {teams * buffers} buffers"
    with pytest.raises(ValueError, match=told):
        MhcPreClusterTile(2, 2, clusters=1, helpers=helpers, teams=teams, buffers=buffers)


def test_blocks_that_send_are_in_a_cluster():
    with pytest.raises(ValueError, match="clusters of two or more, got 1"):
        MhcPreClusterTile(warps=2, cluster=1, clusters=3)


def test_clusters_reach_the_compiler():
    n, dim = 4, 1280
    shapes = ((16_384, n, dim), "bfloat16"), ((24, n * dim), "float32")
    x, *params = (
        jax.ShapeDtypeStruct(*s) for s in (*shapes, ((3,), "float32"), ((24,), "float32"))
    )
    run = functools.partial(mhc_pre, constants=CONSTANTS)
    traced = jax.jit(run).trace(x, MHCParams(*params))
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("mosaic_gpu_v2") == 1
    assert "st.async.weak.shared::cluster" in text and "cp.async.cg.shared.global" in text
    # What waits for all memory of a multiprocessor to be written would do so in every step.
    assert "arrive.release" not in text and "acquire.cluster" not in text
