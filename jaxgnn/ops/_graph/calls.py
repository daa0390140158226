"""Tables, and the checks of the graph, which ops on graphs share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxgnn.graph.csr.masked_graph import with_presence_as_weights, without_presence
from jaxgnn.graph.csr.require_graph import refuse_weights
from jaxgnn.graph.local.local_graph import with_senders
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.checks import check_graph, from_numpy


def table(
    name: str,
    dtypes: tuple[str, ...],
    plain: Callable[..., Any],
    mosaic: Callable[..., Any],
    native: Callable[..., Any],
    *,
    scatters: bool = True,
) -> dispatch.Kernel:
    """A kernel in plain JAX, with Mosaic for GPUs and compiled for a CPU for these dtypes."""
    return dispatch.Kernel(
        name,
        {
            "xla": dispatch.xla(plain, scatters=scatters),
            "pallas": dispatch.pallas(mosaic, dtypes=dtypes),
            "ffi": dispatch.ffi(dtypes=dtypes, cpu=native),
        },
    )


def graph_and_senders(
    op: str,
    graph: Any,
    *of_senders: Any,
    axes: Sequence[int] = (),
    instead_of_weights: str | None = None,
    scales: bool = False,
) -> tuple[Any, ...]:
    """The checked graph of a call, and the arrays of its senders.

    Of a ``LocalGraph`` it is the graph of one device, with the senders of other devices. Of a
    ``MaskedGraph`` it is the graph without the presence, if the op refuses weights, and so has to
    apply the presence itself; else the graph whose weights have the presence.

    Args:
      op: name of the op, for errors.
      graph: the graph that it was called with.
      *of_senders: its arrays of senders.
      axes: the axis of the senders in each of them, by default the last but one.
      instead_of_weights: advice for the weights of a graph, where the op refuses them; None where
        it applies or ignores them.
      scales: whether the op applies the scales of a graph without weights.

    Raises:
      ValueError: unless ``graph`` is a valid graph with at least one node, without weights where
        they are refused, and with a row of each array for each own node of a ``LocalGraph``.
    """
    graph, *arrays = with_senders(graph, *from_numpy(*of_senders), axes=axes)
    graph = check_graph(op, graph)
    if instead_of_weights is not None:
        refuse_weights(op, "graph", graph, instead_of_weights, scales=scales)
        return without_presence(graph), *arrays
    return with_presence_as_weights(graph), *arrays
