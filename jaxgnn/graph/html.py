"""HTML of graphs for notebooks: numbers of nodes and edges, degrees, dtypes, a small drawing.

Graphs under a trace, and several stacked graphs, show shapes alone.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxgnn._arrays.arrays import is_concrete, shown
from jaxgnn._html.drawing import SmallGraph
from jaxgnn._html.notebook import bytes_of, degrees_of, facts


def html_of_graph(graph: Any) -> str:
    """Returns HTML of a ``CSRGraph``."""
    fields = ("indptr", "indices", "weights", "row_scale", "col_scale")
    arrays = [(f, getattr(graph, f)) for f in fields if getattr(graph, f) is not None]
    dtypes: list[tuple[str, Any]] = [(name, shown(array)) for name, array in arrays]
    title = type(graph).__name__
    if not _is_readable(graph):
        return facts(f"{title} (traced or stacked: shapes alone)", dtypes)
    edges = int(graph.indptr[-1])
    nodes = [("nodes", f"{graph.num_rows:,}")]
    if not graph.is_square:
        nodes = [("receivers", f"{graph.num_rows:,}"), ("senders", f"{graph.num_cols:,}")]
    padding = graph.num_edges - edges
    slots = f"{edges:,}" + (f", and {padding:,} slots of padding" if padding else "")
    rows = [
        *nodes,
        ("edges", slots),
        ("edges into a node", degrees_of(np.diff(np.asarray(graph.indptr)))),
        ("normalization", graph.normalization),
        *dtypes,
        ("size", bytes_of(graph.nbytes)),
    ]
    return facts(title, rows, drawn_graph(graph))


def html_of_batch(batch: Any) -> str:
    """Returns HTML of a ``GraphBatch``; each graph has its colour."""
    features = ("nodes", "edges", "globals")
    shapes = [(f"features of {f}", _shapes(getattr(batch, f))) for f in features]
    if not _is_readable(batch.graph) or not is_concrete(*jax.tree.leaves(batch)):
        rows = [("graphs", batch.num_graphs), ("graph", repr(batch.graph)), *shapes]
        return facts("GraphBatch (traced or stacked: shapes alone)", rows)
    graphs = int(np.asarray(batch.graph_mask).sum())
    nodes = int(np.asarray(batch.node_mask).sum())
    edges = int(batch.graph.indptr[-1])
    rows = [
        ("graphs", f"{graphs:,} of {batch.num_graphs:,} slots"),
        ("nodes", f"{nodes:,} of {len(batch.node_mask):,} slots"),
        ("edges", f"{edges:,} of {batch.graph.num_edges:,} slots"),
        ("edges into a node", degrees_of(np.diff(np.asarray(batch.graph.indptr))[:nodes])),
        ("weights", None if batch.graph.weights is None else shown(batch.graph.weights)),
        *shapes,
    ]
    ids = np.asarray(batch.graph_ids)
    return facts("GraphBatch", rows, drawn_graph(batch.graph, num_nodes=nodes, groups=ids))


def html_of_relations(graph: Any) -> str:
    """Returns HTML of a ``HeteroGraph``; each type of nodes has its colour."""
    of_types = [(f"nodes: {name}", f"{count:,}") for name, count in graph.num_nodes.items()]
    of_relations = [
        (" → ".join(edge_type), f"{_count(relation)} edges")
        for edge_type, relation in graph.items()
    ]
    drawn = None
    if all(map(_is_readable, graph.values())):
        drawn = _drawn_relations(graph)
    return facts("HeteroGraph", [*of_types, *of_relations], drawn)


def drawn_graph(
    graph: Any, *, num_nodes: int | None = None, groups: np.ndarray | None = None
) -> SmallGraph | None:
    """Returns the drawing of a concrete square graph, or None; of its first ``num_nodes`` nodes."""
    if not graph.is_square:
        return None
    count = graph.num_rows if num_nodes is None else num_nodes
    if not SmallGraph(count, np.zeros(0), np.zeros(0)).is_drawn:
        return None
    edges = int(graph.indptr[-1])
    senders = np.asarray(graph.indices)[:edges]
    receivers = np.repeat(np.arange(graph.num_rows), np.diff(np.asarray(graph.indptr)))
    return SmallGraph(count, senders, receivers, groups)


def _drawn_relations(graph: Any) -> SmallGraph | None:
    total = sum(graph.num_nodes.values())
    if not SmallGraph(total, np.zeros(0), np.zeros(0)).is_drawn:
        return None
    slices = graph.node_slices()
    senders, receivers = [], []
    for (sender, _, receiver), relation in graph.items():
        rows = np.repeat(np.arange(relation.num_rows), np.diff(np.asarray(relation.indptr)))
        receivers.append(rows + slices[receiver].start)
        ids = np.asarray(relation.indices)[: int(relation.indptr[-1])]
        senders.append(ids + slices[sender].start)
    names, counts = list(graph.num_nodes), list(graph.num_nodes.values())
    labels = [f"{name} {node}" for name in names for node in range(graph.num_nodes[name])]
    groups = np.repeat(np.arange(len(names)), counts)
    return SmallGraph(total, np.concatenate(senders), np.concatenate(receivers), groups, labels)


def _is_readable(graph: Any) -> bool:
    """Whether the host can read the offsets and the senders, and they are those of one graph."""
    arrays = graph.indptr, graph.indices
    are_arrays = all(hasattr(a, "ndim") and a.ndim == 1 and a.shape for a in arrays)
    return are_arrays and is_concrete(*arrays) and all(map(_has_values, arrays))


def _has_values(array: Any) -> bool:
    return isinstance(array, np.ndarray | jax.Array)


def _count(relation: Any) -> str:
    return f"{int(relation.indptr[-1]):,}" if _is_readable(relation) else f"{relation.num_edges:,}"


def _shapes(tree: Any) -> str | None:
    return None if tree is None else str(jax.tree.map(shown, tree)).replace("'", "")
