"""Gathers of rows and reductions of segments, recognised in all ways to write them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn._arrays.arrays import own
from jaxgnn.fusion.graphs.preparations import Preparation, Work
from jaxgnn.fusion.graphs.static_graphs import StaticGraph, digest, graph_of_rows, static_graph
from jaxgnn.fusion.graphs.traced_graphs import (
    TracedColumns,
    TracedGraph,
    TracedRows,
    fits,
    prepared_rows,
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

Rows = np.ndarray | TracedRows  # Segments of a list of edges, known ahead or traced.
Columns = np.ndarray | TracedColumns
Graph = StaticGraph | TracedGraph
Mask = np.ndarray | Preparation


def known_ids(view: View, ids: Atom) -> np.ndarray | None:
    """Returns the known ids of a gather or a scatter, int32 or int64 [edges], or None."""

    def read() -> np.ndarray | None:
        value = view.value(ids)
        if value is None:
            return None
        fits = np.can_cast(value.dtype, np.int32)
        return own(value.reshape(-1).astype(np.int32 if fits else np.int64))

    return view.derived(("ids", ids), read, of=[ids])


def _array_or_refusal(answer: np.ndarray | str) -> np.ndarray:
    """Returns the array; raises ``Refusal`` if the answer is a reason."""
    if isinstance(answer, str):
        raise Refusal(answer)
    return answer


def known_rows(view: View, reduction: SegmentReduction) -> np.ndarray:
    """Returns the known segment of each row, -1 if dropped; raises ``Refusal`` otherwise."""
    size, mode = reduction.size, reduction.mode

    def read() -> np.ndarray | str:
        ids = known_ids(view, reduction.ids)
        if ids is None:
            return "the segment ids are known only when it runs"
        if _are_inside(ids, size):
            return ids
        if mode == "clip":
            return own(np.clip(ids, 0, size - 1))
        if mode == "promise":
            return "a segment id is out of range though it was promised not to be"
        return own(np.where((ids >= 0) & (ids < size), ids, -1))

    return _array_or_refusal(view.derived(("rows", reduction.ids, size, mode), read))


def rows_of(view: View, reduction: SegmentReduction) -> Rows:
    """Returns the segment of each row, known ahead or prepared when the function runs.

    Raises ``Refusal`` where they are neither.
    """
    if view.is_known(reduction.ids):
        return known_rows(view, reduction)
    edges = reduction.ids.aval.size
    if not fits(reduction.size, edges):
        reason = "there are no edges" if edges == 0 else "it is too large to be sorted in the step"
        raise Refusal(reason)
    ids = traced_ids(view, reduction.ids)
    if not _depend_on_arguments(view, ids.source):
        raise Refusal("the segment ids depend on no argument, and are not known ahead")
    is_sorted = bool(reduction.equation.params["indices_are_sorted"])
    how = {"clips": reduction.mode == "clip", "is_sorted": is_sorted}
    return traced_rows(view, ids, reduction.size, **how, cost=_work(view, ids.source, "sort"))


def _depend_on_arguments(view: View, source: Atom) -> bool:
    """Returns whether ids depend on arguments, without an ``optimization_barrier``.

    The plain implementations of this library's ops have such a barrier.
    """

    def decide() -> bool:
        makers = (view.producer(v) for v in closure(source, view.reads))
        names = {e.primitive.name for e in makers if e is not None}
        return bool(view.roots(source)) and "optimization_barrier" not in names

    return view.remembered("is given", source, decide)


@dataclass(frozen=True)
class Surroundings:
    """Properties of the inputs of a program; an entry of ``View.known_values``."""

    named: frozenset[Any] = frozenset()  # Inputs that ``graph_arguments`` names.
    fixed: frozenset[Any] = frozenset()  # Inputs that are the same in all steps of a loop.
    steps: int = 1  # Number of steps of the loop around the program.


def _work(view: View, source: Atom, kind: Literal["sort", "mark"]) -> Work:
    """Returns the work of preparing a list; computed before any rewrite reads the list."""

    def estimate() -> Work:
        around = view.known_values.get(Surroundings, Surroundings())
        roots = view.roots(source)
        steps = around.steps if roots <= around.fixed else 1
        read = sum(
            _bytes_read_by(view, equation, source, kind) for equation in view.program.equations
        )
        each = math.inf if roots & around.named else steps * read / source.aval.size
        return Work(kind, source.aval.size, each)

    return view.derived(("work", source, kind), estimate)


def _bytes_read_by(view: View, equation: Equation, source: Atom, kind: str) -> int:
    """Returns the bytes of floats that an equation reads by a list; zero for others."""
    if kind == "sort":
        reduction = segment_reduction(equation)
        ids, rows = (reduction.ids, reduction.updates) if reduction else (None, None)
    else:
        gather = row_gather(view, equation.outvars[0]) if equation.outvars else None
        ids, rows = (gather.ids, equation.outvars[0]) if gather else (None, None)
    if rows is None or not jnp.issubdtype(rows.aval.dtype, jnp.floating):
        return 0
    is_of_list = traced_ids(view, ids).source is source
    return rows.aval.size * rows.aval.dtype.itemsize if is_of_list else 0


def are_segments(view: View, reduction: SegmentReduction, rows: TracedRows) -> bool:
    """Returns whether a reduction has the same segments, and drops the same edges."""
    same = reduction.size == rows.num_rows and (reduction.mode == "clip") == rows.clips
    return same and traced_ids(view, reduction.ids) == rows.ids


def _are_inside(ids: np.ndarray, size: int) -> bool:
    return ids.size == 0 or bool(ids.min() >= 0 and ids.max() < size)


def _gathered_ids(view: View, gather: RowGather) -> np.ndarray:
    ids = known_ids(view, gather.ids)
    if ids is None:
        raise Refusal("the gathered ids are known only when it runs")
    return ids


def known_columns(view: View, gather: RowGather, rows: np.ndarray) -> np.ndarray:
    """Returns the known row that each edge reads; raises ``Refusal`` otherwise.

    Edges whose row is -1 are ignored, so the rows that they read do not matter.
    """
    ids = _gathered_ids(view, gather)

    def read() -> np.ndarray | str:
        if _are_inside(ids, gather.size):
            return ids
        if gather.mode == "clip":
            return own(np.clip(ids, 0, max(gather.size - 1, 0)))
        is_inside = (ids >= 0) & (ids < gather.size)
        if not (is_inside | (rows < 0)).all():
            return "a gathered id is out of range"
        return own(np.where(is_inside, ids, 0))

    question = "columns", gather.ids, gather.size, gather.mode, digest(rows)
    return _array_or_refusal(view.derived(question, read))


def columns_read(view: View, gather: RowGather, rows: Rows) -> Columns:
    """Returns the row of the table that each edge reads, known ahead or traced."""
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
    if not fits(gather.size, gather.ids.aval.size):
        raise Refusal("there are no rows to read")
    return TracedColumns(traced_ids(view, gather.ids), gather.size)


def reads_own_row(view: View, gather: RowGather, rows: Rows) -> bool:
    """Returns whether each edge that is not ignored reads the row of its own segment."""
    if not isinstance(rows, np.ndarray):
        return gather.size == rows.num_rows and _leads_to(view, gather, rows)
    try:
        return are_the_same(known_columns(view, gather, rows), rows, rows)
    except Refusal:
        return False


def _leads_to(view: View, gather: RowGather, rows: TracedRows) -> bool:
    """Returns whether a gather reads row ``i`` for each edge that enters segment ``i``.

    A negative id of an edge that is not dropped has been moved into range, as the gather moves it.
    """
    ids = traced_ids(view, gather.ids)
    if ids.source is not rows.ids.source:
        return False
    if rows.clips:
        return ids.wrap == rows.ids.wrap and gather.mode != "fill"
    return rows.ids.wrap is None or ids.wrap == rows.ids.wrap


def are_the_same(one: Columns, other: Columns | Rows, rows: Rows) -> bool:
    """Returns whether two lists agree on all edges that are not dropped."""
    if not isinstance(rows, np.ndarray):
        return one == other
    assert isinstance(one, np.ndarray) and isinstance(other, np.ndarray)
    if one.shape != other.shape:
        return False
    if one is other:
        return True
    for part in (slice(1024), slice(None)):  # Most lists that differ, differ early.
        if ((one[part] != other[part]) & (rows[part] >= 0)).any():
            return False
    return True


def has_rows_in_order(rows: Rows) -> bool:
    """Returns whether edges are sorted by row, with rows of -1 at the end."""
    if isinstance(rows, TracedRows):  # Ascending ids may begin with dropped ones.
        return False
    for part in (slice(1024), slice(None)):  # Most unsorted lists show it early.
        ids = rows[part].astype(np.uint64 if rows.dtype.itemsize > 4 else np.uint32)
        if (ids[1:] < ids[:-1]).any():
            return False
    return True


def has_rows(rows: np.ndarray) -> np.ndarray:
    """Returns a mask of rows with edges, up to the largest row; ignores rows of -1."""
    is_there = np.zeros(int(rows.max(initial=-1)) + 2, bool)
    is_there[rows] = True  # The index -1 marks the last entry.
    return is_there[:-1]


def rows_that_are_read(view: View, gather: RowGather) -> np.ndarray:
    """Returns a mask of the rows that a gather reads, bool [rows].

    Raises ``Refusal`` if they are not known, or an id is out of range and not clipped to it.
    """

    def mark() -> np.ndarray | str:
        ids = _gathered_ids(view, gather)
        if not _are_inside(ids, gather.size):
            if gather.mode != "clip":
                return "a gathered id is out of range"
            ids = np.clip(ids, 0, gather.size - 1)
        is_read = np.zeros(gather.size, bool)
        is_read[ids] = True
        return is_read

    question = f"read {gather.size} {gather.mode}", gather.ids
    return _array_or_refusal(view.derived(question, mark, of=[gather.ids]))


def mask_of_read_rows(view: View, gather: RowGather) -> Mask:
    """Returns the mask of the read rows, or its preparation if ids are not known."""
    if view.is_known(gather.ids):
        return rows_that_are_read(view, gather)
    columns = _traced_columns(view, gather)
    return traced_mask(view, columns, _work(view, columns.ids.source, "mark"))


def mask_rows(mask: Mask | jax.Array, table: Any, axis: int) -> Any:
    """Sets the rows of a table that a mask excludes to zero, so that no NaN remains."""
    if isinstance(mask, Preparation):
        (mask,) = mask.arrays
    if isinstance(mask, np.ndarray) and mask.all():
        return table
    return jnp.where(mask.reshape([-1 if d == axis else 1 for d in range(table.ndim)]), table, 0)


def graph_of(
    view: View, reduction: SegmentReduction, gather: RowGather, rows: Rows | None = None
) -> Graph:
    """Returns the graph of the rows of a reduction and of the columns of a gather.

    ``rows`` are those of the reduction, with -1 for more edges that are dropped. Raises ``Refusal``
    if ids are not known, or there are no edges.
    """
    entered = rows_of(view, reduction) if rows is None else rows
    if entered.size == 0:
        raise Refusal("there are no edges")
    if isinstance(entered, np.ndarray) and not view.is_known(gather.ids):
        entered = _prepared(view, reduction, entered)
    columns = columns_read(view, gather, entered)
    return graph_between(view, entered, columns, reduction.size, gather.size)


def _prepared(view: View, reduction: SegmentReduction, rows: np.ndarray) -> TracedRows:
    """Prepares known rows of edges whose columns are known only at run time."""
    if not fits(reduction.size, rows.size):
        raise Refusal("it is too large to be sorted in the step")
    ids = traced_ids(view, reduction.ids)
    how = {"clips": reduction.mode == "clip", "cost": _work(view, ids.source, "sort")}
    return prepared_rows(view, ids, rows, reduction.size, **how)


def graph_between(
    view: View, rows: Rows, columns: Columns, num_rows: int, num_columns: int
) -> Graph:
    """Returns the graph of these rows and columns, known or not."""
    if isinstance(rows, np.ndarray):
        assert isinstance(columns, np.ndarray)
        return static_graph(rows, columns, num_rows, num_columns)
    assert isinstance(columns, TracedColumns)
    return traced_graph(view, rows, columns)


def graph_entering(view: View, rows: Rows, num_rows: int) -> Graph:
    """Returns a graph whose edges enter these rows; columns are arbitrary."""
    if isinstance(rows, np.ndarray):
        return graph_of_rows(rows, num_rows)
    return traced_graph(view, rows, None)


def reads_end(view: View, gather: RowGather, graph: Graph, end: Literal["row", "column"]) -> bool:
    """Returns whether each live edge reads the table by its row, or by its column."""
    size = graph.num_rows if end == "row" else graph.num_columns
    if isinstance(graph, TracedGraph):
        return (
            gather.axis == 0 and gather.size == size and _reads_traced_end(view, gather, graph, end)
        )
    ids = known_ids(view, gather.ids) if gather.axis == 0 else None
    if ids is None or ids.size != graph.order.size or gather.size != size:
        return False

    def answer() -> bool:
        expected = graph.live_rows if end == "row" else graph.live_columns
        for count in (1024, graph.num_live):  # Most lists that differ, differ early.
            if (ids[graph.order[: min(count, graph.num_live)]] != expected[:count]).any():
                return False
        return True

    return view.derived(("end", gather.ids, graph, end), answer)


def _reads_traced_end(view: View, gather: RowGather, graph: TracedGraph, end: str) -> bool:
    if end == "row":
        return _leads_to(view, gather, graph.rows)
    ids = traced_ids(view, gather.ids)
    return gather.mode != "fill" and graph.columns == TracedColumns(ids, gather.size)
