"""The constructors of ``CSRGraph``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np
import numpy.typing as npt
from jaxtyping import PyTree

from jaxgnn._arrays.arrays import offset_dtype, own, put_own
from jaxgnn.graph.csr.edge_list import (
    EdgeList,
    EdgeNames,
    keep_order,
    ordered_edge_data,
    rows_of_edge_index,
    sorted_graph,
)
from jaxgnn.graph.csr.interchange import (
    NetworkXAttributes,
    attribute_data,
    networkx_edges,
    scipy_parts,
)
from jaxgnn.graph.plan.parts import plan_on_demand

if TYPE_CHECKING:
    from jaxgnn.graph.csr.csr_graph import CSRGraph


def _takes_both_ends[F: Callable[..., Any]](function: F) -> F:
    """Decorates ``from_edges``: an error about missing arguments names ``from_edge_index``."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: Any, **options: Any) -> Any:
        try:
            signature.bind(*args, **options)
        except TypeError as error:
            call = "CSRGraph.from_edge_index(edge_index, num_nodes)"
            is_other = "edge_index" in options or "missing" in str(error)
            advice = f"; for an edge_index [2, edges] call {call}" if is_other else ""
            raise TypeError(f"CSRGraph.from_edges: {error}{advice}") from None
        return function(*args, **options)

    return cast(F, checked)


