"""The maximum, the exponential, the sum and the quotient of segments become ``segment_softmax``.

Sound where the ids are known, none is dropped, the shift is the maximum of the segment and the
divisor the sum of the exponentials (``segment_softmax_of`` lists the other forms). A shift
does not change a softmax, so it has no gradient, whether or not it is stopped.

A logit of +inf makes all of its segment NaN. So it does in code without a guard; with one, the
divisor of NaN is replaced by one, and only that edge is NaN. Guarded logits are assumed not to be
+inf.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxgnn import ops
from jaxgnn._arrays.arrays import own
from jaxgnn.fusion.graphs.static_graphs import graph_of_rows
from jaxgnn.fusion.program.matching import NoMatch, Refusal, need, or_none, required
from jaxgnn.fusion.program.program import Atom, Equation, nbytes
from jaxgnn.fusion.program.variables import View
from jaxgnn.fusion.recognise.edge_lists import (
    Rows,
    are_segments,
    are_the_same,
    has_rows,
    known_ids,
    known_rows,
    reads_own_row,
)
from jaxgnn.fusion.recognise.gathers import (
    Kind,
    SegmentReduction,
    is_filled_with,
    row_gather,
    segment_reduction,
)
from jaxgnn.fusion.rules.rule import Rewrite, Rule
from jaxgnn.graph import CSRGraph


@dataclass(frozen=True)
class SegmentSoftmax:
    """Softmax ``exp(l - max) / sum`` over the edges of each segment."""

    logits: Atom  # Logits of edges, with any further axes.
    size: int  # Number of segments.
    rows: Rows  # Segment of each edge, -1 if ignored or of probability zero.
    is_guarded: bool  # True if a segment of logits -inf gives zeros, not NaN.
    assumes: tuple[str, ...] = ()  # Conditions on the logits, for ``Rewrite.assumes``.

    def probabilities(self, graph: CSRGraph, logits: Array) -> Array:
        """Computes the softmax of logits in the order of the slots."""
        if not self.is_guarded:
            return ops.segment_softmax(graph, logits)
        is_masked = logits == -jnp.inf
        # The exponential is zero beside those of other logits.
        lowest = jnp.finfo(logits.dtype).min / 2
        probabilities = ops.segment_softmax(graph, jnp.where(is_masked, lowest, logits))
        return jnp.where(is_masked, 0, probabilities)


@or_none
def segment_softmax_of(view: View, atom: Atom, rows: Rows, *, may_drop: bool) -> SegmentSoftmax:
    """Returns the softmax over known segments that computes an atom, or None.

    It equals the op if the shift is the maximum of the segment, the divisor is the sum of the
    exponentials, and each edge reads both of its own segment. Then every divisor is at least one. A
    constant that some libraries add to it is lost in rounding if it is at most half a unit of the
    last place. Guards for segments without edges, and for those whose logits are all -inf, are
    recognised: with them these segments give zeros, and without them NaN. An added constant also
    guards a divisor of zero.

    Logits that are set to -inf for edges known in advance have the probability zero, if there are
    others in their segment.

    Args:
      view: the view of the program.
      atom: the probabilities.
      rows: the segment of each edge, -1 for ignored edges.
      may_drop: whether edges of probability zero may be dropped, so that their logits may differ.
    """
    exponentials, divisors = view.match(atom, "div").invars
    exp = view.match(exponentials, "exp")
    totals = _read_by_segment(view, divisors, rows)
    sums, guards_total = _strip_guards(view, totals, rows, _GUARDED_TOTAL)
    sums, has_epsilon = _strip_epsilon(view, sums)
    total = _segment_reduction_of(view, sums, "sum", rows)
    need(total.updates is exponentials and is_filled_with(view, total.base, 0))
    logits, shifts = view.match(exp.invars[0], "sub").invars
    highest = _read_by_segment(view, _strip_stops(view, shifts), rows)
    highest = _strip_stops(view, highest)
    highest, guards_shift = _strip_guards(view, highest, rows, _GUARDED_SHIFT)
    maximum = _segment_reduction_of(view, _strip_stops(view, highest), "max", rows)
    need(is_filled_with(view, maximum.base, -np.inf))
    need(_strip_stops(view, maximum.updates) is _strip_stops(view, logits))
    need(maximum.size == total.size and logits.aval.ndim > 0)
    logits = _strip_ones(view, logits)
    if may_drop:
        logits, rows = _strip_mask(view, logits, rows)
    is_guarded = guards_shift and (guards_total or has_epsilon)
    # A divisor of NaN, which no guard takes for positive, becomes one, but for the edge of +inf.
    assumes = ("logits that are not +inf",) if guards_total else ()
    return SegmentSoftmax(_strip_ones(view, logits), total.size, rows, is_guarded, assumes)


def _strip_ones(view: View, atom: Atom) -> Atom:
    """Strips quotients and products with one, such as a temperature of one."""
    while (equation := view.produced_by(atom, "div", "mul")) is not None:
        first, second = equation.invars
        if second.aval.ndim or not first.aval.ndim or not is_filled_with(view, second, 1):
            break
        atom = first
    return atom


def _strip_mask(view: View, logits: Atom, rows: Rows) -> tuple[Atom, Rows]:
    """Strips a mask of -inf from logits; returns them and the segments of live edges."""
    select = view.produced_by(logits, "select_n")
    if select is None or len(select.invars) != 3 or not isinstance(rows, np.ndarray):
        return logits, rows
    test, *cases = select.invars
    mask = view.value(test)
    masked = [is_filled_with(view, case, -np.inf) for case in cases]
    if mask is None or mask.shape != tuple(logits.aval.shape) or masked[0] == masked[1]:
        return logits, rows
    is_masked = (mask == masked[1]).reshape(rows.size, -1)
    if (is_masked != is_masked[:, :1]).any():  # Heads mask different edges.
        return logits, rows
    left = own(np.where(is_masked[:, 0], -1, rows))
    if not np.array_equal(has_rows(left), has_rows(rows)):
        return logits, rows
    return cases[masked.index(False)], left


class _Guard(NamedTuple):
    """Form of a ``where`` that replaces entries of a table by a computed condition."""

    comparison: str  # Primitive that compares the table with ``bound``.
    bound: float
    otherwise: float  # Inserted number.
    kept: int  # Position of the table among the cases.


# ``where(sums > 0, sums, 1)``: a sum of zero has only exponentials of zero.
_GUARDED_TOTAL = _Guard("gt", 0, 1, 1)
# ``where(highest == -inf, 0, highest)``, whose exponentials are zero anyway.
_GUARDED_SHIFT = _Guard("eq", -np.inf, 0, 0)


def _strip_guards(view: View, table: Atom, rows: Rows, guard: _Guard) -> tuple[Atom, bool]:
    """Strips guards from a table; returns it, and whether a guard had a computed condition."""
    is_guarded = False
    while (select := view.produced_by(table, "select_n")) is not None and len(select.invars) == 3:
        inner = _case_of_segments(view, select, rows)
        if inner is None:
            inner, is_guarded = _guarded(view, select, guard), True
        if inner is None:
            return table, False
        table = inner
    return table, is_guarded


@or_none
def _case_of_segments(view: View, select: Equation, rows: Rows) -> Atom:
    """Returns the case that a known test selects for all segments with edges, or None."""
    test, *cases = select.invars
    need(test.aval.ndim)
    if not isinstance(rows, np.ndarray):
        raise NoMatch
    of_segments = required(view.value(test))[np.flatnonzero(has_rows(rows))]
    need(of_segments.size > 0 and (of_segments == of_segments.flat[0]).all())
    return cases[int(of_segments.flat[0])]


@or_none
def _guarded(view: View, select: Equation, guard: _Guard) -> Atom:
    """Returns the table that a ``select_n`` guards, or None."""
    need(len(select.invars) == 3)
    test, *cases = select.invars
    table, otherwise = cases[guard.kept], cases[1 - guard.kept]
    first, bound = view.match(test, guard.comparison).invars
    need(first is table and is_filled_with(view, bound, guard.bound))
    need(is_filled_with(view, otherwise, guard.otherwise))
    return table


def _segment_reduction_of(view: View, atom: Atom, kind: Kind, rows: Rows) -> SegmentReduction:
    """Returns the reduction of this kind, over these segments, that computes an atom."""
    reduction = required(segment_reduction(required(view.producer(atom))))
    need(reduction.kind == kind and reduction.axis == 0 and reduction.mode == "fill")
    if not isinstance(rows, np.ndarray):
        need(are_segments(view, reduction, rows))
        return reduction
    ids = required(known_ids(view, reduction.ids))
    need(are_the_same(ids, rows, rows))
    of_dropped = ids[rows < 0]
    need(((of_dropped < 0) | (of_dropped >= reduction.size)).all())
    return reduction


def _read_by_segment(view: View, atom: Atom, rows: Rows) -> Atom:
    """Returns the table of segments from which each edge reads its own segment's row."""
    gather = required(row_gather(view, atom))
    need(gather.axis == 0 and reads_own_row(view, gather, rows))
    return gather.table


