"""The GPU kernels of aggregation against float64, over poisoned memory."""

import functools

import jax
import jax.numpy as jnp
import pytest

import jaxgnn
from jaxgnn import ops
from jaxgnn.ops._graph import pallas as graph_calls
from jaxgnn.testing import assert_bit_equal, random_array
from pallas_kernels.aggregate.aggregate import forward
from pallas_kernels.arguments.aggregate import Form
from pallas_kernels.chip import Chip
from pallas_kernels.graph.spmm import SpmmTile
from tests.gpu.test_attention import GRAPHS
from tests.pallas_kernels.aggregate._cases import ALL, PNA, check, gradient, numbers_of

pytestmark = [pytest.mark.gpu, pytest.mark.costly(4)]


@pytest.fixture(scope="module", autouse=True)
def needs_kernels():
    if Chip.current().generation < 9:
        pytest.skip(f"reason: Mosaic GPU kernels need an H100 or newer, got {Chip.current().name}")


@functools.cache
def _graph(name):
    return GRAPHS[name]().prepared()


def _check(name, form, dim, dtype="float32", tile=None):
    graph = _graph(name)
    # What the allocator hands out next holds NaN.
    rows = max(graph.shape)
    jax.block_until_ready([jnp.full((rows, dim), jnp.nan) for _ in range(8)])
    check(graph, form, dim, dtype, tile)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("ties", ["share", "first"])
@pytest.mark.parametrize("name", GRAPHS)
def test_all_reductions_of_neighbours_agree_with_float64(name, ties, dtype):
    _check(name, Form(ALL, False, ties), 64, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", GRAPHS)
def test_all_reductions_of_messages_agree_with_float64(name, dtype):
    _check(name, Form(ALL, True), 16, dtype)


@pytest.mark.parametrize("reduction", ALL)
def test_each_reduction_alone_agrees_with_float64(reduction):
    _check("padded", Form((reduction,), False), 24)


@pytest.mark.parametrize("dim", [1, 7, 32, 100, 256, 300])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_width_agrees_with_float64(dtype, dim):
    _check("padded", Form(PNA, False), dim, dtype)


@pytest.mark.parametrize("lanes, entries, ahead", [(8, 4, 4), (16, 4, 2), (32, 4, 1), (32, 1, 4)])
def test_every_tile_agrees_with_float64(lanes, entries, ahead):
    _check("reddit", Form(ALL, False), 64, tile=SpmmTile(lanes, entries, ahead))


def test_results_repeat_to_the_bit():
    graph, form = _graph("reddit"), Form(ALL, False)
    x = numbers_of(graph, form, 64, "float32")
    dy = random_array((graph.num_rows, len(ALL) * 64), "float32", seed=2)

    @jax.jit
    def results():
        return forward(graph_calls.pieces(graph), x, form, True), gradient(graph, form, x, dy)

    first = results()
    for _ in range(5):
        jax.tree.map(assert_bit_equal, results(), first)


# Random numbers have a few shared extremes, rounded ones many, and after a rectifier the minimum is
# shared by most: then all edges are compared.
_SHARED = {
    "few": lambda x: x,
    "many": lambda x: jnp.round(x * 4) / 4,
    "most": lambda x: jnp.maximum(x, 0),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shared", _SHARED)
def test_gradients_of_extremes_in_any_order_are_those_in_a_fixed_order(shared, dtype):
    graph = _graph("reddit")
    x = _SHARED[shared](random_array((graph.num_cols, 64), "float32", seed=5)).astype(dtype)

    def total(x):
        return jnp.sum(ops.neighbour_reduce(graph, x, PNA).astype(jnp.float32) ** 2)

    made = jax.jit(jax.grad(total))(x)
    with jaxgnn.deterministic():
        first, second = jax.jit(jax.grad(total))(x), jax.jit(jax.grad(total))(x)
    assert_bit_equal(first, second)
    made, first = made.astype(jnp.float32), first.astype(jnp.float32)
    error = jnp.abs(made - first).max() / jnp.abs(first).max()
    assert error < (1e-5 if dtype == "float32" else 1e-2)


@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("name", ["segment_sum", "segment_max"])
def test_segments_by_the_kernels_are_those_of_jax_ops(name, is_sorted):
    ids = jax.random.randint(jax.random.key(0), (5_000,), -3, 203)
    ids = jnp.sort(ids) if is_sorted else ids
    x = random_array((5_000, 24), "float32", seed=4)

    def run(function):
        def total(x, ids):
            y = function(x, ids, 200, indices_are_sorted=is_sorted)
            return jnp.sum(jnp.where(jnp.isfinite(y), y, 0) ** 2)

        return jax.jit(jax.value_and_grad(total))(x, ids)

    with jaxgnn.default_implementation("pallas"):
        made = run(getattr(jaxgnn, name))
    for a, e in zip(made, run(getattr(jax.ops, name)), strict=True):
        assert jnp.allclose(a, e, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("by_edge", [False, True])
def test_the_op_runs_the_kernels_under_vmap_and_gradients(by_edge):
    graph = _graph("flickr")
    numbers = graph.num_edges if by_edge else graph.num_cols
    x = random_array((2, numbers, 16), "float32", seed=3)
    op = ops.aggregate if by_edge else ops.neighbour_reduce

    def run(name):
        def total(x):
            return jnp.sum(op(graph, x, PNA, implementation=name) ** 2)

        return jax.jit(jax.value_and_grad(total))(x)

    (value, slope), (expected, plain) = run("pallas"), run("xla")
    assert jnp.allclose(value, expected, rtol=1e-5)
    assert jnp.allclose(slope, plain, rtol=1e-4, atol=1e-5)


def test_negative_ids_on_a_gpu_are_refused_where_they_are_known_and_dropped_where_they_are_not():
    x, ids = jnp.arange(4.0), jnp.array([-1, 0, 5, 0])
    with pytest.raises(ValueError, match="got 1 negative, the first at 0: -1"):
        jaxgnn.segment_sum(x, ids, 2)
    with pytest.raises(ValueError, match="got 1 negative, the first at 0: -1"):
        jaxgnn.segment_sum(x, ids)  # the number of segments is read from them
    made = jax.jit(lambda x, ids: jaxgnn.segment_sum(x, ids, 2))(x, ids)
    assert made.tolist() == [4.0, 0.0]


def test_ids_on_a_gpu_are_looked_at_once():
    x, ids = jnp.arange(4.0), jnp.array([1, 0, 5, 0])
    jaxgnn.segment_sum(x, ids, 2)
    with jax.transfer_guard_device_to_host("disallow"):
        made = jaxgnn.segment_sum(x, ids, 2)
    assert made.tolist() == [4.0, 0.0]
