"""Comparisons of the kernels of filtered sums with the formula in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn import CSRGraph
from jaxgnn.ops._filters import pallas as calls
from jaxgnn.ops._filters.reference import filtered_sum as reference
from jaxgnn.testing import assert_close, random_array


def nodes(graph: CSRGraph, columns: int, dtype) -> tuple[jax.Array, jax.Array]:
    """Features of the senders, and the gradient to those of the receivers."""
    x = random_array((graph.num_cols, columns), dtype, seed=1)
    return x, random_array((graph.num_rows, columns), dtype, seed=2)


def shuffled(graph: CSRGraph) -> jax.Array:
    """An order of edges other than that of the slots."""
    return jnp.asarray(np.random.default_rng(5).permutation(graph.num_edges), jnp.int32)


def of_edges(graph: CSRGraph, order, width: int, dtype) -> jax.Array:
    """Features of edges; padding contains NaN."""
    made = random_array((graph.num_edges, width), dtype, seed=3)
    padding = np.asarray(graph.receivers()) >= graph.num_rows
    places = np.arange(graph.num_edges) if order is None else np.asarray(order)
    return made.at[places[padding]].set(jnp.nan)


def compare(made, formula, graph: CSRGraph, order, *arrays, length: int, **options) -> None:
    """Compares a result with a function of the reference in float64."""
    with jax.enable_x64(True), jax.disable_jit(False):
        wide = [a.astype(jnp.float64) for a in arrays]
        exact = np.asarray(jax.jit(functools.partial(formula, **options))(graph, order, *wide))
    assert_close(made, exact, reduction_length=length)


def _longest(graph: CSRGraph) -> int:
    return max(1, *(int(np.diff(np.asarray(g.indptr)).max()) for g in (graph, graph.transpose())))


def check_given(graph: CSRGraph, order, columns: int, width: int, dtype, of_filters) -> None:
    """Compares the sums with given filters, and their gradients, over the prepared ``graph``."""
    (x, dy), filters = nodes(graph, columns, dtype), of_edges(graph, order, width, of_filters)
    length = _longest(graph)
    y = calls.sum_at_rows(graph, order, x, filters)
    assert y.dtype == x.dtype
    compare(y, reference.sum_at_rows, graph, order, x, filters, length=length)
    dx = calls.sum_at_columns(graph, order, dy, filters)
    compare(dx, reference.sum_at_columns, graph, order, dy, filters, length=length)
    dw = calls.filter_products(graph, order, x, dy, width=width, dtype=of_filters)
    assert dw.dtype == filters.dtype
    options = {"width": width, "dtype": "float64"}
    compare(dw, reference.filter_products, graph, order, x, dy, length=columns // width, **options)


def check_made(graph: CSRGraph, order, columns: int, features: int, dtype) -> None:
    """Compares the sums with filters of a basis, and their gradients."""
    (x, dy), basis = nodes(graph, columns, dtype), of_edges(graph, order, features, "float32")
    kernel = random_array((features, columns), "float32", seed=4)
    length = _longest(graph) * features
    y = calls.made_at_rows(graph, order, x, basis, kernel)
    assert y.dtype == x.dtype
    compare(y, reference.made_at_rows, graph, order, x, basis, kernel, length=length)
    dx = calls.made_at_columns(graph, order, dy, basis, kernel)
    compare(dx, reference.made_at_columns, graph, order, dy, basis, kernel, length=length)
    to_basis = calls.basis_products(graph, order, x, dy, kernel)
    assert to_basis.dtype == jnp.float32
    compare(to_basis, reference.basis_products, graph, order, x, dy, kernel, length=columns)
    to_kernel = calls.kernel_products(graph, order, x, dy, basis)
    length = max(1, graph.num_edges)
    compare(to_kernel, reference.kernel_products, graph, order, x, dy, basis, length=length)
