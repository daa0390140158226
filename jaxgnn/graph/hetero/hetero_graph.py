"""HeteroGraph: relations between nodes of several types, as a pytree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxgnn._arrays.arrays import require_size
from jaxgnn._errors import bad_input
from jaxgnn.graph.csr.csr_graph import CSRGraph
from jaxgnn.graph.hetero.relational import RelationalGraph, Shift, shifted_union

EdgeType = tuple[str, str, str]
"""A relation: the type of its senders, its name, and the type of its receivers."""


@jax.tree_util.register_pytree_with_keys_class
class HeteroGraph(Mapping[EdgeType, CSRGraph]):
    """Relations between nodes of several types, such as authors who write papers.

    A relation is named ``(sender type, name, receiver type)``, as in PyTorch Geometric, and its
    graph has a row for each receiver and a column for each sender. It is a mapping of these names
    to the graphs, in the order in which they were given, and a pytree: it can be the argument of a
    jitted function. Features of nodes and edges are dictionaries of their own, by the type of the
    node or the relation.

    Args:
      graphs: the graph of each relation.
      num_nodes: number of nodes of types, needed only for types without any relation.

    Attributes:
      edge_types: the relations.
      node_types: the types of nodes, sorted by name.
      num_nodes: number of nodes of each type.

    Raises:
      ValueError: if there is no relation, a name does not have three parts, a graph is none, or two
        relations disagree on how many nodes of a type there are; the message names both.

    Example:
      >>> graph = HeteroGraph({
      ...     ("author", "writes", "paper"): CSRGraph.from_edges([0, 1], [2, 0], 3, num_senders=2),
      ...     ("paper", "cites", "paper"): CSRGraph.from_edges([0], [1], 3),
      ... })
      >>> graph.num_nodes, graph["paper", "cites", "paper"].shape
      ({'author': 2, 'paper': 3}, (3, 3))
    """

    def __init__(
        self,
        graphs: Mapping[EdgeType, CSRGraph],
        *,
        num_nodes: Mapping[str, int] | None = None,
    ):
        if not isinstance(graphs, Mapping) or not graphs:
            expected = "a dictionary of at least one relation"
            raise bad_input("HeteroGraph", "graphs", expected, repr(graphs))
        for edge_type, graph in graphs.items():
            check_edge_type("HeteroGraph", "graphs", edge_type)
            if not isinstance(graph, CSRGraph):
                argument = f"graphs[{edge_type!r}]"
                raise bad_input("HeteroGraph", argument, "a CSRGraph", type(graph).__name__)
        self.edge_types: tuple[EdgeType, ...] = tuple(graphs)
        self.num_nodes: dict[str, int] = _counted(graphs, num_nodes or {})
        self._graphs = tuple(graphs.values())
        self._joined: CSRGraph | None = None

    # -- a mapping ---------------------------------------------------------------------------

    def __getitem__(self, edge_type: EdgeType) -> CSRGraph:
        """Returns the graph of a relation; KeyError lists the existing ones."""
        if edge_type not in self.edge_types:
            raise KeyError(f"HeteroGraph: {edge_type!r} is none of {list(self.edge_types)}")
        return self._graphs[self.edge_types.index(edge_type)]

    def __iter__(self) -> Iterator[EdgeType]:
        """Returns the relations, in their order."""
        return iter(self.edge_types)

    def __len__(self) -> int:
        """Returns the number of relations."""
        return len(self.edge_types)

    def __eq__(self, other: object) -> bool:
        """Returns whether it is the same object: arrays may be traced, and are not compared."""
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        """Shows the types and the shapes of their graphs."""
        graphs = ", ".join(
            f"{edge_type!r}: {graph.num_edges} edges" for edge_type, graph in self.items()
        )
        return f"HeteroGraph(num_nodes={self.num_nodes}, {{{graphs}}})"

    def _repr_html_(self) -> str:
        """A table for notebooks, with a drawing of few nodes; shapes alone under a trace."""
        from jaxgnn.graph.html import html_of_relations

        return html_of_relations(self)

    # -- a pytree ----------------------------------------------------------------------------

    def tree_flatten_with_keys(self):
        """Returns the graphs, and their prepared parts, as the children of the pytree."""
        keys = [*map(jax.tree_util.DictKey, self.edge_types), jax.tree_util.GetAttrKey("joined")]
        children = zip(keys, (*self._graphs, self._joined), strict=True)
        return tuple(children), (self.edge_types, tuple(self.num_nodes.items()))

    @classmethod
    def tree_unflatten(cls, options: Any, children: Sequence[Any]) -> HeteroGraph:
        """Builds the pytree from its children, which may be of any kind."""
        graph = object.__new__(cls)
        graph.edge_types, graph.num_nodes = options[0], dict(options[1])
        *graphs, graph._joined = children
        graph._graphs = tuple(graphs)
        return graph

    # -- types -------------------------------------------------------------------------------

    @property
    def node_types(self) -> tuple[str, ...]:
        """The types of nodes, sorted by name."""
        return tuple(self.num_nodes)

    @property
    def metadata(self) -> tuple[tuple[str, ...], tuple[EdgeType, ...]]:
        """The types of nodes and the relations, from which ``nn.HGTConv`` is built."""
        return self.node_types, self.edge_types

    def node_slices(self) -> dict[str, slice]:
        """The range of the nodes of each type when the nodes of all types are concatenated."""
        ends = np.cumsum(list(self.num_nodes.values())).tolist()
        starts = [0, *ends[:-1]]
        return {t: slice(*at) for t, *at in zip(self.num_nodes, starts, ends, strict=True)}

    # -- derived graphs ----------------------------------------------------------------------

    def map(self, function: Callable[[CSRGraph], CSRGraph]) -> HeteroGraph:
        """Applies a function to the graph of each relation, such as one that normalises it."""
        graphs = {edge_type: function(graph) for edge_type, graph in self.items()}
        return HeteroGraph(graphs, num_nodes=self.num_nodes)

    def with_reverse(self, prefix: str = "rev_") -> HeteroGraph:
        """Adds, for each relation between two types, the relation in the other direction.

        Without these, types that only send, such as authors who write papers, get no messages.

        Args:
          prefix: prefix of the names of the new relations.

        Raises:
          ValueError: if a relation with the new name exists already.
        """
        graphs = dict(self)
        for (sender, name, receiver), graph in self.items():
            if sender == receiver:
                continue
            new = receiver, f"{prefix}{name}", sender
            if new in graphs:
                expected = f"such that {new!r} is a new relation"
                raise bad_input("HeteroGraph.with_reverse", "prefix", expected, repr(prefix))
            graphs[new] = graph.transpose()
        return HeteroGraph(graphs, num_nodes=self.num_nodes)

    def joined(self) -> CSRGraph:
        """Returns all relations as one graph, so that one op reads all of them.

        Receivers are the nodes of all types, one type after the other. Senders are the nodes of the
        sending type of each relation, one relation after the other, as each relation has its own
        features.

        If all relations are concrete it is built once. If they are traced, each call of the program
        sorts the edges, unless ``prepared`` has been called before.

        Raises:
          ValueError: if a relation is normalised, which is not valid for the sum over several.
        """
        if self._joined is not None:
            return self._joined
        rows, parts, columns = self.node_slices(), [], 0
        self._require_plain("HeteroGraph.joined")
        for edge_type, graph in self.items():
            parts.append(Shift(graph, rows[edge_type[2]].start, 1, columns))
            columns += graph.num_cols
        return shifted_union(parts, (sum(self.num_nodes.values()), columns))

    def prepared(self) -> HeteroGraph:
        """Returns the relations with ``joined`` in the pytree, for jitted functions."""
        prepared = HeteroGraph(dict(self), num_nodes=self.num_nodes)
        prepared._joined = self.joined()
        return prepared

    def to_homogeneous(self) -> RelationalGraph:
        """Returns one graph with the nodes of all types, one type after the other.

        For layers such as ``nn.RGCNConv``: concatenate the features of all types to one array, in
        the order of ``node_types``. Relation ``r`` is ``edge_types[r]``, and ``node_slices`` has
        the ranges of the types.

        Raises:
          ValueError: if a relation is normalised already.
        """
        self._require_plain("HeteroGraph.to_homogeneous")
        at, count = self.node_slices(), len(self)
        total = sum(self.num_nodes.values())
        parts = []
        for place, ((sender, _, receiver), graph) in enumerate(self.items()):
            first_row = at[receiver].start * count + place
            parts.append(Shift(graph, first_row, count, at[sender].start))
        return RelationalGraph(shifted_union(parts, (total * count, total)), count)

    def _require_plain(self, where: str) -> None:
        for edge_type, graph in self.items():
            if graph.is_normalized:
                raise bad_input(where, f"self[{edge_type!r}]", "not normalised", repr(graph))


def check_edge_type(where: str, argument: str, edge_type: Any) -> None:
    """Raises ValueError unless ``edge_type`` names a relation."""
    names = edge_type if isinstance(edge_type, tuple) else ()
    if len(names) != 3 or not all(isinstance(name, str) for name in names):
        expected = "by relations (sender type, name, receiver type), which are strings"
        raise bad_input(where, argument, expected, repr(edge_type))


def _counted(graphs: Mapping[EdgeType, CSRGraph], num_nodes: Mapping[str, int]) -> dict[str, int]:
    """The number of nodes of each type, sorted by type; ValueError if two relations disagree."""
    counts: dict[str, tuple[int, str]] = {}
    for node_type, count in num_nodes.items():
        require_size("HeteroGraph", f"num_nodes[{node_type!r}]", count)
        counts[node_type] = count, "num_nodes"
    for edge_type, graph in graphs.items():
        for node_type, count in zip((edge_type[2], edge_type[0]), graph.shape, strict=True):
            earlier, where = counts.setdefault(node_type, (count, repr(edge_type)))
            if earlier != count:
                expected = f"of {earlier} nodes of type {node_type!r}, as in {where}"
                argument = f"graphs[{edge_type!r}]"
                raise bad_input("HeteroGraph", argument, expected, f"{count} (shape {graph.shape})")
    return {node_type: counts[node_type][0] for node_type in sorted(counts)}
