"""Checked inputs of transforms of graphs: edges and node ids."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from jaxgnn._arrays.arrays import is_concrete, require_one
from jaxgnn._errors import bad_input
from jaxgnn.graph.csr.csr_graph import CSRGraph
from jaxgnn.graph.csr.validation import arrays_of
from jaxgnn.graph.plan.sorting import row_ids_on_host


class Edges(NamedTuple):
    """The edges of a graph without its padding, in numpy; weights are [edges] or [edges, heads]."""

    senders: np.ndarray
    receivers: np.ndarray
    weights: np.ndarray | None


def edges_of(
    where: str, graph: CSRGraph, *, allow_bipartite: bool = False, allow_normalized: bool = False
) -> Edges:
    """Reads and checks the edges of a concrete graph."""
    if not isinstance(graph, CSRGraph):
        raise bad_input(where, "graph", "a CSRGraph", type(graph).__name__)
    require_one(where, "graph", graph)
    if not is_concrete(*arrays_of(graph)):
        expected = "concrete, since its values tell the size of the result; call it outside jit"
        raise bad_input(where, "graph", expected, "a tracer")
    if not allow_bipartite and graph.num_rows != graph.num_cols:
        raise bad_input(where, "graph", "square", f"shape {graph.shape}")
    if not allow_normalized and graph.is_normalized:
        expected = "not normalised, since its degrees change; normalise the result"
        raise bad_input(where, "graph", expected, repr(graph.normalization))
    graph.concrete_parts()  # checks the structure
    indptr = np.asarray(graph.indptr)
    real = slice(0, int(indptr[-1]))
    weights = None if graph.weights is None else np.asarray(graph.weights)[real]
    receivers = row_ids_on_host(indptr, int(indptr[-1]))
    return Edges(np.asarray(graph.indices)[real], receivers, weights)


def distinct_ids(where: str, name: str, nodes: npt.ArrayLike, num_nodes: int) -> np.ndarray:
    """Reads distinct node ids, or a mask, as int32 ids."""
    if not is_concrete(nodes):
        raise bad_input(where, name, "concrete; call it outside jit", "a tracer")
    ids = np.asarray(nodes)
    if ids.size == 0:
        ids = ids.astype(bool if ids.dtype == bool else np.int32)
    if ids.ndim != 1:
        raise bad_input(where, name, "of one axis", f"shape {ids.shape}")
    if ids.dtype == bool:
        if len(ids) != num_nodes:
            expected = f"of shape ({num_nodes},), as a mask has it"
            raise bad_input(where, name, expected, f"shape {ids.shape}")
        return np.flatnonzero(ids).astype(np.int32)
    if not np.issubdtype(ids.dtype, np.integer):
        raise bad_input(where, name, "of an integer dtype, or bool", ids.dtype)
    outside = np.flatnonzero((ids < 0) | (ids >= num_nodes))
    if outside.size:
        at = int(outside[0])
        raise bad_input(where, f"{name}[{at}]", f"in [0, {num_nodes})", int(ids[at]))
    by_id = np.argsort(ids, kind="stable")
    again = by_id[1:][ids[by_id[1:]] == ids[by_id[:-1]]]
    if again.size:
        at = int(again.min())
        first = int(np.flatnonzero(ids == ids[at])[0])
        expected = f"an id that occurs once, since {name}[{first}] is the same"
        raise bad_input(where, f"{name}[{at}]", expected, int(ids[at]))
    return ids.astype(np.int32)
