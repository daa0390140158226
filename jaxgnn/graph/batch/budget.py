"""dynamic_batches: a stream of graphs as batches of one shape, each as full as its order allows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from jaxgnn._arrays.arrays import require_size
from jaxgnn._errors import bad_input
from jaxgnn.graph.batch.graph_batch import GraphBatch, batch_parts
from jaxgnn.graph.batch.samples import GraphSample, Part, read_part
from jaxgnn.graph.batch.shape import BatchShape
from jaxgnn.graph.csr.csr_graph import CSRGraph

_WHERE = "dynamic_batches"


def dynamic_batches(
    graphs: Iterable[CSRGraph | GraphSample | Any],
    max_nodes: int,
    max_edges: int,
    max_graphs: int,
) -> Iterator[GraphBatch]:
    """Fills batches of one shape with graphs, in their order, and yields each when it is full.

    A batch is full when the next graph does not fit. All batches have the shape
    ``max_nodes``, ``max_edges``, ``max_graphs``, so a jitted step compiles once. One node and one
    graph of these are padding, as in ``jraph.dynamically_batch``; so a batch
    takes up to ``max_nodes - 1`` nodes, ``max_edges`` edges and ``max_graphs - 1`` graphs.

    Args:
      graphs: any iterable of graphs that ``GraphBatch.from_graphs`` accepts. It is read lazily, and
        may be infinite.
      max_nodes: nodes of each batch, at least 1.
      max_edges: edge slots of each batch.
      max_graphs: graphs of each batch, at least 2.

    Returns:
      An iterator over batches; the last may have fewer graphs than fit.

    Raises:
      ValueError: at once for a bad budget; while iterating, for a graph that is larger than the
        budget, which the message names by its place in ``graphs``, and for all inputs that
        ``GraphBatch.from_graphs`` rejects.

    Example:
      >>> sizes = [3, 2, 4]
      >>> chains = [GraphSample(range(n - 1), range(1, n), n) for n in sizes]
      >>> batches = dynamic_batches(chains, max_nodes=6, max_edges=8, max_graphs=4)
      >>> [batch.num_nodes_of_each.tolist() for batch in batches]
      [[3, 2, 1, 0], [4, 2, 0, 0]]
    """
    least = {"max_nodes": 1, "max_edges": 0, "max_graphs": 2}
    shape = BatchShape(max_nodes, max_edges, max_graphs)
    for (name, at_least), size in zip(least.items(), shape, strict=True):
        require_size(_WHERE, name, size)
        if size < at_least:
            raise bad_input(_WHERE, name, f"at least {at_least}", size)
    return _filled(graphs, shape)


def _filled(graphs: Iterable[Any], shape: BatchShape) -> Iterator[GraphBatch]:
    """Yields batches, each of as many graphs as fit."""
    parts: list[Part] = []
    needed = _EMPTY
    for place, graph in enumerate(graphs):
        part = read_part(_WHERE, place, graph)
        if not shape.holds(_with(_EMPTY, part)):
            raise _too_large(shape, part)
        if not shape.holds(_with(needed, part)):
            yield batch_parts(_WHERE, parts, shape)
            parts, needed = [], _EMPTY
        parts.append(part)
        needed = _with(needed, part)
    if parts:
        yield batch_parts(_WHERE, parts, shape)


_EMPTY = BatchShape(nodes=1, edges=0, graphs=1)
"""The sizes of a batch without graphs: the padding graph with one node."""


def _with(needed: BatchShape, part: Part) -> BatchShape:
    """Returns the sizes that are needed with one more graph."""
    nodes, edges, graphs = needed
    return BatchShape(nodes + part.num_nodes, edges + part.num_edges, graphs + 1)


def _too_large(shape: BatchShape, part: Part) -> ValueError:
    """The error for a graph that does not fit even in an empty batch."""
    expected = f"of at most {shape.nodes - 1} nodes (max_nodes less one) and {shape.edges} edges"
    got = f"{part.num_nodes} nodes and {part.num_edges} edges"
    return bad_input(_WHERE, f"graphs[{part.place}]", expected, got)
