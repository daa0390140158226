"""Other edges for the rows of one device: some removed, and self loops added.

All devices together count the edges, so that a device gets the numbers that its edges have in the
changed whole graph. So later dropout draws the same on any number of devices.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from jaxgnn._arrays.arrays import match_varying, offset_dtype
from jaxgnn.graph.local.edge_numbers import EdgeNumbers, totals_before

if TYPE_CHECKING:
    from jaxgnn.graph.local.local_graph import LocalGraph


class LocalEdges(NamedTuple):
    """One device's rows with other edges, and the origin of these.

    Attributes:
      graph: the rows, without scales and plan.
      sources: for each edge slot of ``graph`` the edge slot of the original graph, which had E of
        them; E + i for the loop of row i. In padding slots it is undefined.
    """

    graph: LocalGraph
    sources: Int[Array, " new_edges"]


def with_edges(
    graph: LocalGraph,
    kept: Bool[Array, " edges"],
    loops: Bool[Array, " rows"] | None = None,
    weight: Any = 1.0,
) -> LocalEdges:
    """Keeps some edges of each row, in their order, and appends a self loop to some rows.

    Args:
      graph: the rows of one device of a graph that is not normalised; square if loops are added.
      kept: mask of the edge slots that are kept; False for padding slots.
      loops: mask of the rows that get a loop; None for none, and as many edge slots as before.
      weight: weight of the loops, if the graph has weights.
    """
    edges, rows = graph.num_edges, graph.num_rows
    indptr, indices, kept = match_varying(jnp.asarray(graph.indptr), graph.indices, kept)
    dtype = offset_dtype(edges if loops is None else edges + rows)
    before = jnp.pad(jnp.cumsum(kept, dtype=dtype), (1, 0))
    places, offsets = before[:-1], before[indptr]
    slots, total = jnp.arange(edges, dtype=dtype), graph.numbers.total
    if loops is not None:
        loops_before = jnp.pad(jnp.cumsum(loops, dtype=dtype), (1, 0))
        places = places + loops_before[graph.receivers()]
        offsets = offsets + loops_before
        kept, places = _behind(kept, loops), _behind(places, offsets[1:] - 1)
        slots = jnp.arange(edges + rows, dtype=dtype)
        indices = _behind(indices, graph.own_columns().astype(indices.dtype))
        total += graph.halo.num_nodes
    sources = jnp.zeros_like(slots).at[jnp.where(kept, places, len(slots))].set(slots, mode="drop")
    weights = graph.weights
    if weights is not None:
        weights = jnp.asarray(weights)
        if loops is not None:
            of_loops = jnp.full((rows, *weights.shape[1:]), weight, weights.dtype)
            weights = _behind(weights, of_loops)
        weights = weights[sources]
    made = dataclasses.replace(
        graph,
        indptr=offsets,
        indices=indices[sources],
        weights=weights,
        row_scale=None,
        col_scale=None,
        plan=None,
        normalization=None,
        numbers=_numbers(graph, jnp.diff(offsets), total),
        split=None,
    )
    return LocalEdges(made, sources)


def _behind(first: Array, second: Array) -> Array:
    return jnp.concatenate([*match_varying(first, second)])


def _numbers(graph: LocalGraph, counts: Int[Array, " rows"], total: int) -> EdgeNumbers:
    """Numbers of the edges of each own row in the whole graph, from the counts of each row."""
    axis = graph.halo.axis
    ids, counts = match_varying(graph.row_numbers(), counts)
    of_all = (lax.all_gather(part, axis, tiled=True) for part in (ids, counts.astype(jnp.uint32)))
    all_ids, all_counts = of_all
    # There are fewer nodes than rows of all devices, and padding rows have larger numbers.
    of_nodes = jnp.zeros_like(all_counts).at[all_ids].set(all_counts, mode="drop")
    first = totals_before(of_nodes, total)
    return EdgeNumbers(first.at[ids].get(mode="clip"), total)
