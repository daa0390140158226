"""The softmax over the edges of each segment, as it is written with segment functions."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from jaxgnn.fusion._edges import (
    Kind,
    SegmentReduction,
    is_filled_with,
    known_columns,
    row_gather,
    segment_reduction,
)
from jaxgnn.fusion._program import Atom, Equation
from jaxgnn.fusion._view import View


@dataclass(frozen=True)
class SegmentSoftmax:
    """``exp(l - max) / sum`` over the edges of each segment.

    Attributes:
      logits: one number for each edge, and any further axes.
      reduction: the sum of the exponentials, whose ids are the segments.
    """

    logits: Atom
    places: Atom
    size: int
    rows: np.ndarray


def segment_softmax_of(view: View, atom: Atom, rows: np.ndarray) -> SegmentSoftmax | None:
    """The softmax that makes an atom, over segments that are known, or None.

    It is the same as the op's where the shift is the maximum of the segment, the divisor is the sum
    of the exponentials, and each edge reads both of its own segment. Then every divisor is at
    least one, so that a constant added to it, which some libraries do, is lost in rounding if it is
    half a unit of the last place or less.

    Args:
      view: the view of the program.
      atom: the probabilities.
      rows: the segment of each edge, -1 for edges that do not count.
    """
    quotient = view.made_by(atom, "div")
    if quotient is None:
        return None
    exponentials, divisors = quotient.invars
    exp = view.made_by(exponentials, "exp")
    totals = _read_by_segment(view, divisors, rows)
    if exp is None or totals is None:
        return None
    total = _segment_reduction_of(view, _without_epsilon(view, totals), "sum", rows)
    if (
        total is None
        or total.updates is not exponentials
        or not is_filled_with(view, total.base, 0)
    ):
        return None
    shifted = view.made_by(exp.invars[0], "sub")
    if shifted is None:
        return None
    logits, shifts = shifted.invars
    highest = _read_by_segment(view, _through_stops(view, shifts), rows)
    if highest is None:
        return None
    maximum = _segment_reduction_of(view, _through_stops(view, highest), "max", rows)
    if maximum is None or not is_filled_with(view, maximum.base, -np.inf):
        return None
    if _through_stops(view, maximum.updates) is not _through_stops(view, logits):
        return None
    if maximum.size != total.size or logits.aval.ndim == 0:
        return None
    return SegmentSoftmax(logits, total.places, total.size, rows)


def _segment_reduction_of(
    view: View, atom: Atom, kind: Kind, rows: np.ndarray
) -> SegmentReduction | None:
    """The reduction of segments of this kind that makes an atom, by these known segments."""
    equation = view.producer(atom)
    reduction = None if equation is None else segment_reduction(equation)
    if reduction is None or reduction.kind != kind or reduction.axis != 0:
        return None
    ids = view.value(reduction.places)
    if ids is None:
        return None
    ids = ids.reshape(-1)
    live = rows >= 0
    same = ids.shape == rows.shape and (ids[live] == rows[live]).all()
    dropped = (ids[~live] < 0) | (ids[~live] >= reduction.size)
    return reduction if same and dropped.all() and reduction.mode == "fill" else None


def _read_by_segment(view: View, atom: Atom, rows: np.ndarray) -> Atom | None:
    """The table of segments from which each edge reads its own segment's row, or None."""
    gather = row_gather(view, atom)
    if gather is None or gather.axis != 0:
        return None
    columns = known_columns(view, gather, rows)
    if isinstance(columns, str):
        return None
    live = rows >= 0
    return gather.table if (columns[live] == rows[live]).all() else None


def _through_stops(view: View, atom: Atom) -> Atom:
    """The atom before ``stop_gradient``: a shift of the logits has no gradient anyway."""
    while (equation := view.made_by(atom, "stop_gradient")) is not None:
        atom = equation.invars[0]
    return atom


def _without_epsilon(view: View, atom: Atom) -> Atom:
    equation = view.made_by(atom, "add")
    if equation is None:
        return atom
    sums, added = equation.invars
    value = view.value(added) if added.aval.size == 1 else None
    half = float(jnp.finfo(atom.aval.dtype).eps) / 2
    is_lost = value is not None and bool((value >= 0).all() and (value <= half).all())
    return sums if is_lost else atom


def total_of(view: View, quotient: Equation) -> SegmentReduction | None:
    """The sum of exponentials by whose rows a quotient of the same exponentials is divided."""
    exponentials, divisors = quotient.invars
    if view.made_by(exponentials, "exp") is None:
        return None
    gather = row_gather(view, divisors)
    if gather is None or gather.axis != 0:
        return None
    equation = view.producer(_without_epsilon(view, gather.table))
    reduction = None if equation is None else segment_reduction(equation)
    if reduction is None or reduction.kind != "sum" or reduction.axis != 0:
        return None
    return reduction if reduction.updates is exponentials else None
