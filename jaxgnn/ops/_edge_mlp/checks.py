"""Layers of edges, and the checks that ops of the family share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxtyping import Array, Float

from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph
from jaxgnn.ops._dense.checks import check_layer
from jaxgnn.ops.core.checks import check_rows


class EdgeMLPParams(NamedTuple):
    """Layers of the MLP of ``edge_mlp_aggregate`` and ``interaction``.

    Attributes:
      kernels: weights of the layers, each [in, out] with the out of one as the in of the next. The
        rows of the first belong to the receiver, to the sender, to the features of the edge, and to
        the context of ``interaction``, in this order.
      biases: the bias of each layer, [out], or None for zeros.
    """

    kernels: Sequence[Float[Array, "in out"]]
    biases: Sequence[Float[Array, " out"] | None]


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


def check_edge_mlp(op: str, params: Any, **inputs: Any) -> None:
    """Raises ValueError unless the layers fit their inputs and each other.

    Args:
      op: name of the op, for errors.
      params: layers of the edges.
      inputs: arrays side by side in the input of the first layer, by name; None for none.
    """
    if not isinstance(params, EdgeMLPParams):
        raise bad_input(op, "params", "ops.EdgeMLPParams", type(params).__name__)
    kernels, biases = params.kernels, params.biases
    for argument, value in (("params.kernels", kernels), ("params.biases", biases)):
        if not isinstance(value, Sequence):
            expected = "a list or tuple, an entry for each layer"
            raise bad_input(op, argument, expected, type(value).__name__)
    if not kernels or len(kernels) != len(biases):
        expected = "of one layer or more, and with a bias or None for each"
        raise bad_input(op, "params", expected, f"{len(kernels)} kernels, {len(biases)} biases")
    parts = {name: x for name, x in inputs.items() if x is not None}
    first = next(iter(parts.values()))
    named = (f"{name.replace('_', ' ')} {x.shape[-1]}" for name, x in parts.items())
    source = "[" + " ; ".join(named) + "]"
    width = sum(x.shape[-1] for x in parts.values())
    for index, (kernel, bias) in enumerate(zip(kernels, biases, strict=True)):
        check_layer(op, first, kernel, bias, index=index, in_features=width, source=source)
        width, source = kernel.shape[1], None
