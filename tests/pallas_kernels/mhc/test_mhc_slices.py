"""The backward pass of hyper-connections by slices: interpreted against float64, and lowered."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn.ops._mhc import pallas
from jaxgnn.ops._mhc.reference import mhc_layer, mhc_post, mhc_post_pre, mhc_pre
from jaxgnn.testing import assert_close, random_array
from pallas_kernels.arguments.mhc import MHCConstants, MHCParams, PostInputs
from pallas_kernels.chip import Chip
from pallas_kernels.mhc.slices import tokens as tokens_kernel
from pallas_kernels.mhc.slices.backward import FollowingPost, SlicesTile, slices_backward
from pallas_kernels.mhc.slices.post import PrecedingPost, SlicesPostTile, slices_post_backward
from pallas_kernels.mhc.slices.shapes import Slices, TokenParts
from pallas_kernels.mhc.slices.shares import Shares
from pallas_kernels.mhc.slices.sums import Partial, add_up
from pallas_kernels.mhc.slices.tokens import token_parts
from pallas_kernels.tensor_cores import aligned
from pallas_kernels.tensor_cores.bfloat16_parts import split
from tests.ops.mhc._mhc import exactly, outputs, parameters, streams, streams_gradients
from tests.pallas_kernels._chips import H100, on_a_chip
from tests.pallas_kernels._emulator import emulated

# (tokens, n, dim), whether there is a gradient to add, or one to mix, and a tile: rings that come
# round, ranges of which some are shorter, blocks that take the rest of two slices, a last tile that
# is cut off.
CASES = {
    "ranges": ((264, 4, 128), "add", SlicesTile(Shares(2), warpgroups=2, stages=3, slots=2)),
    "two streams": ((328, 2, 64), "add", SlicesTile(Shares(1), warpgroups=2, stages=2, slots=3)),
    "rest": ((584, 2, 192), "add", SlicesTile(Shares(2, 2, 2), warpgroups=2, stages=3, slots=2)),
    "nothing": ((136, 4, 64), None, SlicesTile(Shares(1), warpgroups=4, stages=2, slots=2)),
    "nothing, ranges": ((264, 4, 128), None, SlicesTile(Shares(2), 2, stages=6, slots=2)),
    "mixed": ((264, 4, 128), "mix", SlicesTile(Shares(2), warpgroups=2, stages=4, slots=2)),
    "mixed, two": ((200, 2, 64), "transposed", SlicesTile(Shares(1), 2, stages=2, slots=3)),
    "mixed, rest": ((392, 4, 192), "transposed", SlicesTile(Shares(1, 3, 2), 2, 4, slots=2)),
}
POSTS = {
    "ranges": ((264, 4, 128), False, SlicesPostTile(Shares(2), 4, 5, 2, slots=2)),
    "as chosen": ((328, 4, 64), True, SlicesPostTile(Shares(2), 4, 4, 1, slots=2)),
    "rest": ((392, 4, 192), False, SlicesPostTile(Shares(1, 3, 2), 4, 4, 1, slots=2)),
    "short rings": (
        (136, 4, 64),
        True,
        SlicesPostTile(Shares(1), 2, 2, 1, 3, reverse=True, together=1),
    ),
}


CONSTANTS = MHCConstants(norm_eps=1e-6, pre_eps=1e-3, post_scale=2.0)


def _assert_all_close(actual, expected, length):
    pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    for i, (a, e) in enumerate(pairs):
        assert_close(a, e, reduction_length=length, err_msg=f"result {i}")


def _parts(h_pre, scale, dh_mix, *of_post):
    """These as the kernels take them."""
    padding = -dh_mix.shape[1] % 32
    parts = split(jnp.pad(dh_mix, ((0, 0), (0, padding))))
    more = [a.reshape(len(a), -1) for a in of_post]
    coefficients = jnp.concatenate([h_pre, scale[:, None], *more], axis=1)
    return TokenParts(jnp.concatenate([*parts], axis=1), coefficients.T)


def _inputs(tokens, n, dim):
    """The streams, ``dh_in``, a gradient to add, phi, and what there is of tokens."""
    rows, shape = n * n + 2 * n, (tokens, n, dim)
    shapes = shape, (tokens, dim), shape
    arrays = [random_array(s, "bfloat16", seed=k) for k, s in enumerate(shapes)]
    shapes = (rows, n * dim), (tokens, n), (tokens,), (tokens, rows)
    weight, *token = (random_array(s, "float32", seed=k + 3) for k, s in enumerate(shapes))
    return *arrays, weight, token


@pytest.mark.costly(3)
@pytest.mark.parametrize("shape, gradient, tile", CASES.values(), ids=CASES)
def test_every_tile_gives_the_gradients(interpreted, shape, gradient, tile):
    x, dh_in, dy, weight, token = _inputs(*shape)
    given = x, dh_in, dy if gradient == "add" else None, weight
    following, transposed = None, gradient == "transposed"
    if gradient == "mix" or transposed:
        coefficients = outputs(shape[:1], *shape[1:])[1:]
        following = FollowingPost(*coefficients, dy, transposed)
    with interpreted():
        parts = _parts(*token, *(following[:2] if following else ()))
        sums, dx = slices_backward(*given, parts, tile, following)
    made = jnp.sum(sums, axis=0).T, dx

    def reference(following, x, dh_in, dx, *rest):
        if following is not None:
            dx = mhc_post.mixed(following.h_res, following.dy, transposed=not transposed)
        return streams_gradients(x, dh_in, dx, *rest)

    exact = exactly(reference, following and following._replace(transposed=None), *given, *token)
    _assert_all_close(made, exact, max(shape))


@pytest.mark.again("test_every_tile_gives_the_gradients")
@pytest.mark.costly
@pytest.mark.parametrize("shape, transposed, tile", POSTS.values(), ids=POSTS)
def test_every_tile_gives_the_gradients_through_post(interpreted, shape, transposed, tile):
    tokens, n, dim = shape
    *given, token = _inputs(*shape)
    post = PostInputs(
        streams((tokens,), n, dim, "bfloat16"), *outputs((tokens,), n, dim, "bfloat16")
    )
    with interpreted():
        parts = _parts(*token, post.h_post, post.h_res)
        preceding = PrecedingPost(post.x, post.f, transposed)
        sums, *old, products = slices_post_backward(*given, parts, preceding, tile)
    products = jnp.sum(products, axis=0).T
    of_post = products[:, :n], products[:, n:].reshape(tokens, n, n)
    made = jnp.sum(sums, axis=0).T, *old, *of_post

    def reference(post, *given):
        dweight, total = streams_gradients(*given)
        return dweight, *mhc_post.mhc_post_backward(*post, total, transposed=transposed)

    _assert_all_close(made, exactly(reference, post, *given, *token), n * dim)


# Groups of 8 and 16 lanes, some without a token; one block, and two that take turns.
@pytest.mark.emulated
@pytest.mark.parametrize("tokens, n, dim, blocks", [(9, 4, 64, 9), (35, 2, 256, 2)])
def test_what_there_is_of_tokens(monkeypatch, tokens, n, dim, blocks):
    monkeypatch.setattr(tokens_kernel, "_BLOCKS_EACH", 1)
    on_a_chip(monkeypatch, multiprocessors=blocks)
    x, params = streams((tokens,), n, dim, "bfloat16"), MHCParams(*parameters(n, dim)[:3])
    _, saved = mhc_pre.mhc_pre(x, params, constants=CONSTANTS)
    cotangents = outputs((tokens,), n, dim, "bfloat16")
    with emulated():
        of_post = [random_array((tokens, k), "float32", seed=k) for k in (n, n * n)]
        given = x, params, saved, cotangents, CONSTANTS, of_post
        parts, sums, zeros = token_parts(*given, reverse=n == 2, zeros=True)
        of_phi = jnp.zeros((1, n * dim, n * n + 2 * n))
        _, *small = add_up(Slices(n, dim), Partial(of_phi, sums))
    assert zeros is not None and zeros.shape == (n + n * n, tokens) and not zeros.any()
    given = x, params, saved, cotangents, None
    exact, exact_params = exactly(mhc_pre.gradients, *given, constants=CONSTANTS)
    _assert_all_close(small, exact_params[1:3], tokens * dim)
    # What else there is, is what the gradients to streams and phi are made of.
    dh_mix = jnp.sum(parts.dh_mix.astype(jnp.float32).reshape(tokens, 3, -1), axis=1)
    rows = n * n + 2 * n
    assert not dh_mix[:, rows:].any()
    kept = parts.coefficients[n + 1 :].T
    assert jnp.array_equal(kept, jnp.concatenate(of_post, axis=1))
    h_pre, scale = parts.coefficients[:n].T, parts.coefficients[n]
    made = streams_gradients(
        *(a.astype(jnp.float32) for a in (x, cotangents[0])),
        None,
        params.phi,
        h_pre,
        scale,
        dh_mix[:, :rows],
    )
    _assert_all_close(made, (exact_params.phi, exact), tokens * dim)


# More ranges, slices and blocks than are read at once; a last span of tokens that is cut off.
@pytest.mark.emulated
@pytest.mark.parametrize("n, ranges, blocks, posts", [(2, 11, 3, False), (4, 3, 70, True)])
def test_partial_sums_are_added_up(n, ranges, blocks, posts):
    form, tokens = Slices(n, 64), 40
    shapes = [(ranges, n * 64, form.rows), (blocks, 2, form.padded), (9, n + n * n, tokens)]
    shapes = shapes[: 2 + posts]
    arrays = [random_array(s, "float32", seed=k) for k, s in enumerate(shapes)]
    with emulated():
        made = add_up(form, Partial(*arrays))
    of_phi, of_tokens, *products = (np.sum(np.asarray(a, "float64"), axis=0) for a in arrays)
    dbias, by_row = of_tokens[:, : form.rows]
    dalpha = [part.sum() for part in np.split(by_row, [n, 2 * n])]
    exact = [of_phi.T, np.array(dalpha), dbias]
    for of_token in products:
        exact += [of_token[:n].T, of_token[n:].T.reshape(tokens, n, n)]
    _assert_all_close(made, exact, max(ranges, blocks * n * n))


@pytest.mark.again("tests/pallas_kernels/mhc/test_mhc.py")
def test_the_ops_take_them(interpreted):
    tokens, n, dim = 72, 4, 64
    inputs = streams((tokens,), n, dim, "bfloat16"), MHCParams(*parameters(n, dim))
    _, saved = mhc_pre.mhc_pre(*inputs, constants=CONSTANTS)
    dx_streams = random_array((tokens, n, dim), "bfloat16", seed=9)
    given = *inputs, saved, outputs((tokens,), n, dim, "bfloat16"), dx_streams
    with emulated(), interpreted():
        made = pallas.mhc_pre_backward(*given, constants=CONSTANTS)
    exact = exactly(mhc_pre.mhc_pre_backward, *given, constants=CONSTANTS)
    _assert_all_close(made, exact, tokens * dim)


@pytest.mark.costly
@pytest.mark.parametrize("transposed", [True, False])
def test_tokens_that_fill_no_group_are_padded(interpreted, transposed):
    tokens, n, dim = 17, 4, 64
    x, of_post = streams((tokens,), n, dim, "bfloat16"), outputs((tokens,), n, dim, "bfloat16")
    post, params = PostInputs(x, *of_post), MHCParams(*parameters(n, dim))
    cotangents = (
        random_array((tokens, n, dim), "bfloat16", seed=9),
        *outputs((tokens,), n, dim, "bfloat16"),
    )
    options = {"transposed": transposed, "constants": CONSTANTS}
    (y, *_), saved = mhc_post_pre.mhc_post_pre(post, params, **options)
    with emulated(), interpreted():
        given = post, params, y, saved, cotangents
        made = pallas.mhc_post_pre_backward(*given, deterministic=True, **options)
    exact = exactly(mhc_post_pre.mhc_post_pre_backward, *given, **options)
    _assert_all_close(made, exact, tokens * dim)


def test_tokens_that_fill_no_group_are_padded_in_a_layer(interpreted):
    tokens, n, dim = 13, 4, 64
    x, params = streams((tokens,), n, dim, "bfloat16"), MHCParams(*parameters(n, dim))
    _, saved = mhc_pre.mhc_pre(x, params, constants=CONSTANTS)
    of_pre = outputs((tokens,), n, dim, "bfloat16")
    of_post = outputs((tokens,), n, dim, "bfloat16", 0.5)[1:]
    dy, options = random_array((tokens, n, dim), "bfloat16", seed=9), {"transposed": True}
    arrays = x, params, saved, of_pre, of_post, dy
    with emulated(), interpreted():
        assert pallas.has_paired_backward(x)
        gradients = pallas.mhc_layer_pre_backward(*arrays, **options, constants=CONSTANTS)
    exact = exactly(mhc_layer.mhc_layer_pre_backward, *arrays, **options, constants=CONSTANTS)
    _assert_all_close(gradients, exact, tokens * dim)


def _tile(tokens, n, dim, adds=True, mixes=False, dtype="bfloat16", chip=H100):
    return SlicesTile.choose(chip, tokens, Slices(n, dim, adds, mixes), jnp.dtype(dtype))


@pytest.mark.parametrize("adds, mixes", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("tokens, dim", [(8, 64), (16384, 1280), (8192, 7168), (100_000, 8192)])
def test_tiles_are_one_wave_within_shared_memory(tokens, dim, n, adds, mixes):
    tile = _tile(tokens, n, dim, adds, mixes)
    tiles, slices, shares = -(-tokens // 64), dim // 64, tile.shares
    assert shares.blocks(slices) <= 132
    assert 1 <= shares.ranges <= tiles - shares.rest
    assert (shares.rest > 0) == (shares.others > 0)
    # No block has more tiles than it had if nothing was left to others.
    assert -(-slices // max(1, shares.others)) * shares.rest <= -(-tiles // shares.ranges)
    form, piece = Slices(n, dim, adds, mixes), 64 * 64 * 2
    held = tile.warpgroups * tile.stages * piece * (1 + adds) + 2 * n * form.padded * 128
    coefficients = n + 1 + (n + n * n) * mixes
    of_tokens = piece * (1 + n * mixes) + 64 * form.width * 2 + aligned(coefficients * 64 * 4)
    assert held + tile.slots * of_tokens <= H100.shared_bytes


@pytest.mark.parametrize(
    "slices, tokens, shares, longest",
    [
        (112, 8192, Shares(1, 17, 20), 111),  # 128 tiles, if nothing was left to others
        (20, 16384, Shares(6, 16, 12), 40),  # 43
        (8, 16384, Shares(16), 16),
        (133, 640, Shares(1), 10),
    ],
)
def test_what_is_left_to_others_makes_the_longest_block_shorter(slices, tokens, shares, longest):
    assert Shares.even(H100, slices, tokens) == shares
    own = -(-(-(-tokens // 64) - shares.rest) // shares.ranges)
    of_others = -(-slices // shares.others) * shares.rest if shares.rest else 0
    assert max(own, of_others) == longest


def test_what_they_do_not_take_is_left_to_other_kernels():
    refused = [(0, 4, 64), (64, 8, 64)]
    assert all(_tile(*shape) is None for shape in refused)
    assert _tile(64, 4, 64, dtype="float32") is None
    assert _tile(64, 4, 64) is not None
    assert SlicesPostTile.choose(H100, 64, Slices(2, 64), jnp.bfloat16) is None
    assert _tile(64, 4, 64, chip=Chip.named("B200")) is None


@pytest.mark.again("tests/pallas_kernels/test_lowering.py")
@pytest.mark.lowers
@pytest.mark.costly
@pytest.mark.parametrize("tokens, n, dim", [(8192, 2, 7168), (16384, 4, 1280)])
def test_they_lower_at_real_shapes(tokens, n, dim):
    """Lowering refuses too much shared memory."""

    def struct(*shape, dtype="float32"):
        return jax.ShapeDtypeStruct(shape, dtype)

    rows, bf16, form = n * n + 2 * n, "bfloat16", Slices(n, dim)
    x, dh_in = struct(tokens, n, dim, dtype=bf16), struct(tokens, dim, dtype=bf16)
    token = TokenParts(struct(tokens, form.width, dtype=bf16), struct(n + 1, tokens))
    given = x, dh_in, x, struct(rows, n * dim), token

    def lowers(function, *arguments, **arrays):
        traced = jax.jit(function).trace(*arguments, **arrays)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
        return text.count("mosaic_gpu_v2") == 1

    of_post = token._replace(coefficients=struct(n + 1 + n + n * n, tokens))
    h_post, h_res = struct(tokens, n), struct(tokens, n, n)
    for dx, dy, of_token in ((None, None, token), (x, None, token), (None, x, of_post)):
        tile = _tile(tokens, n, dim, dx is not None, dy is not None)
        arguments = *given[:2], dx, given[3], of_token

        def gradients(*arguments, tile=tile):
            *arguments, following = arguments
            following = following and FollowingPost(*following, False)
            return slices_backward(*arguments, tile, following)

        assert lowers(gradients, *arguments, dy and (h_post, h_res, dy))
    tile = SlicesPostTile.choose(H100, tokens, form, jnp.bfloat16)
    # Products of each slice, or their sums: nothing interprets those, so here and on GPUs only.
    for totals in (None, struct(n + n * n, tokens)):
        arguments = *given[:2], x, given[3], of_post, (x, dh_in)

        def through_post(*arguments, totals):
            *arguments, post = arguments
            return slices_post_backward(*arguments, PrecedingPost(*post, False), tile, totals)

        assert tile is None or lowers(through_post, *arguments, totals=totals)
