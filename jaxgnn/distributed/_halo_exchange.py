"""The exchange of rows between devices, for user functions."""

from __future__ import annotations

from typing import Any, overload

from jaxtyping import Array, Float

from jaxgnn._errors import bad_input
from jaxgnn.graph import CBSR, LocalGraph


@overload
def halo_exchange(graph: LocalGraph, x: Array) -> Array: ...
@overload
def halo_exchange(graph: LocalGraph, x: CBSR) -> CBSR: ...
def halo_exchange(
    graph: LocalGraph, x: Float[Array, "rows *features"] | CBSR
) -> Float[Array, "table *features"] | CBSR:
    """Returns the table of the rows that the edges of a device read.

    Ops that take a ``LocalGraph`` call this themselves. ``graph.indices`` are places in the table.
    The gradient is the transpose: the owner of each row sums the gradients of all devices to its
    rows. Of compressed rows only the values have a gradient, so only values are sent back.

    Args:
      graph: the graph of the device, inside of ``sharded`` or ``jax.shard_map``.
      x: features of the own nodes, or compressed rows.

    Returns:
      One row for each entry of the table, of the kind and dtype of ``x``.

    Raises:
      ValueError: if the graph is no ``LocalGraph``, or ``x`` has not one row for each own node.
    """
    if not isinstance(graph, LocalGraph):
        expected = "a LocalGraph, as sharded functions get it"
        got: Any = type(graph).__name__
        raise bad_input("halo_exchange", "graph", expected, got)
    return graph.halo.exchange(x)
