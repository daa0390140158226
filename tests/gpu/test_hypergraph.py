"""The kernels of small hypergraphs against float64, over poisoned memory."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import Incidence, deterministic, nn, ops
from jaxgnn.ops._hypergraph.hypergraph_conv import MIX, MIX_BACKWARD
from jaxgnn.ops.core import dispatch
from jaxgnn.testing import assert_bit_equal, assert_close, random_array
from tests.ops.hypergraph._mixing import check, exactly, inputs, integers, large_and_small

pytestmark = [pytest.mark.gpu, pytest.mark.costly(4)]

DTYPES = ["float32", "bfloat16", "float16"]
SMOOTH = ["gelu", "gelu_exact", "silu", "mish", None]
# (tokens, nodes, width): lone tokens; several of a warp; columns of several blocks, also of so many
# that a multiprocessor has several; blocks with many turns.
SHAPES = [
    (1, 1, 32),
    (1, 8, 256),
    (7, 2, 64),
    (7, 5, 96),
    (300, 3, 1024),
    (8449, 8, 32),
    (8449, 1, 160),
    (8449, 5, 256),
    (8449, 8, 256),
    (200, 8, 8000),
]


@pytest.fixture(scope="module", autouse=True)
def needs_kernels():
    if MIX.unavailable("pallas", "cuda"):
        pytest.skip(f"reason: {MIX.unavailable('pallas', 'cuda')}")


def _poison(*arrays):
    """What the allocator hands out next holds NaN."""
    jax.block_until_ready([jnp.full(a.shape, jnp.nan, a.dtype) for a in arrays for _ in (0, 1)])


@functools.cache
def _compiled(activation):
    @jax.jit
    def both(x, matrix, bias, residual, dy):
        request = dispatch.resolve("hypergraph_conv", "pallas")
        y = MIX(request, x, matrix, bias, residual, activation=activation)
        return y, *MIX_BACKWARD(request, x, matrix, bias, dy, activation=activation)

    return both


def _both(activation, given, dy):
    _poison(dy, jnp.zeros((400, 300)))
    return _compiled(activation)(*given, dy)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens, nodes, width", SHAPES)
def test_kernels_agree_with_float64(tokens, nodes, width, dtype):
    dy = random_array((tokens, nodes, width), dtype, seed=9)
    # In turns, so that every activation meets every dtype and several shapes.
    turn = SHAPES.index((tokens, nodes, width)) + 2 * DTYPES.index(dtype)
    for i, there in enumerate((True, False)):
        activation = SMOOTH[(turn + i) % len(SMOOTH)]
        given = inputs(tokens, nodes, width, dtype, bias=there or turn % 3 == 0, residual=there)
        check(_both(activation, given, dy), activation, given, dy)


@pytest.mark.parametrize("activation", ["relu", "squared_relu"])
@pytest.mark.parametrize("tokens, nodes, width", SHAPES[2:6])
def test_units_that_are_off_pass_no_infinite_gradient(tokens, nodes, width, activation):
    given = integers(tokens, nodes, width, "float32")
    dy = given[3].at[0, 0, 0].set(jnp.inf)
    made, exact = _both(activation, given, dy), exactly(activation, given, dy)
    for a, e in zip(made[:2], exact[:2], strict=True):
        assert_close(a, e, reduction_length=nodes)


@pytest.mark.parametrize("activation", [*SMOOTH, "relu", "squared_relu"])
def test_activations_of_large_and_small_numbers(activation):
    given = large_and_small()
    dy = jnp.ones_like(given[0])
    made, exact = _both(activation, given, dy), exactly(activation, given, dy)
    for a, e in zip(made[:2], exact[:2], strict=True):
        np.testing.assert_allclose(a, e, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_repeat_to_the_bit(dtype):
    given = inputs(8449, 8, 256, dtype)
    dy = random_array(given[0].shape, dtype, seed=9)
    with deterministic():
        first, second = (_both("gelu", given, dy) for _ in range(2))
    assert_bit_equal(first, second)


def _incidence(nodes):
    """The first node, the first two, and so on; and the last one."""
    first = [set(range(i + 1)) for i in range(nodes)]
    return Incidence.from_hyperedges([*first, {nodes - 1}], nodes)


def _gradients(nodes, x, kernel, bias, weight, **options):
    def loss(x, kernel, bias, weight):
        given = {"kernel": kernel, "bias": bias, "activation": "gelu", "precision": "highest"}
        if kernel.shape[0] == kernel.shape[1]:
            given["residual"] = x
        y = ops.hypergraph_conv(x, _incidence(nodes), weight, **given, **options)
        return jnp.sum(jnp.sin(y.astype(jnp.float32)))

    return jax.value_and_grad(loss, argnums=(0, 1, 2, 3))(x, kernel, bias, weight)


def _near(actual, expected, tolerance):
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        a, e = (np.asarray(array).astype(np.float64) for array in (a, e))
        np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance * np.abs(e).max())


# As many nodes as kernels take, and more; a product of as many columns, more, and fewer.
@pytest.mark.parametrize("implementation", ["pallas", None])
@pytest.mark.parametrize("nodes", [8, 16])
@pytest.mark.parametrize("width, out", [(64, 64), (64, 128), (256, 96)])
def test_the_op_agrees_with_its_reference(width, out, nodes, implementation):
    x = random_array((2, 1031, nodes, width), "float32", seed=1)
    kernel = random_array((width, out), "float32", seed=2, scale=width**-0.5)
    bias = random_array((out,), "float32", seed=3)
    weight = abs(random_array((nodes + 1,), "float32", seed=4)) + 0.25
    given = x, kernel, bias, weight
    how = {"path": "mixing", "implementation": implementation}
    if nodes == 16 and implementation:
        with pytest.raises(NotImplementedError, match="at most 8 nodes, got 16"):
            _gradients(nodes, *given, **how)
        return
    expected = jax.jit(functools.partial(_gradients, nodes, implementation="xla"))(*given)
    made = jax.jit(functools.partial(_gradients, nodes, **how))(*given)
    _near(made, expected, 2e-4)
    # Tokens one by one, under vmap.
    apply = functools.partial(_gradients, nodes, **how)
    batched = jax.jit(jax.vmap(apply, in_axes=(0, None, None, None)))(*given)
    _near(batched[1][0], expected[1][0], 2e-4)
    _near(jax.tree.map(lambda g: g.sum(axis=0), batched[1][1:]), expected[1][1:], 2e-4)


def test_tokens_under_vmap_are_mixed_by_the_named_kernel():
    x = random_array((33, 3, 64), "float32", seed=1)
    apply = functools.partial(ops.hypergraph_conv, incidence=_incidence(3), path="mixing")
    each = jax.jit(jax.vmap(lambda x: apply(x, implementation="pallas")))(x)
    _near(each, apply(x, implementation="xla"), 1e-5)


@pytest.mark.parametrize("activation", [jax.nn.gelu, None, jnp.tanh])
def test_the_coupler_agrees_with_its_reference(activation):
    x = random_array((4, 512, 8, 64), "float32", seed=1)

    def run(**options):
        coupler = nn.ExpertCoupler(64, 8, activation=activation, rngs=nnx.Rngs(0), **options)
        for layer in coupler.layers:
            layer.precision = "highest"
        graphdef, state = nnx.split(coupler)

        def loss(state, x):
            return jnp.sum(jnp.sin(nnx.merge(graphdef, state).couple(x)))

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(state, x)

    expected = run(implementation="xla")
    _near(run(), expected, 5e-4)
    _near(run(path="mixing", implementation="pallas"), expected, 5e-4)
