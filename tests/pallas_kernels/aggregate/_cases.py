"""Comparisons of the kernels of aggregation with the formula in float64."""

import functools
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn import CSRGraph, ops
from jaxgnn.ops._aggregate import pallas as calls
from jaxgnn.ops._aggregate.reference import aggregate as reference
from jaxgnn.ops._aggregate.reference.aggregate import terms_of
from jaxgnn.ops._graph import pallas as graph_calls
from jaxgnn.testing import assert_bit_equal, assert_close, random_array
from pallas_kernels.aggregate.aggregate import forward
from pallas_kernels.aggregate.gradient import grad_columns
from pallas_kernels.arguments.aggregate import Form

ALL = get_args(ops.Aggregation)
PNA = ("mean", "max", "min", "std")


def numbers_of(graph: CSRGraph, form: Form, dim: int, dtype) -> jax.Array:
    """Random numbers, of few values so that there are ties, some way from zero."""
    count = graph.num_edges if form.by_edge else graph.num_cols
    return (jnp.round(random_array((count, dim), "float32", seed=1) * 4) / 4 + 2).astype(dtype)


@functools.partial(jax.jit, static_argnums=3)
def exact_gradient(graph, x, dy, form):
    """Values and the gradient to the numbers by the plain formula, in the dtype of ``x``."""
    y, pull_back = jax.vjp(lambda x: reference.forward(graph, x, form=form, keep=False)[0], x)
    return y, pull_back(dy)[0]


def gradient(graph: CSRGraph, form: Form, x, dy, tile=None):
    """The gradient to numbers of senders in a fixed order, from what the forward pass keeps."""
    y, statistics = forward(graph_calls.pieces(graph), x, form, True, tile)
    terms = terms_of(form, graph, y, statistics, dy)
    transposed = graph_calls.pieces(graph.transpose())
    slots = graph.made_plan().permutation if form.ties == "first" else None
    return grad_columns(transposed, slots, x, terms, x.dtype, tile)


def scattered(graph: CSRGraph, form: Form, x, dy):
    """The same gradient, with those of extremes added to the senders that have them."""
    y, statistics = forward(graph_calls.pieces(graph), x, form, True)
    return calls._scattered(graph, x, terms_of(form, graph, y, statistics, dy))


def check(graph: CSRGraph, form: Form, dim: int, dtype="float32", tile=None) -> None:
    """Compares values, and the gradient to senders, over the prepared ``graph``."""
    x = numbers_of(graph, form, dim, dtype)
    dy = random_array((graph.num_rows, len(form.reductions) * dim), dtype, seed=2)
    with jax.enable_x64(True), jax.disable_jit(False):
        wide = x.astype(jnp.float64), dy.astype(jnp.float64)
        exact, slope = jax.tree.map(np.asarray, exact_gradient(graph, *wide, form))
    degrees = [np.diff(np.asarray(g.indptr)).max() for g in (graph, graph.transpose())]
    length = 64 * int(max(degrees))
    y, statistics = forward(graph_calls.pieces(graph), x, form, True, tile)
    assert_close(y, exact, reduction_length=length)
    alone, nothing = forward(graph_calls.pieces(graph), x, form, False, tile)
    assert_bit_equal(alone, y)
    assert not jax.tree.leaves(nothing)
    names = {f for f, a in vars(statistics).items() if a is not None and f != "each"}
    assert names | set(statistics.each or {}) == set(form.kept())
    if not form.by_edge:
        assert_close(gradient(graph, form, x, dy, tile), slope, reduction_length=length)
        if form.totals & {"max", "min"}:
            assert_close(scattered(graph, form, x, dy), slope, reduction_length=length)
