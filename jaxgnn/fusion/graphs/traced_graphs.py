"""Graphs of edge lists whose ids are known only when the function runs.

Their plans are made in the step: the order of the edges by row, once for a list of receivers, and
the rest of the graph, once for a list of receivers with a list of senders. ``TracedGraph`` offers
rules what ``StaticGraph`` offers them. Its arrays exist only while the function of a rewrite is
traced, which has to name the graph's plans.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jaxgnn._arrays.arrays import MAX_INT32
from jaxgnn.fusion.graphs.preparations import Plan, Work, plan_of
from jaxgnn.fusion.graphs.static_graphs import digest, graph_of_rows, moved
from jaxgnn.fusion.program.program import Atom, Equation, is_variable
from jaxgnn.fusion.program.variables import View
from jaxgnn.graph import CSRGraph, GraphPlan, RowSchedule
from jaxgnn.graph.plan.schedule import make_schedule
from jaxgnn.graph.plan.sorting import inverse_permutation, row_ids
from jaxgnn.ops.shared import segment_order


@dataclass(frozen=True)
class TracedIds:
    """A list of ids with what is done to it before it reaches a gather or a scatter."""

    source: Atom  # integers, with an entry for each edge
    wrap: int | None  # the number that is added to negative ids, or None

    @property
    def edges(self) -> int:
        """The number of edges."""
        return int(self.source.aval.size)


@dataclass(frozen=True)
class TracedRows:
    """The segments that edges enter; it stands for the array of a list that is known."""

    ids: TracedIds
    num_rows: int
    clips: bool  # whether ids out of range enter the nearest row; they are dropped otherwise
    plan: Plan  # offsets of the rows, the edge of each slot, and the slot of each edge
    cost: Work  # of an order of these edges
    is_ordered: bool = False  # whether slots and list are known to have the same order

    @property
    def size(self) -> int:
        """The number of edges."""
        return self.ids.edges


@dataclass(frozen=True)
class TracedColumns:
    """The rows of a table that edges read; ids out of range read the nearest one."""

    ids: TracedIds
    num_columns: int


def traced_ids(view: View, places: Atom) -> TracedIds:
    """The list of ids that a variable of ids [edges, 1] is made of."""
    wrap, atom = None, places
    while True:
        equation = view.made_by(atom, "broadcast_in_dim", "reshape", "squeeze", "copy")
        inner = None if equation is None else equation.invars[0]
        if inner is not None and is_variable(inner) and inner.aval.size == atom.aval.size:
            atom = inner
            continue
        select = view.made_by(atom, "select_n")
        found = None if select is None or wrap is not None else _wrapped(view, select)
        if found is None:
            return TracedIds(atom, wrap)
        atom, wrap = found


def _wrapped(view: View, select: Equation) -> tuple[Atom, int] | None:
    """The ids and the number of ``select_n(ids < 0, ids, ids + number)``, or None."""
    if len(select.invars) != 3:
        return None
    test, ids, moved_ids = select.invars
    less, added = view.made_by(test, "lt"), view.made_by(moved_ids, "add")
    if less is None or added is None or less.invars[0] is not ids:
        return None
    zero, number = view.number(less.invars[1]), None
    for one, other in (added.invars, reversed(added.invars)):
        number = view.number(other) if one is ids else number
    return (ids, int(number)) if zero == 0 and number is not None and number >= 0 else None


def traced_rows(
    view: View,
    ids: TracedIds,
    num_rows: int,
    *,
    clips: bool,
    is_sorted: bool,
    cost: Work,
) -> TracedRows:
    """The rows of edges whose ids are known only when the function runs, with their plan."""
    how = {"wrap": ids.wrap, "num_rows": num_rows, "clips": clips, "is_sorted": is_sorted}
    question = "order", *how.values()
    of_order = None if is_sorted else cost
    plan = plan_of(view, question, partial(_order, **how), [ids.source], cost=of_order)
    return TracedRows(ids, num_rows, clips, plan, cost)


def planned_rows(
    view: View, ids: TracedIds, rows: np.ndarray, num_rows: int, *, clips: bool, cost: Work
) -> TracedRows:
    """The rows of edges that are known, where what they read is known only when it runs."""
    known = graph_of_rows(rows, num_rows)

    def order() -> list[Any]:
        arrays = np.asarray(known.graph.indptr), known.order, inverse_permutation(known.order)
        return list(map(jnp.asarray, arrays))

    plan = plan_of(view, ("known order", digest(rows), num_rows), order, [])
    return TracedRows(ids, num_rows, clips, plan, cost, known.is_ordered)


def _values(source: Array, wrap: int | None) -> Int[Array, " edges"]:
    """The ids as they reach a gather or a scatter."""
    ids = source.reshape(-1)
    return ids if wrap is None else jnp.where(ids < 0, ids + jnp.asarray(wrap, ids.dtype), ids)


def _clipped(ids: Int[Array, " edges"], size: int) -> Int[Array, " edges"]:
    """Ids moved to the nearest of a range, int32; the bounds are those of their own dtype."""
    last = min(size - 1, int(jnp.iinfo(ids.dtype).max))
    return jnp.clip(ids, 0, jnp.asarray(last, ids.dtype)).astype(jnp.int32)


def _order(
    source: Array, *, wrap: int | None, num_rows: int, clips: bool, is_sorted: bool
) -> list[Any]:
    """Offsets of the rows, the edge of each slot and the slot of each edge; dropped ones last."""
    given = _values(source, wrap)
    rows = _clipped(given, num_rows)
    if not clips:
        rows = jnp.where(given < 0, -1, rows)
        largest = int(jnp.iinfo(given.dtype).max)
        rows = jnp.where(given >= num_rows, num_rows, rows) if num_rows <= largest else rows
    indptr, order = segment_order(rows, num_rows, is_sorted=is_sorted)
    return [indptr, order, inverse_permutation(order)]


def _senders(
    indptr: Array, order: Array, source: Array, *, wrap: int | None, num_columns: int
) -> list[Any]:
    """The column of each slot, the plan of the graph's gradients, and the columns that are read."""
    columns = _clipped(_values(source, wrap), num_columns)[order]
    edges, num_rows = order.shape[0], indptr.shape[0] - 1
    rows = row_ids(indptr, edges)
    live = jnp.where(rows < num_rows, columns, num_columns)
    by_column, permutation = segment_order(live, num_columns)
    plan = GraphPlan(
        schedule=make_schedule(indptr, edges),
        transposed_indptr=by_column,
        transposed_indices=jnp.clip(rows[permutation], 0, num_rows - 1).astype(jnp.int32),
        permutation=permutation,
        transposed_schedule=make_schedule(by_column, edges),
    )
    is_read = jnp.zeros(num_columns, bool).at[live].set(True, mode="drop")
    return [columns, is_read, *jax.tree.leaves(plan)]


