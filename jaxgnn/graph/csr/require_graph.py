"""The error of functions of a graph for arguments of other types."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxgnn._errors import bad_input
from jaxgnn.graph.csr.csr_graph import CSRGraph
from jaxgnn.graph.csr.masked_graph import MaskedGraph
from jaxgnn.graph.csr.validation import check_shapes


def require_graph(where: str, argument: str, value: Any, note: str = "") -> None:
    """Raises ValueError unless ``given`` is a CSRGraph; the message says how to build one.

    ``note`` adds text about the argument, such as ``", which comes first"``.
    """
    if not isinstance(value, CSRGraph):
        expected = f"a jaxgnn.graph.CSRGraph{note}{_way_to_make_one(value)}"
        raise bad_input(where, argument, expected, type(value).__name__)


def check_graph(where: str, graph: Any) -> CSRGraph:
    """Returns a graph whose shapes and dtypes are valid, with at least one node.

    Raises:
      ValueError: if it is another object, or not valid.
    """
    require_graph(where, "graph", graph)
    check_shapes(where, graph)
    if 0 in graph.shape:
        raise bad_input(where, "graph", "of at least one node", f"shape {graph.shape}")
    return graph


def refuse_weights(
    where: str, argument: str, graph: CSRGraph, instead: str, *, scales: bool = False
) -> None:
    """Raises ValueError if a graph has weights or a normalisation, which would not be applied.

    Args:
      where: the function or class that errors name.
      argument: its argument.
      graph: the graph.
      instead: the use of weights that the error advises.
      scales: whether the scales of a graph without weights are applied.
    """
    weights = graph.given_weights if isinstance(graph, MaskedGraph) else graph.weights
    if weights is None and (scales or not graph.is_normalized):
        return
    if graph.normalization is not None:
        got = f"normalization={graph.normalization!r}"
    elif weights is not None:
        got = f"weights of shape {jnp.shape(weights)}"
    else:
        got = "scales"
    expected = "without weights" if scales else "without weights and normalisation"
    way = f"{instead}, or pass {argument}.without_weights() to leave them out"
    raise bad_input(where, argument, f"{expected}, which are not applied", f"{got}; {way}")


def _way_to_make_one(value: Any) -> str:
    if hasattr(value, "senders") and hasattr(value, "n_node"):
        return " (CSRGraph.from_graphs_tuple makes one)"
    if hasattr(value, "graph") and isinstance(value.graph, CSRGraph):
        return " (pass batch.graph)"
    dtype = str(getattr(value, "dtype", None))  # also for torch, whose dtypes have no kind
    if getattr(value, "ndim", 0) == 2 and value.shape[0] == 2 and "int" in dtype:
        return " (CSRGraph.from_edge_index(edge_index, num_nodes) makes one)"
    return ""
