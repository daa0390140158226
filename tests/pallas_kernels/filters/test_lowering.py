"""The kernels of filtered sums lower for CUDA at real shapes, without a GPU."""

import jax
import jax.numpy as jnp
import pytest

from experiments.benchmarks.attention_memory import prepared_shapes
from jaxgnn import ops
from jaxgnn.ops.core import dispatch

struct = jax.ShapeDtypeStruct
NODES, EDGES, DIM = 10_000, 500_000, 128


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(dispatch, "current_platform", lambda: "cuda")


def _lower(graph, *shapes, names=("weights",)) -> str:
    """The program of the value and of all gradients."""

    def loss(x, arrays, graph):
        arrays = dict(zip(names, arrays, strict=True))
        return jnp.sum(ops.filtered_sum(graph, x, **arrays, implementation="pallas") ** 2)

    x, *arrays = shapes
    run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    return run.trace(x, arrays, graph).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.lowers
@pytest.mark.costly
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_given_filters_lower_with_their_gradients(dtype):
    x, weights = struct((NODES, DIM), dtype), struct((EDGES, DIM), dtype)
    text = _lower(prepared_shapes(NODES, EDGES), x, weights)
    # Three passes, of which two have rows of several pieces.
    assert text.count("mosaic_gpu_v2") == 5


@pytest.mark.lowers
@pytest.mark.costly
@pytest.mark.parametrize("features, dtype", [(20, "float32"), (33, "bfloat16")])
def test_made_filters_lower_without_an_array_of_filters(features, dtype):
    names = "basis", "kernel", "bias", "envelope"
    shapes = (
        struct((NODES, DIM), dtype),
        struct((EDGES, features), jnp.float32),
        struct((features, DIM), jnp.float32),
        struct((DIM,), jnp.float32),
        struct((EDGES,), jnp.float32),
    )
    text = _lower(prepared_shapes(NODES, EDGES), *shapes, names=names)
    assert text.count("mosaic_gpu_v2") == 6
    assert f"tensor<{EDGES}x{DIM}x" not in text


@pytest.mark.lowers
def test_rows_of_any_width_and_offsets_of_64_bits_lower():
    with jax.enable_x64(True):
        graph = prepared_shapes(300, 250, offsets=jnp.int64)
        x, weights = struct((300, 3, 11), jnp.float32), struct((250, 1, 11), jnp.bfloat16)
        assert _lower(graph, x, weights).count("mosaic_gpu_v2") == 3
