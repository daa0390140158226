"""Operands of attention over neighbours, and comparisons of the kernels with the formula."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn import CSRGraph
from jaxgnn.ops._attention import pallas
from jaxgnn.ops._graph import pallas as graph_calls
from jaxgnn.testing import assert_close, random_array
from pallas_kernels.arguments.attention import Cotangents, Form, Operands
from pallas_kernels.attention.passes import PASSES
from tests.pallas_kernels.attention._formula import attention

OPS = ("gat", "gatv2", "dot")
FORM = Form(scale=0.3, slope=0.2)


def passes(op):
    """The kernels of an op."""
    return PASSES[f"{op}_attention"]


def operands_of(op, graph, heads, width, dtype, **options) -> Operands:
    """Random operands.

    Options are ``groups``, the heads of keys and values, ``out``, columns of values, ``features``
    of edges, and whether there are ``logits``, ``added`` values of edges, and ``dropout``.
    """

    def array(number, *shape, dtype=dtype):
        return random_array(shape, dtype, seed=number)

    return _operands(array, seed_words(), op, graph, heads, width, **options)


def shapes_of(op, graph, heads, width, dtype, **options) -> Operands:
    """The shapes of ``operands_of``."""

    def array(number, *shape, dtype=dtype):
        return jax.ShapeDtypeStruct(shape, dtype)

    seed = jax.ShapeDtypeStruct((2,), jnp.uint32)
    return _operands(array, seed, op, graph, heads, width, **options)


def _operands(
    array,
    seed,
    op,
    graph,
    heads,
    width,
    groups=None,
    out=None,
    logits=False,
    added=False,
    features=None,
    dropout=False,
):
    ends = {"gat": ()}.get(op, (width,))
    groups, out = groups or heads, out or width
    return Operands(
        array(0, graph.num_rows, heads, *ends),
        array(1, graph.num_cols, groups, *ends),
        None if op == "gatv2" else array(2, graph.num_cols, groups, out),
        edge_logits=array(3, graph.num_edges, heads) if logits else None,
        edge_values=array(5, graph.num_edges, groups, out) if added else None,
        edge_features=array(6, graph.num_edges, features) if features else None,
        edge_kernel=array(7, features, heads, width) if features else None,
        attention=array(4, heads, width, dtype="float32") if op == "gatv2" else None,
        seed=seed if dropout else None,
    )


def check(op, graph: CSRGraph, operands: Operands, form: Form, tile=None, dweights=False) -> None:
    """Compares all passes with the formula, over the prepared ``graph``."""
    kernels, count = passes(op), int(graph.indptr[-1])
    heads, width = operands.heads, operands.summed.shape[2]
    dy = random_array((graph.num_rows, heads, width), operands.summed.dtype, seed=5)
    dweight = random_array((graph.num_edges, heads), "float32", seed=6) if dweights else None
    exact = attention(op, graph, operands, form, dy, dweight)
    degrees = np.bincount(np.asarray(graph.indices)[:count], minlength=1)
    length = int(max(np.diff(np.asarray(graph.indptr)).max(), degrees.max())) + width

    def compare(name, actual, expected, terms=length):
        if expected is None:
            assert actual is None
            return
        assert actual.shape == expected.shape, name
        # The gradient to a score is a difference, whose sum over a row may cancel: errors are
        # measured against the largest term, which is appended to both sides. Scores differ by some
        # roundings of their own size, and so do their exponentials.
        scale = np.float32(exact.largest.get(name, 0.0))
        actual = np.append(np.asarray(actual), scale.astype(actual.dtype))
        expected = np.append(expected, float(scale.astype(actual.dtype)))
        assert_close(actual, expected, reduction_length=16 * terms, err_msg=f"{op} {name}")

    pieces = graph_calls.pieces(graph)
    y, lse = kernels.forward(pieces, operands, form, tile)
    assert y.dtype == lse.dtype == jnp.float32
    compare("y", y, exact.y)
    compare("lse", lse, exact.lse)
    weights = kernels.weights(pieces, operands, lse, form, tile)
    compare("weights", weights, exact.weights)
    assert not np.asarray(weights)[count:].any()
    cotangents = Cotangents(lse, jnp.asarray(exact.delta, jnp.float32), dy, dweight)
    gradients = gradients_of(op, graph, operands, cotangents, form, tile)
    of_all_edges = ("attention", "edge_kernel")
    for field in dataclasses.fields(Operands):
        operand, gradient = getattr(operands, field.name), getattr(gradients, field.name)
        compare(
            field.name,
            gradient,
            getattr(exact.gradients, field.name),
            count if field.name in of_all_edges else length,
        )
        assert gradient is None or gradient.dtype == operand.dtype
        if field.name.startswith("edge_") and field.name not in of_all_edges:
            assert gradient is None or not np.asarray(gradient)[count:].any()


def gradients_of(op, graph, operands, cotangents, form=FORM, tile=None) -> Operands:
    """The gradients by the kernels, and for the features of edges by what completes them."""
    transposed, slots = graph_calls.pieces(graph.transpose()), graph.made_plan().permutation
    made = passes(op).backward(
        graph_calls.pieces(graph), transposed, slots, operands, cotangents, form, tile
    )
    if operands.edge_features is None:
        return made
    return pallas.add_edge_features(form, graph, operands, made)


def seed_words(number=0) -> jax.Array:
    """Two words that choose which edges dropout leaves out."""
    return jnp.asarray(np.random.default_rng(number).integers(0, 2**32, 2), jnp.uint32)
