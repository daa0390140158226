"""Graphs of edge lists whose ids are known only when the function runs.

Each call prepares them: the order of the edges by row, once for a list of receivers, and
the rest of the graph, once for a list of receivers with a list of senders. ``TracedGraph`` offers
rules the methods of ``StaticGraph``. Its arrays exist only while the function of a rewrite is
traced, which has to name the preparations of the graph.
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
from jaxgnn.fusion.graphs.preparations import Preparation, Work, prepare
from jaxgnn.fusion.graphs.static_graphs import digest, graph_of_rows, moved
from jaxgnn.fusion.program.program import Atom, Equation, is_variable
from jaxgnn.fusion.program.variables import View
from jaxgnn.graph import CSRGraph, GraphPlan, RowSchedule
from jaxgnn.graph.plan.schedule import make_schedule
from jaxgnn.graph.plan.sorting import inverse_permutation, row_ids
from jaxgnn.ops.shared import segment_order


@dataclass(frozen=True)
class TracedIds:
    """List of ids, and the change to negative ids before a gather or a scatter."""

    source: Atom  # Variable of the integers, one for each edge.
    wrap: int | None  # Number that is added to negative ids, or None.

    @property
    def edges(self) -> int:
        """The number of edges."""
        return int(self.source.aval.size)


@dataclass(frozen=True)
class TracedRows:
    """Segments that edges enter, by ids that are known only when the function runs."""

    ids: TracedIds
    num_rows: int
    clips: bool  # True if ids out of range enter the nearest row, not dropped.
    preparation: Preparation  # Row offsets, the edge of each slot, the slot of each edge.
    cost: Work  # Work of sorting these edges.
    is_ordered: bool = False  # True if slots and edge list are known to have one order.

    @property
    def size(self) -> int:
        """The number of edges."""
        return self.ids.edges


@dataclass(frozen=True)
class TracedColumns:
    """Rows of a table that edges read; ids out of range read the nearest row."""

    ids: TracedIds
    num_columns: int


def traced_ids(view: View, ids: Atom) -> TracedIds:
    """Finds the list of ids behind a variable of ids [edges, 1]."""
    wrap, atom = None, ids
    while True:
        equation = view.produced_by(atom, "broadcast_in_dim", "reshape", "squeeze", "copy")
        inner = None if equation is None else equation.invars[0]
        if inner is not None and is_variable(inner) and inner.aval.size == atom.aval.size:
            atom = inner
            continue
        select = view.produced_by(atom, "select_n")
        unwrapped = None if select is None or wrap is not None else _wrapped(view, select)
        if unwrapped is None:
            return TracedIds(atom, wrap)
        atom, wrap = unwrapped


def _wrapped(view: View, select: Equation) -> tuple[Atom, int] | None:
    """Matches ``select_n(ids < 0, ids, ids + number)``; returns ids and number, or None."""
    if len(select.invars) != 3:
        return None
    test, ids, moved_ids = select.invars
    less, added = view.produced_by(test, "lt"), view.produced_by(moved_ids, "add")
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
    """Returns the rows of edges by ids that are known only when the function runs."""
    how = {"wrap": ids.wrap, "num_rows": num_rows, "clips": clips, "is_sorted": is_sorted}
    question = "order", *how.values()
    of_order = None if is_sorted else cost
    preparation = prepare(view, question, partial(_order, **how), [ids.source], cost=of_order)
    return TracedRows(ids, num_rows, clips, preparation, cost)


def prepared_rows(
    view: View, ids: TracedIds, rows: np.ndarray, num_rows: int, *, clips: bool, cost: Work
) -> TracedRows:
    """Returns known rows of edges for a graph whose columns are known only at run time."""
    static = graph_of_rows(rows, num_rows)

    def order() -> list[Any]:
        arrays = np.asarray(static.graph.indptr), static.order, inverse_permutation(static.order)
        return list(map(jnp.asarray, arrays))

    preparation = prepare(view, ("known order", digest(rows), num_rows), order, [])
    return TracedRows(ids, num_rows, clips, preparation, cost, static.is_ordered)


def _values(source: Array, wrap: int | None) -> Int[Array, " edges"]:
    """Returns the ids as they reach a gather or a scatter."""
    ids = source.reshape(-1)
    return ids if wrap is None else jnp.where(ids < 0, ids + jnp.asarray(wrap, ids.dtype), ids)


def _clipped(ids: Int[Array, " edges"], size: int) -> Int[Array, " edges"]:
    """Clips ids to a range, within the bounds of their dtype; returns int32."""
    last = min(size - 1, int(jnp.iinfo(ids.dtype).max))
    return jnp.clip(ids, 0, jnp.asarray(last, ids.dtype)).astype(jnp.int32)


def _order(
    source: Array, *, wrap: int | None, num_rows: int, clips: bool, is_sorted: bool
) -> list[Any]:
    """Sorts edges by row, dropped edges last; returns row offsets, order and inverse order."""
    ids = _values(source, wrap)
    rows = _clipped(ids, num_rows)
    if not clips:
        rows = jnp.where(ids < 0, -1, rows)
        largest = int(jnp.iinfo(ids.dtype).max)
        rows = jnp.where(ids >= num_rows, num_rows, rows) if num_rows <= largest else rows
    indptr, order = segment_order(rows, num_rows, is_sorted=is_sorted)
    return [indptr, order, inverse_permutation(order)]


def _senders(
    indptr: Array, order: Array, source: Array, *, wrap: int | None, num_columns: int
) -> list[Any]:
    """Returns the column of each slot, the mask of read columns, and the graph plan."""
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
    """Graph whose arrays are results of preparations; counterpart of ``StaticGraph``."""

    rows: TracedRows
    columns: TracedColumns | None  # None if the rule does not depend on the senders.
    parts: Preparation  # Columns, the mask of read columns, and the schedules.

    @property
    def preparations(self) -> tuple[Preparation, ...]:
        """The preparations whose results it reads."""
        return self.rows.preparation, self.parts

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
        indptr, arrays = self.rows.preparation.arrays[0], self.parts.arrays
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
    def edge_positions(self) -> Array | None:
        """Position in the edge list of each slot; None if both have the same order."""
        return None if self.rows.is_ordered else self.rows.preparation.arrays[1]

    def to_slots(self, of_edges: Array, axis: int = 0) -> Array:
        """Reorders an array from the order of the edge list to that of the slots."""
        if self.rows.is_ordered:
            return of_edges
        _, order, inverse = self.rows.preparation.arrays
        return moved(axis, order, inverse, of_edges)

    def to_list(self, of_slots: Array, axis: int = 0) -> Array:
        """Reorders an array from the order of the slots to that of the edge list."""
        if self.rows.is_ordered:
            return of_slots
        _, order, inverse = self.rows.preparation.arrays
        return moved(axis, inverse, order, of_slots)

    def weights(self, of_edges: np.ndarray) -> Array:
        """Returns known numbers of edges in the order of the slots."""
        return self.to_slots(jnp.asarray(of_edges))

    @property
    def degrees(self) -> Int[Array, " rows"]:
        """The number of edges of each row."""
        return jnp.diff(self.rows.preparation.arrays[0])

    @property
    def has_edges(self) -> Bool[Array, " rows"]:
        """A mask of rows with edges."""
        return self.degrees > 0

    @property
    def is_read(self) -> Bool[Array, " columns"]:
        """Mask of the columns that edges read."""
        return self.parts.arrays[1]


# Graph plans with numbers in place of arrays: pytrees for the leaves of a traced plan.
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
    """Returns the graph of rows and columns, and prepares it in the program of the view."""
    indptr, order, _ = rows.preparation.results
    if columns is None:
        build = partial(_schedule, edges=rows.size)
        return TracedGraph(
            rows, None, prepare(view, ("rows",), build, [indptr], [rows.preparation])
        )
    how = {"wrap": columns.ids.wrap, "num_columns": columns.num_columns}
    question, inputs = ("senders", *how.values()), [indptr, order, columns.ids.source]
    # Gradients need the order by column, even where the code promises that rows ascend.
    build = partial(_senders, **how)
    parts = prepare(view, question, build, inputs, [rows.preparation], cost=rows.cost)
    return TracedGraph(rows, columns, parts)


def traced_mask(view: View, columns: TracedColumns, cost: Work) -> Preparation:
    """Prepares the mask of the rows of a table that are read, bool [rows]."""
    how = {"wrap": columns.ids.wrap, "size": columns.num_columns}
    question, inputs = ("read", *how.values()), [columns.ids.source]
    return prepare(view, question, partial(_read, **how), inputs, cost=cost)


def _read(source: Array, *, wrap: int | None, size: int) -> list[Any]:
    return [jnp.zeros(size, bool).at[_clipped(_values(source, wrap), size)].set(True)]


def fits(num_rows: int, edges: int) -> bool:
    """Returns whether each call can sort a list, whose ids and offsets are int32."""
    return 0 < edges <= MAX_INT32 and 0 < num_rows < MAX_INT32
