"""Shape of a batch of graphs: the numbers of its slots for nodes, edges and graphs."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxgnn._arrays.arrays import require_size
from jaxgnn._errors import bad_input

Sizes = tuple[int, int] | tuple[int, int, int]
"""``(nodes, edges)`` or ``(nodes, edges, graphs)`` of a batch, its padding included."""

PadTo = Sizes | Sequence[Sizes] | Literal["power_of_two"] | None
"""The shape of a batch: its sizes, a table of sizes, powers of two, or None for no padding."""


class BatchShape(NamedTuple):
    """Slots of a batch for nodes, edges and graphs, padding included."""

    nodes: int
    edges: int
    graphs: int

    def holds(self, other: BatchShape) -> bool:
        """Returns whether a batch of shape ``other`` fits into one of this shape."""
        return all(map(operator.ge, self, other))

    def plus(self, num_nodes: int, num_edges: int) -> BatchShape:
        """Returns the shape with space for one more graph."""
        return BatchShape(self.nodes + num_nodes, self.edges + num_edges, self.graphs + 1)


def least_shape(num_nodes: np.ndarray, num_edges: np.ndarray) -> BatchShape:
    """Returns the least shape of a padded batch: one node and one graph more than the graphs."""
    return BatchShape(int(num_nodes.sum()) + 1, int(num_edges.sum()), len(num_nodes) + 1)


def batch_shape(
    where: str, pad_to: PadTo, num_nodes: np.ndarray, num_edges: np.ndarray
) -> BatchShape:
    """Chooses the shape of a batch of graphs with these numbers of nodes and edges, each [graphs].

    Raises:
      ValueError: if ``pad_to`` has no form that ``GraphBatch.from_graphs`` lists, or one of the
        graphs does not fit, which the message names.
    """
    least = least_shape(num_nodes, num_edges)
    if pad_to is None:
        return BatchShape(least.nodes - 1, least.edges, least.graphs - 1)
    if isinstance(pad_to, str):
        if pad_to != "power_of_two":
            raise bad_input(where, "pad_to", _EXPECTED, repr(pad_to))
        return BatchShape(*(1 << max(size - 1, 0).bit_length() for size in least))
    table = _table(where, pad_to, least.graphs)
    for shape in table:
        if shape.holds(least):
            return shape
    raise _no_room(where, table[-1], num_nodes, num_edges)


_EXPECTED = (
    "(nodes, edges), (nodes, edges, graphs), a table of several of these from small to large, "
    "'power_of_two' or None"
)


def _table(where: str, pad_to: Any, graphs: int) -> list[BatchShape]:
    """Reads one pair or triple of sizes, or a table of them, as shapes."""
    is_sequence = isinstance(pad_to, Sequence) and len(pad_to) > 0
    rows = pad_to if is_sequence and isinstance(pad_to[0], Sequence) else [pad_to]
    shapes = []
    for row in rows:
        if not isinstance(row, Sequence) or isinstance(row, str) or len(row) not in (2, 3):
            raise bad_input(where, "pad_to", _EXPECTED, repr(pad_to))
        for size in row:
            require_size(where, "pad_to", size)
        nodes, edges, *rest = map(int, row)
        shapes.append(BatchShape(nodes, edges, rest[0] if rest else graphs))
    return shapes


def _no_room(where, shape, num_nodes, num_edges) -> ValueError:
    """Returns the error that names the first graph that does not fit after those before it."""
    left = shape.nodes - 1 - np.cumsum(num_nodes), shape.edges - np.cumsum(num_edges)
    slots = shape.graphs - 1 - np.arange(1, len(num_nodes) + 1)
    at = int(np.flatnonzero((left[0] < 0) | (left[1] < 0) | (slots < 0))[0])
    least = least_shape(num_nodes, num_edges)
    expected = f"at least {tuple(least)} (nodes, edges, graphs) for these graphs and padding"
    got = (
        f"{tuple(shape)}, in which graphs[{at}] of {num_nodes[at]} nodes and {num_edges[at]} edges "
        "has no room"
    )
    return bad_input(where, "pad_to", expected, got)