class GraphConstructors:
    """The constructors of ``CSRGraph``, which inherits them."""

    @overload
    @classmethod
    def from_edges(
        cls,
        senders: npt.ArrayLike,
        receivers: npt.ArrayLike,
        num_nodes: int,
        weights: npt.ArrayLike | None = None,
        *,
        num_senders: int | None = None,
        edge_mask: npt.ArrayLike | None = None,
        edge_data: None = None,
    ) -> CSRGraph: ...

    @overload
    @classmethod
    def from_edges[Data: PyTree](
        cls,
        senders: npt.ArrayLike,
        receivers: npt.ArrayLike,
        num_nodes: int,
        weights: npt.ArrayLike | None = None,
        *,
        num_senders: int | None = None,
        edge_mask: npt.ArrayLike | None = None,
        edge_data: Data,
    ) -> tuple[CSRGraph, Data]: ...

    @classmethod
    @_takes_both_ends
    def from_edges(
        cls,
        senders: npt.ArrayLike,
        receivers: npt.ArrayLike,
        num_nodes: int,
        weights: npt.ArrayLike | None = None,
        *,
        num_senders: int | None = None,
        edge_mask: npt.ArrayLike | None = None,
        edge_data: PyTree = None,
    ) -> Any:
        """Builds a graph from an edge list; edges of one receiver keep their order.

        Concrete edges are checked and sorted on the host, also under ``jit``. If arrays are placed
        on a GPU, it sorts lists of a million edges and more. Traced edges are sorted by XLA, and
        only shapes and dtypes are checked: edges with a node out of range become padding.

        Args:
          senders: node that each edge leaves, integers [edges].
          receivers: node that each edge enters, the row, integers [edges].
          num_nodes: number of receivers, and of senders unless ``num_senders`` says otherwise.
          weights: edge weights, [edges] or [edges, heads]; None for an unweighted graph.
          num_senders: number of senders of a bipartite graph.
          edge_mask: [edges] bool, False for padding edges, which are moved after ``indptr[-1]``;
            None for no padding.
          edge_data: a pytree of arrays [edges, ...] in the order of ``senders`` and ``receivers``,
            such as features of the edges. With it the graph keeps its ``edge_order``; pass ``()``
            to keep only this.

        Returns:
          The graph; or, if ``edge_data`` is given, the graph and this tree in the order of the
          graph's edge slots, as JAX arrays. Data of padding edges are last.

        Raises:
          ValueError: on indices out of range, NaN weights, mismatched lengths or wrong dtypes; for
            ``edge_data`` the message names the path of the leaf.

        Example:
          >>> from jaxgnn.graph import CSRGraph
          >>> lengths = np.array([20.0, 0.5, 1.0])
          >>> graph, lengths = CSRGraph.from_edges([2, 0, 1], [1, 0, 1], 3, edge_data=lengths)
          >>> graph.senders.tolist(), graph.receivers().tolist(), lengths.tolist()
          ([0, 2, 1], [0, 1, 1], [0.5, 20.0, 1.0])
          >>> graph.edge_order.tolist()
          [1, 0, 2]
        """
        names = EdgeNames()
        edges = EdgeList(senders, receivers, weights, edge_mask)
        return _with_edge_data(cls, names, edges, (num_nodes, num_senders), edge_data)

    @overload
    @classmethod
    def from_edge_index(
        cls,
        edge_index: npt.ArrayLike,
        num_nodes: int,
        weights: npt.ArrayLike | None = None,
        *,
        num_senders: int | None = None,
        edge_mask: npt.ArrayLike | None = None,
        edge_data: None = None,
    ) -> CSRGraph: ...

    @overload
    @classmethod
    def from_edge_index[Data: PyTree](
        cls,
        edge_index: npt.ArrayLike,
        num_nodes: int,
        weights: npt.ArrayLike | None = None,
        *,
        num_senders: int | None = None,
        edge_mask: npt.ArrayLike | None = None,
        edge_data: Data,
    ) -> tuple[CSRGraph, Data]: ...

    @classmethod
    def from_edge_index(
        cls,
        edge_index: npt.ArrayLike,
        num_nodes: int,
        weights: npt.ArrayLike | None = None,
        *,
        num_senders: int | None = None,
        edge_mask: npt.ArrayLike | None = None,
        edge_data: PyTree = None,
    ) -> Any:
        """Builds a graph from an ``edge_index`` as in PyTorch Geometric.

        Args:
          edge_index: integers [2, edges]: in row 0 the node that each edge leaves, in row 1 the
            node that it enters, which is the row of the graph. Any array that numpy can read,
            including a tensor of PyTorch on the CPU.
          num_nodes: number of nodes, ``data.num_nodes`` in PyTorch Geometric.
          weights: edge weights; None for an unweighted graph.
          num_senders: number of senders of a bipartite graph.
          edge_mask: [edges] bool, False for padding edges.
          edge_data: a pytree of arrays [edges, ...], such as ``data.edge_attr.numpy()``.

        Returns:
          The graph, and ``edge_data`` if given, as ``from_edges`` returns them.

        Raises:
          ValueError: if ``edge_index`` has another shape, such as [edges, 2], or no integer dtype;
            and where ``from_edges`` does.
        """
        names = EdgeNames("CSRGraph.from_edge_index", "edge_index[0]", "edge_index[1]")
        senders, receivers = rows_of_edge_index(names.where, edge_index)
        edges = EdgeList(senders, receivers, weights, edge_mask)
        return _with_edge_data(cls, names, edges, (num_nodes, num_senders), edge_data)

    @classmethod
    def from_scipy(cls, matrix: Any, *, weighted: bool | None = None) -> CSRGraph:
        """Builds a graph from a scipy.sparse matrix or array: row i receives from column j.

        Args:
          matrix: any scipy.sparse format, boolean, integer or floating. Stored zeros count as
            edges. Repeated entries of a CSR or CSC matrix are repeated edges; of a COO matrix
            scipy adds them up.
          weighted: keep the stored values as weights. None keeps them unless they are all one.

        Raises:
          ValueError: if ``matrix`` is not two-dimensional, sparse and real, or holds a NaN.
        """
        csr, values = scipy_parts(matrix, weighted)
        made: Any = cls
        graph = made(
            indptr=put_own(csr.indptr.astype(offset_dtype(csr.nnz))),
            indices=put_own(csr.indices.astype(np.int32)),
            weights=None if values is None else put_own(values),
            num_cols=csr.shape[1],
        )
        return plan_on_demand(graph.validate())

    @overload
    @classmethod
    def from_networkx(
        cls, graph: Any, *, weight: str | None = "weight"
    ) -> tuple[CSRGraph, list[Any]]: ...

    @overload
    @classmethod
    def from_networkx(
        cls,
        graph: Any,
        *,
        weight: str | None = "weight",
        node_attributes: Sequence[str] = (),
        edge_attributes: Sequence[str] = (),
    ) -> tuple[CSRGraph, list[Any], NetworkXAttributes]: ...

    @classmethod
    def from_networkx(
        cls,
        graph: Any,
        *,
        weight: str | None = "weight",
        node_attributes: Sequence[str] | None = None,
        edge_attributes: Sequence[str] | None = None,
    ) -> Any:
        """Builds a graph from a graph of networkx, whose nodes may be strings or any objects.

        An edge ``(u, v)`` of a directed graph goes from ``u`` to ``v``, so ``v`` is the row. An
        undirected edge becomes two edges, one in each direction, and an undirected self loop one.
        Parallel edges of a multigraph stay separate. ``edge_order`` has for each edge slot its
        position in ``list(graph.edges)``, so an undirected edge occurs twice.

        Args:
          graph: a graph of networkx of any class, or another object with ``nodes(data=)``,
            ``edges(data=)`` and ``is_directed()``. networkx itself is not imported.
          weight: edge attribute that holds the weights, or None for an unweighted graph. Edges
            without it have the weight one, as in networkx. If no edge has an attribute
            ``"weight"``, the graph is unweighted.
          node_attributes: names of attributes to return, which every node must have.
          edge_attributes: names of attributes to return, which every edge must have.

        Returns:
          The graph, and the list of its nodes in the order of the rows. If attributes are
          requested, also ``NetworkXAttributes``.

        Raises:
          ValueError: if ``graph`` is something else, no edge has a ``weight`` of another name than
            ``"weight"``, or an attribute is missing, no number, or of differing shapes.
        """
        names = EdgeNames("CSRGraph.from_networkx", "graph.edges", "graph.edges")
        listed = networkx_edges(graph, weight)
        edges = EdgeList(listed.senders, listed.receivers, listed.weights)
        made, order = sorted_graph(cls, names, edges, len(listed.nodes), with_order=True)
        made = keep_order(made, own(listed.positions[order]))
        if node_attributes is None and edge_attributes is None:
            return made, listed.nodes
        wanted = node_attributes or (), edge_attributes or ()
        data = attribute_data(listed, *wanted, listed.positions[order])
        return made, listed.nodes, data

    @overload
    @classmethod
    def from_graphs_tuple(
        cls,
        graphs: Any,
        weights: npt.ArrayLike | None = None,
        *,
        padded: bool = False,
        return_edges: Literal[False] = False,
    ) -> CSRGraph: ...

    @overload
    @classmethod
    def from_graphs_tuple(
        cls,
        graphs: Any,
        weights: npt.ArrayLike | None = None,
        *,
        padded: bool = False,
        return_edges: Literal[True],
    ) -> tuple[CSRGraph, PyTree]: ...

    @classmethod
    def from_graphs_tuple(
        cls,
        graphs: Any,
        weights: npt.ArrayLike | None = None,
        *,
        padded: bool = False,
        return_edges: bool = False,
    ) -> Any:
        """Builds a graph from a jraph ``GraphsTuple``, batched or not. Works under ``jit``.

        Args:
          graphs: the tuple; node ids are numbered through the batch, so its graphs stay separate.
          weights: edge weights in the tuple's edge order; None for an unweighted graph.
          padded: True if it was padded by ``jraph.pad_with_graphs``. The edges of the padding
            graphs are then dropped; otherwise they stay, between padding nodes.
          return_edges: whether to return ``graphs.edges`` too.

        Returns:
          The graph; or with ``return_edges`` the graph and ``graphs.edges`` in the order of the
          graph's edge slots, where those of padding edges are last. The graph then keeps its
          ``edge_order``.

        Raises:
          ValueError: if the tuple lacks senders or receivers, ``padded`` is True but it has fewer
            than two graphs, or has invalid indices, lengths, dtypes or weights.
        """
        from jaxgnn.graph.csr.jraph import edge_list

        senders, receivers, num_nodes, edge_mask = edge_list(graphs, padded=padded)
        edges = EdgeList(senders, receivers, weights, edge_mask)
        graph, order = sorted_graph(cls, EdgeNames(), edges, num_nodes, with_order=return_edges)
        if not return_edges:
            return graph
        names = EdgeNames("CSRGraph.from_graphs_tuple", edge_data="graphs.edges")
        return keep_order(graph, order), ordered_edge_data(names, graphs.edges, order)


# Python's errors about missing and unknown arguments have these names.
for _name, _method in vars(GraphConstructors).items():
    if isinstance(_method, classmethod):
        _method.__func__.__qualname__ = f"CSRGraph.{_name}"


def _with_edge_data(
    cls: Any, names: EdgeNames, edges: EdgeList, sizes: tuple[int, int | None], edge_data: PyTree
) -> Any:
    """The graph of an edge list; and if there are any, the data of the edges in its order."""
    is_wanted = edge_data is not None
    graph, order = sorted_graph(cls, names, edges, *sizes, with_order=is_wanted)
    if not is_wanted:
        return graph
    return keep_order(graph, order), ordered_edge_data(names, edge_data, order)
