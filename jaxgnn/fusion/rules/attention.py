"""The scores of graph attention networks, as they are written with gathers.

Scores that are inner products along the features of an edge: those of transformers and GATv2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

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
from jaxgnn.fusion.templates import session_precision
from jaxgnn.fusion.view import View


@dataclass(frozen=True)
class GatLogits:
    """``leaky_relu(a[receivers] + c[senders] + b)``."""

    op: ClassVar[str] = "gat_attention"
    of_rows: Atom  # a, one number for each receiver and head
    of_columns: Atom  # c, one number for each sender and head
    of_edges: Atom | None  # b, or None
    slope: float  # slope for negative numbers
    assumes: ClassVar[tuple[str, ...]] = ()

    @property
    def inputs(self) -> Sequence[Atom]:
        """The atoms whose values ``apply`` takes."""
        first = [self.of_rows, self.of_columns]
        return first if self.of_edges is None else [*first, self.of_edges]

    def apply(self, graph: StaticGraph, table: Any, values: Sequence[Any]) -> Any:
        """The sums of attention of ``table``, [columns, heads, features] or [columns, features]."""
        heads = values[0].reshape(values[0].shape[0], -1).shape[1]
        rows, columns = (v.reshape(v.shape[0], heads).astype(table.dtype) for v in values[:2])
        bias = None
        if self.of_edges is not None:
            bias = graph.to_slots(values[2].reshape(-1, heads).astype(table.dtype))
        v = table.reshape(table.shape[0], heads, -1)
        options = {"negative_slope": self.slope, "edge_logits": bias}
        return ops.gat_attention(graph.graph, rows, columns, v, **options)


def gat_logits_of(view: View, logits: Atom, graph: StaticGraph) -> GatLogits | None:
    """The parts of the scores, if they are those of ``ops.gat_attention`` on this graph, or None.

    Args:
      view: the view of the program.
      logits: the scores before the softmax, [edges, heads] or with axes of size one.
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
    return GatLogits(rows[0], columns[0], rest[0] if rest else None, slope)


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
        value = view.value(slope) if slope.aval.size == 1 else None
        if of is positive and value is not None and 0 < float(value.reshape(())) < np.inf:
            return positive, float(value.reshape(()))
    return None


def terms_of(view: View, atom: Atom, depth: int) -> list[Atom]:
    """The summands of an array of edges, ignoring axes of size one."""
    shape = [n for n in atom.aval.shape if n != 1]
    while (unit := view.made_by(atom, "broadcast_in_dim", "reshape", "squeeze")) is not None:
        if [n for n in unit.invars[0].aval.shape if n != 1] != shape:
            break
        atom = unit.invars[0]
    equation = view.made_by(atom, "add")
    if (
        equation is None
        or depth == 0
        or any(a.aval.shape != atom.aval.shape for a in equation.invars)
    ):
        return [atom]
    return [term for part in equation.invars for term in terms_of(view, part, depth - 1)]


@dataclass(frozen=True)
class DotLogits:
    """``scale * sum(q[receivers] * k[senders], -1) + b``."""

    op: ClassVar[str] = "dot_attention"
    queries: Atom  # q, [rows, heads, dim] or [rows, dim]
    keys: Atom  # k, [columns, heads, dim] or [columns, dim]
    scales: list[Factor]  # factors of one number each, whose product with ``sign`` is the scale
    sign: int  # 1 or -1
    of_edges: Atom | None  # b, one number for each edge and head, or None

    @property
    def assumes(self) -> tuple[str, ...]:
        """Conditions on numbers under which these are the scores, for ``Rewrite.assumes``."""
        return ("queries times the scale that neither overflow nor underflow",) * bool(self.scales)

    @property
    def inputs(self) -> Sequence[Atom]:
        """The atoms whose values ``apply`` takes."""
        first = [self.queries, self.keys, *(s.atom for s in self.scales)]
        return first if self.of_edges is None else [*first, self.of_edges]

    def apply(self, graph: StaticGraph, table: Any, values: Sequence[Any]) -> Any:
        """The sums of attention of ``table``, [columns, heads, features] or [columns, features]."""
        q, k, *rest = values
        q, k = _with_heads(q), _with_heads(k)
        scale = values_of(self.scales, rest[: len(self.scales)], 0)
        q = q if scale is None else q * scale.astype(q.dtype)
        q = q if self.sign > 0 else -q
        heads = q.shape[1]
        bias = None
        if self.of_edges is not None:
            bias = graph.to_slots(rest[-1].reshape(-1, heads).astype(table.dtype))
        v = table.reshape(table.shape[0], heads, -1)
        return ops.dot_attention(graph.graph, q, k, v, scale=1.0, edge_logits=bias)


