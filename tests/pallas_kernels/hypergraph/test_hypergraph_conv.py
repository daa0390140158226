"""The mixing of small hypergraphs: kernels on the emulator against float64, and lowered."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, PartitionSpec

import jaxgnn
from jaxgnn import Incidence, nn, ops
from jaxgnn.ops._hypergraph import pallas
from jaxgnn.ops._hypergraph.hypergraph_conv import MIX, MIX_BACKWARD
from jaxgnn.ops.core import dispatch
from jaxgnn.testing import random_array
from pallas_kernels.dense import activations as dense_activations
from pallas_kernels.hypergraph import hypergraph_conv as kernels
from tests.ops.hypergraph._mixing import check, exactly, inputs, integers, large_and_small
from tests.pallas_kernels._chips import H100, on_a_chip
from tests.pallas_kernels._emulator import emulated

# (tokens, nodes, width, dtype, activation): one token and several of a warp, ends in the middle of
# one, columns of several blocks, every number of nodes and every activation.
CASES = [
    (1, 1, 32, "float32", None),
    (7, 2, 64, "bfloat16", "silu"),
    (50, 3, 96, "float32", "gelu"),
    (7, 4, 160, "bfloat16", None),
    (3, 5, 128, "float16", "mish"),
    (2, 6, 256, "float32", "gelu_exact"),
    (26, 7, 32, "float16", "gelu"),
    (5, 8, 256, "float32", "gelu"),
    (13, 8, 128, "bfloat16", "gelu_exact"),
]


def _both(given, dy, activation):
    x, matrix, bias, residual = given
    with emulated():
        y = pallas.mix(x, matrix, bias, residual, activation=activation)
        return y, *pallas.mix_backward(x, matrix, bias, dy, activation=activation)


@pytest.mark.costly
@pytest.mark.emulated
@pytest.mark.parametrize("tokens, nodes, width, dtype, activation", CASES)
def test_value_and_gradients(tokens, nodes, width, dtype, activation):
    dy = random_array((tokens, nodes, width), dtype, seed=9)
    given = inputs(tokens, nodes, width, dtype, residual=nodes != 4, bias=nodes != 3)
    check(_both(given, dy, activation), activation, given, dy)


@pytest.mark.emulated
@pytest.mark.parametrize("activation", ["relu", "squared_relu"])
def test_units_that_are_off_are_off_exactly(activation):
    given = integers(5, 3, 32, "float32")
    dy = given[3].at[0, 0, 0].set(jnp.inf)
    made = _both(given, dy, activation)
    for a, e in zip(made[:2], exactly(activation, given, dy)[:2], strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-6)
    assert set(dense_activations.ACTIVATIONS) == set(ops.Activation.__args__)


@pytest.mark.emulated
@pytest.mark.parametrize("activation", dense_activations.ACTIVATIONS)
def test_activations_of_large_and_small_numbers(activation):
    given = large_and_small()
    made = _both(given, jnp.ones_like(given[0]), activation)
    exact = exactly(activation, given, jnp.ones_like(given[0]))
    for a, e in zip(made[:2], exact[:2], strict=True):
        np.testing.assert_allclose(a, e, rtol=2e-6, atol=1e-6)


@pytest.mark.emulated
def test_blocks_that_take_turns_at_the_tokens(monkeypatch):
    chip = on_a_chip(monkeypatch, multiprocessors=4)
    given = inputs(150, 2, 64, "float32")
    assert kernels.MixTile.choose(chip, given[0], 2).ranges == 4
    dy = random_array(given[0].shape, "float32", seed=9)
    check(_both(given, dy, "gelu"), "gelu", given, dy)
    monkeypatch.setattr(kernels, "_WARPS", (4,))
    check(_both(given, dy, "silu"), "silu", given, dy)


@pytest.mark.emulated
def test_what_is_not_finite_stays_with_its_token():
    x, *rest = inputs(9, 3, 32, "float32")
    bad = x.at[2, 1, 5].set(jnp.nan).at[4, 0, 0].set(jnp.inf)
    kept = np.array([0, 1, 3, 5, 6, 7, 8])
    (y, dx, *_), (bad_y, bad_dx, dmatrix, dbias) = (_both((x, *rest), x, "gelu") for x in (x, bad))
    np.testing.assert_array_equal(y[kept], bad_y[kept])
    np.testing.assert_array_equal(dx[kept], bad_dx[kept])
    assert np.isnan(bad_y[2, :, 5]).all() and np.isfinite(np.delete(bad_y[2], 5, axis=1)).all()
    assert np.isnan(bad_dx[2, :, 5]).all()
    assert np.isnan(dmatrix).any() and np.isnan(dbias[5]) and np.isfinite(dbias[6:]).all()


# Nodes 0 and 1 share something, and 2 and 3, but nothing reaches 3 from 2: a weight of zero.
APART = np.array(
    [[0.5, 0.5, 0, 0], [0.5, 0.25, 0, 0], [0, 0, 1, -0.0], [0, 0, -0.0, 1]], np.float32
)


@pytest.mark.costly
@pytest.mark.emulated
@pytest.mark.parametrize(
    "activation, dtype", [(None, "float32"), ("gelu", "bfloat16"), ("relu", "float32")]
)
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_with_the_terms_that_there_are(number, activation, dtype):
    x, _, *rest = inputs(9, 4, 32, dtype)
    dy = random_array(x.shape, dtype, seed=9)
    bad_x, bad_dy = x.at[2, 0, 5].set(number).at[6, 2, 7].set(number), dy.at[4, 1, 3].set(number)
    given = jnp.asarray(APART), *rest
    good, bad = (_both((x, *given), dy, activation) for x, dy in ((x, dy), (bad_x, bad_dy)))
    expected = exactly(activation, (bad_x, *given), bad_dy)
    for made, right, without in zip(bad, expected, good, strict=True):
        made, without = (np.asarray(a, np.float32) for a in (made, without))
        right = np.asarray(right, np.float32)
        if activation != "gelu":  # whose slope at an infinity kernels make NaN
            np.testing.assert_array_equal(np.isfinite(made), np.isfinite(right))
            np.testing.assert_array_equal(np.isnan(made), np.isnan(right))
        if made.ndim == 3:
            reached = np.zeros(made.shape, bool)
            reached[2, :2, 5] = reached[6, 2:, 7] = reached[4, :2, 3] = True
            np.testing.assert_array_equal(made[~reached], without[~reached])
    # Of -0, a term.
    assert not np.isfinite(np.asarray(bad[0][6, 3, 7], np.float32)) or activation == "relu"


@pytest.mark.parametrize("width", [32, 96, 256, 8000, 8192])
@pytest.mark.parametrize("tokens", [1, 100, 32768, 2**21])
def test_tiles_cover_all_tokens_within_bounds(tokens, width):
    for nodes, dtype, arrays in itertools.product((1, 5, 8), ("float32", "bfloat16"), (1, 2)):
        x = jax.ShapeDtypeStruct((tokens, nodes, width), dtype)
        tile = kernels.MixTile.choose(H100, x, arrays)
        ring = tile.warps * (tile.ahead + 1) * arrays * nodes * 128 * x.dtype.itemsize
        others = 4 * kernels._fixed_words(nodes, tile.warps)
        assert tile.ahead >= 1 and ring + others <= H100.shared_bytes
        assert width % tile.columns_per_block == 0
        # No block has nothing to do.
        assert (tile.ranges - 1) * tile.warps * tile.tokens_per_warp < tokens
        # One wave, if columns alone do not make more blocks.
        assert tile.ranges == 1 or tile.ranges * (width // tile.columns_per_block) <= 132


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(dispatch, "current_platform", lambda: "cuda")


def _kernels(function, *arguments) -> list[str]:
    """Which kernels it lowers to, in order; the backward one has two results."""
    lowered = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",))
    lines = [line for line in lowered.as_text().splitlines() if "mosaic_gpu_v2" in line]
    return ["backward" if ":2 = " in line else "forward" for line in lines]


def _structs(*shapes, dtype="float32"):
    return [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]


PAIRS = {
    n: Incidence.from_hyperedges([{i, (i + 1) % n} for i in range(n)], n) for n in (2, 3, 8, 9)
}


def _convolution(nodes=8, *, path="mixing", implementation="pallas", **options):
    def loss(x, kernel, bias, weight):
        given = {"kernel": kernel, "bias": bias, "residual": x[..., : kernel.shape[1]], **options}
        how = {"path": path, "implementation": implementation}
        y = ops.hypergraph_conv(x, PAIRS[nodes], weight, **given, **how)
        return jnp.sum(y.astype(jnp.float32) ** 2)

    return jax.value_and_grad(loss, argnums=(0, 1, 2, 3))


@pytest.mark.lowers
@pytest.mark.costly
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "batch, nodes, width, out",
    [
        ((32768,), 8, 256, 256),
        ((4, 8192), 8, 1024, 512),
        ((8449,), 3, 96, 32),
        ((), 2, 64, 64),
    ],
)
def test_it_lowers_with_its_gradients(batch, nodes, width, out, dtype):
    for activation in ("gelu", None):
        x, kernel, bias = _structs((*batch, nodes, width), (width, out), (out,), dtype=dtype)
        (weight,) = _structs((PAIRS[nodes].num_hyperedges,))
        loss = _convolution(nodes, activation=activation)
        made = _kernels(loss, x, kernel, bias, weight)
        # What is mixed in front of the product is mixed again for the gradient.
        first = ["forward"] * (1 if batch else 2)
        assert made == [*first, "backward"]


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_wider_kernel_is_behind_the_mixing():
    x, kernel, bias, weight = _structs((4096, 8, 64), (64, 128), (128,), (8,))

    def loss(x, kernel, bias, weight):
        options = {"activation": "relu", "path": "mixing", "implementation": "pallas"}
        return jnp.sum(
            ops.hypergraph_conv(x, PAIRS[8], weight, kernel=kernel, bias=bias, **options)
        )

    gradient = jax.value_and_grad(loss, argnums=(0, 1, 2, 3))
    assert _kernels(gradient, x, kernel, bias, weight) == ["forward", "forward", "backward"]


@pytest.mark.again("tests/pallas_kernels/test_lowering.py")
@pytest.mark.lowers
@pytest.mark.usefixtures("as_on_a_gpu")
def test_it_lowers_under_vmap_checkpoint_shard_map_and_deterministic_mode():
    x, kernel, bias, weight = _structs((8, 2048, 8, 64), (64, 64), (64,), (8,))
    gradient = jax.checkpoint(_convolution(activation="gelu"))
    with jaxgnn.deterministic():
        assert "backward" in _kernels(gradient, x, kernel, bias, weight)
    batched = jax.vmap(gradient, (0, None, None, None))
    assert "backward" in _kernels(batched, x, kernel, bias, weight)
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    rows, shared = PartitionSpec("data"), PartitionSpec()
    sharded = jax.shard_map(
        lambda *given: gradient(*given)[1],
        mesh=mesh,
        in_specs=(rows, shared, shared, shared),
        out_specs=(rows, shared, shared, shared),
    )
    assert "backward" in _kernels(sharded, x, kernel, bias, weight)


@pytest.mark.again("test_value_and_gradients")
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("activation", [jax.nn.gelu, "silu", None])
def test_layers_of_the_coupler_are_kernels(activation):
    coupler = nn.ExpertCoupler(64, 8, layers=2, activation=activation, rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(coupler)

    def loss(state, x):
        return jnp.sum(nnx.merge(graphdef, state).couple(x) ** 2)

    (x,) = _structs((4096, 8, 64))
    made = _kernels(jax.grad(loss, argnums=(0, 1)), state, x)
    assert made == ["forward"] * 2 + ["backward"] * 2


@pytest.mark.usefixtures("as_on_a_gpu")
def test_none_takes_many_tokens_of_small_hypergraphs():
    def taken(nodes, width, tokens):
        arguments = _structs((tokens, nodes, width), (width, width), (width,), (nodes,))
        return _kernels(_convolution(nodes, path="auto", implementation=None), *arguments)

    assert taken(8, 64, 1024) == ["forward", "backward"]
    assert not taken(8, 64, 1023) and not taken(9, 64, 4096) and not taken(8, 48, 4096)
    (x,) = _structs((4096, 8, 64))
    assert not _kernels(jax.vmap(lambda x: ops.hypergraph_conv(x, PAIRS[8])), x)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_nothing_is_launched_for_no_tokens():
    assert not _kernels(_convolution(), *_structs((0, 8, 64), (64, 64), (64,), (8,)))


@pytest.mark.usefixtures("as_on_a_gpu")
def test_what_the_kernels_do_not_take_is_named():
    def refused(message, nodes, width, dtype="float32"):
        given = _structs((9, nodes, width), (width, width), (width,), dtype=dtype)
        with pytest.raises(NotImplementedError, match=message):
            jax.eval_shape(_convolution(nodes), *given, *_structs((nodes,)))

    refused(r"hypergraph_conv.mix\[pallas\]: needs at most 8 nodes, got 9", 9, 64)
    refused("multiple of 32 up to 8192, got 48", 8, 48)
    refused("multiple of 32 up to 8192, got 8224", 8, 8224)
    with jax.enable_x64(True):
        refused("values, got float64", 8, 64, "float64")


def test_both_tables_have_the_same_names():
    assert set(MIX.implementations) == set(MIX_BACKWARD.implementations) == {"xla", "pallas"}


@pytest.mark.again("tests/ops/test_verify.py")
@pytest.mark.emulated
def test_verify_checks_the_kernels(monkeypatch):
    """Strictly, also what is made for the gradient."""
    given = inputs(3, 2, 32, "float32")
    original = kernels.mix_backward

    def spoilt(*arguments):
        dx, *others = original(*arguments)
        return 1.01 * dx, *others

    x, matrix, bias, residual = given
    run = functools.partial(MIX_BACKWARD, activation="gelu")
    monkeypatch.setattr(dispatch, "current_platform", lambda: "cuda")
    with jaxgnn.verify("strict"), emulated():
        request = dispatch.resolve("hypergraph_conv", "pallas")
        run(request, x, matrix, bias, residual)
        monkeypatch.setattr(kernels, "mix_backward", spoilt)
        with pytest.raises(ops.VerificationError, match=r"mix_backward\[pallas\]\[0\]"):
            run(request, x, matrix, bias, residual)
