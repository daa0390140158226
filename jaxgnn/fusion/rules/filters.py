"""Filters that multiply gathered rows channel by channel, for ``neighbour_sum``.

``segment_sum(x[senders] * w, receivers)`` with an array ``w`` of edges and features becomes
``ops.filtered_sum``. If ``w`` is a product of matrices, ``basis @ kernel (+ bias)``, which nothing
else reads, and the basis has few features, the op makes the filters: no array of edges times
features is stored then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from jaxgnn.fusion.program.matching import Refusal, need, or_none, required
from jaxgnn.fusion.program.program import Atom
from jaxgnn.fusion.program.variables import View
from jaxgnn.fusion.recognise.edge_lists import Graph
from jaxgnn.fusion.recognise.gathers import RowGather
from jaxgnn.fusion.recognise.products import (
    IN_RANGE,
    Factor,
    Product,
    drop_unit_labels,
    matrix_product_of,
    strip_repeats,
    values_of,
)
from jaxgnn.fusion.rules.attention import Sum
from jaxgnn.ops.shared import MOST_FEATURES, MadeFilters, filtered_sum_in_order


@dataclass(frozen=True)
class _FilterProduct:
    """Filters that are ``basis @ kernel + bias``."""

    basis: Atom  # Array [edges, features].
    kernel: Atom
    is_transposed: bool  # True if the kernel is [dim, features].
    bias: Atom | None  # Array of ``dim`` entries, or None.


def check_filters(product: Product) -> None:
    """Raises ``Refusal`` unless the other factors of an array of edges are filters."""
    if any(f.is_inverse or f.gather is not None for f in product.others) or not any(
        product.axis in f.axes for f in product.others
    ):
        raise Refusal("a factor is neither read by row nor an array of edges")
    if product.axis != 0 or len(product.shape) > 3:
        raise Refusal("filters of edges have an axis before that of the edges, or many behind it")
    if product.edges in product.shape[1:-1]:
        raise Refusal("there are as many heads as edges")


def filtered_rows(view: View, graph: Graph, gather: RowGather, product: Product) -> Sum:
    """Returns the sum of rows, each multiplied by all other factors of an array of edges."""
    factors = [*product.others, *product.scalars, *product.constants]
    filters = _filter_product(view, product) if len(product.others) == 1 else None
    if filters is None:
        return _sum_by_filters(graph, gather, product, factors)
    return _sum_by_kernel(graph, gather, product, filters)


def _sum_by_filters(
    graph: Graph, gather: RowGather, product: Product, factors: list[Factor]
) -> Sum:
    def apply(table, values):
        weights = values_of(factors, values, len(product.shape)).astype(table.dtype)
        weights = jnp.broadcast_to(weights, (product.edges, *weights.shape[1:]))
        return filtered_sum_in_order(
            graph.graph, graph.edge_positions, table, weights, MadeFilters()
        )

    assumes = (IN_RANGE,) if len(factors) > 1 else ()
    return Sum("filtered_sum", gather.table, [f.atom for f in factors], apply, assumes)


def _sum_by_kernel(
    graph: Graph, gather: RowGather, product: Product, filters_product: _FilterProduct
) -> Sum:
    factors = [*product.scalars, *product.constants]
    bias = [] if filters_product.bias is None else [filters_product.bias]
    heads = [1] * (len(product.shape) - 2)

    def apply(table, values):
        kernel = (
            values[filters_product.kernel].T
            if filters_product.is_transposed
            else values[filters_product.kernel]
        )
        features, dim = kernel.shape
        filters = MadeFilters(
            values[filters_product.basis],
            kernel.reshape(features, *heads, dim),
            None
            if filters_product.bias is None
            else values[filters_product.bias].reshape(*heads, dim),
            _envelope(values, factors, product) if factors else None,
        )
        return filtered_sum_in_order(graph.graph, graph.edge_positions, table, None, filters)

    atoms = [filters_product.basis, filters_product.kernel, *bias, *(f.atom for f in factors)]
    assumes = ("finite numbers of edges", IN_RANGE)
    return Sum("filtered_sum by a kernel", gather.table, atoms, apply, assumes)


def _envelope(values: Any, factors: list[Factor], product: Product) -> Any:
    """Returns the product of numbers of edges and constants, [edges]."""
    product_of_numbers = values_of(factors, values, len(product.shape))
    return jnp.broadcast_to(
        product_of_numbers.reshape(math.prod(product_of_numbers.shape)), (product.edges,)
    )


@or_none
def _filter_product(view: View, product: Product) -> _FilterProduct:
    """Returns the product of matrices that computes the filters, if nothing else reads them."""
    (factor,), last = product.others, len(product.shape) - 1
    need(factor.labels == (0, last) and not product.has_heads)
    atom, bias = factor.atom, None
    need(view.is_read_once(atom))
    added = view.produced_by(atom, "add")
    if added is not None:
        atom, bias = _split_bias(view, *added.invars)
        need(view.is_read_once(atom))
    basis, kernel = required(matrix_product_of(view, atom))
    need(basis.atom.aval.shape[1] + (bias is not None) <= MOST_FEATURES)
    return _FilterProduct(basis.atom, kernel.atom, kernel.labels[0] == 1, bias)


def _both_orders[T](a: T, b: T) -> tuple[tuple[T, T], tuple[T, T]]:
    return (a, b), (b, a)


def _split_bias(view: View, a: Atom, b: Atom) -> tuple[Atom, Atom]:
    """Splits a sum into an array of edges and a row that all edges share."""
    kinds = "broadcast_in_dim", "reshape", "squeeze"
    for array, other in _both_orders(a, b):
        repeated, labels = strip_repeats(view, other, (0, 1), *kinds)
        named = [label for label in drop_unit_labels(labels, repeated) if label is not None]
        if named == [1] and repeated.aval.size == array.aval.shape[1]:
            return array, repeated
    return required(None)