def _strip_stops(view: View, atom: Atom) -> Atom:
    """Strips ``stop_gradient``; a shift of the logits has no gradient."""
    while (equation := view.produced_by(atom, "stop_gradient")) is not None:
        atom = equation.invars[0]
    return atom


def _strip_epsilon(view: View, atom: Atom) -> tuple[Atom, bool]:
    """Strips an added number that rounding loses; returns the sums, and if it is positive."""
    equation = view.produced_by(atom, "add")
    if equation is None:
        return atom, False
    sums, added = equation.invars
    number, half = view.number(added), float(jnp.finfo(atom.aval.dtype).eps) / 2
    if number is None or not 0 <= number <= half:
        return atom, False
    return sums, number > 0


def total_of(view: View, quotient: Equation) -> SegmentReduction:
    """Returns the sum of exponentials that divides the same exponentials."""
    exponentials, divisors = quotient.invars
    view.match(exponentials, "exp")
    gather = required(row_gather(view, divisors))
    table, is_guarded = gather.table, True
    while is_guarded and (select := view.produced_by(table, "select_n")) is not None:
        sums = _guarded(view, select, _GUARDED_TOTAL)
        table, is_guarded = (table, False) if sums is None else (sums, True)
    table, _ = _strip_epsilon(view, table)
    reduction = required(segment_reduction(required(view.producer(table))))
    need(gather.axis == reduction.axis == 0 and reduction.kind == "sum")
    need(reduction.updates is exponentials)
    return reduction


def _propose(view: View, equation: Equation) -> Rewrite | None:
    total = total_of(view, equation)
    output = equation.outvars[0]
    need(jnp.issubdtype(output.aval.dtype, jnp.floating))
    rows = known_rows(view, total)
    if (rows < 0).any():
        raise Refusal("an edge is dropped, of which the quotient is arbitrary")
    softmax = segment_softmax_of(view, output, rows, may_drop=False)
    if softmax is None:
        raise Refusal("the shift is not the maximum of the segment")
    if rows.size == 0:
        raise Refusal("there are no edges")

    def function(logits):
        graph = graph_of_rows(rows, softmax.size)
        probabilities = softmax.probabilities(graph.graph, graph.to_slots(logits))
        return [graph.to_list(probabilities).astype(output.aval.dtype)]

    size = nbytes(output)
    note = f"softmax of {output.aval.str_short()} -> segment_softmax"
    sizes = 10 * size, 4 * size
    return Rewrite(equation, [softmax.logits], function, note, *sizes, assumes=softmax.assumes)


RULE = Rule("segment_softmax", frozenset(("div",)), _propose)
