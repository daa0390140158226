"""Gathers of rows and reductions of segments, recognised in all ways to write them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn._arrays.arrays import own
from jaxgnn.fusion.graphs.preparations import Plan, Work
from jaxgnn.fusion.graphs.static_graphs import StaticGraph, digest, graph_of_rows, static_graph
from jaxgnn.fusion.graphs.traced_graphs import (
    TracedColumns,
    TracedGraph,
    TracedRows,
    fits,
    planned_rows,
    traced_graph,
    traced_ids,
    traced_mask,
    traced_rows,
)
from jaxgnn.fusion.program.matching import Refusal
from jaxgnn.fusion.program.program import Atom, Equation, closure
from jaxgnn.fusion.program.variables import View
from jaxgnn.fusion.recognise.gathers import (
    RowGather,
    SegmentReduction,
    row_gather,
    segment_reduction,
)

Rows = np.ndarray | TracedRows  # the segments of a list, known or not
Columns = np.ndarray | TracedColumns
Graph = StaticGraph | TracedGraph
Mask = np.ndarray | Plan


def known_ids(view: View, places: Atom) -> np.ndarray | None:
    """The ids of a gather or a scatter, int32 or int64 [edges], or None if they are not known."""

    def made() -> np.ndarray | None:
        value = view.value(places)
        if value is None:
            return None
        fits = np.can_cast(value.dtype, np.int32)
        return own(value.reshape(-1).astype(np.int32 if fits else np.int64))

    return view.derived(("ids", places), made, of=[places])


def _unless_refused(found: np.ndarray | str) -> np.ndarray:
    """Raises a reason that is kept instead of an array."""
    if isinstance(found, str):
        raise Refusal(found)
    return found


def known_rows(view: View, reduction: SegmentReduction) -> np.ndarray:
    """The segment of each row, -1 where it is dropped; raises ``Refusal`` if it is not known."""
    size, mode = reduction.size, reduction.mode

    def made() -> np.ndarray | str:
        ids = known_ids(view, reduction.places)
        if ids is None:
            return "the segment ids are known only when it runs"
        if _are_inside(ids, size):
            return ids
        if mode == "clip":
            return own(np.clip(ids, 0, size - 1))
        if mode == "promise":
            return "a segment id is out of range though it was promised not to be"
        return own(np.where((ids >= 0) & (ids < size), ids, -1))

    return _unless_refused(view.derived(("rows", reduction.places, size, mode), made))


def rows_of(view: View, reduction: SegmentReduction) -> Rows:
    """The segment of each row: known ones, or those that a plan sorts when the function runs.

    Raises ``Refusal`` where they are neither.
    """
    if view.is_known(reduction.places):
        return known_rows(view, reduction)
    edges = reduction.places.aval.size
    if not fits(reduction.size, edges):
        reason = "there are no edges" if edges == 0 else "it is too large to be sorted in the step"
        raise Refusal(reason)
    ids = traced_ids(view, reduction.places)
    if not _is_given(view, ids.source):
        raise Refusal("the segment ids depend on no argument, and are not known ahead")
    is_sorted = bool(reduction.equation.params["indices_are_sorted"])
    how = {"clips": reduction.mode == "clip", "is_sorted": is_sorted}
    return traced_rows(view, ids, reduction.size, **how, cost=_work(view, ids.source, "sort"))


def _is_given(view: View, source: Atom) -> bool:
    """Whether arguments decide on ids, which no barrier keeps as they are.

    The plain implementations of this library's ops have such a barrier.
    """

    def found() -> bool:
        makers = (view.producer(v) for v in closure(source, view.reads))
        names = {e.primitive.name for e in makers if e is not None}
        return bool(view.roots(source)) and "optimization_barrier" not in names

    return view.remembered("is given", source, found)


@dataclass(frozen=True)
class Surroundings:
    """Properties of the inputs of a program beside values, kept in ``View.known`` by this class."""

    named: frozenset[Any] = frozenset()  # inputs that the caller calls graphs
    fixed: frozenset[Any] = frozenset()  # inputs that are the same in all steps of a loop
    steps: int = 1  # steps of the loop that the program is the body of


def _work(view: View, source: Atom, kind: Literal["sort", "mark"]) -> Work:
    """The work of a plan for a list; computed before anything that reads the list is rewritten."""

    def made() -> Work:
        around = view.known.get(Surroundings, Surroundings())
        roots = view.roots(source)
        steps = around.steps if roots <= around.fixed else 1
        read = sum(_bytes_by(view, equation, source, kind) for equation in view.program.equations)
        each = math.inf if roots & around.named else steps * read / source.aval.size
        return Work(kind, source.aval.size, each)

    return view.derived(("work", source, kind), made)


def _bytes_by(view: View, equation: Equation, source: Atom, kind: str) -> int:
    """Bytes of the floats that a reduction over a list, or a gather by it, reads; zero if none."""
    if kind == "sort":
        reduction = segment_reduction(equation)
        places, rows = (reduction.places, reduction.updates) if reduction else (None, None)
    else:
        gather = row_gather(view, equation.outvars[0]) if equation.outvars else None
        places, rows = (gather.places, equation.outvars[0]) if gather else (None, None)
    if rows is None or not jnp.issubdtype(rows.aval.dtype, jnp.floating):
        return 0
    is_of_list = traced_ids(view, places).source is source
    return rows.aval.size * rows.aval.dtype.itemsize if is_of_list else 0


def are_segments(view: View, reduction: SegmentReduction, rows: TracedRows) -> bool:
    """Whether a reduction has the same segments, and drops the same edges."""
    same = reduction.size == rows.num_rows and (reduction.mode == "clip") == rows.clips
    return same and traced_ids(view, reduction.places) == rows.ids


def _are_inside(ids: np.ndarray, size: int) -> bool:
    return ids.size == 0 or bool(ids.min() >= 0 and ids.max() < size)


def _gathered_ids(view: View, gather: RowGather) -> np.ndarray:
    ids = known_ids(view, gather.places)
    if ids is None:
        raise Refusal("the gathered ids are known only when it runs")
    return ids


def known_columns(view: View, gather: RowGather, rows: np.ndarray) -> np.ndarray:
    """The row of the table that each edge reads; raises ``Refusal`` if it is not known.

    Edges whose row is -1 are ignored, so the rows that they read do not matter.
    """
    ids = _gathered_ids(view, gather)

    def made() -> np.ndarray | str:
        if _are_inside(ids, gather.size):
            return ids
        if gather.mode == "clip":
            return own(np.clip(ids, 0, max(gather.size - 1, 0)))
        is_inside = (ids >= 0) & (ids < gather.size)
        if not (is_inside | (rows < 0)).all():
            return "a gathered id is out of range"
        return own(np.where(is_inside, ids, 0))

    question = "columns", gather.places, gather.size, gather.mode, digest(rows)
    return _unless_refused(view.derived(question, made))


def columns_read(view: View, gather: RowGather, rows: Rows) -> Columns:
    """The row of the table that each edge reads, as ``known_columns`` says where rows are known."""
    if isinstance(rows, np.ndarray):
        return known_columns(view, gather, rows)
    ids = _traced_columns(view, gather)
    if ids.ids.edges != rows.size:
        raise Refusal("the gathered ids are not one for each edge")
    return ids


def _traced_columns(view: View, gather: RowGather) -> TracedColumns:
    if gather.mode == "fill":
        expected = "ids that are known only when it runs may be out of range, where it reads NaN"
        raise Refusal(f"{expected}: x[ids] reads the nearest row")
    if not fits(gather.size, gather.places.aval.size):
        raise Refusal("there are no rows to read")
    return TracedColumns(traced_ids(view, gather.places), gather.size)


def reads_own_row(view: View, gather: RowGather, rows: Rows) -> bool:
    """Whether each edge that is not ignored reads the row of its own segment."""
    if not isinstance(rows, np.ndarray):
        return gather.size == rows.num_rows and _leads_to(view, gather, rows)
    try:
        return are_the_same(known_columns(view, gather, rows), rows, rows)
    except Refusal:
        return False


def _leads_to(view: View, gather: RowGather, rows: TracedRows) -> bool:
    """Whether a gather reads row ``i`` for each edge that enters segment ``i``.

    A negative id of an edge that is not dropped has been moved into range, as the gather moves it.
    """
    ids = traced_ids(view, gather.places)
    if ids.source is not rows.ids.source:
        return False
    if rows.clips:
        return ids.wrap == rows.ids.wrap and gather.mode != "fill"
    return rows.ids.wrap is None or ids.wrap == rows.ids.wrap


def are_the_same(one: Columns, other: Columns | Rows, rows: Rows) -> bool:
    """Whether two lists agree on all edges that are not dropped."""
    if not isinstance(rows, np.ndarray):
        return one == other
    assert isinstance(one, np.ndarray) and isinstance(other, np.ndarray)
    if one.shape != other.shape:
        return False
    if one is other:
        return True
    for part in (slice(1024), slice(None)):  # most lists that differ do so early
        if ((one[part] != other[part]) & (rows[part] >= 0)).any():
            return False
    return True


def has_rows_in_order(rows: Rows) -> bool:
    """Whether edges are sorted by row already, those whose row is -1 after all others."""
    if isinstance(rows, TracedRows):  # ascending ids may begin with those that are dropped
        return False
    for part in (slice(1024), slice(None)):  # most unsorted lists differ early
        ids = rows[part].astype(np.uint64 if rows.dtype.itemsize > 4 else np.uint32)
        if (ids[1:] < ids[:-1]).any():
            return False
    return True


def has_rows(rows: np.ndarray) -> np.ndarray:
    """A mask of rows with edges, up to the largest one, bool; rows that are -1 are ignored."""
    is_there = np.zeros(int(rows.max(initial=-1)) + 2, bool)
    is_there[rows] = True  # -1 is the last one
    return is_there[:-1]


def rows_that_are_read(view: View, gather: RowGather) -> np.ndarray:
    """A mask of the rows that a gather reads, bool [rows].

    Raises ``Refusal`` if they are not known, or an id is out of range and not clipped to it.
    """

    def made() -> np.ndarray | str:
        ids = _gathered_ids(view, gather)
        if not _are_inside(ids, gather.size):
            if gather.mode != "clip":
                return "a gathered id is out of range"
            ids = np.clip(ids, 0, gather.size - 1)
        is_read = np.zeros(gather.size, bool)
        is_read[ids] = True
        return is_read

    question = f"read {gather.size} {gather.mode}", gather.places
    return _unless_refused(view.derived(question, made, of=[gather.places]))


def mask_of_read_rows(view: View, gather: RowGather) -> Mask:
    """The mask of ``rows_that_are_read``, or the plan that computes it when the function runs."""
    if view.is_known(gather.places):
        return rows_that_are_read(view, gather)
    columns = _traced_columns(view, gather)
    return traced_mask(view, columns, _work(view, columns.ids.source, "mark"))


def where_rows(mask: Mask | jax.Array, table: Any, axis: int) -> Any:
    """A table with zeros in the rows along an axis that a mask leaves out, so that no NaN stays."""
    if isinstance(mask, Plan):
        (mask,) = mask.arrays
    if isinstance(mask, np.ndarray) and mask.all():
        return table
    return jnp.where(mask.reshape([-1 if d == axis else 1 for d in range(table.ndim)]), table, 0)


def graph_of(
    view: View, reduction: SegmentReduction, gather: RowGather, rows: Rows | None = None
) -> Graph:
    """The graph of the rows of a reduction and of the columns of a gather.

    ``rows`` are those of the reduction, with -1 for more edges that are dropped. Raises ``Refusal``
    if ids are not known, or there are no edges.
    """
    entered = rows_of(view, reduction) if rows is None else rows
    if entered.size == 0:
        raise Refusal("there are no edges")
    if isinstance(entered, np.ndarray) and not view.is_known(gather.places):
        entered = _planned(view, reduction, entered)
    columns = columns_read(view, gather, entered)
    return graph_between(view, entered, columns, reduction.size, gather.size)


def _planned(view: View, reduction: SegmentReduction, rows: np.ndarray) -> TracedRows:
    """Rows that are known, for edges that read what is known only when it runs."""
    if not fits(reduction.size, rows.size):
        raise Refusal("it is too large to be sorted in the step")
    ids = traced_ids(view, reduction.places)
    how = {"clips": reduction.mode == "clip", "cost": _work(view, ids.source, "sort")}
    return planned_rows(view, ids, rows, reduction.size, **how)


def graph_between(
    view: View, rows: Rows, columns: Columns, num_rows: int, num_columns: int
) -> Graph:
    """The graph of these rows and columns, known or not."""
    if isinstance(rows, np.ndarray):
        assert isinstance(columns, np.ndarray)
        return static_graph(rows, columns, num_rows, num_columns)
    assert isinstance(columns, TracedColumns)
    return traced_graph(view, rows, columns)


def graph_entering(view: View, rows: Rows, num_rows: int) -> Graph:
    """The graph of these rows, whatever the columns are."""
    if isinstance(rows, np.ndarray):
        return graph_of_rows(rows, num_rows)
    return traced_graph(view, rows, None)


def reads_end(view: View, gather: RowGather, graph: Graph, end: Literal["row", "column"]) -> bool:
    """Whether each edge that is not ignored reads the table by its row, or by its column."""
    size = graph.num_rows if end == "row" else graph.num_columns
    if isinstance(graph, TracedGraph):
        return (
            gather.axis == 0 and gather.size == size and _reads_traced_end(view, gather, graph, end)
        )
    ids = known_ids(view, gather.places) if gather.axis == 0 else None
    if ids is None or ids.size != graph.order.size or gather.size != size:
        return False

    def answer() -> bool:
        own = graph.live_rows if end == "row" else graph.live_columns
        for count in (1024, graph.num_live):  # most lists that differ do so early
            if (ids[graph.order[: min(count, graph.num_live)]] != own[:count]).any():
                return False
        return True

    return view.derived(("end", gather.places, graph, end), answer)


def _reads_traced_end(view: View, gather: RowGather, graph: TracedGraph, end: str) -> bool:
    if end == "row":
        return _leads_to(view, gather, graph.rows)
    ids = traced_ids(view, gather.places)
    return gather.mode != "fill" and graph.columns == TracedColumns(ids, gather.size)
