"""The GPU kernels of filtered sums against float64, over poisoned memory."""

import functools

import jax
import jax.numpy as jnp
import pytest

from jaxgnn import ops
from jaxgnn.testing import assert_bit_equal, random_array
from pallas_kernels.chip import Chip
from tests.gpu.test_attention import GRAPHS
from tests.pallas_kernels.filters._cases import check_given, check_made, shuffled

pytestmark = [pytest.mark.gpu, pytest.mark.costly(4)]


@pytest.fixture(scope="module", autouse=True)
def needs_kernels():
    if Chip.current().generation < 9:
        pytest.skip(f"reason: Mosaic GPU kernels need an H100 or newer, got {Chip.current().name}")


@functools.cache
def _graph(name):
    """The graph, in memory of which what the allocator hands out next holds NaN."""
    graph = GRAPHS[name]().prepared()
    jax.block_until_ready([jnp.full((max(graph.shape), 128), jnp.nan) for _ in range(8)])
    return graph


@pytest.mark.parametrize(
    "columns, width, dtype, of_filters",
    [
        (128, 128, "float32", "float32"),
        (33, 33, "float32", "float32"),
        (40, 40, "bfloat16", "bfloat16"),
        (60, 20, "bfloat16", "float32"),
        (1, 1, "float32", "float32"),
    ],
)
@pytest.mark.parametrize("name", GRAPHS)
def test_given_filters_agree_with_float64(name, columns, width, dtype, of_filters):
    graph = _graph(name)
    for order in (None, shuffled(graph)):
        check_given(graph, order, columns, width, dtype, of_filters)


@pytest.mark.parametrize(
    "columns, features, dtype",
    [
        (128, 20, "float32"),
        (130, 21, "bfloat16"),
        (33, 7, "float32"),
        (70, 40, "float32"),
        (64, 64, "float32"),
        (1, 1, "float32"),
    ],
)
@pytest.mark.parametrize("name", GRAPHS)
def test_made_filters_agree_with_float64(name, columns, features, dtype):
    graph = _graph(name)
    for order in (None, shuffled(graph)):
        check_made(graph, order, columns, features, dtype)


def test_gradients_are_equal_to_the_last_bit_from_run_to_run():
    graph = _graph("padded")
    x = random_array((graph.num_cols, 64), "float32", seed=0)
    basis = random_array((graph.num_edges, 20), "float32", seed=1)
    kernel = random_array((20, 64), "float32", seed=2)

    def loss(x, basis, kernel):
        y = ops.filtered_sum(graph, x, basis=basis, kernel=kernel, implementation="pallas")
        return jnp.sum(jnp.sin(y))

    slopes = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
    assert_bit_equal(slopes(x, basis, kernel), slopes(x, basis, kernel))
