"""The plan of a graph: its transpose and its work schedules, which kernels need."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxgnn._arrays.arrays import KeepsArrays, is_concrete, match_varying, own
from jaxgnn.graph.plan.edge_blocks import EdgeBlocks, make_edge_blocks
from jaxgnn.graph.plan.schedule import RowSchedule, make_schedule
from jaxgnn.graph.plan.sorting import inverse_permutation, row_ids, sort_edges, transpose_on_host

Part = Literal["schedule", "transpose", "permutation", "edge_blocks"]
"""A part of a plan: the schedule of the rows; the transposed graph and the schedule of its rows;
the position in the graph of each transposed edge; the edges by block."""

NOT_MADE: Any = cast(Any, None)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class GraphPlan(KeepsArrays):
    """Transpose and work schedules of a graph, built once for all kernels.

    Each is None if it has not been built.

    Attributes:
      schedule: work units over the rows.
      transposed_indptr: row offsets of the transposed graph.
      transposed_indices: column indices of the transposed graph.
      permutation: edge ``e`` of the transposed graph is edge ``permutation[e]`` of the graph.
        Needed where edges have weights.
      transposed_schedule: work units over the rows of the transposed graph.
      edge_blocks: the edges grouped by block, once for each shape in ``BlockShape.choices``, for
        the backward pass of ``maxk_spmm`` on a GPU; or empty.
    """

    schedule: RowSchedule = NOT_MADE
    transposed_indptr: Int[Array, " cols+1"] = NOT_MADE
    transposed_indices: Int[Array, " edges"] = NOT_MADE
    permutation: Int[Array, " edges"] = NOT_MADE
    transposed_schedule: RowSchedule = NOT_MADE
    edge_blocks: tuple[EdgeBlocks, ...] = ()

    def __repr__(self) -> str:
        """Names the existing parts."""
        return f"GraphPlan({', '.join(sorted(self.parts))})"

    @property
    def parts(self) -> frozenset[Part]:
        """The parts that have been built."""
        there: dict[Part, Any] = {
            "schedule": self.schedule,
            "transpose": self.transposed_schedule,
            "permutation": self.permutation,
            "edge_blocks": self.edge_blocks or None,
        }
        return frozenset(part for part, made in there.items() if made is not None)

    def missing(self, wanted: frozenset[Part]) -> frozenset[Part]:
        """The missing parts of ``wanted``; with a permutation, blocks must support weights."""
        there = self.parts
        if "permutation" in wanted and any(blocks.edges is None for blocks in self.edge_blocks):
            there -= {"edge_blocks"}
        return wanted - there

    def arrays_of(self, part: Part) -> tuple[Any, ...]:
        """Returns the fields of a part."""
        return tuple(getattr(self, name) for name in _FIELDS[part])

    def with_parts_of(self, other: GraphPlan, parts: Iterable[Part]) -> GraphPlan:
        """Returns this plan with some parts of another plan of the same graph."""
        names = [name for part in parts for name in _FIELDS[part]]
        return dataclasses.replace(self, **{name: getattr(other, name) for name in names})

    def transposed(self, indptr: Int[Array, " rows+1"], indices: Int[Array, " edges"]) -> GraphPlan:
        """Returns the plan of the transposed graph, from this ``indptr`` and ``indices``."""
        permutation = self.permutation
        return GraphPlan(
            schedule=self.transposed_schedule,
            transposed_indptr=indptr,
            transposed_indices=indices,
            permutation=NOT_MADE if permutation is None else own(inverse_permutation(permutation)),
            transposed_schedule=self.schedule,
        )


_FIELDS: dict[Part, tuple[str, ...]] = {
    "schedule": ("schedule",),
    "transpose": ("transposed_indptr", "transposed_indices", "transposed_schedule"),
    "permutation": ("permutation",),
    "edge_blocks": ("edge_blocks",),
}


# One program, since outside of jit each of its many steps would be compiled separately.
@partial(jax.jit, static_argnames=("num_cols", "edge_blocks"), inline=True)
def make_traced_plan(
    indptr: Int[Array, " rows+1"],
    indices: Int[Array, " edges"],
    num_cols: int,
    *,
    edge_blocks: bool = False,
) -> GraphPlan:
    """Builds the plan of a traced graph in one compiled program."""
    indptr, indices = match_varying(indptr, indices)
    return make_plan(indptr, indices, num_cols, edge_blocks=edge_blocks)


def make_plan(
    indptr: Int[Array, " rows+1"] | np.ndarray,
    indices: Int[Array, " edges"] | np.ndarray,
    num_cols: int,
    *,
    edge_blocks: bool = False,
) -> GraphPlan:
    """Builds the whole plan, in numpy if the graph is concrete, traced otherwise.

    Edges by block take up to three more sorts and, for large graphs, a search for communities.
    """
    num_edges = indices.shape[0]
    if is_concrete(indptr, indices):
        indptr, indices = np.asarray(indptr), np.asarray(indices)
        transposed = transpose_on_host(indptr, indices, num_cols)
    else:
        transposed = transpose_traced(jnp.asarray(indptr), jnp.asarray(indices), num_cols)
    transposed_indptr, transposed_indices, permutation = map(own, transposed)
    blocks = ()
    if edge_blocks:
        blocks = make_edge_blocks(indptr, transposed_indptr, transposed_indices, permutation)
    return GraphPlan(
        schedule=make_schedule(indptr, num_edges),
        transposed_indptr=transposed_indptr,
        transposed_indices=transposed_indices,
        permutation=permutation,
        transposed_schedule=make_schedule(transposed_indptr, num_edges),
        edge_blocks=blocks,
    )


def transpose_traced(
    indptr: Int[Array, " rows+1"], indices: Int[Array, " edges"], num_cols: int
) -> tuple[Array, Array, Array]:
    """Sorts the edges of a traced graph by sender; see ``transpose_on_host`` for the results."""
    num_rows = indptr.shape[0] - 1
    slots = row_ids(indptr, indices.shape[0])
    transposed_indptr, permutation = sort_edges(indices, num_cols, slots < num_rows)
    # Padding slots have a row that is out of range; the transposed tail must be in range.
    rows = slots[permutation].clip(0, max(num_rows - 1, 0)).astype(np.int32)
    return transposed_indptr, rows, permutation
