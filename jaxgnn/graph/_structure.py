"""The edges of a graph, and nothing else of it."""

from __future__ import annotations

from jaxgnn.graph._csr import CSRGraph


def structure(graph: CSRGraph) -> CSRGraph:
    """The graph without weights, scales and normalisation, sharing what was made of its edges."""
    return graph._with_fields(weights=None, row_scale=None, col_scale=None, normalization=None)
