"""The kernels of aggregation lower for CUDA at real shapes, without a GPU."""

import jax
import jax.numpy as jnp
import pytest

from experiments.benchmarks.attention_memory import prepared_shapes
from jaxgnn.ops._aggregate.reference.aggregate import terms_of
from jaxgnn.ops._graph import pallas as graph_calls
from pallas_kernels.aggregate.aggregate import forward
from pallas_kernels.aggregate.gradient import grad_columns
from pallas_kernels.arguments.aggregate import Form
from tests.pallas_kernels.aggregate._cases import ALL, PNA
from tests.pallas_kernels.attention.test_lowering import MOLECULES, REDDIT

struct = jax.ShapeDtypeStruct


def _lower(graph, form, dim, dtype) -> str:
    def both(graph, x, dy):
        pieces = graph_calls.pieces(graph)
        y, statistics = forward(pieces, x, form, True)
        slots = graph.plan.permutation if form.ties == "first" else None
        if form.by_edge:
            return y, statistics
        terms = terms_of(form, graph, y, statistics, dy)
        transposed = graph_calls.pieces(graph.transpose())
        return y, grad_columns(transposed, slots, x, terms, x.dtype)

    rows = graph.num_edges if form.by_edge else graph.num_cols
    arrays = struct((rows, dim), dtype), struct((graph.num_rows, len(form.reductions) * dim), dtype)
    return jax.jit(both).trace(graph, *arrays).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.lowers
@pytest.mark.parametrize("form", [Form(("max",), False), Form(PNA, False)], ids=["max", "PNA"])
def test_reductions_of_a_large_graph_lower_with_their_gradients(form):
    text = _lower(prepared_shapes(*REDDIT), form, 256, "float32")
    # Pieces and long rows, forward and backward; no array of all messages.
    assert text.count("mosaic_gpu_v2") == 4
    assert f"tensor<{REDDIT[1]}x256x" not in text


@pytest.mark.lowers
@pytest.mark.parametrize(
    "form, dtype, kernels",
    [(Form(ALL, False, "first"), "float16", 2), (Form(ALL, True), "bfloat16", 1)],
    ids=["by sender", "by edge"],
)
def test_all_reductions_of_a_small_graph_lower(form, dtype, kernels):
    text = _lower(prepared_shapes(300, 250), form, 33, dtype)
    assert text.count("mosaic_gpu_v2") == kernels


@pytest.mark.lowers
def test_offsets_of_64_bits_lower():
    with jax.enable_x64(True):
        graph = prepared_shapes(*MOLECULES, offsets=jnp.int64)
        assert _lower(graph, Form(ALL, False, "first"), 64, "float32")
