"""The kernels of hyper-connections: on the emulator against float64, and lowered at real shapes."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from jaxgnn import deterministic, ops
from jaxgnn.ops._mhc import pallas
from jaxgnn.ops._mhc.reference import mhc_post as post_reference
from jaxgnn.ops._mhc.reference import mhc_pre as pre_reference
from jaxgnn.ops._mhc.reference import sinkhorn as sinkhorn_reference
from jaxgnn.ops.core import dispatch
from jaxgnn.testing import (
    DTYPES,
    assert_bit_equal,
    assert_close,
    random_array,
    to_float64,
)
from pallas_kernels import simt
from pallas_kernels.arguments.mhc import MHCConstants, MHCParams, PostInputs
from pallas_kernels.chip import Chip
from pallas_kernels.mhc import mhc_pre
from pallas_kernels.simt import blocks, launching
from pallas_kernels.tensor_cores.bfloat16_parts import products, split
from tests.ops.mhc._mhc import outputs, parameters, streams
from tests.pallas_kernels._chips import H100, on_a_chip
from tests.pallas_kernels._emulator import emulated

# (tokens, n, dim): every number of streams, narrow and wide, few and odd tokens.
SHAPES = [
    (1, 4, 64),
    (3, 2, 192),
    (17, 4, 512),
    (17, 8, 64),
    (3, 8, 512),
    (100, 2, 64),
    (100, 4, 192),
]
# Few and odd tokens of four streams, whose backward pass pads them to a multiple of 8.
PROJECTED = [(1, 4, 64), (17, 4, 512), (100, 4, 192)]
# Tokens and width of four streams, as in training.
REAL = [(16384, 512), (16384, 1280), (8192, 2560), (8192, 7168)]


@functools.cache  # one function for each, so that JAX compiles it once
def _compiled(function, options):
    return jax.jit(functools.partial(function, **dict(options)))


def _exactly(function, *arguments, **options):
    """In float64; None stays None."""
    with jax.enable_x64(True):
        return _compiled(function, tuple(options.items()))(*to_float64(arguments))


def _assert_all_close(actual, expected, length):
    assert len(actual) == len(expected)
    pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    for i, (a, e) in enumerate(pairs):
        assert_close(a, e, reduction_length=length, err_msg=f"result {i}")


def _post_inputs(tokens, n, dim, dtype, scale=1.0):
    return streams((tokens,), n, dim, dtype, scale), *outputs((tokens,), n, dim, dtype, scale)


@pytest.mark.costly
@pytest.mark.emulated
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens, n, dim", SHAPES)
def test_post_and_its_gradients(tokens, n, dim, dtype, transposed):
    for scale in (0.1, 3.0):
        inputs = _post_inputs(tokens, n, dim, dtype, scale)
        dy = random_array(inputs[0].shape, dtype, seed=9)
        with emulated():
            y = pallas.mhc_post(*inputs, transposed=transposed)
            gradients = pallas.mhc_post_backward(*inputs, dy, transposed=transposed)
            without_dx = pallas.mhc_layer_post_backward(*inputs, dy, transposed=transposed)
        assert_bit_equal(without_dx, gradients[1:])
        exact = _exactly(post_reference.mhc_post, *inputs, transposed=transposed)
        assert_close(y, exact, reduction_length=n + 1)
        exact = _exactly(post_reference.mhc_post_backward, *inputs, dy, transposed=transposed)
        _assert_all_close(gradients, exact, dim)


@pytest.mark.emulated
@pytest.mark.parametrize("n", [2, 4, 8])
def test_what_is_not_finite_in_post_stays_with_its_token(n):
    inputs = _post_inputs(9, n, 64, "float32")
    x, f, h_post, h_res = inputs
    bad = x.at[2, 1, 5].set(jnp.nan), f.at[8].set(jnp.inf), h_post, h_res.at[4, 0, 1].set(jnp.nan)
    with emulated():
        good = pallas.mhc_post_backward(*inputs, x, transposed=False)
        made = pallas.mhc_post_backward(*bad, x, transposed=False)
        good += (pallas.mhc_post(*inputs, transposed=False),)
        made += (pallas.mhc_post(*bad, transposed=False),)
    kept = np.array([0, 1, 3, 5, 6, 7])
    for a, b in zip(made, good, strict=True):
        np.testing.assert_array_equal(np.asarray(a)[kept], np.asarray(b)[kept])
    assert np.isnan(made[-1][2]).any() and np.isnan(made[-1][4]).any()


SINKHORN = {"rows": {"last": "rows", "eps": 1e-6}, "columns": {"last": "columns", "eps": 1e-6}}
SINKHORN |= {f"{last}, logarithms": {"last": last, "eps": 0.0} for last in ("rows", "columns")}


@pytest.mark.costly
@pytest.mark.emulated
@pytest.mark.parametrize("options", SINKHORN.values(), ids=SINKHORN)
@pytest.mark.parametrize("n, count", [(2, 1), (4, 100), (8, 17)])
def test_sinkhorn_and_its_gradient(n, count, options):
    for iterations, scale in ((1, 1.0), (2, 3.0), (20, 1.0)):
        options = {**options, "iterations": iterations}
        logits = random_array((count, n, n), "float32", seed=1, scale=scale)
        dh = random_array((count, n, n), "float32", seed=2)
        with emulated():
            h = pallas.sinkhorn(logits, **options)
            dlogits = pallas.sinkhorn_backward(logits, dh, **options)
        exact = _exactly(sinkhorn_reference.sinkhorn, logits, **options)
        assert_close(h, exact, reduction_length=2 * n * iterations)
        exact = _exactly(sinkhorn_reference.sinkhorn_backward, logits, dh, **options)
        assert_close(dlogits, exact, reduction_length=2 * n * iterations)


@pytest.mark.emulated
@pytest.mark.parametrize("eps", [0.0, 1e-6])
@pytest.mark.parametrize("n", [2, 4, 8])
def test_what_is_not_finite_in_sinkhorn_stays_with_its_matrix(n, eps):
    logits, dh = (random_array((40, n, n), "float32", seed=s) for s in (1, 2))
    bad = logits.at[3, 0, 1].set(jnp.nan).at[20, 1, 1].set(jnp.inf).at[39, 0, 0].set(-jnp.inf)
    options = {"iterations": 3, "eps": eps, "last": "rows"}
    kept = np.delete(np.arange(40), [3, 20, 39])
    with emulated():
        for run in (
            lambda x: pallas.sinkhorn(x, **options),
            lambda x: pallas.sinkhorn_backward(x, dh, **options),
        ):
            good, made = np.asarray(run(logits)), np.asarray(run(bad))
            np.testing.assert_array_equal(made[kept], good[kept])
            assert np.isnan(made[[3, 20, 39]]).all()


@pytest.mark.emulated
def test_sinkhorn_does_not_underflow_in_logarithms():
    logits = jnp.asarray([[[0.0, -90.0], [-300.0, 0.0]], [[400.0, 0.0], [0.0, -400.0]]])
    options = {"iterations": 20, "eps": 0.0, "last": "rows"}
    with emulated():
        h = pallas.sinkhorn(logits, **options)
        dlogits = pallas.sinkhorn_backward(logits, logits / 100, **options)
    exact = _exactly(sinkhorn_reference.sinkhorn, logits, **options)
    np.testing.assert_allclose(h, exact, rtol=1e-4, atol=1e-30)
    assert np.isfinite(np.asarray(dlogits)).all()


def _pre_inputs(tokens, n, dim, dtype, scale=1.0):
    return streams((tokens,), n, dim, dtype, scale), MHCParams(*parameters(n, dim))


PRE = {"norm_eps": 1e-6, "pre_eps": 1e-3, "post_scale": 2.0}
CONSTANTS = MHCConstants(**PRE)
_reference_of_pre = jax.jit(functools.partial(pre_reference.mhc_pre, constants=CONSTANTS))


@pytest.mark.costly
@pytest.mark.emulated
@pytest.mark.parametrize("tokens, n, dim", PROJECTED)
def test_pre(tokens, n, dim):
    for scale in (0.1, 1.0, 3.0):
        inputs = _pre_inputs(tokens, n, dim, "bfloat16", scale)
        with emulated():
            results, saved = pallas.mhc_pre(*inputs, constants=CONSTANTS)
        exact, exactly_saved = _exactly(pre_reference.mhc_pre, *inputs, constants=CONSTANTS)
        _assert_all_close([*results, *saved], [*exact, *exactly_saved], n * dim)


@pytest.mark.costly
@pytest.mark.emulated
@pytest.mark.parametrize(
    "tokens, n, dim, scale, return_streams",
    [(17, 4, 64, 3.0, True), (9, 4, 128, 1.0, False), (1, 4, 64, 0.1, True)],
)
def test_the_gradients_of_pre_at_any_number_of_tokens(
    interpreted, tokens, n, dim, scale, return_streams
):
    inputs = _pre_inputs(tokens, n, dim, "bfloat16", scale)
    _, saved = _reference_of_pre(*inputs)
    dx_streams = random_array(inputs[0].shape, "bfloat16", seed=9) if return_streams else None
    arrays = (*inputs, saved, outputs((tokens,), n, dim, "bfloat16"), dx_streams)
    with emulated(), interpreted():
        gradients = pallas.mhc_pre_backward(*arrays, constants=CONSTANTS)
    exact = _exactly(pre_reference.mhc_pre_backward, *arrays, constants=CONSTANTS)
    _assert_all_close(gradients, exact, max(n, tokens) * dim)


@pytest.mark.emulated
def test_padding_does_not_change_a_bit_of_the_gradients(interpreted):
    """Tokens of zeros that the caller adds, with gradients of zero, are the padding of the op."""
    inputs, rows = _pre_inputs(9, 4, 64, "bfloat16"), ((0, 7),)
    _, saved = _reference_of_pre(*inputs)
    arrays = inputs[0], saved, outputs((9,), 4, 64, "bfloat16")
    padded = jax.tree.map(lambda a: jnp.pad(a, (*rows, *[(0, 0)] * (a.ndim - 1))), arrays)
    with emulated(), interpreted():
        (dx, few), (dx_padded, many) = (
            pallas.mhc_pre_backward(x, inputs[1], *rest, constants=CONSTANTS)
            for x, *rest in (arrays, padded)
        )
    assert dx.shape == (9, 4, 64)
    assert_bit_equal((dx, few), (dx_padded[:9], many))


@pytest.mark.emulated
def test_blocks_of_many_tokens_that_take_turns(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCKS_PER_MULTIPROCESSOR", 1)
    on_a_chip(monkeypatch, multiprocessors=2)
    x, params = _pre_inputs(150, 4, 64, "bfloat16")
    exact, exactly_saved = _exactly(pre_reference.mhc_pre, x, params, constants=CONSTANTS)
    for fragments, warps in ((4, 4), (2, 8), (2, 16)):
        with emulated():
            tile = mhc_pre.MhcPreTile(fragments, warps)
            results = mhc_pre.mhc_pre(x, params.folded(), CONSTANTS, tile)
        _assert_all_close(results, [*exact, *exactly_saved], 4 * 64)


@pytest.mark.again("tests/pallas_kernels/hypergraph/test_hypergraph_conv.py")
@pytest.mark.costly
@pytest.mark.emulated
def test_what_is_not_finite_in_pre_stays_with_its_token(interpreted):
    n = 4
    x, params = _pre_inputs(33, n, 64, "bfloat16")
    bad = x.at[3, 0, 1].set(jnp.nan).at[32, 1, 63].set(jnp.inf)
    cotangents = outputs((33,), n, 64, "bfloat16")
    kept = np.delete(np.arange(33), [3, 32])

    def run(x):
        with emulated(), interpreted():
            results, saved = pallas.mhc_pre(x, params, constants=CONSTANTS)
            arrays = x, params, saved, cotangents, x
            dx, _ = pallas.mhc_pre_backward(*arrays, constants=CONSTANTS)
        return [np.asarray(a).astype(np.float64) for a in (*results, *saved, dx)]

    for a, b in zip(run(bad), run(x), strict=True):
        np.testing.assert_array_equal(a[kept], b[kept])
    h_in, *_, dx = run(bad)
    assert np.isnan(h_in[3]).all() and np.isnan(dx[3]).all() and np.isnan(h_in[32]).any()


@pytest.mark.costly
@pytest.mark.emulated
@pytest.mark.parametrize("tokens, dim, transposed", [(17, 64, False), (33, 128, True)])
def test_post_pre(tokens, dim, transposed):
    """Values of ``mhc_pre`` are those of the new streams, which are rounded between."""
    inputs = PostInputs(*_post_inputs(tokens, 4, dim, "bfloat16"))
    params = MHCParams(*parameters(4, dim))
    with emulated():
        (y, *results), saved = pallas.mhc_post_pre(
            inputs, params, transposed=transposed, constants=CONSTANTS
        )
    exact = _exactly(post_reference.mhc_post, *inputs, transposed=transposed)
    assert_close(y, exact, reduction_length=4 + 1)
    exact, exactly_saved = _exactly(pre_reference.mhc_pre, y, params, constants=CONSTANTS)
    _assert_all_close([*results, *saved], [*exact, *exactly_saved], 4 * dim)


def test_three_bfloat16_parts_are_a_float32():
    x = random_array((1000,), "float32", seed=1)
    parts = np.asarray(split(x)).astype(np.float64)
    np.testing.assert_array_equal(parts.sum(0), x)
    assert products(1, 3) == [(0, 2), (0, 1), (0, 0)]
    assert products(2, 2) == [(0, 1), (1, 0), (0, 0)]
    assert len(products(3, 3)) == 6


@pytest.mark.parametrize("tokens, dim", [*REAL, (1, 64), (100_000, 64), (100, 8192)])
def test_sums_of_a_block_fit_its_shared_memory(tokens, dim):
    tile = mhc_pre.MhcPreTile.choose(tokens, 4, dim)
    scratch = launching._Scratch(simt.Grid(1, tile.warps), {}, tile.shared(4))
    assert 4 * scratch.words <= H100.shared_bytes


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(dispatch, "current_platform", lambda: "cuda")


def _structs(*shape_dtypes):
    return [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shape_dtypes]


def _lines(function, *arguments) -> list[str]:
    """What it lowers to."""
    lowered = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",))
    return lowered.as_text().splitlines()


def _kernels(function, *arguments) -> list[str]:
    """The kernels that it lowers to, in order."""
    return [line for line in _lines(function, *arguments) if "mosaic_gpu_v2" in line]


def _with_gradients(function):
    """The value and the gradients to all arguments but the last, a cotangent."""

    def both(*arguments):
        y, pull_back = jax.vjp(function, *arguments[:-1])
        return y, pull_back(arguments[-1])

    return both


@pytest.mark.lowers
@pytest.mark.costly
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [2, 4, 8])
@pytest.mark.parametrize("tokens, dim", REAL)
def test_post_lowers_with_its_gradients(tokens, dim, n, dtype):
    shape, f32 = (2, tokens // 2, n, dim), "float32"
    inputs = _structs(
        (shape, dtype), ((*shape[:2], dim), dtype), (shape[:3], f32), ((*shape[:3], n), f32)
    )
    post = functools.partial(ops.mhc_post, implementation="pallas")
    assert len(_kernels(_with_gradients(post), *inputs, inputs[0])) == 2


@pytest.mark.lowers
@pytest.mark.costly
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("eps", [0.0, 1e-6])
@pytest.mark.parametrize("n", [2, 4, 8])
@pytest.mark.parametrize("tokens", [8192, 16384])
def test_sinkhorn_lowers_with_its_gradient(tokens, n, eps):
    (logits,) = _structs(((2, tokens // 2, n, n), "float32"))
    sinkhorn = functools.partial(ops.sinkhorn, eps=eps, implementation="pallas")
    assert len(_kernels(_with_gradients(sinkhorn), logits, logits)) == 2


def _pre_structs(batch, n, dim, dtype):
    rows, f32 = n * n + 2 * n, "float32"
    shapes = [(rows, n * dim), (3,), (rows,), (n, dim)]
    return _structs(((*batch, n, dim), dtype), *((shape, f32) for shape in shapes))


@pytest.mark.lowers
@pytest.mark.costly
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(
    "tokens, dim, return_streams",
    [*((*size, i % 2 == 0) for i, size in enumerate(REAL)), (16_378, 1280, True)],
)
def test_pre_lowers_with_its_gradients(tokens, dim, return_streams):
    batch, n, dtype = (2, tokens // 2), 4, "bfloat16"
    inputs = _pre_structs(batch, n, dim, dtype)
    shapes = ((dim,), dtype), ((n,), "float32"), ((n, n), "float32")
    cotangents = tuple(_structs(*(((*batch, *shape), kind) for shape, kind in shapes)))
    pre = functools.partial(ops.mhc_pre, implementation="pallas")
    if return_streams:
        pre, cotangents = functools.partial(pre, return_streams=True), (inputs[0], *cotangents)
    in_two_passes = dim >= 4096
    kernels = _kernels(_with_gradients(pre), *inputs, cotangents)
    assert len(kernels) == 4 + in_two_passes


@pytest.mark.lowers
@pytest.mark.costly
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(
    "tokens, n, dim, dtype, kernels",
    [
        (8192, 4, 2560, "bfloat16", 4),
        (8192, 4, 7168, "bfloat16", 6),
        (8191, 4, 512, "bfloat16", 4),
    ],
)
def test_post_pre_lowers_with_its_gradients(tokens, n, dim, dtype, kernels):
    f32 = "float32"
    x, *parameters = _pre_structs((tokens,), n, dim, dtype)
    between = _structs(((tokens, dim), dtype), ((tokens, n), f32), ((tokens, n, n), f32))
    post_pre = functools.partial(ops.mhc_post_pre, implementation="pallas")
    cotangents = (x, *between)
    assert len(_kernels(_with_gradients(post_pre), x, *between, *parameters, cotangents)) == kernels


@pytest.mark.again("tests/pallas_kernels/mhc/test_mhc_slices.py")
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("fixed", [False, True])
def test_inner_products_of_slices_are_in_memory_only_for_sums_in_a_fixed_order(fixed):
    tokens, n, dim, f32 = 1024, 4, 512, "float32"
    x, *parameters = _pre_structs((tokens,), n, dim, "bfloat16")
    between = _structs(((tokens, dim), "bfloat16"), ((tokens, n), f32), ((tokens, n, n), f32))
    post_pre = functools.partial(ops.mhc_post_pre, implementation="pallas")
    with deterministic(fixed):
        lines = _kernels(_with_gradients(post_pre), x, *between, *parameters, (x, *between))
    products = f"tensor<{dim // 64 if fixed else 1}x{n + n * n}x{tokens}xf32>"
    assert products in lines[-1].split("->")[0]


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("tokens", [16384, 16383])
def test_linked_ends_of_a_layer_write_one_array_of_the_streams_less(tokens):
    """Beside the new streams and the gradient to the old ones there is a part of the latter."""
    layer = functools.partial(ops.mhc_layer, lambda h: h, implementation="pallas")
    x, *parameters = _pre_structs((tokens,), 4, 1280, "bfloat16")
    lines = _kernels(_with_gradients(layer), x, *parameters, x)
    streams_written = r"tensor<1638[34]x(4x1280|5120)xbf16>"
    results = " ".join(line.split("->")[-1] for line in lines)
    assert (len(lines), len(re.findall(streams_written, results))) == (8, 2)


def _layer_loss(x, *parameters, return_streams=True):
    named = {"implementation": "pallas"}
    returned, h_in, h_post, logits = ops.mhc_pre(x, *parameters, return_streams=True, **named)
    x = returned if return_streams else x
    y = ops.mhc_post(x, jnp.sin(h_in), h_post, ops.sinkhorn(logits, **named), **named)
    return jnp.sum(y.astype(jnp.float32) ** 2)


@pytest.mark.lowers
@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_layer_lowers_under_vmap_checkpoint_and_shard_map():
    x, *parameters = _pre_structs((8, 3), 4, 64, "bfloat16")
    gradient = jax.grad(jax.checkpoint(_layer_loss), argnums=(0, 1, 2, 3, 4))
    batched = jax.vmap(gradient, (0, None, None, None, None))
    assert len(_kernels(batched, x, *parameters)) == 3 + 5
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    rows, shared = PartitionSpec("data"), PartitionSpec()
    sharded = jax.shard_map(
        gradient, mesh=mesh, in_specs=(rows, *[shared] * 4), out_specs=(rows, *[shared] * 4)
    )
    assert _kernels(sharded, x, *parameters)


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("axis", ["slice", "cluster", "rank", "group", "warpgroup", "block"])
def test_an_axis_of_a_mesh_is_not_taken_for_one_of_the_grid(axis):
    x, *parameters = _pre_structs((8,), 4, 64, "bfloat16")

    def sharded(axis):
        mesh = jax.make_mesh((2,), (axis,), axis_types=(AxisType.Auto,))
        specs = PartitionSpec(axis), *[PartitionSpec()] * 4
        pre = functools.partial(ops.mhc_pre, implementation="pallas")
        return jax.shard_map(pre, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(axis))

    # The code of a kernel that asked for its place in the mesh would be longer.
    (kernel,), (other,) = (_kernels(sharded(name), x, *parameters) for name in (axis, "data"))
    assert abs(len(kernel) - len(other)) < 100


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("return_streams", [False, True])
def test_no_pass_of_its_own_adds_the_gradients_of_returned_streams(return_streams):
    x, *parameters = _pre_structs((8,), 4, 64, "bfloat16")
    gradient = jax.grad(functools.partial(_layer_loss, return_streams=return_streams))
    sums = [line for line in _lines(gradient, x, *parameters) if "stablehlo.add" in line]
    assert any("tensor<8x4x64xbf16>" in line for line in sums) != return_streams


@pytest.mark.usefixtures("as_on_a_gpu")
def test_nothing_is_launched_for_no_tokens():
    x, *parameters = _pre_structs((0,), 4, 64, "bfloat16")
    gradient = jax.value_and_grad(_layer_loss, argnums=(0, 1, 2, 3, 4))
    assert not _kernels(gradient, x, *parameters)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_none_does_not_take_what_was_not_measured():
    x, (phi, alpha, bias, _) = _pre_inputs(2, 4, 64, "float32")
    assert not _kernels(lambda x: ops.mhc_pre(x, phi, alpha, bias), x)
    between = x[:, 0], x[:, :, 0], x[:, :, :4]
    assert not _kernels(lambda x: ops.mhc_post_pre(x, *between, phi, alpha, bias), x)
    assert not _kernels(lambda x: ops.mhc_post(x, x[:, 0], x[:, :, 0], x[:, :, :4]), x)
    assert not _kernels(lambda x: ops.sinkhorn(x[:, :, :4]), x)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_what_the_kernels_do_not_take_is_named():
    post = functools.partial(ops.mhc_post, implementation="pallas")

    def refused(message, function, *arguments):
        with pytest.raises(NotImplementedError, match=message):
            jax.eval_shape(function, *arguments)

    refused("2, 4 or 8 streams, got 3", post, *_post_inputs(2, 3, 64, "float32"))
    refused("multiple of 64 up to 8192, got 96", post, *_post_inputs(2, 4, 96, "float32"))
    refused("float32 or bfloat16 values, got float16", post, *_post_inputs(2, 4, 64, "float16"))
    pre = functools.partial(ops.mhc_pre, implementation="pallas")
    x, lite = streams((2,), 4, 64, "bfloat16"), parameters(4, 64, rows=32)
    refused("phi of 24 rows for 4 streams, got 32", pre, x, *lite)
    wide = streams((2,), 4, 65, "bfloat16"), *parameters(4, 65)
    refused("multiple of 64 up to 8192, got 65", pre, *wide)
    post_pre = functools.partial(ops.mhc_post_pre, implementation="pallas")
    inputs = _post_inputs(2, 4, 64, "bfloat16")
    refused("phi of 24 rows for 4 streams, got 32", post_pre, *inputs, *lite)
    layer = functools.partial(ops.mhc_layer, jnp.tanh, implementation="pallas")
    for n, dtype, message in (
        (2, "bfloat16", "needs 4 streams, got 2"),
        (8, "bfloat16", "needs 4 streams, got 8"),
        (4, "float32", "needs bfloat16 values, got float32"),
    ):
        x, projection = streams((2,), n, 64, dtype), parameters(n, 64)
        refused(message, pre, x, *projection)
        refused(message, layer, x, *projection)
        refused(message, post_pre, *_post_inputs(2, n, 64, dtype), *projection)
    sinkhorn = functools.partial(ops.sinkhorn, implementation="pallas")
    refused("2, 4 or 8 streams, got 5", sinkhorn, jnp.zeros((2, 5, 5)))
    refused("float32 values, got bfloat16", sinkhorn, jnp.zeros((2, 4, 4), "bfloat16"))
    long = jax.grad(lambda x: jnp.sum(ops.sinkhorn(x, iterations=999, implementation="pallas")))
    refused("needs at most 226 iterations of 4 streams, got 999", long, jnp.zeros((2, 4, 4)))


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("name", ["B200", "RTX5090", "H100"])
def test_the_choice_depends_on_the_gpu_in_both_directions(monkeypatch, name):
    """Slices need tensor cores of 9.0; other GPUs were not timed."""
    chip = Chip.named(name)
    monkeypatch.setattr("pallas_kernels.chip._current", lambda: chip)
    x, *parameters = _pre_structs((16_384,), 4, 1280, "bfloat16")

    def loss(x, *parameters):
        y = ops.mhc_layer(jnp.tanh, x, *parameters)
        return jnp.sum(y.astype(jnp.float32) ** 2)

    kernels = _kernels(jax.value_and_grad(loss), x, *parameters)
    assert len(kernels) == (8 if name == "H100" else 0)
    if name != "H100":
        pre = functools.partial(ops.mhc_pre, implementation="pallas")
        needs = f"needs a GPU of compute capability 9.0, got {chip.capability}"
        with pytest.raises(NotImplementedError, match=needs):
            jax.eval_shape(pre, x, *parameters)
