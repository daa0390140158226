"""Sums of gathered rows become ``ops.spmm``, and those weighted by a softmax become attention.

Rows that are multiplied channel by channel by arrays of edges become ``ops.filtered_sum``.

``segment_sum(x[senders] * w, receivers)`` is ``A x`` with the weights ``w`` as the entries of the
sparse matrix ``A``. Degree normalisations are weights, or scales of nodes before and after.

Sound where:

* the ids of both ends are known, so that ids out of range are known: an edge whose receiver is
  dropped becomes padding, and other edges read an existing row, or the nearest one under
  ``mode="clip"``;
* the summed array is a product of rows of one table, numbers of edges (or of edges and heads),
  arrays of edges and features, rows of tables that are read by the receiver, and constants. The
  receiver's rows are the same for all edges of a segment, and multiply the sum instead;
* edges whose summand a ``where`` makes zero are known, and dropped;
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
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn import ops
from jaxgnn._arrays.arrays import own
from jaxgnn.fusion.program.matching import Refusal, need, required
from jaxgnn.fusion.program.program import Equation, Values, is_variable, nbytes
from jaxgnn.fusion.program.variables import View
from jaxgnn.fusion.recognise.edge_lists import (
    Graph,
    Rows,
    graph_of,
    mask_rows,
    reads_own_row,
    rows_of,
)
from jaxgnn.fusion.recognise.gathers import (
    RowGather,
    SegmentReduction,
    is_filled_with,
    segment_reduction,
)
from jaxgnn.fusion.recognise.products import (
    IN_RANGE,
    Factor,
    Product,
    all_widen,
    assumed_of_masks,
    hides_more,
    leaves_range,
    multiplied,
    product_of,
    rows_behind,
    unmerged,
    values_of,
)
from jaxgnn.fusion.rules.attention import Sum, gat_of, inner_products_of
from jaxgnn.fusion.rules.filters import check_filters, filtered_rows
from jaxgnn.fusion.rules.maxk import maxk_of
from jaxgnn.fusion.rules.rule import Rewrite, Rule
from jaxgnn.fusion.rules.softmax import SegmentSoftmax, segment_softmax_of


@dataclass(frozen=True)
class _Parts:
    """Parts of a sum over neighbours."""

    reduction: SegmentReduction
    product: Product  # Summed array, taken apart.
    gather: RowGather  # Gather of the rows that are summed.
    of_rows: list[Factor]  # Tables that are read by the receiver.
    # Softmax over the edges of each receiver, and its factor.
    softmax: tuple[Factor, SegmentSoftmax] | None
    scalars: list[Factor]  # Other weights of edges.
    known_weights: np.ndarray | None  # Product of the known weights, [edges] or [edges, heads].
    of_weights: list[Factor]  # Constants that multiply the weights.
    first: list[Factor]  # Constants that multiply the rows before the sum.
    last: list[Factor]  # Constants that multiply the sums.

    @property
    def has_weights(self) -> bool:
        """Returns whether edges have weights beside a softmax."""
        return bool(self.scalars or self.of_weights) or self.known_weights is not None


def _propose(view: View, equation: Equation) -> Rewrite:
    reduction = required(segment_reduction(equation))
    need(reduction.kind == "sum")
    need(jnp.issubdtype(equation.outvars[0].aval.dtype, jnp.floating))
    updates = unmerged(view, reduction.updates, reduction.axis)
    product = product_of(view, updates, reduction.axis, has_masks=True)
    need(product.tables)
    if product.others:
        check_filters(product)
    entered = rows_of(view, reduction)
    rows = rows_behind(view, product, entered)
    of_rows = [t for t in product.tables if _is_of_rows(view, reduction, t, rows)]
    tables = [t for t in product.tables if t not in of_rows]
    if not tables and of_rows:  # All edges are self loops here.
        tables.append(of_rows.pop())
    if len(tables) != 1:
        raise Refusal("rows of two tables are multiplied, which no op does")
    gather = required(tables[0].gather)
    softmax = None if product.others else _softmax_among(view, product, entered)
    if softmax is not None and hides_more(rows, softmax[1].rows):
        softmax = None  # It covers more edges than the sum.
    graph = graph_of(view, reduction, gather, rows if softmax is None else softmax[1].rows)
    scalars = [s for s in product.scalars if softmax is None or s is not softmax[0]]
    # A number of an edge takes constants in. A softmax does not make rows larger, so they may wait.
    waits = not scalars and (softmax is not None or all_widen(view, product.constants))
    weights = [*scalars, *(product.constants if scalars else ())]
    unknown = [s for s in weights if not view.is_known(s.atom)]
    parts = _Parts(
        reduction,
        product,
        gather,
        of_rows,
        softmax,
        [s for s in unknown if s.axes],
        _known_weights(view, product, [s for s in weights if view.is_known(s.atom)]),
        of_weights=[s for s in unknown if not s.axes],
        first=[] if scalars or waits else product.constants,
        last=product.constants if waits and not product.others else [],
    )
    return _rewrite(view, graph, parts)


def _known_weights(view: View, product: Product, factors: list[Factor]) -> np.ndarray | None:
    """Multiplies factors that are known ahead, such as norms of degrees; None for none.

    Raises ``Refusal`` if it leaves the range of numbers.
    """
    if not factors:
        return None
    heads = product.shape[product.axis + 1] if product.has_heads else None
    atoms = [f.atom for f in factors]
    forms = tuple((f.labels, f.is_inverse) for f in factors)

    def multiply() -> np.ndarray | None:
        with jax.ensure_compile_time_eval():
            arrays = Values(atoms, [view.value(atom) for atom in atoms])
            values = np.asarray(values_of(factors, arrays, len(product.shape)))
            if leaves_range(factors, arrays, values):
                return None
            return own(np.array(_weights_of(values, heads, product.edges)))

    question = f"weights {forms} {heads} {product.edges}"
    names = [atom if is_variable(atom) else ("literal", float(atom.val)) for atom in atoms]
    weights = view.derived((question, *names), multiply, of=atoms)
    if weights is None:
        raise Refusal("a product of known weights overflows or underflows")
    return weights


def _is_of_rows(view: View, reduction: SegmentReduction, factor: Factor, rows: Rows) -> bool:
    """Returns whether each edge that is not ignored reads the row of its own segment."""
    gather = factor.gather
    if gather is None or gather.size != reduction.size:
        return False
    return reads_own_row(view, gather, rows)


def _softmax_among(
    view: View, product: Product, rows: Rows
) -> tuple[Factor, SegmentSoftmax] | None:
    for factor in product.scalars:
        if factor.is_inverse or factor.labels[:1] != (product.axis,):
            continue
        softmax = segment_softmax_of(view, factor.atom, rows, may_drop=True)
        if softmax is not None:
            return factor, softmax
    return None


def _rewrite(view: View, graph: Graph, parts: _Parts) -> Rewrite:
    reduction, product, table = parts.reduction, parts.product, parts.gather.table
    starts_at_zero = is_filled_with(view, reduction.base, 0)
    attention = _attention_of(view, graph, parts)
    if product.others:
        summed = filtered_rows(view, graph, parts.gather, product)
    else:
        summed = attention or _weighted_sum(view, graph, parts)
    read = [f.gather.table for f in parts.of_rows if f.gather is not None]
    others = [reduction.base] * (not starts_at_zero)
    inputs = [summed.table, *summed.inputs, *read, *(c.atom for c in parts.last), *others]

    def function(*arrays):
        values = Values(inputs, arrays)
        sums = summed.apply(values[summed.table].astype(inner), values).reshape(shape)
        for atom in read:
            sums = sums * mask_rows(graph.has_edges, values[atom].astype(inner), axis)
        scale = values_of(parts.last, values, 0)
        if scale is not None:  # An infinite scale must not reach rows without edges.
            of_all = jnp.broadcast_to(scale.astype(inner), [1] * axis + [reduction.size] + behind)
            sums = sums * mask_rows(graph.has_edges, of_all, axis)
        sums = (sums if product.sign > 0 else -sums).reshape(output.aval.shape).astype(dtype)
        return [sums if starts_at_zero else values[reduction.base] + sums]

    output, axis = reduction.equation.outvars[0], reduction.axis
    dtype = output.aval.dtype
    # Sums and weights may need the range of float32.
    is_short = dtype == jnp.float16 and attention is None
    inner = jnp.dtype("float32") if is_short else dtype
    shape = (*output.aval.shape[: axis + 1], *product.shape[axis + 1 :])
    behind = [1] * (len(shape) - axis - 1)
    edges = reduction.updates.aval.size * dtype.itemsize
    before, after = 3 * edges + nbytes(output), nbytes(table, output) + edges + 4 * product.edges
    note = f"sum over {product.edges} edges of {product.width} features -> {summed.op}"
    return Rewrite(
        reduction.equation, inputs, function, note, before, after,
        case=_case(summed.op, parts), preparations=graph.preparations,
        assumes=_assumes(parts, summed, is_attention=attention is not None),
    )  # fmt: skip


def _assumes(parts: _Parts, summed: Sum, *, is_attention: bool) -> tuple[str, ...]:
    """Lists conditions on numbers under which the order of the factors does not matter."""
    unknown = [*parts.scalars, *parts.of_weights]
    conditions = [*summed.assumes, *assumed_of_masks(parts.product)]
    if parts.softmax is not None:
        conditions += parts.softmax[1].assumes
        if is_attention and not parts.softmax[1].is_guarded:
            conditions.append("a finite logit at each row with edges")
    if parts.product.others:
        unknown = []  # The assumptions of the op name them.
    weights = len(unknown) + (parts.known_weights is not None) + (parts.softmax is not None)
    if not is_attention and (weights > 1 or any(s.is_inverse for s in unknown)):
        conditions.append(IN_RANGE)
    if parts.of_rows:
        conditions.append(
            "finite numbers, and sums that do not overflow before the receiver's rows"
        )
    return tuple(conditions)


def _attention_of(view: View, graph: Graph, parts: _Parts) -> Sum | None:
    """Returns the op of attention that fuses the softmax and the sum, or None.

    These ops are for one graph without leading axes, whose values have an axis of heads or none.
    """
    if parts.softmax is None or parts.has_weights or parts.product.axis != 0:
        return None
    logits, table = parts.softmax[1].logits, parts.gather.table
    attention = gat_of(view, logits, table, graph)
    if attention is not None or table.aval.ndim not in (2, 3):
        return attention
    return inner_products_of(view, logits, table, graph)


def _case(op: str, parts: _Parts) -> str:
    """Names the measured case of the rule; narrow rows cost little beside their weights."""
    width = parts.product.width
    if op.startswith("filtered_sum"):
        return op
    if op == "gat_attention" and width < 32:
        return "gat_attention of narrow rows"
    if op in ("dot_attention", "gatv2_attention") and width < 32:
        return "inner products of narrow rows"
    if (parts.has_weights or parts.softmax is not None) and width < 8:
        return "neighbour_sum of narrow weighted rows"
    return "neighbour_sum"


def _weighted_sum(view: View, graph: Graph, parts: _Parts) -> Sum:
    """Returns the sum by an op for sparse matrices."""
    product, table = parts.product, parts.gather.table
    kept = maxk_of(view, table) if product.axis == 0 and not product.has_heads else None
    axis, edges = product.axis, product.edges
    softmax = None if parts.softmax is None else parts.softmax[1]
    factors = [*parts.scalars, *parts.of_weights, *parts.first]
    heads = product.shape[axis + 1] if product.has_heads else None

    def apply(table, values):
        dtype, weighted = table.dtype, graph.graph
        weights: list[Any] = []
        if softmax is not None:
            logits = graph.to_slots(_shape_by_head(values[softmax.logits], heads, edges))
            weights.append(softmax.probabilities(graph.graph, logits).astype(dtype))
        if parts.scalars:
            numbers = values_of(parts.scalars, values, len(product.shape)).astype(dtype)
            weights.append(graph.to_slots(_weights_of(numbers, heads, edges)))
        if parts.known_weights is not None:
            weights.append(graph.weights(parts.known_weights).astype(dtype))
        if parts.of_weights:
            weights.append(values_of(parts.of_weights, values, 0).astype(dtype))
        if weights:
            weighted = weighted.with_weights(math.prod(weights[1:], start=weights[0]))
        if heads is not None:
            return ops.spmm(weighted, table)
        table = table.reshape(*table.shape[: axis + 1], -1)
        if kept is None:
            return ops.spmm(weighted, multiplied(table, parts.first, values, 0))
        largest = ops.maxk(table, kept.k)
        scaled = multiplied(largest.values, parts.first, values, 0)
        return ops.maxk_spmm(weighted, dataclasses.replace(largest, values=scaled))

    of_softmax = [] if softmax is None else [softmax.logits]
    inputs = [*of_softmax, *(f.atom for f in factors)]
    name = "segment_softmax and " * (softmax is not None)
    if kept is None:
        return Sum(f"{name}spmm", table, inputs, apply)
    return Sum(f"{name}maxk_spmm", kept.x, inputs, apply, kept.assumes)


def _shape_by_head(values: Any, heads: int | None, edges: int) -> Any:
    """Reshapes numbers of edges to [edges], or to [edges, heads]."""
    if heads is None:
        return values.reshape(edges)
    return jnp.broadcast_to(values.reshape(edges, -1), (edges, heads))


def _weights_of(values: Any, heads: int | None, edges: int) -> Any:
    """Reshapes a product of factors to [edges], or to [edges, heads]; it may lack edges."""
    if heads is None:
        return jnp.broadcast_to(values.reshape(-1), (edges,))
    return jnp.broadcast_to(values.reshape(values.shape[:2]), (edges, heads))


RULE = Rule("neighbour_sum", frozenset(("scatter-add",)), _propose)
