"""RelationalGraph: several relations between the same nodes, stacked for one sum over all."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Int

from jaxgnn._arrays.arrays import (
    KeepsArrays,
    is_concrete,
    kept,
    require_count,
    require_integers,
    require_no_heads,
)
from jaxgnn._arrays.identity_cache import IdentityMemory
from jaxgnn._errors import bad_input
from jaxgnn.graph.csr.csr_graph import CSRGraph
from jaxgnn.graph.csr.masked_graph import MaskedGraph, from_columns
from jaxgnn.graph.csr.require_graph import require_graph
from jaxgnn.graph.local.local_graph import LocalGraph
from jaxgnn.graph.local.union import LocalUnion, joined_halo
from jaxgnn.graph.plan.sorting import row_ids, row_ids_on_host


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class RelationalGraph(KeepsArrays):
    """Several relations between the same nodes, as one graph with a row for each node and relation.

    Row ``i * num_relations + r`` of ``graph`` has the edges of relation ``r`` that enter node
    ``i``. So one ``ops.spmm`` sums the neighbours by relation, as ``nn.RGCNConv`` needs it.

    Attributes:
      graph: the stacked relations, of shape [receivers * relations, senders].
      num_relations: number of relations.
    """

    graph: CSRGraph
    num_relations: int = dataclasses.field(metadata={"static": True})

    @property
    def num_rows(self) -> int:
        """The number of receivers."""
        return self.graph.num_rows // self.num_relations

    @property
    def num_cols(self) -> int:
        """The number of senders."""
        return self.graph.num_cols

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of receivers and of senders."""
        return self.num_rows, self.num_cols

    @property
    def is_square(self) -> bool:
        """Whether receivers and senders can be the same nodes."""
        of_squares = not isinstance(self.graph, LocalUnion) or self.graph.is_of_squares
        return of_squares and self.num_rows == self.num_cols

    @classmethod
    def from_graphs(cls, graphs: Sequence[CSRGraph]) -> RelationalGraph:
        """Stacks one graph for each relation; concrete graphs only once for the same arrays.

        Args:
          graphs: graphs of one shape that are not normalised. If some have weights, the edges of
            the others have the weight one. Each call of the program sorts traced graphs.

        Raises:
          ValueError: if there are no graphs, or one of them is normalised, has weights for several
            heads, or another shape than the first.

        Example:
          >>> likes = CSRGraph.from_edges([0, 1], [1, 1], 2)
          >>> knows = CSRGraph.from_edges([1], [0], 2)
          >>> RelationalGraph.from_graphs([likes, knows]).graph.to_scipy().toarray().tolist()
          [[0.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]
        """
        where = "RelationalGraph.from_graphs"
        if not isinstance(graphs, Sequence) or not graphs:
            raise bad_input(where, "graphs", "a list of at least one graph", repr(graphs))
        for place, graph in enumerate(graphs):
            _check(where, f"graphs[{place}]", graph)
            if graph.shape != graphs[0].shape:
                expected = f"of shape {graphs[0].shape}, as graphs[0]"
                raise bad_input(where, f"graphs[{place}]", expected, f"shape {graph.shape}")
        rows, columns = graphs[0].shape
        count = len(graphs)
        shifts = [Shift(graph, place, count, 0) for place, graph in enumerate(graphs)]
        return cls(shifted_union(shifts, (rows * count, columns)), count)

    @classmethod
    def from_edge_types(
        cls, graph: CSRGraph, edge_types: npt.ArrayLike, num_relations: int
    ) -> RelationalGraph:
        """Sorts the edges of one graph by receiver and relation.

        Args:
          graph: a graph that is not normalised.
          edge_types: the relation of each edge slot in the graph's order, integers [edges], as
            returned by ``CSRGraph.from_edges(..., edge_data=edge_types)``.
          num_relations: number of relations.

        Raises:
          ValueError: if the graph is normalised, ``num_relations`` is no positive integer, or
            ``edge_types`` are not one integer for each edge slot; if they are not traced, also if
            one is not in [0, num_relations). Traced edges with such types are dropped.

        Example:
          >>> types = np.array([0, 0, 1])
          >>> graph, types = CSRGraph.from_edges([0, 1, 1], [1, 1, 0], 2, edge_data=types)
          >>> RelationalGraph.from_edge_types(graph, types, 2).graph.receivers().tolist()
          [1, 2, 2]
        """
        where = "RelationalGraph.from_edge_types"
        _check(where, "graph", graph)
        require_count(where, "num_relations", num_relations, "an int of at least 1")
        # Results are cached by array, so a caller's array is copied: it must not change.
        types: Any = (
            edge_types if isinstance(edge_types, jax.Array) else kept(np.asarray(edge_types))
        )
        require_integers(where, "edge_types", types)
        if types.shape != (graph.num_edges,):
            expected = f"of shape ({graph.num_edges},), one for each edge slot"
            raise bad_input(where, "edge_types", expected, f"shape {types.shape}")
        if is_concrete(types, graph.indptr):
            _check_types(where, np.asarray(types)[: int(graph.indptr[-1])], num_relations)
        shape = graph.num_rows * num_relations, graph.num_cols
        return cls(shifted_union([Shift(graph, types, num_relations, 0)], shape), num_relations)


