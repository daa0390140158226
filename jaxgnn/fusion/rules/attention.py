"""Attention over the neighbours: softmaxes of known scores, with ops that fuse them and the sum.

The scores are those of graph attention networks, as they are written with gathers, or inner
products along the features of an edge, as in transformers and GATv2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxgnn import ops
from jaxgnn.fusion.program.matching import NoMatch, need, or_none, required
from jaxgnn.fusion.program.program import Atom, Values
from jaxgnn.fusion.program.variables import View
from jaxgnn.fusion.recognise.edge_lists import Graph, reads_end
from jaxgnn.fusion.recognise.gathers import RowGather, row_gather
from jaxgnn.fusion.recognise.products import (
    IN_RANGE,
    SUMMED,
    Factor,
    Product,
    contraction_of,
    product_of,
    values_of,
)


@dataclass(frozen=True)
class Sum:
    """Call of an op that sums rows of a table."""

    op: str
    table: Atom
    inputs: list[Atom]  # Arrays that the op reads besides the table.
    # Computes the sum from the table and the values of the inputs.
    apply: Callable[[Any, Values], Any]
    assumes: tuple[str, ...] = ()  # Conditions on numbers, for ``Rewrite.assumes``.


@or_none
def gat_of(view: View, logits: Atom, table: Atom, graph: Graph) -> Sum:
    """Matches ``leaky_relu(a[receivers] + c[senders] + b)`` with ``ops.gat_attention``.

    Args:
      view: the view of the program.
      logits: the scores before the softmax, [edges, heads] or with axes of size one.
      table: the values, [columns, heads, features] or [columns, features].
      graph: the graph over whose edges the softmax is taken.
    """
    inner, slope = required(leaky_relu_of(view, logits))
    rows, columns, rest = [], [], []
    for term in terms_of(view, inner, 3):
        gather = row_gather(view, term)
        if gather is not None and reads_end(view, gather, graph, "column"):
            columns.append(gather.table)
        elif gather is not None and reads_end(view, gather, graph, "row"):
            rows.append(gather.table)
        else:
            rest.append(term)
    need(len(rows) == len(columns) == 1 and len(rest) <= 1)

    def apply(table, values):
        a, c = (values[atom].reshape(values[atom].shape[0], -1) for atom in (*rows, *columns))
        heads, a, c = a.shape[1], a.astype(table.dtype), c.astype(table.dtype)
        v = table.reshape(table.shape[0], heads, -1)
        bias = _bias(graph, rest, values, heads, table.dtype)
        return ops.gat_attention(graph.graph, a, c, v, negative_slope=slope, edge_logits=bias)

    return Sum("gat_attention", table, [*rows, *columns, *rest], apply)


def _bias(graph: Graph, of_edges: list[Atom], values: Values, heads: int, dtype: Any) -> Any:
    """Returns numbers of edges that are added to scores, in the order of the slots, or None."""
    numbers = [values[atom].reshape(-1, heads).astype(dtype) for atom in of_edges]
    return graph.to_slots(numbers[0]) if numbers else None


@or_none
def leaky_relu_of(view: View, atom: Atom) -> tuple[Atom, float]:
    """Returns the argument and the slope of a leaky ReLU, or None.

    It is ``where(x >= 0, x, slope * x)``, which has the slope one at zero, as the ops have. With
    ``x > 0`` the gradient there is another one. The slope is a positive number: the ops keep a
    score of -inf, which another slope would turn into NaN or inf.
    """
    select = view.match(atom, "select_n")
    need(len(select.invars) == 3)
    test, negative, positive = select.invars
    compared, bound = view.match(test, "ge").invars
    scaled = view.match(negative, "mul")
    need(compared is positive and not required(view.value(bound)).any())
    for slope, of in (scaled.invars, reversed(scaled.invars)):
        number = view.number(slope)
        if of is positive and number is not None and 0 < number < np.inf:
            return positive, number
    raise NoMatch


def terms_of(view: View, atom: Atom, depth: int) -> list[Atom]:
    """Returns the summands of an array of edges, ignoring axes of size one."""
    shape = [n for n in atom.aval.shape if n != 1]
    while (unit := view.produced_by(atom, "broadcast_in_dim", "reshape", "squeeze")) is not None:
        if [n for n in unit.invars[0].aval.shape if n != 1] != shape:
            break
        atom = unit.invars[0]
    equation = view.produced_by(atom, "add")
    if equation is None or depth == 0:
        return [atom]
    if any(a.aval.shape != atom.aval.shape for a in equation.invars):
        return [atom]
    return [term for part in equation.invars for term in terms_of(view, part, depth - 1)]


def inner_products_of(view: View, logits: Atom, table: Atom, graph: Graph) -> Sum | None:
    """Matches scores with ``ops.dot_attention`` or ``ops.gatv2_attention``; or returns None.

    The arguments are those of ``gat_of``.
    """
    terms = terms_of(view, logits, 1)
    for term, *others in (terms, terms[::-1]):
        product = _inner_product_of(view, term)
        if product is None or product.scalars:
            continue
        attention = _dot_of(view, product, others, table, graph)
        attention = attention or _gatv2_of(view, product, others, table, graph)
        if attention is not None:
            return attention
    return None


@or_none
def _inner_product_of(view: View, term: Atom) -> Product:
    """Matches a sum over features of a product, scaled by constants; or returns None."""
    scaled = product_of(view, term, 0)
    need(not scaled.tables and not scaled.scalars and len(scaled.others) == 1)
    summed = scaled.others[0]
    is_repeated = summed.axes != {d for d, n in enumerate(scaled.shape) if n != 1}
    need(not summed.is_inverse and not is_repeated)
    # jnp.sum adds short floats in float32.
    rounded = view.produced_by(summed.atom, "convert_element_type")
    product = _summed_product_of(view, rounded.invars[0] if rounded else summed.atom)
    product.constants[:0] = scaled.constants
    product.sign *= scaled.sign
    return product


def _summed_product_of(view: View, atom: Atom) -> Product:
    """Returns the product, [edges, heads, dim] or [edges, dim], whose sum is an atom."""
    summed = view.produced_by(atom, "reduce_sum")
    if summed is not None:
        last = summed.invars[0].aval.ndim - 1
        need(last >= 1 and tuple(summed.params["axes"]) == (last,))
        return product_of(view, summed.invars[0], 0)
    factors = required(contraction_of(view, atom))
    for one, other in (factors, factors[::-1]):
        if one.labels not in ((0, SUMMED), (0, 1, SUMMED)):
            continue
        if other.labels == one.labels:
            return _together(product_of(view, one.atom, 0), product_of(view, other.atom, 0))
        axis_of_label = {label: d for d, label in enumerate(one.labels) if d > 0}
        sizes = zip(other.labels, other.atom.aval.shape, strict=True)
        labels = tuple(None if n == 1 else axis_of_label.get(label, 0) for label, n in sizes)
        axes = [d for d in labels if d is not None]
        if 0 not in axes and axes == sorted(axes):  # All edges share the other factor.
            product = product_of(view, one.atom, 0)
            product.others.append(Factor(other.atom, labels))
            return product
    raise NoMatch


def _together(left: Product, right: Product) -> Product:
    """Multiplies two products of one shape."""
    return Product(
        left.shape,
        left.axis,
        left.tables + right.tables,
        left.scalars + right.scalars,
        left.constants + right.constants,
        left.others + right.others,
        left.sign * right.sign,
    )


@or_none
def _dot_of(view: View, product: Product, bias: list[Atom], table: Atom, graph: Graph) -> Sum:
    """Matches ``scale * sum(q[receivers] * k[senders], -1) + b``; or returns None."""
    scales, gathers = product.constants, [required(t.gather) for t in product.tables]
    need(len(gathers) == 2 and not product.others)
    queries, keys = required(_ends_of(view, gathers, graph))
    need(_have_type_of(table, [queries, keys]))

    def apply(table, values):
        q, k = _add_head_axis(values[queries]), _add_head_axis(values[keys])
        scale = values_of(scales, values, 0)
        q = q if scale is None else q * scale.astype(q.dtype)
        q, heads = q if product.sign > 0 else -q, q.shape[1]
        of_edges = _bias(graph, bias, values, heads, table.dtype)
        v = table.reshape(table.shape[0], heads, -1)
        return ops.dot_attention(graph.graph, q, k, v, scale=1.0, edge_logits=of_edges)

    inputs = [queries, keys, *(s.atom for s in scales), *bias]
    assumes = ("queries times the scale that neither overflow nor underflow",) * bool(scales)
    return Sum("dot_attention", table, inputs, apply, assumes)


@or_none
def _gatv2_of(view: View, product: Product, bias: list[Atom], table: Atom, graph: Graph) -> Sum:
    """Matches ``sum(a * leaky_relu(x[receivers] + z[senders]), -1) + b`` with values z."""
    shared = [f for f in product.others if 0 not in f.axes and not f.is_inverse]
    of_edges = [f for f in product.others if f not in shared]
    need(not product.tables and len(of_edges) == 1 and shared and product.edges != 1)
    need(not of_edges[0].is_inverse and of_edges[0].atom.aval.shape == product.shape)
    inner, slope = required(leaky_relu_of(view, of_edges[0].atom))
    gathers = [required(row_gather(view, term)) for term in terms_of(view, inner, 1)]
    need(len(gathers) == 2)
    of_rows, of_columns = required(_ends_of(view, gathers, graph))
    need(of_columns is table and _have_type_of(table, [of_rows]))
    factors = [*shared, *product.constants]

    def apply(table, values):
        x, z = _add_head_axis(values[of_rows]), _add_head_axis(table)
        shape = 1, *product.shape[1:]
        vectors = product.sign * values_of(factors, values, len(shape))
        vectors = jnp.broadcast_to(vectors, shape).reshape(x.shape[1:]).astype(table.dtype)
        numbers = _bias(graph, bias, values, x.shape[1], table.dtype)
        options = {"negative_slope": slope, "edge_logits": numbers}
        return ops.gatv2_attention(graph.graph, x, z, vectors, **options)

    inputs = [of_rows, *(f.atom for f in factors), *bias]
    return Sum("gatv2_attention", table, inputs, apply, (IN_RANGE,) * (len(factors) > 1))


def _ends_of(view: View, gathers: list[RowGather], graph: Graph) -> tuple[Atom, Atom] | None:
    """Returns the table read by the receiver and the one read by the sender, or None.

    If all edges are self loops, both gathers read by either.
    """
    for rows, columns in (gathers, gathers[::-1]):
        is_pair = reads_end(view, rows, graph, "row") and reads_end(view, columns, graph, "column")
        if is_pair:
            return rows.table, columns.table
    return None


def _have_type_of(table: Atom, arrays: Sequence[Atom]) -> bool:
    """Returns whether arrays of nodes are of the dtype of the values, and have as many heads."""
    heads = {a.aval.shape[1] if a.aval.ndim == 3 else 1 for a in arrays}
    return len(heads) == 1 and all(
        a.aval.dtype == table.aval.dtype and a.aval.ndim in (2, 3) for a in arrays
    )


def _add_head_axis(of_nodes: Any) -> Any:
    """Adds an axis of heads to an array with one head, [nodes, heads, dim]."""
    return of_nodes if of_nodes.ndim == 3 else of_nodes[:, None, :]
