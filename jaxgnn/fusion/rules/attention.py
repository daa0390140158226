"""Attention over the neighbours: softmaxes of known scores, with ops that fuse them and the sum.

The scores are those of graph attention networks, as they are written with gathers, or inner
products along the features of an edge, as in transformers and GATv2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from jaxgnn import ops
from jaxgnn.fusion.edges import RowGather, known_ids, row_gather
from jaxgnn.fusion.graphs import StaticGraph
from jaxgnn.fusion.products import (
    IN_RANGE,
    Factor,
    Labels,
    Product,
    product_of,
    unless_one,
    values_of,
)
from jaxgnn.fusion.program import Atom
from jaxgnn.fusion.rewrite import Values
from jaxgnn.fusion.templates import session_precision
from jaxgnn.fusion.view import View


@dataclass(frozen=True)
class Sum:
    """An op that sums rows of a table."""

    op: str
    table: Atom
    inputs: list[Atom]  # read besides the table
    apply: Callable[[Any, Values], Any]  # takes the table and the values of the inputs
    assumes: tuple[str, ...] = ()  # conditions on numbers, for ``Rewrite.assumes``


def gat_of(view: View, logits: Atom, table: Atom, graph: StaticGraph) -> Sum | None:
    """``ops.gat_attention`` if scores are ``leaky_relu(a[receivers] + c[senders] + b)``, or None.

    Args:
      view: the view of the program.
      logits: the scores before the softmax, [edges, heads] or with axes of size one.
      table: the values, [columns, heads, features] or [columns, features].
      graph: the graph over whose edges the softmax is taken.
    """
    found = leaky_relu_of(view, logits)
    if found is None:
        return None
    inner, slope = found
    rows, columns, rest = [], [], []
    for term in terms_of(view, inner, 3):
        gather = row_gather(view, term)
        if gather is not None and end_of(view, gather, graph, "column"):
            columns.append(gather.table)
        elif gather is not None and end_of(view, gather, graph, "row"):
            rows.append(gather.table)
        else:
            rest.append(term)
    if len(rows) != 1 or len(columns) != 1 or len(rest) > 1:
        return None

    def apply(table, values):
        a, c = (values[atom].reshape(values[atom].shape[0], -1) for atom in (*rows, *columns))
        heads, a, c = a.shape[1], a.astype(table.dtype), c.astype(table.dtype)
        v = table.reshape(table.shape[0], heads, -1)
        bias = _bias(graph, rest, values, heads, table.dtype)
        return ops.gat_attention(graph.graph, a, c, v, negative_slope=slope, edge_logits=bias)

    return Sum("gat_attention", table, [*rows, *columns, *rest], apply)


def _bias(graph: StaticGraph, of_edges: list[Atom], values: Values, heads: int, dtype: Any) -> Any:
    """Numbers of edges that are added to scores, in the order of the slots, if there are any."""
    numbers = [values[atom].reshape(-1, heads).astype(dtype) for atom in of_edges]
    return graph.to_slots(numbers[0]) if numbers else None


def end_of(
    view: View, gather: RowGather, graph: StaticGraph, end: Literal["row", "column"]
) -> bool:
    """Whether each edge that is not ignored reads the table by its row, or by its column."""
    ids = known_ids(view, gather.places) if gather.axis == 0 else None
    if ids is None or ids.size != graph.order.size:
        return False
    size = graph.graph.num_rows if end == "row" else graph.graph.num_cols
    if gather.size != size:
        return False
    question = "end", gather.places, graph, end
    return view.derived(question, lambda: _is_end(ids, graph, end))


def _is_end(ids: np.ndarray, graph: StaticGraph, end: Literal["row", "column"]) -> bool:
    own = graph.live_rows if end == "row" else graph.live_columns
    for count in (1024, graph.num_live):  # most lists that differ do so early
        if (ids[graph.order[: min(count, graph.num_live)]] != own[:count]).any():
            return False
    return True


def leaky_relu_of(view: View, atom: Atom) -> tuple[Atom, float] | None:
    """The argument and the slope of the leaky ReLU that computes an atom, or None.

    It is ``where(x >= 0, x, slope * x)``, which has the slope one at zero, as the ops have. With
    ``x > 0`` the gradient there is another one. The slope is a positive number: the ops keep a
    score of -inf, which another slope would turn into NaN or inf.
    """
    select = view.made_by(atom, "select_n")
    if select is None or len(select.invars) != 3:
        return None
    test, negative, positive = select.invars
    comparison = view.made_by(test, "ge")
    scaled = view.made_by(negative, "mul")
    if comparison is None or scaled is None or comparison.invars[0] is not positive:
        return None
    if (bound := view.value(comparison.invars[1])) is None or bound.any():
        return None
    for slope, of in (scaled.invars, reversed(scaled.invars)):
        number = view.number(slope)
        if of is positive and number is not None and 0 < number < np.inf:
            return positive, number
    return None


def terms_of(view: View, atom: Atom, depth: int) -> list[Atom]:
    """The summands of an array of edges, ignoring axes of size one."""
    shape = [n for n in atom.aval.shape if n != 1]
    while (unit := view.made_by(atom, "broadcast_in_dim", "reshape", "squeeze")) is not None:
        if [n for n in unit.invars[0].aval.shape if n != 1] != shape:
            break
        atom = unit.invars[0]
    equation = view.made_by(atom, "add")
    if equation is None or depth == 0:
        return [atom]
    if any(a.aval.shape != atom.aval.shape for a in equation.invars):
        return [atom]
    return [term for part in equation.invars for term in terms_of(view, part, depth - 1)]


def inner_products_of(view: View, logits: Atom, table: Atom, graph: StaticGraph) -> Sum | None:
    """``ops.dot_attention`` or ``ops.gatv2_attention`` if scores are theirs, or None.

    The arguments are those of ``gat_of``.
    """
    terms = terms_of(view, logits, 1)
    for term, *others in (terms, terms[::-1]):
        made = _inner_product_of(view, term)
        if made is None or made.product.scalars:
            continue
        found = _dot_of(view, made, others, table, graph)
        found = found or _gatv2_of(view, made, others, table, graph)
        if found is not None:
            return found
    return None


@dataclass(frozen=True)
class _InnerProduct:
    """A product of features of edges that is summed along them, and then scaled."""

    product: Product
    scales: list[Factor]  # of one number each
    sign: int


def _inner_product_of(view: View, term: Atom) -> _InnerProduct | None:
    scaled = product_of(view, term, 0)
    if scaled.tables or scaled.scalars or len(scaled.others) != 1 or scaled.others[0].is_inverse:
        return None
    summed = scaled.others[0]
    if summed.axes != {d for d, n in enumerate(scaled.shape) if n != 1}:  # a sum that is repeated
        return None
    rounded = view.made_by(summed.atom, "convert_element_type")  # jnp.sum adds in float32
    product = _summed_product_of(view, rounded.invars[0] if rounded else summed.atom)
    if product is None:
        return None
    scales = [*scaled.constants, *product.constants]
    return _InnerProduct(product, scales, scaled.sign * product.sign)


def _summed_product_of(view: View, atom: Atom) -> Product | None:
    """The product of features, [edges, heads, dim] or [edges, dim], whose sum an atom is."""
    summed = view.made_by(atom, "reduce_sum")
    if summed is not None:
        last = summed.invars[0].aval.ndim - 1
        is_of_features = last >= 1 and tuple(summed.params["axes"]) == (last,)
        return product_of(view, summed.invars[0], 0) if is_of_features else None
    moved = view.made_by(atom, "transpose")  # a product by heads has heads first
    if moved is not None and tuple(moved.params["permutation"]) == (1, 0):
        atom = moved.invars[0]
    dot = view.made_by(atom, "dot_general")
    if dot is None or dot.params["precision"] != session_precision():
        return None
    left, right = dot.invars
    if not left.aval.dtype == right.aval.dtype == atom.aval.dtype:
        return None
    numbers = tuple(tuple(map(tuple, of)) for of in dot.params["dimension_numbers"])
    dims = left.aval.ndim
    if moved is None and numbers == _PAIRS.get(dims) and left.aval.shape == right.aval.shape:
        return _together(product_of(view, left, 0), product_of(view, right, 0))
    swapped = numbers[0][::-1], numbers[1][::-1]
    for one, other, of_dot in ((left, right, numbers), (right, left, swapped)):
        labels = _labels_of_vector(one, other, of_dot, is_moved=moved is not None)
        if labels is not None:
            product = product_of(view, one, 0)
            product.others.append(Factor(other, labels))
            return product
    return None


# Products of features of edges with others of the same edges, by the number of their axes.
_PAIRS = {
    2: (((1,), (1,)), ((0,), (0,))),
    3: (((2,), (2,)), ((0, 1), (0, 1))),
}


def _labels_of_vector(edges: Atom, vector: Atom, numbers: Any, *, is_moved: bool) -> Labels | None:
    """The axes of features of edges that those of a vector are, with which they are multiplied."""
    (contracted, of_vector), (batch, batch_of_vector) = numbers
    if edges.aval.ndim == 2 and contracted == (1,) and of_vector == (0,) and not batch:
        is_one = vector.aval.size == edges.aval.shape[1]
        return unless_one((1, *[None] * (vector.aval.ndim - 1)), vector) if is_one else None
    if edges.aval.ndim == 3 and contracted == (2,) and batch == (1,) and is_moved:
        is_by_head = of_vector == (1,) and batch_of_vector == (0,) and vector.aval.ndim == 2
        return unless_one((1, 2), vector) if is_by_head else None
    return None


def _together(left: Product, right: Product) -> Product:
    """The product of two products of one shape."""
    return Product(
        left.shape,
        left.axis,
        left.tables + right.tables,
        left.scalars + right.scalars,
        left.constants + right.constants,
        left.others + right.others,
        left.sign * right.sign,
    )


def _dot_of(
    view: View, made: _InnerProduct, bias: list[Atom], table: Atom, graph: StaticGraph
) -> Sum | None:
    """``scale * sum(q[receivers] * k[senders], -1) + b``, whose scale is a product."""
    product, scales = made.product, made.scales
    if len(product.tables) != 2 or product.others:
        return None
    pair = _ends_of(view, [t.gather for t in product.tables if t.gather is not None], graph)
    if pair is None or not _have_type_of(table, pair):
        return None
    queries, keys = pair

    def apply(table, values):
        q, k = _with_heads(values[queries]), _with_heads(values[keys])
        scale = values_of(scales, values, 0)
        q = q if scale is None else q * scale.astype(q.dtype)
        q, heads = q if made.sign > 0 else -q, q.shape[1]
        of_edges = _bias(graph, bias, values, heads, table.dtype)
        v = table.reshape(table.shape[0], heads, -1)
        return ops.dot_attention(graph.graph, q, k, v, scale=1.0, edge_logits=of_edges)

    inputs = [*pair, *(s.atom for s in scales), *bias]
    assumes = ("queries times the scale that neither overflow nor underflow",) * bool(scales)
    return Sum("dot_attention", table, inputs, apply, assumes)


def _gatv2_of(
    view: View, made: _InnerProduct, bias: list[Atom], table: Atom, graph: StaticGraph
) -> Sum | None:
    """``sum(a * leaky_relu(x[receivers] + z[senders]), -1) + b``, where z are also the values."""
    product = made.product
    shared = [f for f in product.others if 0 not in f.axes and not f.is_inverse]
    of_edges = [f for f in product.others if f not in shared]
    if product.tables or len(of_edges) != 1 or of_edges[0].is_inverse or not shared:
        return None
    found = leaky_relu_of(view, of_edges[0].atom)
    if found is None or of_edges[0].atom.aval.shape != product.shape or product.edges == 1:
        return None
    inner, slope = found
    gathers = [row_gather(view, term) for term in terms_of(view, inner, 1)]
    whole = [g for g in gathers if g is not None]
    pair = _ends_of(view, whole, graph) if len(whole) == len(gathers) == 2 else None
    if pair is None or pair[1] is not table:
        return None
    of_rows, factors = pair[0], [*shared, *made.scales]
    if not _have_type_of(table, [of_rows]):
        return None

    def apply(table, values):
        x, z = _with_heads(values[of_rows]), _with_heads(table)
        shape = 1, *product.shape[1:]
        vectors = made.sign * values_of(factors, values, len(shape))
        vectors = jnp.broadcast_to(vectors, shape).reshape(x.shape[1:]).astype(table.dtype)
        numbers = _bias(graph, bias, values, x.shape[1], table.dtype)
        options = {"negative_slope": slope, "edge_logits": numbers}
        return ops.gatv2_attention(graph.graph, x, z, vectors, **options)

    inputs = [of_rows, *(f.atom for f in factors), *bias]
    return Sum("gatv2_attention", table, inputs, apply, (IN_RANGE,) * (len(factors) > 1))


def _ends_of(view: View, gathers: list[RowGather], graph: StaticGraph) -> tuple[Atom, Atom] | None:
    """The tables that two gathers read by the receiver and by the sender, in this order, or None.

    If all edges are self loops, both gathers read by either.
    """
    for rows, columns in (gathers, gathers[::-1]):
        is_pair = end_of(view, rows, graph, "row") and end_of(view, columns, graph, "column")
        if is_pair:
            return rows.table, columns.table
    return None


def _have_type_of(table: Atom, arrays: Sequence[Atom]) -> bool:
    """Whether arrays of nodes are of the dtype of the values, and have as many heads."""
    heads = {a.aval.shape[1] if a.aval.ndim == 3 else 1 for a in arrays}
    return len(heads) == 1 and all(
        a.aval.dtype == table.aval.dtype and a.aval.ndim in (2, 3) for a in arrays
    )


def _with_heads(of_nodes: Any) -> Any:
    """Adds an axis of heads to an array with one head, [nodes, heads, dim]."""
    return of_nodes if of_nodes.ndim == 3 else of_nodes[:, None, :]
