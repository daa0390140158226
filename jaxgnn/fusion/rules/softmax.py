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
from jaxgnn.fusion.edges import (
    Kind,
    SegmentReduction,
    are_the_same,
    has_rows,
    is_filled_with,
    known_ids,
    known_rows,
    reads_own_row,
    row_gather,
    segment_reduction,
)
from jaxgnn.fusion.graphs import graph_of_rows
from jaxgnn.fusion.program import Atom, Equation
from jaxgnn.fusion.rewrite import Refusal, Rewrite, Rule, nbytes
from jaxgnn.fusion.view import View
from jaxgnn.graph import CSRGraph


@dataclass(frozen=True)
class SegmentSoftmax:
    """``exp(l - max) / sum`` over the edges of each segment."""

    logits: Atom  # one number for each edge, and any further axes
    size: int  # the number of segments
    rows: np.ndarray  # the segment of each edge, -1 if it is ignored or has the probability zero
    is_guarded: bool  # whether a segment of which all logits are -inf gives zeros, not NaN
    assumes: tuple[str, ...] = ()  # conditions on the logits, for ``Rewrite.assumes``

    def probabilities(self, graph: CSRGraph, logits: Array) -> Array:
        """The softmax of logits that are given in the order of the slots of the graph."""
        if not self.is_guarded:
            return ops.segment_softmax(graph, logits)
        is_masked = logits == -jnp.inf
        lowest = jnp.finfo(logits.dtype).min / 2  # its exponential is zero relative to other logits
        made = ops.segment_softmax(graph, jnp.where(is_masked, lowest, logits))
        return jnp.where(is_masked, 0, made)


def segment_softmax_of(
    view: View, atom: Atom, rows: np.ndarray, *, may_drop: bool
) -> SegmentSoftmax | None:
    """The softmax over known segments that computes an atom, or None.

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
    quotient = view.made_by(atom, "div")
    if quotient is None:
        return None
    exponentials, divisors = quotient.invars
    exp = view.made_by(exponentials, "exp")
    totals = _read_by_segment(view, divisors, rows)
    if exp is None or totals is None:
        return None
    sums, guards_total = _without_guards(view, totals, rows, _GUARDED_TOTAL)
    sums, has_epsilon = _without_epsilon(view, sums)
    total = _segment_reduction_of(view, sums, "sum", rows)
    if total is None or total.updates is not exponentials:
        return None
    shifted = view.made_by(exp.invars[0], "sub")
    if shifted is None or not is_filled_with(view, total.base, 0):
        return None
    logits, shifts = shifted.invars
    highest = _read_by_segment(view, _through_stops(view, shifts), rows)
    if highest is None:
        return None
    highest = _through_stops(view, highest)
    highest, guards_shift = _without_guards(view, highest, rows, _GUARDED_SHIFT)
    maximum = _segment_reduction_of(view, _through_stops(view, highest), "max", rows)
    if maximum is None or not is_filled_with(view, maximum.base, -np.inf):
        return None
    if _through_stops(view, maximum.updates) is not _through_stops(view, logits):
        return None
    if maximum.size != total.size or logits.aval.ndim == 0:
        return None
    logits = _without_ones(view, logits)
    if may_drop:
        logits, rows = _without_masked(view, logits, rows)
    is_guarded = guards_shift and (guards_total or has_epsilon)
    # A divisor of NaN, which no guard takes for positive, becomes one, but for the edge of +inf.
    assumes = ("logits that are not +inf",) if guards_total else ()
    return SegmentSoftmax(_without_ones(view, logits), total.size, rows, is_guarded, assumes)


def _without_ones(view: View, atom: Atom) -> Atom:
    """The atom before quotients and products with one, such as a temperature that is not used."""
    while (equation := view.made_by(atom, "div", "mul")) is not None:
        first, second = equation.invars
        if second.aval.ndim or not first.aval.ndim or not is_filled_with(view, second, 1):
            break
        atom = first
    return atom


def _without_masked(view: View, logits: Atom, rows: np.ndarray) -> tuple[Atom, np.ndarray]:
    """The logits before some were set to -inf, and the segments of the remaining edges."""
    select = view.made_by(logits, "select_n")
    if select is None or len(select.invars) != 3:
        return logits, rows
    test, *cases = select.invars
    mask = view.value(test)
    masked = [is_filled_with(view, case, -np.inf) for case in cases]
    if mask is None or mask.shape != tuple(logits.aval.shape) or masked[0] == masked[1]:
        return logits, rows
    is_masked = (mask == masked[1]).reshape(rows.size, -1)
    if (is_masked != is_masked[:, :1]).any():  # heads mask different edges
        return logits, rows
    left = own(np.where(is_masked[:, 0], -1, rows))
    if not np.array_equal(has_rows(left), has_rows(rows)):
        return logits, rows
    return cases[masked.index(False)], left


class _Guard(NamedTuple):
    """``where`` in a table of segments that inserts another number by a computed condition."""

    comparison: str  # of the table with ``bound``
    bound: float
    otherwise: float  # the inserted number
    kept: int  # the position of the table among the cases


# ``where(sums > 0, sums, 1)``: a sum of zero has only exponentials of zero.
_GUARDED_TOTAL = _Guard("gt", 0, 1, 1)
# ``where(highest == -inf, 0, highest)``, whose exponentials are zero anyway.
_GUARDED_SHIFT = _Guard("eq", -np.inf, 0, 0)


def _without_guards(view: View, table: Atom, rows: np.ndarray, guard: _Guard) -> tuple[Atom, bool]:
    """A table of segments before guards, and whether one had a computed condition."""
    is_guarded = False
    while (select := view.made_by(table, "select_n")) is not None and len(select.invars) == 3:
        inner = _case_of_segments(view, select, rows)
        if inner is None:
            inner, is_guarded = _guarded(view, select, guard), True
        if inner is None:
            return table, False
        table = inner
    return table, is_guarded


def _case_of_segments(view: View, select: Equation, rows: np.ndarray) -> Atom | None:
    """The case that a test known in advance selects for all segments with edges, or None."""
    test, *cases = select.invars
    value = view.value(test) if test.aval.ndim else None
    if value is None:
        return None
    of_segments = value[np.flatnonzero(has_rows(rows))]
    if of_segments.size == 0 or (of_segments != of_segments.flat[0]).any():
        return None
    return cases[int(of_segments.flat[0])]


def _guarded(view: View, select: Equation, guard: _Guard) -> Atom | None:
    """The table that a ``select_n`` guards, or None."""
    if len(select.invars) != 3:
        return None
    test, *cases = select.invars
    table, otherwise = cases[guard.kept], cases[1 - guard.kept]
    made = view.made_by(test, guard.comparison)
    if made is None or made.invars[0] is not table:
        return None
    is_bound = is_filled_with(view, made.invars[1], guard.bound)
    return table if is_bound and is_filled_with(view, otherwise, guard.otherwise) else None


def _segment_reduction_of(
    view: View, atom: Atom, kind: Kind, rows: np.ndarray
) -> SegmentReduction | None:
    """The reduction of this kind, over these known segments, that computes an atom, or None."""
    equation = view.producer(atom)
    reduction = None if equation is None else segment_reduction(equation)
    if reduction is None or reduction.kind != kind or reduction.axis != 0:
        return None
    ids = known_ids(view, reduction.places)
    if ids is None or reduction.mode != "fill" or not are_the_same(ids, rows, rows):
        return None
    of_dropped = ids[rows < 0]
    are_dropped = ((of_dropped < 0) | (of_dropped >= reduction.size)).all()
    return reduction if are_dropped else None


def _read_by_segment(view: View, atom: Atom, rows: np.ndarray) -> Atom | None:
    """The table of segments from which each edge reads its own segment's row, or None."""
    gather = row_gather(view, atom)
    if gather is None or gather.axis != 0 or not reads_own_row(view, gather, rows):
        return None
    return gather.table


