"""Reasons for irregular code that no rule has replaced or refused.

A rule is silent about code that is not related to it. This module names each gather of rows,
scatter, sparse product, and reduction of gathered or masked rows that is left, so that ``explain``
says something of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax.numpy as jnp

from jaxgnn.fusion.program.program import Atom, Equation, Program
from jaxgnn.fusion.program.variables import View
from jaxgnn.fusion.recognise.dense_lists import list_gather
from jaxgnn.fusion.recognise.edge_lists import known_ids
from jaxgnn.fusion.recognise.gathers import row_gather, segment_reduction

_SCATTERS = frozenset(
    ("scatter", "scatter-add", "scatter-sub", "scatter-mul", "scatter-max", "scatter-min")
)
_REDUCTIONS = frozenset(("reduce_sum", "reduce_max", "reduce_min", "dot_general"))
_SPARSE = ("bcoo_", "bcsr_", "coo_", "csr_")
_MOST = 200  # Most equations that the search for a gather follows.
_OWN_IDS = "each member of a batch has ids of its own; join the graphs with CSRGraph.batch instead"
_NO_LOOP = frozenset(("scan", "while", "cond"))


def irregular_code(
    program: Program, original: Program, view: View
) -> Iterator[tuple[Equation, str]]:
    """Yields the irregular equations that are left of the original program, each with a reason.

    Args:
      program: the program after all rewrites.
      original: the program before them; equations that rewrites have added are ignored.
      view: a view of ``program``.
    """
    written = {v for e in original.equations for v in e.outvars}
    for equation in program.equations:
        if equation.outvars and equation.outvars[0] in written:
            reason = _reason(view, equation)
            if reason is not None:
                yield equation, reason


def _reason(view: View, equation: Equation) -> str | None:
    """Returns the reason why irregular code is unchanged; None for other code."""
    name = equation.primitive.name
    if name == "gather":
        return _reason_of_gather(view, equation)
    if name in _SCATTERS:
        return _reason_of_scatter(equation)
    if name in _REDUCTIONS:
        return _reason_of_reduction(view, equation)
    if name.startswith(_SPARSE):
        return "this product of a sparse array has no op"
    return None


def _reason_of_gather(view: View, equation: Equation) -> str | None:
    result = equation.outvars[0]
    if view.is_known(result) or equation.invars[1].aval.size <= 1:
        return None
    ids = equation.invars[1]
    rows = row_gather(view, result) or list_gather(view, result)
    if equation.params["dimension_numbers"].operand_batching_dims:
        return _OWN_IDS
    if rows is None:
        return "it reads single entries, parts of rows, or a list along a later axis"
    if known_ids(view, ids) is None:
        return "the gathered ids are known only when it runs"
    readers = {e.primitive.name for e in view.users(result)}
    if not readers:
        return "its rows are a result"
    return f"its rows are read by {', '.join(sorted(readers))}; only their sums have ops"


def _reason_of_scatter(equation: Equation) -> str:
    name, result = equation.primitive.name, equation.outvars[0]
    if name == "scatter":
        return "rows are written, not reduced"
    if name in ("scatter-mul", "scatter-sub"):
        return "no op multiplies or subtracts the rows of a segment"
    if equation.params["dimension_numbers"].operand_batching_dims:
        return _OWN_IDS
    if segment_reduction(equation) is None:
        return "its ids index several axes, or parts of rows"
    if not jnp.issubdtype(result.aval.dtype, jnp.floating):
        return f"ops reduce floats, not {result.aval.dtype}"
    return "no rule knows the messages"


def _reason_of_reduction(view: View, equation: Equation) -> str | None:
    if equation.primitive.name != "dot_general":
        (reduced,) = equation.invars
        axes = tuple(equation.params["axes"])
        if _hides_pairs(view, reduced, axes):
            return "all pairs are computed, and a mask hides some: no list of edges"
        if axes != (1,):
            return None
    for atom in equation.invars:
        if any(list_gather(view, source) for source in _leading_to(view, atom)):
            return "what is summed over the list is no product of gathered rows and weights"
    return None


def _hides_pairs(view: View, reduced: Atom, axes: tuple[int, ...]) -> bool:
    """Returns whether a ``where`` with a mask of all pairs computes the reduced array."""
    select = view.produced_by(reduced, "select_n")
    if select is None or len(select.invars) != 3 or reduced.aval.ndim < 3 or len(axes) != 1:
        return False
    if not any(view.is_known(case) for case in select.invars[1:]):
        return False
    mask = select.invars[0]
    while (repeated := view.produced_by(mask, "broadcast_in_dim")) is not None:
        mask = repeated.invars[0]
    return [n for n in mask.aval.shape if n != 1] == list(reduced.aval.shape[:2]) and axes[0] < 2


def _leading_to(view: View, atom: Atom) -> Iterator[Atom]:
    """Yields an array and the arrays that it depends on, nearest first."""
    seen, waiting = set(), [atom]
    while waiting and len(seen) < _MOST:
        this = waiting.pop(0)
        equation = view.producer(this)
        if equation is None or id(equation) in seen:
            continue
        seen.add(id(equation))
        yield this
        if equation.primitive.name not in _NO_LOOP and list_gather(view, this) is None:
            waiting += equation.invars
