"""The kernels of attention over neighbours lower for CUDA at real shapes, without a GPU."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from experiments.benchmarks.attention_memory import prepared_shapes
from jaxgnn.ops._graph import pallas as graph_calls
from pallas_kernels.arguments.attention import Cotangents, Form
from tests.pallas_kernels.attention._cases import OPS, passes, shapes_of

REDDIT = (232_965, 111_400_000)
MOLECULES = (3_200, 6_400)


def _lower(op, graph, operands) -> str:
    kernels, form = passes(op), Form(scale=0.125, slope=0.2, dropout=0.1)
    assert kernels.unsupported(operands) is None
    if operands.seed is None:
        form = dataclasses.replace(form, dropout=0.0)

    def both(graph, operands):
        pieces = graph_calls.pieces(graph)
        y, lse = kernels.forward(pieces, operands, form)
        cotangents = Cotangents(lse, lse, y.astype(operands.summed.dtype))
        transposed, slots = graph_calls.pieces(graph.transpose()), graph.plan.permutation
        return (
            kernels.weights(pieces, operands, lse, form),
            kernels.backward(pieces, transposed, slots, operands, cotangents, form),
        )

    return jax.jit(both).trace(graph, operands).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.again("tests/pallas_kernels/test_lowering.py")
@pytest.mark.lowers
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("op", OPS)
def test_a_layer_of_the_benchmarks_lowers_with_its_gradient(op, dtype):
    graph = prepared_shapes(*REDDIT)
    text = _lower(op, graph, shapes_of(op, graph, 4, 64, dtype))
    # There: pieces, long rows; weights. Back along rows, and along columns with one or two results.
    results = 1 if op == "gatv2" else 2
    assert text.count("mosaic_gpu_v2") == 2 + 1 + 2 + 1 + results
    edges, nodes = REDDIT[1], REDDIT[0]
    assert f"tensor<{nodes}x4x64x" in text
    assert f"tensor<{edges}x4x64x" not in text and f"tensor<{edges}x256x" not in text


@pytest.mark.parametrize("op", OPS)
def test_a_small_graph_takes_one_kernel_for_each_pass(op):
    graph = prepared_shapes(300, 250)
    assert _lower(op, graph, shapes_of(op, graph, 4, 16, "float32")).count("mosaic_gpu_v2") == 4


@pytest.mark.lowers
@pytest.mark.parametrize("op", OPS)
def test_all_options_lower_with_offsets_of_64_bits(op):
    with jax.enable_x64(True):
        graph = prepared_shapes(*REDDIT, jnp.int64)
        own = {"dot": {"groups": 1, "out": 9, "added": True}, "gatv2": {"features": 3}}
        given = {"logits": True, "dropout": True} | own.get(op, {})
        shape = shapes_of(op, graph, 3, 13, "float16", **given)
        assert _lower(op, graph, shape)