def _through_stops(view: View, atom: Atom) -> Atom:
    """The atom before ``stop_gradient``: a shift of the logits has no gradient anyway."""
    while (equation := view.made_by(atom, "stop_gradient")) is not None:
        atom = equation.invars[0]
    return atom


def _without_epsilon(view: View, atom: Atom) -> tuple[Atom, bool]:
    """Sums without an added number that is lost in rounding, and whether it is positive."""
    equation = view.made_by(atom, "add")
    if equation is None:
        return atom, False
    sums, added = equation.invars
    number, half = view.number(added), float(jnp.finfo(atom.aval.dtype).eps) / 2
    if number is None or not 0 <= number <= half:
        return atom, False
    return sums, number > 0


def total_of(view: View, quotient: Equation) -> SegmentReduction | None:
    """The sum of exponentials by whose rows a quotient of the same exponentials is divided."""
    exponentials, divisors = quotient.invars
    if view.made_by(exponentials, "exp") is None:
        return None
    gather = row_gather(view, divisors)
    if gather is None or gather.axis != 0:
        return None
    table = gather.table
    while (select := view.made_by(table, "select_n")) is not None:
        sums = _guarded(view, select, _GUARDED_TOTAL)
        if sums is None:
            break
        table = sums
    equation = view.producer(_without_epsilon(view, table)[0])
    reduction = None if equation is None else segment_reduction(equation)
    if reduction is None or reduction.kind != "sum" or reduction.axis != 0:
        return None
    return reduction if reduction.updates is exponentials else None


def _propose(view: View, equation: Equation) -> Rewrite | None:
    total = total_of(view, equation)
    output = equation.outvars[0]
    if total is None or not jnp.issubdtype(output.aval.dtype, jnp.floating):
        return None
    rows = known_rows(view, total)
    if (rows < 0).any():
        raise Refusal("an edge is dropped, of which the quotient is arbitrary")
    found = segment_softmax_of(view, output, rows, may_drop=False)
    if found is None:
        raise Refusal("the shift is not the maximum of the segment")
    if rows.size == 0:
        raise Refusal("there are no edges")

    def function(logits):
        graph = graph_of_rows(rows, found.size)
        made = found.probabilities(graph.graph, graph.to_slots(logits))
        return [graph.to_list(made).astype(output.aval.dtype)]

    size = nbytes(output)
    note = f"softmax of {output.aval.str_short()} -> segment_softmax"
    sizes = 10 * size, 4 * size
    return Rewrite(equation, [found.logits], function, note, *sizes, assumes=found.assumes)


RULE = Rule("segment_softmax", frozenset(("div",)), _propose)
