"""The two orders of an incidence structure: by hyperedge and by node."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxgnn._arrays.arrays import KeepsArrays, ids_in_range, is_concrete, match_varying, own
from jaxgnn.graph.csr.csr_graph import CSRGraph
from jaxgnn.graph.plan.plan import make_plan
from jaxgnn.graph.plan.sorting import sort_edges


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class IncidencePlan(KeepsArrays):
    """The incidences as two graphs, by hyperedge and by node, which kernels need.

    Attributes:
      by_hyperedge: graph whose rows are hyperedges and whose columns are nodes, with its plan.
      by_node: graph whose rows are nodes and whose columns are hyperedges, with its plan.
      slots: int32 [edges]; edge ``e`` of ``by_hyperedge`` is incidence ``slots[e]``.
    """

    by_hyperedge: CSRGraph
    by_node: CSRGraph
    slots: Int[Array, " incidences"]


def make_incidence_plan(
    node_ids: Int[Array, " incidences"] | np.ndarray,
    hyperedge_ids: Int[Array, " incidences"] | np.ndarray,
    num_nodes: int,
    num_hyperedges: int,
) -> IncidencePlan:
    """Builds the plan, in numpy if the ids are concrete; incidences out of range are dropped."""
    xp: Any = jnp
    if is_concrete(node_ids, hyperedge_ids):
        xp, node_ids, hyperedge_ids = np, np.asarray(node_ids), np.asarray(hyperedge_ids)
    real = in_range(node_ids, hyperedge_ids, num_nodes, num_hyperedges)
    indptr, slots = sort_edges(hyperedge_ids, num_hyperedges, real)
    # Padding slots are ignored, but their ids must be in range.
    nodes = xp.where(real, node_ids, 0).astype(np.int32)[slots]
    indptr, nodes = own(indptr), own(nodes)
    plan = make_plan(indptr, nodes, num_nodes)
    by_hyperedge = CSRGraph(indptr, nodes, num_cols=num_nodes, plan=plan, in_range=True)
    return IncidencePlan(by_hyperedge, by_hyperedge.transpose(), own(slots))


@partial(jax.jit, static_argnums=(2, 3), inline=True)
def make_traced_incidence_plan(
    node_ids: Int[Array, " incidences"],
    hyperedge_ids: Int[Array, " incidences"],
    num_nodes: int,
    num_hyperedges: int,
) -> IncidencePlan:
    """Builds the plan of traced ids in one compiled program."""
    nodes, hyperedges = match_varying(node_ids, hyperedge_ids)
    return make_incidence_plan(nodes, hyperedges, num_nodes, num_hyperedges)


def in_range(node_ids: Any, hyperedge_ids: Any, num_nodes: int, num_hyperedges: int) -> Any:
    """Returns a mask of incidences with a node and a hyperedge in range, [incidences] bool."""
    return ids_in_range(node_ids, num_nodes) & ids_in_range(hyperedge_ids, num_hyperedges)