def _schedule(indptr: Array, *, edges: int) -> list[Any]:
    return jax.tree.leaves(make_schedule(indptr, edges))


@dataclass(frozen=True, eq=False)
class TracedGraph:
    """A graph whose arrays are results of plans; what ``StaticGraph`` is where ids are known."""

    rows: TracedRows
    columns: TracedColumns | None  # None where the senders do not matter
    parts: Plan  # the rest of the graph

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans whose results it reads."""
        return self.rows.plan, self.parts

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return self.rows.num_rows

    @property
    def num_columns(self) -> int:
        """The number of columns."""
        return 1 if self.columns is None else self.columns.num_columns

    @property
    def graph(self) -> CSRGraph:
        """The graph, without weights."""
        indptr, arrays = self.rows.plan.arrays[0], self.parts.arrays
        if self.columns is None:
            indices, plan = jnp.zeros(self.rows.size, jnp.int32), _PLAN_OF_ROWS
        else:
            (indices, _, *arrays), plan = arrays, _PLAN
        return CSRGraph(
            indptr,
            indices,
            num_cols=self.num_columns,
            plan=jax.tree.unflatten(jax.tree.structure(plan), list(arrays)),
            in_range=True,
        )

    @property
    def places(self) -> Array | None:
        """The place in the edge list of each edge slot; None if both have the same order."""
        return None if self.rows.is_ordered else self.rows.plan.arrays[1]

    def to_slots(self, of_edges: Array, axis: int = 0) -> Array:
        """An array of the edge list in the order of the slots, along its axis of edges."""
        if self.rows.is_ordered:
            return of_edges
        _, order, inverse = self.rows.plan.arrays
        return moved(axis, order, inverse, of_edges)

    def to_list(self, of_slots: Array, axis: int = 0) -> Array:
        """An array of the slots in the order of the edge list, along its axis of edges."""
        if self.rows.is_ordered:
            return of_slots
        _, order, inverse = self.rows.plan.arrays
        return moved(axis, inverse, order, of_slots)

    def weights(self, of_edges: np.ndarray) -> Array:
        """Known numbers of edges in the order of the slots."""
        return self.to_slots(jnp.asarray(of_edges))

    @property
    def degrees(self) -> Int[Array, " rows"]:
        """The number of edges of each row."""
        return jnp.diff(self.rows.plan.arrays[0])

    @property
    def has_edges(self) -> Bool[Array, " rows"]:
        """A mask of rows with edges."""
        return self.degrees > 0

    @property
    def is_read(self) -> Bool[Array, " columns"]:
        """A mask of columns that edges which arrive at a row read."""
        return self.parts.arrays[1]


# Plans with numbers for arrays, whose structures are those of the leaves of plans in a program.
_NUMBER: Any = 0
_SCHEDULE = RowSchedule(_NUMBER, _NUMBER, _NUMBER, _NUMBER)
_PLAN_OF_ROWS = GraphPlan(schedule=_SCHEDULE)
_PLAN = GraphPlan(
    schedule=_SCHEDULE,
    transposed_indptr=_NUMBER,
    transposed_indices=_NUMBER,
    permutation=_NUMBER,
    transposed_schedule=_SCHEDULE,
)


def traced_graph(view: View, rows: TracedRows, columns: TracedColumns | None) -> TracedGraph:
    """The graph of these rows and columns, with its plan in the program of the view."""
    indptr, order, _ = rows.plan.results
    if columns is None:
        build = partial(_schedule, edges=rows.size)
        return TracedGraph(rows, None, plan_of(view, ("rows",), build, [indptr], [rows.plan]))
    how = {"wrap": columns.ids.wrap, "num_columns": columns.num_columns}
    question, inputs = ("senders", *how.values()), [indptr, order, columns.ids.source]
    # Gradients need the order by column, even where the code promises that rows ascend.
    build = partial(_senders, **how)
    parts = plan_of(view, question, build, inputs, [rows.plan], cost=rows.cost)
    return TracedGraph(rows, columns, parts)


def traced_mask(view: View, columns: TracedColumns, cost: Work) -> Plan:
    """The plan of the mask of the rows of a table that are read, bool [rows]."""
    how = {"wrap": columns.ids.wrap, "size": columns.num_columns}
    question, inputs = ("read", *how.values()), [columns.ids.source]
    return plan_of(view, question, partial(_read, **how), inputs, cost=cost)


def _read(source: Array, *, wrap: int | None, size: int) -> list[Any]:
    return [jnp.zeros(size, bool).at[_clipped(_values(source, wrap), size)].set(True)]


def fits(num_rows: int, edges: int) -> bool:
    """Whether a list can be sorted in the step: ids and offsets are int32."""
    return 0 < edges <= MAX_INT32 and 0 < num_rows < MAX_INT32
