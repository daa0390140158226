"""Gathers of rows and reductions of segments, recognised in all ways to write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jaxgnn.fusion.program.matching import need, or_none, required
from jaxgnn.fusion.program.program import Atom, Equation
from jaxgnn.fusion.program.variables import View

Kind = Literal["sum", "max", "min"]


REDUCTIONS: dict[str, Kind] = {"scatter-add": "sum", "scatter-max": "max", "scatter-min": "min"}


@dataclass(frozen=True)
class RowGather:
    """``table`` read along one axis by a list of ids, as ``table[ids]`` and ``jnp.take`` do."""

    equation: Equation  # the gather
    table: Atom  # the array that is read
    places: Atom  # the variable of the ids, integers [edges, 1]
    axis: int  # the axis of the table that is read, and of the result that has the edges
    mode: str  # effect of ids out of range: ``"clip"``, ``"fill"`` or ``"promise"``

    @property
    def result(self) -> Any:
        """The variable of the rows that are read."""
        return self.equation.outvars[0]

    @property
    def size(self) -> int:
        """The number of rows of the table."""
        return self.table.aval.shape[self.axis]

    def read(self, table: Any, places: Any) -> Any:
        """Rows of another table, read as this gather reads them.

        Args:
          table: an array with the same rows along ``axis``; other axes may have other sizes, and
            axes after it may be missing.
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
    """Rows of ``updates`` combined into rows of an array by a list of ids."""

    equation: Equation  # the scatter
    base: Atom  # array that the results are combined with; mostly zeros, or infinities
    places: Atom  # the variable of the ids, integers [edges, 1]
    updates: Atom  # the rows that are combined
    axis: int  # the axis of the ids in ``updates`` and of the segments in the result
    mode: str  # that of a ``RowGather``; ``"fill"`` drops ids out of range
    kind: Kind

    @property
    def size(self) -> int:
        """The number of segments."""
        return self.base.aval.shape[self.axis]


@or_none
def row_gather(view: View, atom: Atom) -> RowGather:
    """The gather of whole rows that computes an atom, or None."""
    equation = view.match(atom, "gather")
    table, places = equation.invars
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    need(not numbers.operand_batching_dims and not numbers.start_indices_batching_dims)
    axes = numbers.collapsed_slice_dims, numbers.start_index_map, numbers.offset_dims
    axis = _axis_of_ids(table, places, *axes)
    need(list(sizes) == _with_one_row(table, axis))
    return RowGather(equation, table, places, axis, _mode(equation))


@or_none
def segment_reduction(equation: Equation) -> SegmentReduction:
    """The reduction of segments that a scatter performs, or None."""
    kind = required(REDUCTIONS.get(equation.primitive.name))
    base, places, updates = equation.invars
    numbers = equation.params["dimension_numbers"]
    need(not numbers.operand_batching_dims and not numbers.scatter_indices_batching_dims)
    window = numbers.update_window_dims
    axes = numbers.inserted_window_dims, numbers.scatter_dims_to_operand_dims, window
    axis = _axis_of_ids(base, places, *axes)
    need(_with_one_row(updates, axis) == _with_one_row(base, axis))
    return SegmentReduction(equation, base, places, updates, axis, _mode(equation), kind)


def _axis_of_ids(
    array: Atom, places: Atom, dropped: Sequence[int], indexed: Sequence[int], kept: Sequence[int]
) -> int:
    """The one axis of an array that ids index, if the other axes keep their places."""
    need(len(dropped) == 1 and tuple(indexed) == tuple(dropped))
    need(places.aval.ndim == 2 and places.aval.shape[1] == 1)
    axis = int(dropped[0])
    need(tuple(kept) == tuple(d for d in range(array.aval.ndim) if d != axis))
    return axis


def _with_one_row(array: Atom, axis: int) -> list[int]:
    return [1 if d == axis else n for d, n in enumerate(array.aval.shape)]


def _mode(equation: Equation) -> str:
    mode = equation.params["mode"]
    name = getattr(mode, "name", str(mode)).lower()
    return {"clip": "clip", "fill_or_drop": "fill", "promise_in_bounds": "promise"}[name]


def is_filled_with(view: View, atom: Atom, value: Any) -> bool:
    """Whether all entries of an array are ``value``."""
    while (equation := view.made_by(atom, "broadcast_in_dim", "convert_element_type")) is not None:
        atom = equation.invars[0]
    known = view.value(atom) if atom.aval.size <= 1 else None
    return known is not None and bool((known == value).all())
