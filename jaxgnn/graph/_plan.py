"""The plan of a graph: its transpose and its work schedules, which kernels need."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxgnn.graph._arrays import KeepsArrays, is_concrete, match_varying, own
from jaxgnn.graph._edge_blocks import EdgeBlocks, make_edge_blocks
from jaxgnn.graph._schedule import RowSchedule, make_schedule
from jaxgnn.graph._sorting import inverse_permutation, row_ids, row_ids_on_host, sort_edges


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class GraphPlan(KeepsArrays):
    """Transpose and work schedules of a graph, made once for all kernels.

    Attributes:
      schedule: work units over the rows.
      transposed_indptr: row offsets of the transposed graph.
      transposed_indices: column indices of the transposed graph.
      permutation: edge ``e`` of the transposed graph is edge ``permutation[e]`` of the graph.
      transposed_schedule: work units over the rows of the transposed graph.
      edge_blocks: the edges grouped by block, once for each shape in ``BlockShape.choices``, for
        the backward pass of ``maxk_spmm`` on a GPU; or empty.
    """

    schedule: RowSchedule
    transposed_indptr: Int[Array, " cols+1"]
    transposed_indices: Int[Array, " edges"]
    permutation: Int[Array, " edges"]
    transposed_schedule: RowSchedule
    edge_blocks: tuple[EdgeBlocks, ...] = ()

    def transposed(self, indptr: Int[Array, " rows+1"], indices: Int[Array, " edges"]) -> GraphPlan:
        """Returns the plan of the transposed graph, from this ``indptr`` and ``indices``."""
        return GraphPlan(
            schedule=self.transposed_schedule,
            transposed_indptr=indptr,
            transposed_indices=indices,
            permutation=own(inverse_permutation(self.permutation)),
            transposed_schedule=self.schedule,
        )


# One program, since outside of jit each of its many steps would be compiled separately.
@partial(jax.jit, static_argnames=("num_cols", "edge_blocks"), inline=True)
def make_traced_plan(
    indptr: Int[Array, " rows+1"],
    indices: Int[Array, " edges"],
    num_cols: int,
    *,
    edge_blocks: bool = False,
) -> GraphPlan:
    """Makes the plan of a traced graph in one compiled program."""
    indptr, indices = match_varying(indptr, indices)
    return make_plan(indptr, indices, num_cols, edge_blocks=edge_blocks)


def make_plan(
    indptr: Int[Array, " rows+1"] | np.ndarray,
    indices: Int[Array, " edges"] | np.ndarray,
    num_cols: int,
    *,
    edge_blocks: bool = False,
) -> GraphPlan:
    """Makes the plan, in numpy if the graph is concrete, traced otherwise.

    Args:
      indptr: row offsets.
      indices: sender of each edge.
      num_cols: number of senders.
      edge_blocks: whether to group the edges by block too, which takes up to three more sorts and,
        for large graphs, a search for communities.
    """
    num_rows, num_edges = indptr.shape[0] - 1, indices.shape[0]
    if is_concrete(indptr, indices):
        indptr, indices = np.asarray(indptr), np.asarray(indices)
        slots = row_ids_on_host(indptr, num_edges)
    else:
        slots = row_ids(jnp.asarray(indptr), num_edges)
    transposed_indptr, permutation = sort_edges(indices, num_cols, slots < num_rows)
    # Padding slots have a row that is out of range; the transposed tail must be in range.
    rows = slots[permutation].clip(0, max(num_rows - 1, 0)).astype(np.int32)
    blocks = ()
    if edge_blocks:
        blocks = make_edge_blocks(indptr, transposed_indptr, rows, permutation)
    return GraphPlan(
        schedule=make_schedule(indptr, num_edges),
        transposed_indptr=own(transposed_indptr),
        transposed_indices=own(rows),
        permutation=own(permutation),
        transposed_schedule=make_schedule(transposed_indptr, num_edges),
        edge_blocks=blocks,
    )
