"""Checks of the arguments of ``edge_mlp_aggregate`` at trace time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.csr.edge_list import way_to_edge_slots
from jaxgnn.ops._core.activations import ACTIVATIONS
from jaxgnn.ops._core.checks import check_choice, check_float, check_rows
from jaxgnn.ops._dense.checks import check_layer


def both_ends(op: str, graph: CSRGraph, h: Any) -> tuple[Any, Any]:
    """Features of the receivers and of the senders.

    Raises:
      ValueError: unless ``h`` is an array for the nodes of a square graph, or a pair of arrays of
        one dtype and the same leading axes, for its rows and its columns.
    """
    if not isinstance(h, tuple | list):
        check_rows(op, "h", h, graph.num_rows, "row")
        if not graph.is_square:
            expected = "a pair (receivers, senders) for a graph of unequal numbers of these"
            raise bad_input(op, "h", expected, f"one array of shape {h.shape}")
        return h, h
    if len(h) != 2:
        raise bad_input(op, "h", "one array or a pair (receivers, senders)", f"{len(h)} arrays")
    receivers, senders = h
    check_rows(op, "h[0]", receivers, graph.num_rows, "row")
    check_rows(op, "h[1]", senders, graph.num_cols, "column")
    if (senders.dtype, senders.shape[:-2]) != (receivers.dtype, receivers.shape[:-2]):
        expected = f"{receivers.dtype} with leading axes {receivers.shape[:-2]}, as h[0]"
        raise bad_input(op, "h[1]", expected, f"{senders.dtype} of shape {senders.shape}")
    return receivers, senders


def check_edge_arrays(
    op: str, graph: CSRGraph, receivers: Any, edge_features: Any, weights: Any
) -> None:
    """Raises ValueError unless features and weights fit the edge slots and the axes of ``h``."""
    leading = receivers.shape[:-2]
    slots = f"{graph.num_edges} edge slots"
    if edge_features is not None:
        check_float(op, "edge_features", edge_features, 2)
        *axes, edges, _ = edge_features.shape
        fits = edges == graph.num_edges and tuple(axes) in ((), leading)
        if not fits or edge_features.dtype != receivers.dtype:
            shape = f"({graph.num_edges}, features), for {slots}, or {leading} in front of that"
            expected = f"{receivers.dtype} of shape {shape}"
            got = f"{edge_features.dtype} of shape {edge_features.shape}"
            got += way_to_edge_slots(graph.num_edges, edge_features.shape)
            raise bad_input(op, "edge_features", expected, got)
    if weights is not None:
        check_float(op, "weights", weights, 1, may_be_empty=True)
        *axes, edges = weights.shape
        if edges != graph.num_edges or tuple(axes) not in ((), leading):
            expected = f"of shape ({graph.num_edges},), for {slots}, or {leading} in front of that"
            raise bad_input(op, "weights", expected, f"shape {weights.shape}")


def check_edge_mlp(op: str, params: Any, receivers: Any, senders: Any, edge_features: Any) -> None:
    """Raises ValueError unless the layers fit the ends of an edge, its features and each other."""
    kernels, biases = params.kernels, params.biases
    for argument, value in (("params.kernels", kernels), ("params.biases", biases)):
        if not isinstance(value, Sequence):
            expected = "a list or tuple, an entry for each layer"
            raise bad_input(op, argument, expected, type(value).__name__)
    if not kernels or len(kernels) != len(biases):
        expected = "of one layer or more, and with a bias or None for each"
        raise bad_input(op, "params", expected, f"{len(kernels)} kernels, {len(biases)} biases")
    parts = [receivers.shape[-1], senders.shape[-1]]
    parts += [] if edge_features is None else [edge_features.shape[-1]]
    names = ("receiver", "sender", "edge features")
    source = "[" + " ; ".join(f"{n} {w}" for n, w in zip(names, parts, strict=False)) + "]"
    width = sum(parts)
    for index, (kernel, bias) in enumerate(zip(kernels, biases, strict=True)):
        check_layer(op, receivers, kernel, bias, index=index, in_features=width, source=source)
        width, source = kernel.shape[1], None


def check_reduction(op: str, graph: CSRGraph, reduce: Any, activation: Any, weights: Any) -> None:
    """Raises ValueError unless reduction and activation are known and fit the graph."""
    check_choice(op, "reduce", reduce, "sum", "mean", "max")
    check_choice(op, "activation", activation, *ACTIVATIONS)
    folded = graph.normalization is not None and weights is None
    scaled = graph.row_scale is not None or graph.col_scale is not None
    if reduce != "sum" and (folded or scaled):
        expected = f"not normalised for reduce={reduce!r}"
        raise bad_input(op, "graph", expected, f"normalization={graph.normalization!r}")
