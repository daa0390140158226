"""Graphs of all kinds as lists of graphs: a presence for each edge slot, or one edge less."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxgnn._arrays.arrays import is_concrete
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph, GraphBatch, HeteroGraph, Incidence, RelationalGraph, masked

Structure = CSRGraph | GraphBatch | HeteroGraph | RelationalGraph | Incidence


def check_structure(where: str, structure: Any) -> None:
    """Raises ValueError unless ``structure`` is a concrete graph of one of the kinds."""
    if not isinstance(structure, Structure):
        kinds = "CSRGraph, GraphBatch, HeteroGraph, RelationalGraph or Incidence"
        raise bad_input(where, "graph", f"a {kinds}", type(structure).__name__)
    if not is_concrete(*jax.tree.leaves(structure)):
        raise bad_input(where, "graph", "concrete; call it outside jit", "a tracer")


def graphs_of(structure: Any) -> list[CSRGraph]:
    """Returns the graphs of a structure: one for each relation, or one."""
    if isinstance(structure, HeteroGraph):
        return list(structure.values())
    return [structure if isinstance(structure, CSRGraph) else structure.graph]


def replace_graphs(structure: Any, graphs: Sequence[CSRGraph]) -> Any:
    """Returns the structure with other graphs of the same shapes."""
    if isinstance(structure, HeteroGraph):
        named = dict(zip(structure.edge_types, graphs, strict=True))
        return HeteroGraph(named, num_nodes=structure.num_nodes)
    if isinstance(structure, CSRGraph):
        return graphs[0]
    return dataclasses.replace(structure, graph=graphs[0])


def real_slots(structure: Any) -> Bool[np.ndarray, " slots"]:
    """A mask of the slots that are edges, or incidences, and no padding; of all graphs in turn."""
    if isinstance(structure, Incidence):
        return np.asarray(structure.node_ids) < structure.num_nodes
    counts = ((graph.num_edges, int(graph.indptr[-1])) for graph in graphs_of(structure))
    return np.concatenate([np.arange(slots) < edges for slots, edges in counts])


def self_loops(structure: Any) -> Bool[np.ndarray, " slots"]:
    """Returns a mask of the slots that are edges from a node to itself; of all graphs in turn."""
    if isinstance(structure, Incidence | RelationalGraph):  # Their rows are no nodes.
        return np.zeros_like(real_slots(structure))
    graphs = graphs_of(structure)
    are_square = [graph.is_square for graph in graphs]
    if isinstance(structure, HeteroGraph):
        are_square = [sender == receiver for sender, _, receiver in structure.edge_types]
    masks = []
    for graph, is_square in zip(graphs, are_square, strict=True):
        rows = np.asarray(graph.receivers())
        is_loop = (rows < graph.num_rows) & (rows == np.asarray(graph.indices))
        masks.append(is_loop & is_square)
    return np.concatenate(masks)


def mask_graphs(structure: Any, presence: Float[Array, " slots"]) -> Any:
    """The structure with a presence for each edge slot; see ``jaxgnn.graph.MaskedGraph``."""
    graphs, begin, masked_graphs = graphs_of(structure), 0, []
    for graph in graphs:
        masked_graphs.append(masked(graph, presence[begin : begin + graph.num_edges]))
        begin += graph.num_edges
    return replace_graphs(structure, masked_graphs)


def split_by_relation(structure: Any, scores: Float[Array, "*targets slots"]) -> Any:
    """Returns the scores of the slots of all graphs; of relations in a dictionary."""
    if not isinstance(structure, HeteroGraph):
        return scores
    ends = np.cumsum([graph.num_edges for graph in graphs_of(structure)])[:-1]
    parts = jnp.split(scores, ends, axis=-1)
    return dict(zip(structure.edge_types, parts, strict=True))


def remove_edge(structure: Any, of_edges: Any, place: int, slot: Int[Array, ""]) -> tuple[Any, Any]:
    """Returns the structure without one edge, of the same shapes, and the features of its edges.

    Args:
      structure: the graphs.
      of_edges: features of the edges, in a dictionary for relations; or None.
      place: number of the graph among ``graphs_of``; ignored for an ``Incidence``.
      slot: edge slot in this graph, or slot of the incidence.
    """
    if isinstance(structure, Incidence):
        nodes = jnp.asarray(structure.node_ids).at[slot].set(structure.num_nodes)
        edges = jnp.asarray(structure.hyperedge_ids).at[slot].set(structure.num_hyperedges)
        return Incidence(nodes, edges, structure.num_nodes, structure.num_hyperedges), of_edges
    graphs = graphs_of(structure)
    graph, order = _remove_slot(graphs[place], slot)
    changed = replace_graphs(structure, [*graphs[:place], graph, *graphs[place + 1 :]])
    if isinstance(structure, GraphBatch):
        changed = _remove_from_batch(structure, changed, slot, order)
    if not isinstance(structure, HeteroGraph):
        return changed, _reordered(of_edges, order)
    edge_type = structure.edge_types[place]
    if of_edges is not None and edge_type in of_edges:
        of_edges = dict(of_edges) | {edge_type: _reordered(of_edges[edge_type], order)}
    return changed, of_edges


def keep_loops_alone(structure: Any, of_edges: Any) -> tuple[Any, Any]:
    """Returns the structure without edges between two nodes, and the features of its edges.

    All shapes stay.
    """
    graphs, features, orders = [], {}, []
    of_all = graphs_of(structure)
    parts = np.split(self_loops(structure), np.cumsum([g.num_edges for g in of_all])[:-1])
    for place, (graph, is_loop) in enumerate(zip(of_all, parts, strict=True)):
        rows = np.asarray(graph.receivers())
        order = np.argsort(~is_loop, kind="stable")
        counts = np.bincount(rows[is_loop], minlength=graph.num_rows)
        indptr = np.append(0, np.cumsum(counts)).astype(np.asarray(graph.indptr).dtype)
        graphs.append(_reorder_edges(graph, indptr, order))
        orders.append(order)
        if isinstance(structure, HeteroGraph):
            edge_type = structure.edge_types[place]
            if of_edges is not None and edge_type in of_edges:
                features[edge_type] = _reordered(of_edges[edge_type], order)
        else:
            features = _reordered(of_edges, order)
    changed = replace_graphs(structure, graphs)
    if isinstance(structure, GraphBatch):
        changed = dataclasses.replace(changed, edges=_reordered(structure.edges, orders[0]))
    return changed, None if of_edges is None else features


def _remove_slot(graph: CSRGraph, slot: Int[Array, ""]) -> tuple[CSRGraph, Int[Array, " slots"]]:
    """The graph without one edge, and the slot that each of its edges had; the last is padding."""
    indptr, slots = jnp.asarray(graph.indptr), jnp.arange(graph.num_edges)
    order = jnp.where(slots < slot, slots, jnp.minimum(slots + 1, graph.num_edges - 1))
    return _reorder_edges(graph, jnp.where(indptr > slot, indptr - 1, indptr), order), order


def _reorder_edges(graph: CSRGraph, indptr: Any, order: Any) -> CSRGraph:
    """Returns the graph with its edges reordered and its scales unchanged."""
    weights = graph.weights
    return CSRGraph(
        indptr=jnp.asarray(indptr, np.asarray(graph.indptr).dtype),
        indices=jnp.asarray(graph.indices)[order],
        weights=None if weights is None else jnp.asarray(weights)[order],
        num_cols=graph.num_cols,
        row_scale=graph.row_scale,
        col_scale=graph.col_scale,
        normalization=graph.normalization,
        in_range=True,
    )


def _remove_from_batch(
    batch: GraphBatch, changed: GraphBatch, slot: Array, order: Array
) -> GraphBatch:
    """Returns a batch with one edge less in the graph of the edge, and its features of edges."""
    row = jnp.asarray(batch.graph.receivers())[slot]
    counts = jnp.asarray(batch.num_edges_of_each).at[jnp.asarray(batch.graph_ids)[row]].add(-1)
    edges = _reordered(batch.edges, order)
    return dataclasses.replace(changed, num_edges_of_each=counts, edges=edges)


def _reordered(of_edges: Any, order: Any) -> Any:
    return jax.tree.map(lambda array: jnp.asarray(array)[order], of_edges)
