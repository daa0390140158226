"""Gathers of rows and reductions of segments, recognised in whatever way they were written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from jaxgnn.fusion._graphs import StaticGraph, static_graph
from jaxgnn.fusion._program import Atom, Equation
from jaxgnn.fusion._view import View

Kind = Literal["sum", "max", "min"]
REDUCTIONS: dict[str, Kind] = {
    "scatter-add": "sum",
    "scatter-max": "max",
    "scatter-min": "min",
}


@dataclass(frozen=True)
class RowGather:
    """``table`` read along one axis by a list of ids, as ``table[ids]`` and ``jnp.take`` do.

    Attributes:
      equation: the gather.
      table: the array that is read.
      places: the variable of the ids, integers [edges, 1].
      axis: the axis of the table that is read, and of the result that has the edges.
      mode: what ids out of range do: ``"clip"``, ``"fill"`` or ``"promise"``.
    """

    equation: Equation
    table: Atom
    places: Atom
    axis: int
    mode: str

    @property
    def size(self) -> int:
        """The number of rows of the table."""
        return self.table.aval.shape[self.axis]

    def read(self, table: Any, places: Any) -> Any:
        """Rows of another table, read as this gather reads them.

        Args:
          table: an array with the same rows along ``axis``; other axes may have other sizes, and
            those behind may be missing.
          places: the value of ``places``.
        """
        params = self.equation.params
        sizes = [1 if d == self.axis else n for d, n in enumerate(table.shape)]
        if len(sizes) != len(params["slice_sizes"]):
            offsets = tuple(d for d in range(len(sizes)) if d != self.axis)
            numbers = params["dimension_numbers"]._replace(offset_dims=offsets)
            params = {**params, "dimension_numbers": numbers}
        return self.equation.primitive.bind(
            table, places, **{**params, "slice_sizes": tuple(sizes)}
        )


@dataclass(frozen=True)
class SegmentReduction:
    """Rows of ``updates`` combined into rows of an array by a list of ids.

    Attributes:
      equation: the scatter.
      base: what the results are combined with; mostly zeros, or infinities.
      places: the variable of the ids, integers [edges, 1].
      updates: the rows that are combined.
      axis: the axis of the ids in ``updates`` and of the segments in the result.
      mode: what ids out of range do: ``"clip"``, ``"fill"``, which drops them, or ``"promise"``.
      kind: ``"sum"``, ``"max"`` or ``"min"``.
    """

    equation: Equation
    base: Atom
    places: Atom
    updates: Atom
    axis: int
    mode: str
    kind: Kind

    @property
    def size(self) -> int:
        """The number of segments."""
        return self.base.aval.shape[self.axis]


def row_gather(view: View, atom: Atom) -> RowGather | None:
    """The gather of whole rows that makes an atom, or None."""
    equation = view.made_by(atom, "gather")
    if equation is None:
        return None
    table, places = equation.invars
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    axes = numbers.collapsed_slice_dims
    is_batched = numbers.operand_batching_dims or numbers.start_indices_batching_dims
    if is_batched or len(axes) != 1 or tuple(numbers.start_index_map) != tuple(axes):
        return None
    axis, shape = int(axes[0]), table.aval.shape
    if places.aval.ndim != 2 or places.aval.shape[1] != 1 or sizes[axis] != 1:
        return None
    if any(size != shape[d] for d, size in enumerate(sizes) if d != axis):
        return None
    if tuple(numbers.offset_dims) != tuple(d for d in range(len(shape)) if d != axis):
        return None
    return RowGather(equation, table, places, axis, _mode(equation))


def segment_reduction(equation: Equation) -> SegmentReduction | None:
    """The reduction of segments that a scatter is, or None."""
    kind = REDUCTIONS.get(equation.primitive.name)
    if kind is None:
        return None
    base, places, updates = equation.invars
    numbers = equation.params["dimension_numbers"]
    axes = numbers.inserted_window_dims
    is_batched = numbers.operand_batching_dims or numbers.scatter_indices_batching_dims
    if is_batched or len(axes) != 1 or tuple(numbers.scatter_dims_to_operand_dims) != tuple(axes):
        return None
    axis, shape = int(axes[0]), base.aval.shape
    if places.aval.ndim != 2 or places.aval.shape[1] != 1:
        return None
    if tuple(numbers.update_window_dims) != tuple(d for d in range(len(shape)) if d != axis):
        return None
    if any(updates.aval.shape[d] != n for d, n in enumerate(shape) if d != axis):
        return None
    return SegmentReduction(equation, base, places, updates, axis, _mode(equation), kind)


def _mode(equation: Equation) -> str:
    mode = equation.params["mode"]
    name = getattr(mode, "name", str(mode)).lower()
    return {"clip": "clip", "fill_or_drop": "fill", "promise_in_bounds": "promise"}[name]


def known_ids(view: View, places: Atom) -> np.ndarray | None:
    """The ids of a gather or a scatter, int64 [edges], or None if they are not known."""
    value = view.value(places)
    return None if value is None else value.reshape(-1).astype(np.int64)


def known_rows(view: View, reduction: SegmentReduction) -> np.ndarray | str:
    """The segment of each row, -1 where it is dropped; or the reason why that is not known."""
    ids = known_ids(view, reduction.places)
    if ids is None:
        return "the segment ids are known only when it runs"
    is_inside = (ids >= 0) & (ids < reduction.size)
    if reduction.mode == "clip":
        return np.clip(ids, 0, reduction.size - 1)
    if reduction.mode == "promise" and not is_inside.all():
        return "a segment id is out of range though it was promised not to be"
    return np.where(is_inside, ids, -1)


def known_columns(view: View, gather: RowGather, rows: np.ndarray) -> np.ndarray | str:
    """The row of the table that each edge reads; or the reason why that is not known.

    Edges whose row is -1 do not count, so what they read does not matter.
    """
    ids = known_ids(view, gather.places)
    if ids is None:
        return "the gathered ids are known only when it runs"
    if gather.mode == "clip":
        return np.clip(ids, 0, max(gather.size - 1, 0))
    is_inside = (ids >= 0) & (ids < gather.size)
    if not (is_inside | (rows < 0)).all():
        return "a gathered id is out of range"
    return np.where(is_inside, ids, 0)


def rows_that_are_read(view: View, gather: RowGather) -> np.ndarray | str:
    """Which rows of its table a gather reads, bool [rows], or the reason why that is not known.

    All ids have to be in range, or clipped to it.
    """
    ids = known_ids(view, gather.places)
    if ids is None:
        return "the gathered ids are known only when it runs"
    if gather.mode == "clip":
        ids = np.clip(ids, 0, gather.size - 1)
    if ((ids < 0) | (ids >= gather.size)).any():
        return "a gathered id is out of range"
    is_read = np.zeros(gather.size, bool)
    is_read[ids] = True
    return is_read


def graph_of(
    view: View,
    reduction: SegmentReduction,
    gather: RowGather | None = None,
    rows: np.ndarray | None = None,
) -> StaticGraph | str:
    """The graph of the known ids of a reduction and of a gather, or the reason for none.

    Args:
      view: the view of the program.
      reduction: gives the row of each edge.
      gather: gives the column of each edge; without it each edge has a column of its own.
      rows: the row of each edge where more edges are dropped than the reduction drops, as -1.
    """
    entered = known_rows(view, reduction) if rows is None else rows
    if isinstance(entered, str):
        return entered
    if entered.size == 0:
        return "there are no edges"
    if gather is None:
        return static_graph(entered, np.zeros_like(entered), reduction.size, 1)
    columns = known_columns(view, gather, entered)
    if isinstance(columns, str):
        return columns
    return static_graph(entered, columns, reduction.size, gather.size)


def is_filled_with(view: View, atom: Atom, value: Any) -> bool:
    """Whether an array is one number everywhere, and this number is ``value``."""
    while (equation := view.made_by(atom, "broadcast_in_dim", "convert_element_type")) is not None:
        atom = equation.invars[0]
    if atom.aval.shape != ():
        known = view.value(atom) if atom.aval.size <= 1 else None
        return known is not None and bool((known == value).all())
    known = view.value(atom)
    return known is not None and bool(known == value)
