"""The edges of a graph, without its other fields."""

from __future__ import annotations

from jaxgnn.graph._csr import CSRGraph


def structure(graph: CSRGraph) -> CSRGraph:
    """The graph without weights, scales and normalisation; it shares the parts of its plan."""
    return graph._with_fields(weights=None, row_scale=None, col_scale=None, normalization=None)
