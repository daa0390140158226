"""The GPU kernels of hyper-connections against float64, over poisoned memory."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import deterministic, ops
from jaxgnn.ops._mhc import pallas
from jaxgnn.ops._mhc.mhc_pre import MHC_PRE
from jaxgnn.ops._mhc.reference import mhc_layer as layer_reference
from jaxgnn.ops._mhc.reference import mhc_post as post_reference
from jaxgnn.ops._mhc.reference import mhc_post_pre as post_pre_reference
from jaxgnn.ops._mhc.reference import mhc_pre as pre_reference
from jaxgnn.ops._mhc.reference import sinkhorn as sinkhorn_reference
from jaxgnn.testing import DTYPES, assert_bit_equal, assert_close, random_array
from pallas_kernels.arguments.mhc import MHCConstants, MHCParams, PostInputs
from tests.ops.mhc._mhc import exactly, outputs, parameters, streams

pytestmark = [pytest.mark.gpu, pytest.mark.costly(4)]

PALLAS = {"implementation": "pallas"}
PRE = {"norm_eps": 1e-6, "pre_eps": 1e-3, "post_scale": 2.0}
CONSTANTS = MHCConstants(**PRE)
# (tokens, n, dim): the last have blocks of many tokens, that take turns, and the widest streams.
SHAPES = [
    (1, 4, 64),
    (17, 2, 192),
    (100, 8, 512),
    (333, 4, 320),
    (9001, 4, 64),
    (300, 4, 8192),
    (3100, 8, 128),
    (3100, 4, 2880),
    (9001, 4, 1280),
]
# Widths that clusters of 3, 4, 6, 7 and 8 blocks share, in bfloat16.
CLUSTERS = [(5000, 4, 960), (700, 4, 1024), (700, 4, 1344), (700, 4, 1792), (5000, 4, 2560)]
# Tokens in groups of eight, whose backward pass tensor cores make of slices of 64 columns.
SLICES = [(9000, 4, 1280), (72, 4, 64), (4104, 4, 320), (16384, 4, 512)]
# Tokens too wide for clusters, forward in two passes: half a block without tokens, and shares.
WIDE = [(72, 4, 8192), (4104, 4, 4160)]
# Kernels of projections support four streams of bfloat16. Odd tokens are padded backward.
PROJECTED = [shape for shape in SHAPES + CLUSTERS + SLICES + WIDE if shape[1] == 4]


@pytest.fixture(scope="module", autouse=True)
def needs_kernels():
    if MHC_PRE.unavailable("pallas", "cuda"):
        pytest.skip(f"reason: {MHC_PRE.unavailable('pallas', 'cuda')}")


def _poison(*shape_dtypes):
    """What the allocator hands out next holds NaN."""
    jax.block_until_ready([jnp.full(shape, jnp.nan, dtype) for shape, dtype in shape_dtypes])


def _with_gradients(function, inputs, cotangent):
    @jax.jit
    def both(inputs, cotangent):
        y, pull_back = jax.vjp(function, *inputs)
        return y, pull_back(cotangent)

    return both(inputs, cotangent)


def _assert_all_close(actual, expected, length):
    pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    for i, (a, e) in enumerate(pairs):
        assert_close(a, e, reduction_length=length, err_msg=f"result {i}")


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("tokens, n, dim", PROJECTED)
def test_pre_agrees_with_float64(tokens, n, dim, scale):
    dtype = "bfloat16"
    inputs = streams((tokens,), n, dim, dtype, scale), *parameters(n, dim)
    cotangents = outputs((tokens,), n, dim, dtype)
    dx_streams = random_array((tokens, n, dim), dtype, seed=9)
    x, *params = inputs
    params = MHCParams(*params)
    (exact, saved) = exactly(pre_reference.mhc_pre, x, params, constants=CONSTANTS)
    for return_streams in (False, True):
        added, exact_streams = ((dx_streams,), inputs[:1]) if return_streams else ((), ())
        given = (x, params, saved, cotangents, *added)
        exact_gradients = exactly(pre_reference.mhc_pre_backward, *given, constants=CONSTANTS)
        _poison(((tokens, n, dim), dtype), ((tokens, n, n), "float32"))
        pre = functools.partial(ops.mhc_pre, return_streams=return_streams, **PRE, **PALLAS)
        made, gradients = _with_gradients(pre, inputs, (*added, *cotangents))
        _assert_all_close(made, (*exact_streams, *exact), n * dim)
        _assert_all_close(gradients, exact_gradients, max(n, tokens) * dim)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens, n, dim", SHAPES)
def test_post_agrees_with_float64(tokens, n, dim, dtype, transposed):
    inputs = streams((tokens,), n, dim, dtype, 3.0), *outputs((tokens,), n, dim, dtype, 0.5)
    dy = random_array((tokens, n, dim), dtype, seed=9)
    options = {"transposed": transposed}
    exact = exactly(post_reference.mhc_post, *inputs, **options)
    exact_gradients = exactly(post_reference.mhc_post_backward, *inputs, dy, **options)
    _poison(((tokens, n, dim), dtype), ((tokens, n, n), "float32"))
    post = functools.partial(ops.mhc_post, **options, **PALLAS)
    y, gradients = _with_gradients(post, inputs, dy)
    assert_close(y, exact, reduction_length=n + 1)
    _assert_all_close(gradients, exact_gradients, dim)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("tokens, n, dim", [*PROJECTED, (1024, 4, 4096)])
def test_post_pre_agrees_with_float64(tokens, n, dim, transposed):
    dtype = "bfloat16"
    inputs = streams((tokens,), n, dim, dtype), *outputs((tokens,), n, dim, dtype)
    weights = MHCParams(*parameters(n, dim))
    cotangents = random_array((tokens, n, dim), dtype, seed=9), *outputs((tokens,), n, dim, dtype)
    post_pre = functools.partial(ops.mhc_post_pre, transposed=transposed, **PRE, **PALLAS)
    for fixed in (False, True):
        _poison(((tokens, n, dim), dtype), ((tokens, n, n), "float32"))
        with deterministic(fixed):
            made, gradients = _with_gradients(post_pre, (*inputs, *weights), cotangents)
        y, *made = made
        exact = exactly(post_reference.mhc_post, *inputs, transposed=transposed)
        assert_close(y, exact, reduction_length=n + 1)
        exact, saved = exactly(pre_reference.mhc_pre, y, weights, constants=CONSTANTS)
        _assert_all_close(made, exact, n * dim)
        given = PostInputs(*inputs), weights, y, saved, cotangents
        options = {"transposed": transposed, "constants": CONSTANTS}
        exact = exactly(post_pre_reference.mhc_post_pre_backward, *given, **options)
        _assert_all_close(gradients, exact, max(n, tokens) * dim)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("tokens, n, dim", [*SLICES, *WIDE, (9001, 4, 1280), (1, 4, 64)])
def test_linked_ends_of_a_layer_agree_with_float64(tokens, n, dim, transposed):
    x, weights = streams((tokens,), n, dim, "bfloat16"), MHCParams(*parameters(n, dim))
    cotangents = outputs((tokens,), n, dim, "bfloat16")
    f, *of_post = outputs((tokens,), n, dim, "bfloat16", 0.5)
    dy, options = random_array((tokens, n, dim), "bfloat16", seed=9), {"transposed": transposed}
    _, saved = exactly(pre_reference.mhc_pre, x, weights, constants=CONSTANTS)
    saved = jax.tree.map(lambda a: a.astype(jnp.float32), saved)
    _poison(((tokens, n, dim), "bfloat16"), ((tokens, n, n), "float32"))
    assert pallas.has_paired_backward(x)
    given = x, weights, saved, cotangents, (of_post[0], of_post[1]), dy
    made = pallas.mhc_layer_pre_backward(*given, **options, constants=CONSTANTS)
    options_of_pre = {**options, "constants": CONSTANTS}
    exact = exactly(layer_reference.mhc_layer_pre_backward, *given, **options_of_pre)
    _assert_all_close(made, exact, max(n, tokens) * dim)
    given = x, f, *of_post, dy
    made = pallas.mhc_layer_post_backward(*given, **options)
    exact = exactly(layer_reference.mhc_layer_post_backward, *given, **options)
    _assert_all_close(made, exact, dim)


@pytest.mark.parametrize("eps", [0.0, 1e-6])
@pytest.mark.parametrize("last", ["rows", "columns"])
@pytest.mark.parametrize("n, count", [(2, 1), (4, 5000), (8, 1001)])
def test_sinkhorn_agrees_with_float64(n, count, last, eps):
    logits, dh = (random_array((count, n, n), "float32", seed=s) for s in (1, 2))
    options = {"iterations": 20, "eps": eps, "last": last}
    exact = exactly(sinkhorn_reference.sinkhorn, logits, **options)
    exact_gradient = exactly(sinkhorn_reference.sinkhorn_backward, logits, dh, **options)
    _poison(((count, n, n), "float32"))
    h, (dlogits,) = _with_gradients(
        functools.partial(ops.sinkhorn, **options, **PALLAS), (logits,), dh
    )
    assert_close(h, exact, reduction_length=40 * n)
    assert_close(dlogits, exact_gradient, reduction_length=40 * n)


def _layer(x, *parameters):
    return ops.mhc_layer(jnp.sin, x, *parameters, **PALLAS)


def _ops_apart(x, *parameters):
    x, h_in, h_post, logits = ops.mhc_pre(x, *parameters, return_streams=True, **PALLAS)
    return ops.mhc_post(x, jnp.sin(h_in), h_post, ops.sinkhorn(logits, **PALLAS), **PALLAS)


@pytest.mark.parametrize("tokens, n, dim", [(65, 4, 128), (72, 4, 8192)])
def test_what_is_not_finite_stays_with_its_token(tokens, n, dim):
    x, weights = streams((tokens,), n, dim, "bfloat16"), parameters(n, dim)
    bad = x.at[3, 0, 1].set(jnp.nan).at[64, 1, 127].set(jnp.inf)
    kept = np.delete(np.arange(tokens), [3, 64])
    layer = jax.jit(_layer)
    good, made = (np.asarray(layer(x, *weights)).astype(np.float32) for x in (x, bad))
    np.testing.assert_array_equal(made[kept], good[kept])
    assert np.isnan(made[3]).all() and np.isnan(made[64]).any()


def _boundary(x, *parameters):
    tokens, n, dim = x.shape
    between = outputs((tokens,), n, dim, x.dtype)
    y, h_in, h_post, logits = ops.mhc_post_pre(x, *between, *parameters, **PALLAS)
    y, h_in = (a.astype(jnp.float32) for a in (y, h_in))
    return y * h_post[..., None] + logits @ y + h_in[:, None]


# The last two have blocks that take the rest of several slices, or two passes forward.
@pytest.mark.parametrize("function", [_layer, _ops_apart, _boundary])
@pytest.mark.parametrize("tokens, dim", [(5000, 256), (9000, 1280), (2048, 4160)])
def test_gradients_repeat_to_the_bit(tokens, dim, function):
    inputs = streams((tokens,), 4, dim, "bfloat16"), *parameters(4, dim)

    def loss(*inputs):
        return jnp.sum(function(*inputs).astype(jnp.float32) ** 2)

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3, 4)))
    with deterministic():
        first = gradient(*inputs)
        for _ in range(5):
            assert_bit_equal(gradient(*inputs), first)


def test_batches_and_captured_graphs_of_many_layers():
    x, weights = streams((3, 40), 4, 64, "bfloat16"), parameters(4, 64)

    @jax.jit
    def network(x):
        for _ in range(6):
            x = _layer(x, *weights)
        return x

    together = network(x)
    assert_bit_equal(jax.jit(jax.vmap(network))(x), together)
    assert_bit_equal(network(x), together)


@pytest.mark.parametrize("function", [_layer, _boundary])
@pytest.mark.parametrize("fixed", [False, True])
def test_gradients_of_a_batch_are_those_of_its_members(function, fixed):
    x, weights = streams((3, 72), 4, 64, "bfloat16"), parameters(4, 64)

    def gradient(x):
        return jax.grad(lambda x: jnp.sum(function(x, *weights).astype(jnp.float32) ** 2))(x)

    with deterministic(fixed):
        alone = jnp.stack([*map(jax.jit(gradient), x)])
        assert_close(jax.jit(jax.vmap(gradient))(x), alone, reduction_length=4 * 64)
