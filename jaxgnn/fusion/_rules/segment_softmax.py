"""The maximum, the exponential, the sum and the quotient of segments become ``segment_softmax``.

Sound where the ids are known, none is dropped, the shift is the maximum of the segment and the
divisor the sum of the exponentials (``segment_softmax_of`` lists the other forms). A shift
does not change a softmax, so it has no gradient, whether or not it is stopped.

A logit of +inf makes all of its segment NaN. So it does in code without a guard; with one, the
divisor of NaN is replaced by one, and only that edge is NaN. Guarded logits are assumed not to be
+inf.
"""

from __future__ import annotations

import jax.numpy as jnp

from jaxgnn.fusion._edges import known_rows
from jaxgnn.fusion._graphs import graph_of_rows
from jaxgnn.fusion._program import Equation
from jaxgnn.fusion._rewrite import Refusal, Rewrite, Rule, nbytes
from jaxgnn.fusion._rules._softmax import segment_softmax_of, total_of
from jaxgnn.fusion._view import View


def _propose(view: View, equation: Equation) -> Rewrite | Refusal | None:
    total = total_of(view, equation)
    output = equation.outvars[0]
    if total is None or not jnp.issubdtype(output.aval.dtype, jnp.floating):
        return None
    rows = known_rows(view, total)
    if isinstance(rows, str):
        return Refusal(equation, rows)
    if (rows < 0).any():
        return Refusal(equation, "an edge is dropped, of which the quotient is arbitrary")
    found = segment_softmax_of(view, output, rows, may_drop=False)
    if found is None:
        return Refusal(equation, "the shift is not the maximum of the segment")
    if rows.size == 0:
        return Refusal(equation, "there are no edges")

    def function(logits):
        graph = graph_of_rows(rows, found.size)
        made = found.probabilities(graph.graph, graph.to_slots(logits))
        return [graph.to_list(made).astype(output.aval.dtype)]

    size = nbytes(output)
    note = f"softmax of {output.aval.str_short()} -> segment_softmax"
    sizes = 10 * size, 4 * size
    return Rewrite(equation, [found.logits], function, note, *sizes, assumes=found.assumes)


RULE = Rule("segment_softmax", frozenset(("div",)), _propose)
