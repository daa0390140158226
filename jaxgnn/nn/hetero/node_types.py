"""Shared parts of layers on heterogeneous graphs: checks, and features by type of nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxgnn._errors import bad_input
from jaxgnn.graph import EdgeType, HeteroGraph
from jaxgnn.graph.hetero.hetero_graph import check_edge_type
from jaxgnn.nn.shared.maxk import check_widths


def check_is_hetero(where: str, graph: Any) -> None:
    """Raises ValueError unless ``graph`` is a HeteroGraph."""
    if not isinstance(graph, HeteroGraph):
        expected = "a jaxgnn.graph.HeteroGraph, such as HeteroGraph({relation: graph})"
        raise bad_input(where, "graph", expected, type(graph).__name__)


def check_features(
    where: str, graph: HeteroGraph, x: Any, edge_types: tuple[EdgeType, ...] | None = None
) -> None:
    """Raises ValueError unless ``x`` has features of all nodes of each type.

    Args:
      where: name of the layer.
      graph: the relations.
      x: features by type of nodes.
      edge_types: relations whose types are needed; None for all types.
    """
    if not isinstance(x, Mapping):
        expected = "a dictionary of the features of each type of nodes"
        raise bad_input(where, "x", expected, type(x).__name__)
    of_relations = (t for e in edge_types or () for t in (e[0], e[2]))
    for node_type in graph.node_types if edge_types is None else of_relations:
        count = graph.num_nodes[node_type]
        if node_type not in x:
            raise bad_input(
                where,
                "x",
                f"of a type {node_type!r} too (layers return only types that receive)",
                f"types {list(x)}",
            )
        shape = getattr(x[node_type], "shape", ())
        if len(shape) < 2 or shape[-2] != count:
            expected = f"of shape [..., {count}, features], as there are nodes of this type"
            raise bad_input(where, f"x[{node_type!r}]", expected, f"shape {shape}")


def checked_metadata(where: str, metadata: Any) -> tuple[tuple[str, ...], tuple[EdgeType, ...]]:
    """Returns the types of nodes and the relations, after checking that these use the types."""
    if not isinstance(metadata, tuple | list) or len(metadata) != 2:
        expected = "a pair of the types of nodes and the relations, graph.metadata"
        raise bad_input(where, "metadata", expected, repr(metadata))
    node_types, edge_types = tuple(sorted(metadata[0])), tuple(metadata[1])  # as in HeteroGraph
    for edge_type in edge_types:
        check_edge_type(where, "metadata", edge_type)
        if not {edge_type[0], edge_type[2]} <= set(node_types):
            expected = f"of relations between the types {list(node_types)}"
            raise bad_input(where, "metadata", expected, repr(edge_type))
    if not edge_types:
        raise bad_input(where, "metadata", "of at least one relation", repr(metadata))
    return node_types, edge_types


def width_of_each(where: str, given: Any, node_types: Sequence[str]) -> dict[str, int]:
    """The width of each type: a common one, or those of a dictionary."""
    widths = dict(given) if isinstance(given, Mapping) else dict.fromkeys(node_types, given)
    if set(widths) != set(node_types):
        expected = f"one width, or one for each of {list(node_types)}"
        raise bad_input(where, "in_features", expected, given)
    check_widths(where, *widths.values())
    return widths
