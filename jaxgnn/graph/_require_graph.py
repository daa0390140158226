"""The error of functions of a graph for arguments of other types."""

from __future__ import annotations

from typing import Any

from jaxgnn._errors import bad_input
from jaxgnn.graph._csr import CSRGraph


def require_graph(where: str, argument: str, given: Any, note: str = "") -> None:
    """Raises ValueError unless ``given`` is a CSRGraph; the message says how to build one.

    Args:
      where: the function or class that errors name.
      argument: its argument.
      given: what the caller passed.
      note: more text about the argument for the message, such as ``", which comes first"``.
    """
    if not isinstance(given, CSRGraph):
        expected = f"a jaxgnn.graph.CSRGraph{note}{_way_to_make_one(given)}"
        raise bad_input(where, argument, expected, type(given).__name__)


def _way_to_make_one(given: Any) -> str:
    if hasattr(given, "senders") and hasattr(given, "n_node"):
        return " (CSRGraph.from_graphs_tuple makes one)"
    if hasattr(given, "graph") and isinstance(given.graph, CSRGraph):
        return " (pass batch.graph)"
    dtype = str(getattr(given, "dtype", None))  # also for torch, whose dtypes have no kind
    if getattr(given, "ndim", 0) == 2 and given.shape[0] == 2 and "int" in dtype:
        return " (CSRGraph.from_edge_index(edge_index, num_nodes) makes one)"
    return ""
