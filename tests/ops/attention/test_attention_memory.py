"""No op of attention makes an array of edges times heads times columns, forward or backward."""

import dataclasses
import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from experiments.benchmarks.attention_memory import prepared_shapes
from jaxgnn import nn, ops
from jaxgnn.graph import CSRGraph
from jaxgnn.ops._attention import pallas
from jaxgnn.testing import random_array
from tests._programs import equations_of
from tests.ops._table import BARE
from tests.ops.attention._attention import COMPILED

NODES, EDGES, HEADS, DIM, FEATURES = 500, 2**21, 4, 64, 16
GRAPH = prepared_shapes(NODES, EDGES)
# What GATv2 has at a time of a product of features and columns, whatever the number of edges.
CHUNK = 2**24


def _nodes(heads=HEADS):
    return NODES, heads, DIM


_FEATURES = {"edge_features": (EDGES, FEATURES)}
CASES = {
    "gat": ("gat_attention", [(NODES, HEADS)] * 2 + [_nodes()], {"edge_logits": (EDGES, HEADS)}),
    "gatv2 with features of edges": (
        "gatv2_attention",
        [_nodes(), _nodes(), (HEADS, DIM)],
        _FEATURES | {"edge_kernel": (FEATURES, HEADS, DIM)},
    ),
    "dot": ("dot_attention", [_nodes()] * 3, {}),
    "dot with features of edges": (
        "dot_attention",
        [_nodes()] * 3,
        _FEATURES | {"edge_kernel": (FEATURES, HEADS, DIM)},
    ),
    "dot with features of edges and shared heads": (
        "dot_attention",
        [_nodes(), _nodes(2), _nodes(2)],
        _FEATURES | {"edge_kernel": (FEATURES, 2, DIM), "edge_logits": (EDGES, HEADS)},
    ),
    "dot with values of edges that all heads share": (
        "dot_attention",
        [_nodes(), _nodes(1), _nodes(1)],
        {"edge_values": (EDGES, 1, DIM)},
    ),
}


def _traced(case, implementation):
    """The op with the gradients to all of its arrays, traced, and the size of the largest array."""
    op, shapes, named = CASES[case]
    given = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (*shapes, *named.values())]

    def loss(graph, *arrays):
        options = dict(zip(named, arrays[len(shapes) :], strict=True), return_weights=True)
        call = functools.partial(getattr(ops, op), graph, implementation=implementation)
        y, weights = call(*arrays[: len(shapes)], **options)
        return jnp.sum(y**2) + jnp.sum(weights**2)

    largest = max(math.prod(array.shape) for array in given)
    run = jax.jit(jax.grad(loss, argnums=tuple(range(1, len(given) + 1))))
    return run.trace(GRAPH, *given), max(largest, EDGES * HEADS, EDGES * FEATURES, CHUNK)


def _arrays(jaxpr):
    """All that a program computes, parts of it included."""
    for equation in equations_of(jaxpr):
        yield from (v.aval for v in equation.outvars if hasattr(v.aval, "shape"))


def _sizes(jaxpr):
    """The number of elements of everything that a program computes."""
    return (math.prod(array.shape) for array in _arrays(jaxpr))


def _sizes_in_text(text):
    """The number of elements of every type that a lowered program mentions."""
    for dimensions in re.findall(r"tensor<((?:\d+x)+)[a-z]", text):
        yield math.prod(map(int, dimensions.strip("x").split("x")))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("implementation", COMPILED)
def test_programs_of_compiled_kernels_have_none(case, implementation):
    traced, allowed = _traced(case, implementation)
    assert allowed < EDGES * HEADS * DIM
    assert EDGES * HEADS <= max(_sizes(traced.jaxpr.jaxpr)) <= allowed
    assert EDGES * HEADS <= max(_sizes_in_text(traced.lower().as_text())) <= allowed


@pytest.mark.costly
@pytest.mark.parametrize("case", [case for case in CASES if case != "dot"])
def test_programs_for_a_gpu_have_none(case):
    traced, allowed = _traced(case, None)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "mosaic_gpu" in text
    assert EDGES * HEADS <= max(_sizes_in_text(text)) <= allowed


@pytest.mark.parametrize("implementation", COMPILED)
def test_a_transformer_layer_with_features_of_edges_has_none(implementation):
    options = {"edge_dim": FEATURES, "heads": HEADS, "implementation": implementation}
    layer = nn.TransformerConv(8, DIM, **options, rngs=nnx.Rngs(0))
    graph_of_layer, state = nnx.split(layer)

    def loss(state, graph, x, edges):
        return jnp.sum(nnx.merge(graph_of_layer, state)(graph, x, edges) ** 2)

    given = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((NODES, 8), (EDGES, FEATURES))]
    program = jax.make_jaxpr(jax.grad(loss, argnums=(0, 2, 3)))(state, GRAPH, *given)
    assert max(_sizes(program.jaxpr)) == EDGES * FEATURES


@pytest.mark.parametrize("op", ["gat_attention", "dot_attention"])
@pytest.mark.parametrize("implementation", COMPILED)
def test_k_sparse_values_are_not_expanded_forward_or_backward(op, implementation):
    rows, cols = 4, 500
    graph = CSRGraph.from_edges(np.arange(cols), np.arange(cols) % rows, rows, num_senders=cols)
    narrow = (8,) if op == "dot_attention" else ()
    ends = [random_array((n, HEADS, *narrow), "float32", seed=n) for n in (rows, cols)]
    kept = ops.maxk(random_array((cols, HEADS, DIM), "float32", seed=1), 3)

    def loss(values, ends):
        given = dataclasses.replace(kept, values=values)
        return jnp.sum(getattr(ops, op)(graph, *ends, given, implementation=implementation) ** 2)

    program = jax.make_jaxpr(jax.grad(loss))(kept.values, ends)
    # Bytes are counted, as the kernels for GPUs pack kept entries into records of bytes.
    sizes = {a.shape: math.prod(a.shape) * a.dtype.itemsize for a in _arrays(program.jaxpr)}
    assert (cols, HEADS, 3) in sizes
    assert max(sizes.values()) < 4 * cols * HEADS * DIM
    dense = jax.make_jaxpr(ops.todense)(kept).jaxpr
    assert (cols, HEADS, DIM) in {array.shape for array in _arrays(dense)}


def test_the_gradient_to_shared_values_of_edges_adds_the_heads_of_a_group():
    graph = BARE["padding_edges"]
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(graph.num_edges, 6)).astype(np.float32)
    dy = rng.normal(size=(graph.num_rows, 6, 3)).astype(np.float32)
    made = pallas.to_shared_values(graph, jnp.asarray(weights), jnp.asarray(dy), 2)
    count, rows = int(graph.indptr[-1]), np.asarray(graph.receivers())
    expected = np.zeros((graph.num_edges, 2, 3))
    for e, h in np.ndindex(count, 6):
        expected[e, h // 3] += weights[e, h] * dy[rows[e], h]
    assert count < graph.num_edges
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)
