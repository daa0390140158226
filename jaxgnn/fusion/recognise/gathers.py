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
    """Gather of rows along one axis by a list of ids: ``table[ids]``, ``jnp.take``."""

    equation: Equation  # Equation of the gather.
    table: Atom  # Array that is read.
    ids: Atom  # Variable of the ids, integers [edges, 1].
    axis: int  # Axis that ids index in the table, and of edges in the result.
    mode: str  # Effect of ids out of range: "clip", "fill" or "promise".

    @property
    def result(self) -> Any:
        """The variable of the rows that are read."""
        return self.equation.outvars[0]

    @property
    def size(self) -> int:
        """The number of rows of the table."""
        return self.table.aval.shape[self.axis]

    def read(self, table: Any, ids: Any) -> Any:
        """Reads rows of another table by the same gather.

        Args:
          table: an array with the same rows along ``axis``; other axes may have other sizes, and
            axes after it may be missing.
          ids: the value of the variable ``ids``.
        """
        params = self.equation.params
        sizes = [1 if d == self.axis else n for d, n in enumerate(table.shape)]
        if len(sizes) != len(params["slice_sizes"]):
            offsets = tuple(d for d in range(len(sizes)) if d != self.axis)
            numbers = params["dimension_numbers"]._replace(offset_dims=offsets)
            params = {**params, "dimension_numbers": numbers}
        return self.equation.primitive.bind(table, ids, **{**params, "slice_sizes": tuple(sizes)})


@dataclass(frozen=True)
class SegmentReduction:
    """Scatter that combines rows of ``updates`` into segments by a list of ids."""

    equation: Equation  # Equation of the scatter.
    base: Atom  # Start of the reduction, mostly zeros or infinities.
    ids: Atom  # Variable of the ids, integers [edges, 1].
    updates: Atom  # Rows that are combined.
    axis: int  # Axis of edges in ``updates``, of segments in the result.
    mode: str  # Effect of ids out of range; "fill" drops them.
    kind: Kind

    @property
    def size(self) -> int:
        """The number of segments."""
        return self.base.aval.shape[self.axis]


@or_none
def row_gather(view: View, atom: Atom) -> RowGather:
    """Returns the gather of whole rows that computes an atom, or None."""
    equation = view.match(atom, "gather")
    table, ids = equation.invars
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    need(not numbers.operand_batching_dims and not numbers.start_indices_batching_dims)
    axes = numbers.collapsed_slice_dims, numbers.start_index_map, numbers.offset_dims
    axis = _axis_of_ids(table, ids, *axes)
    need(list(sizes) == _one_row_shape(table, axis))
    return RowGather(equation, table, ids, axis, _mode(equation))


@or_none
def segment_reduction(equation: Equation) -> SegmentReduction:
    """Returns the reduction of segments that a scatter performs, or None."""
    kind = required(REDUCTIONS.get(equation.primitive.name))
    base, ids, updates = equation.invars
    numbers = equation.params["dimension_numbers"]
    need(not numbers.operand_batching_dims and not numbers.scatter_indices_batching_dims)
    window = numbers.update_window_dims
    axes = numbers.inserted_window_dims, numbers.scatter_dims_to_operand_dims, window
    axis = _axis_of_ids(base, ids, *axes)
    need(_one_row_shape(updates, axis) == _one_row_shape(base, axis))
    return SegmentReduction(equation, base, ids, updates, axis, _mode(equation), kind)


def _axis_of_ids(
    array: Atom, ids: Atom, dropped: Sequence[int], indexed: Sequence[int], kept: Sequence[int]
) -> int:
    """Returns the only axis that ids index; raises ``NoMatch`` if other axes move."""
    need(len(dropped) == 1 and tuple(indexed) == tuple(dropped))
    need(ids.aval.ndim == 2 and ids.aval.shape[1] == 1)
    axis = int(dropped[0])
    need(tuple(kept) == tuple(d for d in range(array.aval.ndim) if d != axis))
    return axis


def _one_row_shape(array: Atom, axis: int) -> list[int]:
    return [1 if d == axis else n for d, n in enumerate(array.aval.shape)]


def _mode(equation: Equation) -> str:
    mode = equation.params["mode"]
    name = getattr(mode, "name", str(mode)).lower()
    return {"clip": "clip", "fill_or_drop": "fill", "promise_in_bounds": "promise"}[name]


def is_filled_with(view: View, atom: Atom, value: Any) -> bool:
    """Returns whether all entries of an array are ``value``."""
    while (
        equation := view.produced_by(atom, "broadcast_in_dim", "convert_element_type")
    ) is not None:
        atom = equation.invars[0]
    entries = view.value(atom) if atom.aval.size <= 1 else None
    return entries is not None and bool((entries == value).all())
