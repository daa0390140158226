"""The edges of graphs of scipy and networkx, and a graph's matrix for scipy.

networkx is not imported: any object with its methods is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.sparse

from jaxgnn._arrays.arrays import (
    is_concrete,
    put_own,
    require_kept_integers,
    require_no_heads,
    require_size,
)
from jaxgnn._errors import bad_input
from jaxgnn.graph.csr.rows import CompressedRows
from jaxgnn.graph.csr.validation import arrays_of, validate_structure

_SCIPY, _NETWORKX = "CSRGraph.from_scipy", "CSRGraph.from_networkx"


def scipy_parts(matrix: Any, weighted: bool | None) -> tuple[Any, np.ndarray | None]:
    """Returns a scipy matrix in CSR and its values as weights, or None for no weights."""
    if not scipy.sparse.issparse(matrix) or matrix.ndim != 2:
        expected = "a two-dimensional scipy.sparse matrix or array"
        raise bad_input(_SCIPY, "matrix", expected, type(matrix).__name__)
    if not np.can_cast(matrix.dtype, np.float64):
        expected = "of a boolean, integer or floating dtype up to 64 bits"
        raise bad_input(_SCIPY, "matrix", expected, matrix.dtype)
    for axis, size in enumerate(matrix.shape):
        require_size(_SCIPY, f"matrix.shape[{axis}]", size)
    csr = matrix.tocsr()
    if weighted is None:
        weighted = bool(np.any(csr.data != 1))
    if not weighted:
        return csr, None
    return csr, csr.data.astype(csr.dtype if csr.dtype.kind == "f" else np.float32)


def to_scipy(graph: CompressedRows) -> scipy.sparse.csr_array:
    """Returns the matrix of a concrete graph: weights times scales, without padding."""
    where = "CSRGraph.to_scipy"
    if not is_concrete(*arrays_of(graph)):
        raise bad_input(where, "self", "concrete; call it outside jit", "a tracer")
    require_no_heads(where, "self", graph.weights)
    validate_structure(graph)
    indptr = np.array(graph.indptr)  # A copy, because scipy works in place.
    indices = np.array(graph.indices)[: indptr[-1]]
    factors = [f for f in (graph.weights, graph.row_scale, graph.col_scale) if f is not None]
    # numpy and scipy have no sums of float16 or bfloat16.
    dtype = np.result_type(np.float32, *(f.dtype for f in factors if f.dtype.itemsize > 2))
    values = np.ones(len(indices))
    if graph.weights is not None:
        values *= np.asarray(graph.weights)[: len(indices)].astype(np.float64)
    if graph.row_scale is not None:
        values *= np.repeat(np.asarray(graph.row_scale, np.float64), np.diff(indptr))
    if graph.col_scale is not None:
        values *= np.asarray(graph.col_scale, np.float64)[indices]
    return scipy.sparse.csr_array((values.astype(dtype), indices, indptr), shape=graph.shape)


class NetworkXAttributes(NamedTuple):
    """Attributes of the nodes and edges of a networkx graph, by name.

    Attributes:
      nodes: for each name an array [rows, ...].
      edges: for each name an array [edges, ...], in the order of the graph's edge slots.
    """

    nodes: dict[str, jax.Array]
    edges: dict[str, jax.Array]


class NetworkXEdges(NamedTuple):
    """The nodes and directed edges of a networkx graph.

    Attributes:
      source: the networkx graph.
      nodes: its nodes, in the order of the rows.
      listed: its edges ``(u, v, attributes)``, an undirected one once.
      senders: row of ``u`` for each directed edge, as ``receivers`` for ``v``.
      positions: position in ``listed`` of each directed edge.
      weights: weight of each directed edge, of a floating dtype, or None.
    """

    source: Any
    nodes: list[Any]
    listed: list[tuple[Any, Any, dict[str, Any]]]
    senders: np.ndarray
    receivers: np.ndarray
    positions: np.ndarray
    weights: np.ndarray | None


def networkx_edges(graph: Any, weight: str | None) -> NetworkXEdges:
    """Reads the nodes and edges of a networkx graph, undirected edges in both directions."""
    if not all(hasattr(graph, name) for name in ("nodes", "edges", "is_directed")):
        expected = "a networkx graph, with nodes, edges(data=) and is_directed()"
        raise bad_input(_NETWORKX, "graph", expected, type(graph).__name__)
    nodes, listed = list(graph.nodes), list(graph.edges(data=True))
    rows = {node: row for row, node in enumerate(nodes)}
    senders = np.array([rows[u] for u, _, _ in listed], np.int32)
    receivers = np.array([rows[v] for _, v, _ in listed], np.int32)
    positions = np.arange(len(listed), dtype=np.int32)
    weights = _weights(listed, weight)
    if not graph.is_directed():
        back = np.flatnonzero(senders != receivers)
        ends = (
            np.concatenate([senders, receivers[back]]),
            np.concatenate([receivers, senders[back]]),
        )
        senders, receivers = ends
        positions = np.concatenate([positions, positions[back]])
    if weights is not None:
        weights = weights[positions]
    return NetworkXEdges(graph, nodes, listed, senders, receivers, positions, weights)


def attribute_data(
    edges: NetworkXEdges, nodes_of: Sequence[str], edges_of: Sequence[str], order: np.ndarray
) -> NetworkXAttributes:
    """Returns attributes as arrays, those of edges at ``order``, positions in ``edges.listed``."""
    for argument, names in (("node_attributes", nodes_of), ("edge_attributes", edges_of)):
        if isinstance(names, str):
            raise bad_input(_NETWORKX, argument, "a sequence of names", repr(names))
    of_nodes = [(f"node {node!r}", data) for node, data in edges.source.nodes(data=True)]
    of_edges = [(f"edge {(u, v)!r}", data) for u, v, data in edges.listed]
    return NetworkXAttributes(
        nodes={name: put_own(_column("node_attributes", name, of_nodes)) for name in nodes_of},
        edges={
            name: put_own(_column("edge_attributes", name, of_edges)[order]) for name in edges_of
        },
    )


def _weights(listed: list[Any], name: str | None) -> np.ndarray | None:
    if name is None or not listed:
        return None
    if not any(name in data for _, _, data in listed):
        if name == "weight":
            return None
        raise bad_input(_NETWORKX, "weight", "an attribute of some edge", repr(name))
    owners = [(f"edge {(u, v)!r}", {name: data.get(name, 1)}) for u, v, data in listed]
    values = _column("weight", name, owners)
    if values.ndim != 1:
        expected = f"one number per edge at {name!r}"
        raise bad_input(_NETWORKX, "weight", expected, f"shape {values.shape[1:]}")
    return values if values.dtype.kind == "f" else values.astype(np.float32)


def _column(argument: str, name: str, owners: Iterable[tuple[str, dict[str, Any]]]) -> np.ndarray:
    """Returns one attribute of all owners as an array; ``owners`` are pairs of name and data."""
    values = []
    for owner, data in owners:
        if name not in data:
            raise bad_input(
                _NETWORKX,
                argument,
                f"names that every {owner.split()[0]} has",
                (f"{name!r}, which {owner} lacks"),
            )
        values.append(data[name])
    try:
        column = np.array(values) if values else np.zeros(0, np.float32)
    except ValueError as error:  # Values of different lengths raise it.
        raise bad_input(_NETWORKX, argument, f"of one shape at {name!r}", str(error)) from error
    if column.dtype.kind not in "biuf":
        raise bad_input(_NETWORKX, argument, f"real numbers at {name!r}", column.dtype)
    require_kept_integers(_NETWORKX, argument, column)
    return column