@dataclass(frozen=True)
class Gatv2Logits:
    """``sum(a * leaky_relu(x[receivers] + z[senders]), -1) + b``, where z are also the values."""

    op: ClassVar[str] = "gatv2_attention"
    of_rows: Atom  # x, [rows, heads, dim] or [rows, dim]
    # Factors that are the same for all edges, whose product with ``sign`` is a
    factors: list[Factor]
    sign: int  # 1 or -1
    of_edges: Atom | None  # b, one number for each edge and head, or None
    slope: float  # of negative numbers
    # The shape of the features of an edge in the product, of which factors have the axes
    features: tuple[int, ...]

    @property
    def assumes(self) -> tuple[str, ...]:
        """Conditions on numbers under which these are the scores, for ``Rewrite.assumes``."""
        return (IN_RANGE,) * (len(self.factors) > 1)

    @property
    def inputs(self) -> Sequence[Atom]:
        """The atoms whose values ``apply`` takes."""
        first = [self.of_rows, *(f.atom for f in self.factors)]
        return first if self.of_edges is None else [*first, self.of_edges]

    def apply(self, graph: StaticGraph, table: Any, values: Sequence[Any]) -> Any:
        """The sums of attention of ``table``, [columns, heads, features] or [columns, features]."""
        x, *rest = values
        x, z = _with_heads(x), _with_heads(table)
        shape = (1, *self.features)
        vectors = self.sign * values_of(self.factors, rest[: len(self.factors)], len(shape))
        vectors = jnp.broadcast_to(vectors, shape).reshape(x.shape[1:])
        bias = None
        if self.of_edges is not None:
            bias = graph.to_slots(rest[-1].reshape(-1, x.shape[1]).astype(table.dtype))
        options: dict[str, Any] = {"negative_slope": self.slope, "edge_logits": bias}
        return ops.gatv2_attention(graph.graph, x, z, vectors.astype(table.dtype), **options)


def inner_product_logits_of(
    view: View, logits: Atom, table: Atom, graph: StaticGraph
) -> DotLogits | Gatv2Logits | None:
    """The parts of scores of ``ops.dot_attention`` or ``ops.gatv2_attention``, or None.

    Args:
      view: the view of the program.
      logits: the scores before the softmax, [edges, heads] or with axes of size one.
      table: the values, [columns, heads, features] or [columns, features].
      graph: the graph over whose edges the softmax is taken.
    """
    terms = terms_of(view, logits, 1)
    for term, *others in (terms, terms[::-1]):
        made = _inner_product_of(view, term)
        if made is None or made.product.scalars:
            continue
        bias = others[0] if others else None
        found = _dot_of(view, made, bias, graph) or _gatv2_of(view, made, bias, table, graph)
        if found is not None and _has_type_of(view, found, table):
            return found
    return None


@dataclass(frozen=True)
class _InnerProduct:
    """A product of features of edges that is summed along them, and then scaled."""

    product: Product  # the product
    scales: list[Factor]  # factors of one number each
    sign: int  # 1 or -1


def _inner_product_of(view: View, term: Atom) -> _InnerProduct | None:
    scaled = product_of(view, term, 0)
    if scaled.tables or scaled.scalars or len(scaled.others) != 1 or scaled.others[0].is_inverse:
        return None
    summed = scaled.others[0]
    if summed.axes != {d for d, n in enumerate(scaled.shape) if n != 1}:  # a sum that is repeated
        return None
    product = _summed_product_of(view, _unrounded(view, summed.atom))
    if product is None:
        return None
    scales = [*scaled.constants, *product.constants]
    return _InnerProduct(product, scales, scaled.sign * product.sign)


def _unrounded(view: View, atom: Atom) -> Atom:
    """The sum in float32 that is rounded to the dtype of its terms, as ``jnp.sum`` does."""
    rounded = view.made_by(atom, "convert_element_type")
    return atom if rounded is None else rounded.invars[0]


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
    for one, other, of_dot in ((left, right, numbers), (right, left, _swapped(numbers))):
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


def _swapped(numbers: Any) -> Any:
    (contracted, batch) = numbers
    return contracted[::-1], batch[::-1]


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
    view: View, made: _InnerProduct, bias: Atom | None, graph: StaticGraph
) -> DotLogits | None:
    product = made.product
    if len(product.tables) != 2 or product.others:
        return None
    pair = _ends_of(view, [t.gather for t in product.tables if t.gather is not None], graph)
    return None if pair is None else DotLogits(*pair, made.scales, made.sign, bias)


def _gatv2_of(
    view: View, made: _InnerProduct, bias: Atom | None, table: Atom, graph: StaticGraph
) -> Gatv2Logits | None:
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
    factors = [*shared, *made.scales]
    return Gatv2Logits(pair[0], factors, made.sign, bias, slope, product.shape[1:])


def _ends_of(view: View, gathers: list[RowGather], graph: StaticGraph) -> tuple[Atom, Atom] | None:
    """The tables that two gathers read by the receiver and by the sender, in this order, or None.

    If all edges are self loops, both gathers read by either.
    """
    for rows, columns in (gathers, gathers[::-1]):
        is_pair = end_of(view, rows, graph, "row") and end_of(view, columns, graph, "column")
        if is_pair:
            return rows.table, columns.table
    return None


def _has_type_of(view: View, found: DotLogits | Gatv2Logits, table: Atom) -> bool:
    """Whether the arrays of nodes are of the dtype of the values, and have as many heads."""
    arrays = [found.queries, found.keys] if isinstance(found, DotLogits) else [found.of_rows]
    heads = {a.aval.shape[1] if a.aval.ndim == 3 else 1 for a in arrays}
    return len(heads) == 1 and all(
        a.aval.dtype == table.aval.dtype and a.aval.ndim in (2, 3) for a in arrays
    )


def _with_heads(of_nodes: Any) -> Any:
    """Adds an axis of heads to an array with one head, [nodes, heads, dim]."""
    return of_nodes if of_nodes.ndim == 3 else of_nodes[:, None, :]