class Shift(NamedTuple):
    """A graph, and the place of its edges in a larger one: row ``factor * i + first_row``.

    ``first_row`` is that of all edges, or of each edge slot, int [edges].
    """

    graph: CSRGraph
    first_row: Any
    factor: int
    first_column: int


_UNIONS: IdentityMemory[CSRGraph] = IdentityMemory()


def shifted_union(parts: Sequence[Shift], shape: tuple[int, int]) -> CSRGraph:
    """Returns the graph of all edges of several graphs, with their own rows and columns.

    For concrete parts it is built once for the same arrays; for graphs that are spread over devices
    it has the own rows of the device.

    Args:
      parts: the graphs. If some have weights, the edges of the others have the weight one.
      shape: number of receivers and of senders of the result.
    """
    graphs = [part.graph for part in parts]
    if any(isinstance(graph, LocalGraph) for graph in graphs):
        return _union_on_device(parts, shape)
    like = next((graph for graph in graphs if isinstance(graph, MaskedGraph)), None)
    if like is not None:
        return from_columns(_union(jnp, [_columns(part) for part in parts], shape), like)
    rows = [p.first_row if hasattr(p.first_row, "dtype") else None for p in parts]
    arrays = *(a for g in graphs for a in (g.indptr, g.indices, g.weights)), *rows
    if not is_concrete(*arrays):
        return _union(jnp, parts, shape)
    numbers = tuple(p[1:] if row is None else p[2:] for p, row in zip(parts, rows, strict=True))
    return _UNIONS.get(arrays, (numbers, shape), lambda: _union(np, parts, shape))


def _columns(part: Shift) -> Shift:
    """The part with presence and weights as columns, from which the masked union is made."""
    if not isinstance(part.graph, MaskedGraph):
        expected = "all masked, if one of them is"
        raise bad_input("RelationalGraph", "graphs", expected, type(part.graph).__name__)
    return part._replace(graph=part.graph.columns())


def _union_on_device(parts: Sequence[Shift], shape: tuple[int, int]) -> LocalUnion:
    """The union of the own rows of several relations, whose senders are places in tables."""
    for part in parts:
        if not isinstance(part.graph, LocalGraph):
            expected = "all spread over devices, if one of them is"
            raise bad_input("RelationalGraph", "graphs", expected, type(part.graph).__name__)
    halo, begins = joined_halo([(part.graph, part.first_column) for part in parts])
    moved = [p._replace(first_column=at) for p, at in zip(parts, begins, strict=True)]
    union = _union(jnp, moved, (shape[0], halo.table_rows))
    return LocalUnion(
        indptr=union.indptr,
        indices=union.indices,
        weights=union.weights,
        num_cols=shape[1],
        in_range=True,
        halo=halo,
        is_of_squares=all(part.graph.is_square for part in parts),
    )


def _union(xp: Any, parts: Sequence[Shift], shape: tuple[int, int]) -> CSRGraph:
    senders, receivers, weights, real = [], [], [], []
    dtypes: list[Any] = [p.graph.weights.dtype for p in parts if p.graph.weights is not None]
    for graph, first_row, factor, first_column in parts:
        if xp is np:
            graph.concrete_parts()  # This checks the structure.
        rows = (row_ids_on_host if xp is np else row_ids)(graph.indptr, graph.num_edges)
        real.append(rows < graph.num_rows)
        if hasattr(first_row, "dtype"):
            real[-1] &= (first_row >= 0) & (first_row < factor)
        receivers.append(rows * factor + xp.asarray(first_row))
        senders.append(xp.asarray(graph.indices) + first_column)
        if dtypes:
            original: Any = graph.weights
            ones = xp.ones(graph.num_edges, dtypes[0])
            weights.append(ones if original is None else xp.asarray(original))
    mask = xp.concatenate(real)
    return CSRGraph.from_edges(
        xp.concatenate(senders),
        xp.concatenate(receivers),
        shape[0],
        xp.concatenate(weights) if weights else None,
        num_senders=shape[1],
        edge_mask=None if xp is np and mask.all() else mask,
    )


def _check(where: str, argument: str, graph: Any) -> None:
    """Raises ValueError unless ``graph`` is a graph that may be stacked."""
    require_graph(where, argument, graph)
    if graph.is_normalized:
        expected = "not normalised yet, since degrees are those of a relation"
        raise bad_input(where, argument, expected, repr(graph.normalization))
    require_no_heads(where, argument, graph.weights)


def _check_types(where: str, types: Int[np.ndarray, " edges"] | Array, num_relations: int) -> None:
    outside = np.flatnonzero((types < 0) | (types >= num_relations))
    if len(outside):
        got = f"{types[outside[0]]} in slot {outside[0]}"
        raise bad_input(where, "edge_types", f"in [0, {num_relations})", got)
