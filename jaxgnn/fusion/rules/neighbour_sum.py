"""Sums of gathered rows become ``ops.spmm``, and those weighted by a softmax become attention.

``segment_sum(x[senders] * w, receivers)`` is ``A x`` with the weights ``w`` as the entries of the
sparse matrix ``A``. Degree normalisations are weights, or scales of nodes before and after.

Sound where:

* the ids of both ends are known, so that ids out of range are known: an edge whose receiver is
  dropped becomes padding, and other edges read an existing row, or the nearest one under
  ``mode="clip"``;
* the summed array is a product of rows of one table, numbers of edges (or of edges and heads), rows
  of tables that are read by the receiver, and constants. The receiver's rows are the same for all
  edges of a segment, and multiply the sum instead;
* the sum may start at any array, which is added.

Repeated edges and ids in any order are edges like others. Sums are accumulated in float32 by the op
and rounded once.

The order of the factors is another one, which keeps numbers that are finite and in range:

* Weights of an edge are multiplied with each other first, and a weight that divides is inverted;
  ``explain`` names that as an assumption. Products of known weights are checked: where one
  overflows or underflows the sum is left alone. float16 is multiplied and summed in float32.
* Rows of the receiver multiply the sum, which must not overflow before; ``explain`` names that too.
* A constant goes into a weight if there is one. Else it multiplies the sum behind a softmax, or if
  it is known and at least one, where the sum can not overflow before it; and the rows otherwise.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn import ops
from jaxgnn._arrays.arrays import own
from jaxgnn.fusion.edges import (
    SegmentReduction,
    are_the_same,
    graph_of,
    is_filled_with,
    known_columns,
    known_rows,
    segment_reduction,
)
from jaxgnn.fusion.graphs import StaticGraph
from jaxgnn.fusion.products import (
    IN_RANGE,
    Factor,
    Product,
    before_merge,
    leaves_range,
    multiplied,
    only_widen,
    product_of,
    values_of,
)
from jaxgnn.fusion.program import Atom, Equation, is_variable
from jaxgnn.fusion.rewrite import Refusal, Rewrite, Rule, nbytes
from jaxgnn.fusion.rules.attention import (
    DotLogits,
    GatLogits,
    Gatv2Logits,
    gat_logits_of,
    inner_product_logits_of,
)
from jaxgnn.fusion.rules.maxk import maxk_of
from jaxgnn.fusion.rules.softmax import SegmentSoftmax, segment_softmax_of
from jaxgnn.fusion.view import View
from jaxgnn.graph import CSRGraph


@dataclass(frozen=True)
class _Parts:
    """The parts of a sum over neighbours."""

    reduction: SegmentReduction  # the sum
    product: Product  # the summed array
    table: Factor  # the rows that are summed
    of_rows: list[Factor]  # factors that are read by the receiver
    # The factor that is a softmax over the edges of each receiver, with its logits
    softmax: tuple[Factor, SegmentSoftmax] | None
    scalars: list[Factor]  # the other weights of edges
    # The product of weights that are known ahead, [edges] or [edges, heads], or None
    known: np.ndarray | None
    of_weights: list[Factor]  # constants that multiply the weights
    first: list[Factor]  # constants that multiply the rows before they are summed
    last: list[Factor]  # constants that multiply the sums

    @property
    def has_weights(self) -> bool:
        """Whether edges have weights beside a softmax."""
        return bool(self.scalars or self.of_weights) or self.known is not None


def _propose(view: View, equation: Equation) -> Rewrite | Refusal | None:
    reduction = segment_reduction(equation)
    if reduction is None or reduction.kind != "sum":
        return None
    if not jnp.issubdtype(equation.outvars[0].aval.dtype, jnp.floating):
        return None
    updates = before_merge(view, reduction.updates, reduction.axis)
    product = product_of(view, updates, reduction.axis)
    if not product.tables:
        return None
    if product.others:
        return Refusal(equation, "a factor is neither read by row nor a number for each edge")
    rows = known_rows(view, reduction)
    if isinstance(rows, str):
        return Refusal(equation, rows)
    of_rows = [t for t in product.tables if _is_of_rows(view, reduction, t, rows)]
    tables = [t for t in product.tables if t not in of_rows]
    if not tables and of_rows:  # all edges are self loops
        tables.append(of_rows.pop())
    if len(tables) != 1:
        return Refusal(equation, "rows of two tables are multiplied, which no op does")
    gather = tables[0].gather
    assert gather is not None
    softmax = _softmax_among(view, product, rows)
    counted = rows if softmax is None else softmax[1].rows
    graph = graph_of(view, reduction, gather, counted)
    if isinstance(graph, str):
        return Refusal(equation, graph)
    scalars = [s for s in product.scalars if softmax is None or s is not softmax[0]]
    # A number of an edge takes constants in. A softmax does not make rows larger, so they may wait.
    waits = not scalars and (softmax is not None or only_widen(view, product.constants))
    weights = [*scalars, *(product.constants if scalars else ())]
    known = [s for s in weights if view.is_known(s.atom)]
    of_known = _known_weights(view, product, known)
    if isinstance(of_known, str):
        return Refusal(equation, of_known)
    unknown = [s for s in weights if not view.is_known(s.atom)]
    parts = _Parts(
        reduction,
        product,
        tables[0],
        of_rows,
        softmax,
        [s for s in unknown if s.axes],
        of_known,
        of_weights=[s for s in unknown if not s.axes],
        first=[] if scalars or waits else product.constants,
        last=product.constants if waits else [],
    )
    return _rewrite(view, graph, parts)


def _known_weights(view: View, product: Product, factors: list[Factor]) -> np.ndarray | str | None:
    """The product of factors that are known ahead, such as norms of degrees; or why it is not one.

    There is none if no factor is known.
    """
    if not factors:
        return None
    heads = product.shape[product.axis + 1] if product.has_heads else None
    atoms = [f.atom for f in factors]
    forms = tuple((f.labels, f.is_inverse) for f in factors)

    def made() -> np.ndarray | str:
        with jax.ensure_compile_time_eval():
            arrays = [view.value(atom) for atom in atoms]
            values = np.asarray(values_of(factors, arrays, len(product.shape)))
            if leaves_range(factors, arrays, values):
                return "a product of known weights overflows or underflows"
            return own(np.array(_weights_of(values, heads, product.edges)))

    question = f"weights {forms} {heads} {product.edges}"
    names = [atom if is_variable(atom) else ("literal", float(atom.val)) for atom in atoms]
    return view.derived((question, *names), made, of=atoms)


def _is_of_rows(view: View, reduction: SegmentReduction, factor: Factor, rows: np.ndarray) -> bool:
    """Whether each edge that is not ignored reads the row of its own segment."""
    gather = factor.gather
    if gather is None or gather.size != reduction.size:
        return False
    columns = known_columns(view, gather, rows)
    return not isinstance(columns, str) and are_the_same(columns, rows, rows)


def _softmax_among(
    view: View, product: Product, rows: np.ndarray
) -> tuple[Factor, SegmentSoftmax] | None:
    for factor in product.scalars:
        if factor.is_inverse or factor.labels[:1] != (product.axis,):
            continue
        found = segment_softmax_of(view, factor.atom, rows, may_drop=True)
        if found is not None:
            return factor, found
    return None


def _rewrite(view: View, graph: StaticGraph, parts: _Parts) -> Rewrite:
    reduction, product = parts.reduction, parts.product
    starts_at_zero = is_filled_with(view, reduction.base, 0)
    gather = parts.table.gather
    assert gather is not None
    attention = _attention_of(view, graph, parts, gather.table)
    rows = _rows_of(view, gather.table, product)
    weights = _weights(graph, parts, attention, rows)
    inputs = [gather.table if attention is not None else rows.table, *weights.inputs]
    inputs += [f.gather.table for f in parts.of_rows if f.gather is not None]
    inputs += [c.atom for c in parts.last]
    inputs += [] if starts_at_zero else [reduction.base]

    def function(table, *rest):
        of_weights, rest = rest[: len(weights.inputs)], rest[len(weights.inputs) :]
        of_rows, rest = rest[: len(parts.of_rows)], rest[len(parts.of_rows) :]
        constants, rest = rest[: len(parts.last)], rest[len(parts.last) :]
        made = weights.apply(table.astype(inner), of_weights).reshape(shape)
        for rows in of_rows:
            made = made * _where_edges(graph, rows.astype(inner), axis)
        scale = values_of(parts.last, constants, 0)
        if scale is not None:  # which may be infinite, and then is for rows with edges alone
            of_all = jnp.broadcast_to(scale.astype(inner), [1] * axis + [reduction.size] + behind)
            made = made * _where_edges(graph, of_all, axis)
        made = (made if product.sign > 0 else -made).reshape(output.aval.shape).astype(dtype)
        return [made if starts_at_zero else rest[0] + made]

    output, axis = reduction.equation.outvars[0], reduction.axis
    dtype = output.aval.dtype
    is_short = dtype == jnp.float16 and attention is None  # sums and weights may need its range
    inner = jnp.dtype("float32") if is_short else dtype
    shape = (*output.aval.shape[: axis + 1], *product.shape[axis + 1 :])
    behind = [1] * (len(shape) - axis - 1)
    edges = reduction.updates.aval.size * dtype.itemsize
    after = nbytes(gather.table, output) + edges + 4 * product.edges
    note = f"sum over {product.edges} edges of {product.width} features -> {weights.op}"
    before = 3 * edges + nbytes(output)
    case = _case(weights, parts)
    assumes = _assumes(parts, attention, rows)
    return Rewrite(
        reduction.equation, inputs, function, note, before, after, case=case, assumes=assumes
    )


def _assumes(
    parts: _Parts, attention: GatLogits | DotLogits | Gatv2Logits | None, rows: _Rows
) -> tuple[str, ...]:
    """Conditions on numbers under which the order of the factors does not matter."""
    softmax = None if parts.softmax is None else parts.softmax[1]
    unknown = [*parts.scalars, *parts.of_weights]
    of_known = parts.known is not None
    found = [*rows.assumes] if attention is None else [*attention.assumes]
    if softmax is not None:
        found += softmax.assumes
    if softmax is not None and attention is not None and not softmax.is_guarded:
        found.append("a finite logit at each row with edges")
    are_multiplied = len(unknown) + of_known + (softmax is not None) > 1
    if attention is None and (are_multiplied or any(s.is_inverse for s in unknown)):
        found.append(IN_RANGE)
    if parts.of_rows:
        found.append("finite numbers, and sums that do not overflow before the receiver's rows")
    return tuple(found)


def _attention_of(
    view: View, graph: StaticGraph, parts: _Parts, table: Atom
) -> GatLogits | DotLogits | Gatv2Logits | None:
    """The scores of an op of attention that fuses the softmax and the sum, or None.

    These ops are for one graph without leading axes, whose values have an axis of heads or none.
    """
    if parts.softmax is None or parts.has_weights or parts.product.axis != 0:
        return None
    logits = parts.softmax[1].logits
    found = gat_logits_of(view, logits, graph)
    if found is not None or table.aval.ndim not in (2, 3):
        return found
    return inner_product_logits_of(view, logits, table, graph)


@dataclass(frozen=True)
class _Weights:
    """The op that sums, and the atoms that it reads besides the table."""

    op: str  # name of the op
    inputs: Sequence[Any]  # atoms of the weights
    # Takes the table and the values of the inputs, returns the sums
    apply: Callable[[Any, Sequence[Any]], Any]


def _case(weights: _Weights, parts: _Parts) -> str:
    """The case of the rule for measurements: narrow rows cost little compared to their weights."""
    width = parts.product.width
    if weights.op == "gat_attention" and width < 32:
        return "gat_attention of narrow rows"
    if weights.op in (DotLogits.op, Gatv2Logits.op) and width < 32:
        return "inner products of narrow rows"
    if (parts.has_weights or parts.softmax is not None) and width < 8:
        return "neighbour_sum of narrow weighted rows"
    return "neighbour_sum"


@dataclass(frozen=True)
class _Rows:
    """The rows that are summed, and the op that sums them."""

    op: str  # name of the op
    table: Atom  # the rows, or what they are the largest entries of
    # Takes a graph, the table, and how to scale what it sums
    sum: Callable[[CSRGraph, Any, Callable[[Any], Any]], Any]
    assumes: tuple[str, ...] = ()  # conditions on the table under which these are the rows


def _rows_of(view: View, table: Atom, product: Product) -> _Rows:
    found = maxk_of(view, table) if product.axis == 0 else None
    if found is None or product.has_heads:
        return _Rows("spmm", table, lambda graph, x, scaled: ops.spmm(graph, scaled(x)))

    def sum_largest(graph, x, scaled):
        kept = ops.maxk(x, found.k)
        return ops.maxk_spmm(graph, dataclasses.replace(kept, values=scaled(kept.values)))

    return _Rows("maxk_spmm", found.x, sum_largest, found.assumes)


def _weights(
    graph: StaticGraph,
    parts: _Parts,
    attention: GatLogits | DotLogits | Gatv2Logits | None,
    rows: _Rows,
) -> _Weights:
    product = parts.product
    axis, edges = product.axis, product.edges
    if attention is not None:
        inputs = attention.inputs
        return _Weights(attention.op, inputs, lambda x, v: attention.apply(graph, x, v))
    of_softmax = [] if parts.softmax is None else [parts.softmax[1].logits]
    constants = [*parts.of_weights, *parts.first]
    inputs = [*of_softmax, *(s.atom for s in (*parts.scalars, *constants))]
    heads = product.shape[axis + 1] if product.has_heads else None

    def apply(table, values):
        leading, weighted = table.shape[:axis], graph.graph
        weights: list[Any] = []
        if parts.softmax is not None:
            logits = graph.to_slots(_by_head(values[0], heads, edges))
            probabilities = parts.softmax[1].probabilities(graph.graph, logits)
            weights.append(probabilities.astype(table.dtype))
            values = values[1:]
        of_edges, values = values[: len(parts.scalars)], values[len(parts.scalars) :]
        of_weights, of_first = values[: len(parts.of_weights)], values[len(parts.of_weights) :]
        if parts.scalars:
            made = values_of(parts.scalars, of_edges, len(product.shape)).astype(table.dtype)
            weights.append(graph.to_slots(_weights_of(made, heads, edges)))
        if parts.known is not None:
            weights.append(graph.weights(parts.known).astype(table.dtype))
        if parts.of_weights:
            weights.append(values_of(parts.of_weights, of_weights, 0).astype(table.dtype))
        if weights:
            weighted = weighted.with_weights(math.prod(weights[1:], start=weights[0]))
        if heads is not None:
            return ops.spmm(weighted, table)
        table = table.reshape(*leading, table.shape[axis], -1)
        return rows.sum(weighted, table, lambda x: multiplied(x, parts.first, of_first, 0))

    name = rows.op if parts.softmax is None else f"segment_softmax and {rows.op}"
    return _Weights(name, inputs, apply)


def _by_head(values: Any, heads: int | None, edges: int) -> Any:
    """Numbers of edges as [edges], or as [edges, heads]."""
    if heads is None:
        return values.reshape(edges)
    return jnp.broadcast_to(values.reshape(edges, -1), (edges, heads))


def _weights_of(values: Any, heads: int | None, edges: int) -> Any:
    """The same for a product of factors, which may vary only along heads: [1, heads, 1]."""
    if heads is None:
        return jnp.broadcast_to(values.reshape(-1), (edges,))
    return jnp.broadcast_to(values.reshape(values.shape[:2]), (edges, heads))


def _where_edges(graph: StaticGraph, rows: Any, axis: int) -> Any:
    """Rows of a table, with zeros for those that no edge reads."""
    if graph.has_edges.all():
        return rows
    mask = graph.has_edges.reshape(-1, *[1] * (rows.ndim - axis - 1))
    return jnp.where(mask, rows, 0)


RULE = Rule("neighbour_sum", frozenset(("scatter-add",)), _propose)
