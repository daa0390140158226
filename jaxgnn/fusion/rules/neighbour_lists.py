"""Sums and extremes over the neighbours in a dense list become those over edges.

``(x[ids] * w).sum(1)`` with ids [nodes, neighbours] is the sum over the edges of a graph in which
each node has as many edges as the list has neighbours. A mask ``where(mask, ..., 0)`` sets some of
them to zero. ``einsum("nk,nkd->nd", w, x[ids])`` is the same sum.

The rule writes the sum with an array of edges and a segment sum, and asks ``neighbour_sum``, for an
extreme ``neighbour_extreme``, what it makes of it. It applies where that rule does: it is sound
under its conditions. Without it a segment sum would take longer than the sum over the neighbours.

An extreme over the neighbours equals that of a segment, which starts at an infinity.
Gradients differ only where the result is that infinity, which is assumed not to be.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from jaxgnn.fusion.program.matching import NoMatch, Refusal, need, required
from jaxgnn.fusion.program.program import Atom, Equation, Program, Values, is_variable, traced
from jaxgnn.fusion.program.variables import View
from jaxgnn.fusion.recognise.dense_lists import Flattened, Made
from jaxgnn.fusion.recognise.products import SUMMED, Factor, contraction_of, drop_unit_labels
from jaxgnn.fusion.rules import neighbour_sum, segments
from jaxgnn.fusion.rules.rule import Rewrite, Rule

Function = Callable[..., Any]

_REDUCED = {
    "reduce_sum": (jax.ops.segment_sum, neighbour_sum.RULE),
    "dot_general": (jax.ops.segment_sum, neighbour_sum.RULE),
    "reduce_max": (jax.ops.segment_max, segments.EXTREME),
    "reduce_min": (jax.ops.segment_min, segments.EXTREME),
}
_NARROW = 8  # Features below which XLA sums within one loop over the list.


def _propose(view: View, equation: Equation) -> Rewrite:
    output = equation.outvars[0]
    need(jnp.issubdtype(output.aval.dtype, jnp.floating) and output.aval.ndim > 0)
    need(not equation.params.get("out_sharding"))
    flattened, messages = _reduced_array(view, equation)
    need(flattened.gathers)
    reduce, rule = _REDUCED[equation.primitive.name]

    def function(*arrays):
        updates, rows = messages(Values(flattened.inputs, arrays)), jnp.asarray(flattened.receivers)
        y = reduce(updates, rows, flattened.nodes, indices_are_sorted=True)
        return [y]

    by_edges = traced(function, flattened.inputs, is_open=True)
    inner = _proposal(view, rule, by_edges)
    inputs, apply = _prepend_edge_arrays(by_edges, inner, output.aval.shape)
    is_narrow = output.aval.size < _NARROW * flattened.nodes
    of_extremes = ("extremes that are finite",) * (rule is segments.EXTREME)
    return dataclasses.replace(
        inner,
        equation=equation,
        inputs=inputs,
        function=apply,
        note=f"list of {flattened.nodes} x {flattened.neighbours}, {inner.note}",
        case="lists of narrow rows" if is_narrow else inner.case or rule.name,
        assumes=(*inner.assumes, *of_extremes),
    )


def _reduced_array(view: View, equation: Equation) -> tuple[Flattened, Made]:
    """Returns the array that is reduced over the neighbours, by edges."""
    if equation.primitive.name == "dot_general":
        weights, rows = _weighted(view, equation)
        flattened = Flattened(view, *rows.atom.aval.shape[:2])
        by_edge, of_edges = flattened.edge_array(weights.atom), flattened.edge_array(rows.atom)
        behind = [1] * (rows.atom.aval.ndim - 2)

        def product(values: Values):
            return by_edge(values).reshape(-1, *behind) * of_edges(values)

        return flattened, product
    (summed,) = equation.invars
    need(tuple(equation.params["axes"]) == (1,) and summed.aval.ndim >= 2)
    flattened = Flattened(view, *summed.aval.shape[:2])
    return flattened, flattened.edge_array(summed)


def _weighted(view: View, equation: Equation) -> tuple[Factor, Factor]:
    """Returns the weights [nodes, neighbours] and the rows of a sum over the neighbours."""
    factors = required(contraction_of(view, equation.outvars[0]))
    for weights, rows in (factors, factors[::-1]):
        if weights.labels == (0, SUMMED) and rows.labels[:2] == (0, SUMMED):
            shape = equation.outvars[0].aval.shape
            free = tuple(d for d in range(1, len(shape)) if shape[d] != 1)
            need(drop_unit_labels(rows.labels, rows.atom)[2:] == free)
            return weights, rows
    raise NoMatch


def _proposal(view: View, rule: Rule, by_edges: Program) -> Rewrite:
    """Returns the proposal of a rule for the reduction by edges."""
    whole = dataclasses.replace(
        view.program,
        equations=(*view.program.equations, *by_edges.equations),
        outputs=by_edges.outputs,
        constants={**view.program.constants, **by_edges.constants},
    )
    reductions = [e for e in by_edges.equations if e.primitive.name in rule.primitives]
    need(len(reductions) == 1)
    try:
        return required(rule.propose(View(whole, view.known_values), reductions[0]))
    except NoMatch:
        raise Refusal(
            "the messages are no products of gathered rows, which alone an op sums"
        ) from None


def _prepend_edge_arrays(
    by_edges: Program, inner: Rewrite, shape: tuple[int, ...]
) -> tuple[list[Atom], Function]:
    """Returns the inputs and the function of a rewrite that first computes its arrays by edges."""
    read = [a for a in inner.inputs if is_variable(a)]
    program = dataclasses.replace(by_edges, outputs=tuple(read)).tidy()
    computed = {v for e in program.equations for v in e.outvars} | set(program.constants)
    wanted = (*read, *(a for e in program.equations for a in e.invars))
    inputs = list(dict.fromkeys(a for a in wanted if is_variable(a) and a not in computed))
    make = jex.jaxpr_as_fun(dataclasses.replace(program, inputs=tuple(inputs)).closed())

    def function(*arrays: Any) -> Any:
        computed = iter(make(*arrays))
        (y,) = inner.function(*(next(computed) if is_variable(a) else a.val for a in inner.inputs))
        return [y.reshape(shape)]

    return inputs, function


RULE = Rule("neighbour_list", frozenset(_REDUCED), _propose)
