"""Attention where no kernel can run: in pieces of the edges, equal to the plain formula."""

import math

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CSRGraph
from jaxgnn.ops._graph import pieces
from tests.ops._table import BARE
from tests.ops.attention._attention import HEADS, TABLE, cotangents_of, kernels
from tests.ops.attention.test_attention_memory import _arrays

SCOPE = jax.export.SymbolicScope(["nodes >= 1", "edges >= 1"])
OFFSETS, NODES, EDGES = (
    jax.export.symbolic_shape(text, scope=SCOPE)[0] for text in ("nodes + 1", "nodes", "edges")
)


class _Sizes:
    """The numbers of a graph, of which the table makes the shapes of arrays."""

    num_rows = num_cols = NODES
    num_edges = EDGES


@pytest.fixture
def small_pieces(monkeypatch):
    """Pieces of a few edges, so that small graphs have several."""
    monkeypatch.setattr(pieces, "ENTRIES", 3 * HEADS * 5)


@pytest.fixture
def no_library(monkeypatch):
    """Tables of kernels without any but plain JAX."""
    for name in TABLE:
        for kernel in kernels(name):
            only = {"xla": kernel.implementations["xla"]}
            monkeypatch.setitem(kernel.__dict__, "implementations", only)


def _run(op, implementation, options, known=True):
    def run(graph, arrays, key):
        def attend(arrays):
            given = dict(options, key=key) if "dropout" in options else options
            return TABLE[op](
                graph, arrays, implementation=implementation, return_weights=True, **given
            )

        # Sizes that are symbolic have no random numbers.
        made, pull_back = jax.vjp(attend, arrays)
        return made, pull_back(cotangents_of(made) if known else jax.tree.map(jnp.cos, made))[0]

    return jax.jit(run)


def _equal(made, expected, tolerance):
    for a, e in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
        assert a.dtype == e.dtype
        np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance)


@pytest.mark.costly(3)
@pytest.mark.parametrize("op", TABLE)
@pytest.mark.parametrize("graph", ["padding_edges", "no_edges"])
def test_without_a_library_values_and_gradients_are_those_of_the_formula(
    op, graph, small_pieces, no_library
):
    graph, key = BARE[graph], jax.random.key(3)
    arrays = TABLE[op].arrays(graph)
    if graph.num_edges:  # rows of only -inf, and a masked edge
        arrays["edge_logits"] = arrays["edge_logits"].at[:2].set(-jnp.inf)
    options = {"dropout": 0.4}
    made = _run(op, None, options)(graph, arrays, key)
    _equal(made, _run(op, "xla", options)(graph, arrays, key), 2e-5)


@pytest.mark.again("test_without_a_library_values_and_gradients_are_those_of_the_formula")
@pytest.mark.parametrize("op", TABLE)
def test_float64_and_a_batch_are_those_of_the_formula(op, small_pieces):
    graph = BARE["padding_edges"]
    with jax.enable_x64(True):
        arrays = TABLE[op].arrays(graph, dtype="float64", batch=(2,))
        made = _run(op, None, {})(graph, arrays, None)
        _equal(made, _run(op, "xla", {})(graph, arrays, None), 1e-12)


@pytest.mark.parametrize("op", ["gatv2_attention"])
def test_bfloat16_is_that_of_the_formula(op, small_pieces, no_library):
    graph = BARE["padding_edges"]
    arrays = TABLE[op].arrays(graph, dtype="bfloat16")
    made = _run(op, None, {})(graph, arrays, None)
    _equal(made, _run(op, "xla", {})(graph, arrays, None), 2e-2)


def _of_any_size(op, run):
    """The program for any numbers of nodes and edges, exported, and as a jaxpr."""
    shapes = TABLE[op].required(NODES, NODES, EDGES) | TABLE[op].optional(NODES, NODES, EDGES)
    ids = [jax.ShapeDtypeStruct((size,), jnp.int32) for size in (OFFSETS, EDGES)]
    arrays = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}

    def of_arrays(indptr, indices, arrays):
        return run(CSRGraph(indptr, indices), arrays, None)

    program = jax.jit(of_arrays)
    return jax.export.export(program)(*ids, arrays), program.trace(*ids, arrays).jaxpr


def _second(op, implementation, options, known=False):
    """The slopes of the sum of squares of all gradients."""
    first = _run(op, implementation, options, known)

    def squares(arrays, graph, key):
        gradients = jax.tree.leaves(first(graph, arrays, key)[1])
        return sum(jnp.sum(gradient**2) for gradient in gradients)

    return jax.jit(lambda graph, arrays, key: jax.grad(squares)(arrays, graph, key))


# Of two float32 sums in other orders; slopes of squares have entries of hundreds.
_TOLERANCES = {_run: 2e-5, _second: 2e-4}


@pytest.mark.costly(3)
@pytest.mark.parametrize("op", TABLE)
@pytest.mark.parametrize("derivative", [_run, _second])
def test_a_program_for_any_size_has_no_array_of_edges_heads_and_columns(
    op, derivative, small_pieces
):
    run, plain = (derivative(op, name, {}, known=False) for name in (None, "xla"))
    exported, program = _of_any_size(op, run)
    assert "jaxgnn_" not in exported.mlir_module()
    nodes, edges = 10, 10**6
    most = max(_entries(array.shape, nodes, edges) for array in _arrays(program.jaxpr))
    # Values of edges are an argument of dot_attention, and have a gradient.
    optional = TABLE[op].optional(nodes, nodes, edges).values()
    widest = max(HEADS, *(math.prod(shape[1:]) for shape in optional if shape[:1] == (edges,)))
    assert edges * HEADS <= most <= (edges + 100) * widest
    _, program = _of_any_size(op, plain)
    assert max(_entries(a.shape, nodes, edges) for a in _arrays(program.jaxpr)) >= edges * HEADS * 3
    for nodes, edges in ((4, 2), (5, 17)):
        counts = np.bincount(np.arange(edges) % max(1, nodes - 2), minlength=nodes)
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        senders = np.random.default_rng(0).integers(0, nodes, edges).astype(np.int32)
        arrays = TABLE[op].arrays(CSRGraph(indptr, senders))
        made = exported.call(indptr, senders, arrays)
        _equal(made, plain(CSRGraph(indptr, senders), arrays, None), _TOLERANCES[derivative])


def _entries(shape, nodes, edges):
    """The number of entries of a shape, for these numbers in the place of its symbols."""
    known = {"nodes": nodes, "edges": edges, "min": min, "max": max}
    known |= {"floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b}
    sizes = [s if isinstance(s, int) else eval(str(s), known) for s in shape]
    return math.prod(sizes)
