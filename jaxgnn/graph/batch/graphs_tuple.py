"""Splits a batched tuple of jraph into its graphs."""

from __future__ import annotations

import operator
from typing import Any

import jax
import numpy as np

from jaxgnn._arrays.arrays import require_length
from jaxgnn._errors import bad_input
from jaxgnn.graph.batch.samples import (
    Part,
    check_ids,
    host_array,
    host_features,
    is_graphs_tuple,
)
from jaxgnn.graph.batch.shape import BatchShape


def parts_of_batched_tuple(
    where: str, graphs: Any, *, padded: bool
) -> tuple[list[Part], BatchShape]:
    """Splits a batched ``jraph.GraphsTuple``.

    Returns:
      Its graphs without the padding graphs, and the shape of the whole.

    Raises:
      ValueError: see ``GraphBatch.from_graphs_tuple``.
    """
    if not is_graphs_tuple(graphs):
        raise bad_input(where, "graphs", "a jraph.GraphsTuple", type(graphs).__name__)
    if graphs.senders is None or graphs.receivers is None:
        raise bad_input(where, "graphs.senders and graphs.receivers", "arrays", None)
    senders, receivers, num_nodes, num_edges = (
        host_array(where, f"graphs.{name}", getattr(graphs, name))
        for name in ("senders", "receivers", "n_node", "n_edge")
    )
    shape = BatchShape(int(num_nodes.sum()), int(num_edges.sum()), len(num_nodes))
    check_ids(where, "graphs.", senders, receivers)
    require_length(where, "graphs.n_edge", num_edges, shape.graphs, "per entry of n_node")
    require_length(where, "graphs.senders", senders, shape.edges, "per edge counted by n_edge")
    features = {
        name: host_features(where, f"graphs.{name}", getattr(graphs, name), size)
        for name, size in zip(("nodes", "edges", "globals"), shape, strict=True)
    }
    num_real = shape.graphs - _num_padding_graphs(num_nodes) if padded else shape.graphs
    if num_real < 1:
        expected = "a tuple of at least one graph, padding graphs not counted"
        raise bad_input(where, "graphs", expected, f"{shape.graphs} graphs and padded={padded}")
    node_ends, edge_ends = np.cumsum(num_nodes), np.cumsum(num_edges)
    parts = []
    for at in range(num_real):
        first_node = node_ends[at] - num_nodes[at]
        nodes = slice(first_node, node_ends[at])
        edges = slice(edge_ends[at] - num_edges[at], edge_ends[at])
        parts.append(
            Part(
                place=at,
                num_nodes=int(num_nodes[at]),
                num_edges=int(num_edges[at]),
                senders=senders[edges].astype(np.int64) - first_node,
                receivers=receivers[edges].astype(np.int64) - first_node,
                nodes=jax.tree.map(operator.itemgetter(nodes), features["nodes"]),
                edges=jax.tree.map(operator.itemgetter(edges), features["edges"]),
                globals=jax.tree.map(operator.itemgetter(at), features["globals"]),
            )
        )
    return parts, shape


def _num_padding_graphs(num_nodes: np.ndarray) -> int:
    """Counts the padding graphs: the last graph that has nodes, and all after it."""
    return int(np.argmin(num_nodes[::-1] == 0)) + 1
