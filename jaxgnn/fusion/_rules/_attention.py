"""The scores of graph attention networks, as they are written with gathers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from jaxgnn import ops
from jaxgnn.fusion._edges import RowGather, known_ids, row_gather
from jaxgnn.fusion._graphs import StaticGraph
from jaxgnn.fusion._program import Atom
from jaxgnn.fusion._view import View


@dataclass(frozen=True)
class GatLogits:
    """``leaky_relu(a[receivers] + c[senders] + b)``.

    Attributes:
      of_rows: a, one number for each receiver and head.
      of_columns: c, one number for each sender and head.
      of_edges: b, or None.
      slope: slope for negative numbers.
    """

    op: ClassVar[str] = "gat_attention"
    of_rows: Atom
    of_columns: Atom
    of_edges: Atom | None
    slope: float
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
