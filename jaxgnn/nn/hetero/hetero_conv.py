"""A layer for each relation of a heterogeneous graph; checks of all layers on such graphs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn._errors import bad_input
from jaxgnn.graph import EdgeType, HeteroGraph
from jaxgnn.graph.hetero.hetero_graph import check_edge_type
from jaxgnn.nn.shared.common_options import DocumentedModule
from jaxgnn.nn.shared.dropout import require_stream
from jaxgnn.nn.shared.maxk import check_widths
from jaxgnn.nn.shared.options import checked_options, function, one_of, require


def check_is_hetero(where: str, graph: Any) -> None:
    """Raises ValueError unless ``graph`` is a HeteroGraph."""
    if not isinstance(graph, HeteroGraph):
        expected = "a jaxgnn.graph.HeteroGraph, such as HeteroGraph({relation: graph})"
        raise bad_input(where, "graph", expected, type(graph).__name__)


def check_features(
    where: str, graph: HeteroGraph, x: Any, edge_types: tuple[EdgeType, ...] | None = None
) -> None:
    """Raises ValueError unless ``x`` has features of all nodes of the types that are needed."""
    if not isinstance(x, Mapping):
        expected = "a dictionary of the features of each type of nodes"
        raise bad_input(where, "x", expected, type(x).__name__)
    of_relations = (t for e in edge_types or () for t in (e[0], e[2]))
    for node_type in graph.node_types if edge_types is None else of_relations:
        count = graph.num_nodes[node_type]
        if node_type not in x:
            raise bad_input(
                where,
                "x",
                f"of a type {node_type!r} too (layers return only types that receive)",
                f"types {list(x)}",
            )
        shape = getattr(x[node_type], "shape", ())
        if len(shape) < 2 or shape[-2] != count:
            expected = f"of shape [..., {count}, features], as there are nodes of this type"
            raise bad_input(where, f"x[{node_type!r}]", expected, f"shape {shape}")


def checked_metadata(where: str, metadata: Any) -> tuple[tuple[str, ...], tuple[EdgeType, ...]]:
    """Returns the types of nodes and the relations, after checking that these use the types."""
    if not isinstance(metadata, tuple | list) or len(metadata) != 2:
        expected = "a pair of the types of nodes and the relations, graph.metadata"
        raise bad_input(where, "metadata", expected, repr(metadata))
    node_types, edge_types = tuple(sorted(metadata[0])), tuple(metadata[1])  # as in HeteroGraph
    for edge_type in edge_types:
        check_edge_type(where, "metadata", edge_type)
        if not {edge_type[0], edge_type[2]} <= set(node_types):
            expected = f"of relations between the types {list(node_types)}"
            raise bad_input(where, "metadata", expected, repr(edge_type))
    if not edge_types:
        raise bad_input(where, "metadata", "of at least one relation", repr(metadata))
    return node_types, edge_types


def width_of_each(where: str, in_features: Any, node_types: Sequence[str]) -> dict[str, int]:
    """Returns the width of each type: a common one, or those of a dictionary."""
    widths = (
        dict(in_features)
        if isinstance(in_features, Mapping)
        else dict.fromkeys(node_types, in_features)
    )
    if set(widths) != set(node_types):
        expected = f"one width, or one for each of {list(node_types)}"
        raise bad_input(where, "in_features", expected, in_features)
    check_widths(where, *widths.values())
    return widths


_REDUCTIONS: dict[str, Callable[[list[Array]], Array]] = {
    "sum": lambda parts: functools.reduce(jnp.add, parts),
    "mean": lambda parts: functools.reduce(jnp.add, parts) / len(parts),
    "max": lambda parts: functools.reduce(jnp.maximum, parts),
    "min": lambda parts: functools.reduce(jnp.minimum, parts),
    "cat": lambda parts: jnp.concatenate(parts, axis=-1),
}


class HeteroConv(DocumentedModule):
    """A separate layer for each relation; receivers combine the results of several relations.

    A layer is called as ``layer(graph, x)`` with the graph of its relation. For a relation within
    one type of nodes, ``x`` are their features. For one between two types it is the pair
    ``(x_dst, x_src)`` of receivers' and senders' features, which layers such as
    ``nn.TransformerConv`` and ``nn.LEConv`` support. Relations of the graph without a layer are
    ignored. The layers may be of any kind, so each runs separately; ``nn.RGCNConv`` and
    ``nn.HGTConv`` read all relations at once.

    Args:
      layers: a layer for each relation.
      reduce: reduction of the results of several relations for one type of nodes: ``"sum"``,
        ``"mean"``, ``"max"``, ``"min"``, or ``"cat"``, which concatenates in the order of the
        layers.

    Example:
      >>> writes = CSRGraph.from_edges([0, 1], [2, 0], 3, num_senders=2)
      >>> graph = HeteroGraph({("author", "writes", "paper"): writes})
      >>> rngs = nnx.Rngs(0)
      >>> layer = nn.HeteroConv({("author", "writes", "paper"): nn.LEConv((8, 5), 4, rngs=rngs)})
      >>> y = layer(graph, {"author": jnp.ones((2, 5)), "paper": jnp.ones((3, 8))})
      >>> {node_type: features.shape for node_type, features in y.items()}
      {'paper': (3, 4)}
    """

    @checked_options(reduce=one_of(*_REDUCTIONS))
    def __init__(
        self,
        layers: Mapping[EdgeType, nnx.Module],
        *,
        reduce: Literal["sum", "mean", "max", "min", "cat"] = "sum",
    ):
        if not isinstance(layers, Mapping) or not layers:
            expected = "a dictionary of at least one layer, by relation"
            raise bad_input("HeteroConv", "layers", expected, repr(layers))
        for edge_type, layer in layers.items():
            check_edge_type("HeteroConv", "layers", edge_type)
            require("HeteroConv", f"layers[{edge_type!r}]", layer, function)
        self.edge_types: tuple[EdgeType, ...] = tuple(layers)
        self.layers = nnx.List(layers.values())
        self.reduce: str = reduce

    def __call__(
        self,
        graph: HeteroGraph,
        x: Mapping[str, Float[Array, "*batch nodes _"]],
        edge_features: Mapping[EdgeType, Any] | None = None,
        *,
        rngs: nnx.Rngs | None = None,
    ) -> dict[str, Float[Array, "*batch nodes _"]]:
        """Applies the layers.

        Args:
          graph: the relations, with all those that there are layers for.
          x: features of each type of nodes that has a part in these.
          edge_features: features of the edges of relations, each for its layer as the argument
            behind ``x`` and in the order of its graph, into which
            ``graph[edge_type].sort_edges(features)`` brings them; None if no layer takes any.
          rngs: random streams with one named ``dropout`` in training, for the layers that take
            some; None in evaluation.

        Returns:
          Features of the types of nodes that are receivers in a relation with a layer. Other types
          are missing, as in PyTorch Geometric.

        Raises:
          ValueError: if the graph lacks a relation, ``x`` lacks a type or has another number of its
            nodes, or ``edge_features`` belong to a relation without a layer.
        """
        check_is_hetero("HeteroConv", graph)
        missing = [e for e in self.edge_types if e not in graph]
        if missing:
            expected = f"of the relation {missing[0]!r}, which has a layer"
            raise bad_input("HeteroConv", "graph", expected, list(graph.edge_types))
        of_edges = edge_features or {}
        unknown = [e for e in of_edges if e not in self.edge_types]
        if unknown:
            expected = f"of relations with a layer, {list(self.edge_types)}"
            raise bad_input("HeteroConv", "edge_features", expected, repr(unknown[0]))
        if rngs is not None:
            require_stream("HeteroConv", rngs, is_drawn_from=False)
        check_features("HeteroConv", graph, x, self.edge_types)
        received: dict[str, list[Array]] = {}
        for edge_type, layer in zip(self.edge_types, self.layers, strict=True):
            sender, _, receiver = edge_type
            nodes = x[sender] if sender == receiver else (x[receiver], x[sender])
            arguments = (of_edges[edge_type],) if edge_type in of_edges else ()
            options = {"rngs": rngs} if rngs is not None and _takes_rngs(layer) else {}
            y = layer(graph[edge_type], nodes, *arguments, **options)
            received.setdefault(receiver, []).append(y)
        return {node_type: self._joined(node_type, parts) for node_type, parts in received.items()}

    def _joined(self, node_type: str, parts: list[Array]) -> Array:
        shapes = [y.shape if self.reduce != "cat" else y.shape[:-1] for y in parts]
        if any(shape != shapes[0] for shape in shapes):
            expected = f"of results of one shape for {node_type!r}, to be joined"
            raise bad_input("HeteroConv", "layers", expected, [y.shape for y in parts])
        return _REDUCTIONS[self.reduce](parts)


def _takes_rngs(layer: nnx.Module) -> bool:
    return "rngs" in inspect.signature(type(layer).__call__).parameters
