"""CSRGraph: a sparse adjacency in compressed rows, as a pytree."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import scipy.sparse
from jaxtyping import Array, Float, Int, PyTree

from jaxgnn._errors import bad_input
from jaxgnn.graph._arrays import (
    KeepsArrays,
    ids_in_range,
    is_concrete,
    kept,
    of_one,
    offset_dtype,
    own,
    put_own,
    require_floats,
    require_length,
    require_one,
    shown,
    take,
)
from jaxgnn.graph._edge_data import (
    keep_order,
    known_order,
    ordered_edge_data,
    reordered,
)
from jaxgnn.graph._edge_list import (
    EdgeList,
    EdgeNames,
    as_array,
    as_arrays,
    check_edge_list,
    rows_of_edge_index,
)
from jaxgnn.graph._gcn import gcn_coefficients
from jaxgnn.graph._interchange import (
    NetworkXAttributes,
    attribute_data,
    networkx_edges,
    scipy_parts,
    to_scipy,
)
from jaxgnn.graph._normalization import Edges, Normalization, degree_scales, normalized_weights
from jaxgnn.graph._plan import GraphPlan, make_plan, make_traced_plan
from jaxgnn.graph._row_sums import sum_rows
from jaxgnn.graph._sorting import row_ids, row_ids_on_host, sort_edges
from jaxgnn.graph._validate import validate_graph, validate_structure

if TYPE_CHECKING:
    from jaxgnn.graph._batch import GraphBatch
    from jaxgnn.graph._batch_shape import PadTo


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class CSRGraph(KeepsArrays):
    """A sparse adjacency in compressed sparse rows: ``y_i = r_i Σ_j w_ij c_j x_j``.

    Row ``i`` is the receiver, ``indices[indptr[i]:indptr[i + 1]]`` are its senders. Repeated
    edges are allowed and count as often as they occur. Slots of ``indices`` after ``indptr[-1]``
    are padding and never read, so graphs of different edge counts can share one shape and one
    compilation.

    An unweighted graph has ``weights=None`` and no weight array is read from memory. The scales
    hold a degree normalisation that the kernels apply (``normalized``); they are constants of
    the structure, and no gradient flows to them.

    The constructors (``from_edges``, ``from_edge_index``, ``from_scipy``, ``from_networkx``,
    ``from_graphs_tuple``) sort the edges and, on concrete input, also make the ``plan``. A graph
    built directly gets its plan on demand: once if concrete, inside every step if traced.

    Attributes:
      indptr: row offsets, int32 (int64 beyond 2^31 - 1 edges).
      indices: sender of each edge, int32 [edges].
      weights: edge weights, or None for ones.
      num_cols: number of senders; defaults to the number of rows.
      row_scale: ``r_i``, float32 (float64 under ``jax.enable_x64``), or None for ones.
      col_scale: ``c_j``, float32 (float64 under ``jax.enable_x64``), or None for ones.
      plan: transpose and work schedules, or None.
      normalization: kind of normalisation that ``normalized`` has applied, or None.
    """

    indptr: Int[Array, " rows+1"]
    indices: Int[Array, " edges"]
    weights: Float[Array, " edges"] | None = None
    num_cols: int = dataclasses.field(default=cast(int, None), metadata={"static": True})
    row_scale: Float[Array, " rows"] | None = None
    col_scale: Float[Array, " cols"] | None = None
    plan: GraphPlan | None = None
    normalization: Normalization | None = dataclasses.field(default=None, metadata={"static": True})

    def __post_init__(self):
        super().__post_init__()
        if self.num_cols is None:
            object.__setattr__(self, "num_cols", self.indptr.shape[-1] - 1)

    def __repr__(self) -> str:
        """Shows shapes instead of arrays, and only whether there is a plan."""
        names = ("indptr", "indices", "weights", "row_scale", "col_scale")
        arrays = ", ".join(f"{name}={shown(getattr(self, name))}" for name in names)
        plan = "None" if self.plan is None else "..."
        rest = f"num_cols={self.num_cols}, normalization={self.normalization!r}, plan={plan}"
        return f"CSRGraph({arrays}, {rest})"

    # -- constructors ------------------------------------------------------------------------

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

        On concrete input the result is validated and has its plan, also under ``jit``. Traced edges
        are sorted by XLA, and only shapes and dtypes are checked: edges with a node out of range
        become padding.

        Args:
          senders: node that each edge leaves, integers [edges].
          receivers: node that each edge enters, the row, integers [edges].
          num_nodes: number of receivers, and of senders unless ``num_senders`` says otherwise.
          weights: edge weights; None for an unweighted graph.
          num_senders: number of senders of a bipartite graph.
          edge_mask: [edges] bool, False for padding edges, which are moved after ``indptr[-1]``;
            None for no padding.
          edge_data: a pytree of arrays [edges, ...] in the order of ``senders`` and ``receivers``,
            such as features of the edges. With it the graph knows its ``edge_order``, so ``()``
            asks for this alone.

        Returns:
          The graph; or, if ``edge_data`` is given, the graph and this tree in the order of the
          graph's edge slots, as JAX arrays. Data of padding edges are last.

        Raises:
          ValueError: on indices out of range, NaN weights, mismatched lengths or wrong dtypes; of
            ``edge_data`` the message names the path of the leaf.

        Example:
          >>> lengths = np.array([20.0, 0.5, 1.0])
          >>> graph, lengths = CSRGraph.from_edges([2, 0, 1], [1, 0, 1], 3, edge_data=lengths)
          >>> graph.senders.tolist(), graph.receivers().tolist(), lengths.tolist()
          ([0, 2, 1], [0, 1, 1], [0.5, 20.0, 1.0])
          >>> graph.edge_order.tolist()
          [1, 0, 2]
        """
        names = EdgeNames()
        edges = EdgeList(senders, receivers, weights, edge_mask)
        graph, order = cls._sorted(names, edges, num_nodes, num_senders)
        if edge_data is None:
            return graph
        return keep_order(graph, order), ordered_edge_data(names, edge_data, order)

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
        """Builds a graph from an ``edge_index`` as PyTorch Geometric has it.

        Args:
          edge_index: integers [2, edges]: in row 0 the node that each edge leaves, in row 1 the
            node that it enters, which is the row of the graph. Whatever numpy can read, a tensor
            of PyTorch on the CPU too.
          num_nodes: number of nodes, ``data.num_nodes`` in PyTorch Geometric.
          weights: edge weights; None for an unweighted graph.
          num_senders: number of senders of a bipartite graph.
          edge_mask: [edges] bool, False for padding edges; None for no padding.
          edge_data: a pytree of arrays [edges, ...] in the order of ``edge_index``, such as
            ``data.edge_attr.numpy()``.

        Returns:
          The graph; or, if ``edge_data`` is given, the graph and this tree in the order of the
          graph's edge slots.

        Raises:
          ValueError: if ``edge_index`` has another shape, such as [edges, 2], or no integer dtype;
            and where ``from_edges`` does.
        """
        names = EdgeNames("CSRGraph.from_edge_index", "edge_index[0]", "edge_index[1]")
        senders, receivers = rows_of_edge_index(names.where, edge_index)
        edges = EdgeList(senders, receivers, weights, edge_mask)
        graph, order = cls._sorted(names, edges, num_nodes, num_senders)
        if edge_data is None:
            return graph
        return keep_order(graph, order), ordered_edge_data(names, edge_data, order)

    @classmethod
    def _sorted(
        cls, names: EdgeNames, edges: EdgeList, num_nodes: int, num_senders: int | None = None
    ) -> tuple[CSRGraph, Any]:
        """Makes the graph of an edge list, and the input position of each of its edge slots.

        The positions are in numpy if the list is concrete, and traced otherwise.
        """
        edges = as_arrays(edges)
        num_cols = num_nodes if num_senders is None else num_senders
        check_edge_list(names, edges, num_nodes, num_cols)
        if not is_concrete(*edges):
            # A traced program may read the other arrays later, when it runs.
            edges = EdgeList(*map(kept, edges))
        senders, receivers, weights, edge_mask = edges
        if not is_concrete(senders, receivers):
            exists = ids_in_range(senders, num_cols) & ids_in_range(receivers, num_nodes)
            edge_mask = exists if edge_mask is None else edge_mask & exists
        indptr, order = sort_edges(receivers, num_nodes, edge_mask)
        permutation = order
        if is_concrete(receivers, edge_mask):
            order = own(np.asarray(order))
            indptr, permutation = put_own(np.asarray(indptr)), put_own(order)
        ids = np.asarray(senders, np.int32) if is_concrete(senders) else senders.astype(np.int32)
        graph = cls(
            indptr=indptr,
            indices=take(ids, permutation),
            weights=None if weights is None else take(weights, permutation),
            num_cols=num_cols,
        )
        if is_concrete(*jax.tree.leaves(graph)):
            graph.validate()
        # Weights may be traced even if the structure is concrete.
        is_host = is_concrete(graph.indptr, graph.indices)
        return graph.prepared() if is_host else graph, order

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
        graph = cls(
            indptr=put_own(csr.indptr.astype(offset_dtype(csr.nnz))),
            indices=put_own(csr.indices.astype(np.int32)),
            weights=None if values is None else put_own(values),
            num_cols=csr.shape[1],
        )
        return graph.validate().prepared()

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
        Parallel edges of a multigraph stay apart. ``edge_order`` says for each edge slot its
        position in ``list(graph.edges)``, so it names an undirected edge twice.

        Args:
          graph: a ``networkx.Graph``, ``DiGraph``, ``MultiGraph`` or ``MultiDiGraph``, or another
            object with ``nodes(data=)``, ``edges(data=)`` and ``is_directed()``. networkx itself
            is not imported.
          weight: edge attribute that holds the weights, or None for an unweighted graph. Edges
            without it have the weight one, as in networkx. If no edge has an attribute
            ``"weight"``, the graph is unweighted.
          node_attributes: names of attributes that every node has, to return.
          edge_attributes: names of attributes that every edge has, to return.

        Returns:
          The graph and the list of its nodes in the order of the rows: node ``nodes[i]`` is row
          ``i``. If attributes were asked for, also ``NetworkXAttributes``: the dictionaries
          ``nodes`` of arrays [rows, ...], and ``edges`` of arrays [edges, ...] in the order of the
          edge slots.

        Raises:
          ValueError: if ``graph`` is something else, no edge has a ``weight`` of another name than
            ``"weight"``, or an attribute is missing, no number, or of differing shapes.
        """
        names = EdgeNames("CSRGraph.from_networkx", "graph.edges", "graph.edges")
        listed = networkx_edges(graph, weight)
        edges = EdgeList(listed.senders, listed.receivers, listed.weights)
        made, order = cls._sorted(names, edges, len(listed.nodes))
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
          padded: True if the tuple went through ``jraph.pad_with_graphs``. The edges of the padding
            graphs are then dropped; otherwise they stay, between padding nodes.
          return_edges: whether to return ``graphs.edges`` too.

        Returns:
          The graph; or with ``return_edges`` the graph and ``graphs.edges`` in the order of the
          graph's edge slots, where those of padding edges are last. The graph then knows its
          ``edge_order``.

        Raises:
          ValueError: if the tuple lacks senders or receivers, is said to be padded but has fewer
            than two graphs, or has invalid indices, lengths, dtypes or weights.
        """
        from jaxgnn.graph._jraph import edge_list

        senders, receivers, num_nodes, edge_mask = edge_list(graphs, padded=padded)
        edges = EdgeList(senders, receivers, weights, edge_mask)
        graph, order = cls._sorted(EdgeNames(), edges, num_nodes)
        if not return_edges:
            return graph
        names = EdgeNames("CSRGraph.from_graphs_tuple", edge_data="graphs.edges")
        return keep_order(graph, order), ordered_edge_data(names, graphs.edges, order)

    # -- exports -----------------------------------------------------------------------------

    @of_one
    def to_scipy(self) -> scipy.sparse.csr_array:
        """Returns the matrix that the graph multiplies features by, as a scipy CSR array.

        ``graph.to_scipy() @ x`` is ``spmm(graph, x)``: row ``i`` is the receiver, and an entry is
        ``r_i w_ij c_j``, so a normalisation is multiplied in. Padding is left out. Repeated edges
        stay repeated entries, which scipy adds up where it multiplies. Entries are float32, or
        float64 if the weights or scales are.

        Raises:
          ValueError: if the graph is traced, or has invalid offsets or senders.

        Example:
          >>> graph = CSRGraph.from_edges([0, 1], [1, 1], 2).normalized("mean")
          >>> graph.to_scipy().toarray().tolist()
          [[0.0, 0.0], [0.5, 0.5]]
        """
        if not is_concrete(*jax.tree.leaves(self)):
            expected = "concrete; call it outside jit"
            raise bad_input("CSRGraph.to_scipy", "self", expected, "a tracer")
        validate_structure(self)
        return to_scipy(self)

    @of_one
    def to_graphs_tuple(
        self,
        nodes: PyTree = None,
        edges: PyTree = None,
        globals: PyTree = None,
        *,
        padded: bool = False,
    ) -> Any:
        """Returns a jraph ``GraphsTuple`` of one graph, whose edges are in the order of the slots.

        Weights and scales are not part of a ``GraphsTuple``; pass ``edges=graph.weights`` to take
        the weights along.

        Args:
          nodes: a pytree of arrays [rows, ...], or None.
          edges: a pytree of arrays [edge slots, ...] in the graph's order, or None.
          globals: a pytree of arrays [1, ...], or None.
          padded: False leaves padding slots out, with their ``edges``; their number has to be
            known, so the graph must be concrete. True, which works under ``jit`` too, appends a
            second graph, as ``jraph.pad_with_graphs`` does: it has one node, all padding slots as
            its edges, and zeros for its node and globals.

        Returns:
          The tuple. ``from_graphs_tuple(made, padded=padded)`` gives the edges of this graph back;
          with ``padded`` there is one more node.

        Raises:
          ValueError: if the graph is not square, if it is traced without ``padded``, or if a leaf
            has another leading axis; the message names its path.
        """
        from jaxgnn.graph._jraph import graphs_tuple

        return graphs_tuple(self, nodes, edges, globals, padded=padded)

    @classmethod
    def batch(cls, graphs: Sequence[Any], pad_to: PadTo = None) -> GraphBatch:
        """Puts many graphs into one batch of a fixed shape; see ``GraphBatch.from_graphs``."""
        from jaxgnn.graph._batch import GraphBatch

        return GraphBatch.from_graphs(graphs, pad_to)

    # -- shape -------------------------------------------------------------------------------

    @property
    def num_rows(self) -> int:
        """The number of receivers."""
        return self.indptr.shape[-1] - 1

    @property
    def num_edges(self) -> int:
        """Number of edge slots, including padding."""
        return self.indices.shape[-1]

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the adjacency, ``(num_rows, num_cols)``."""
        return self.num_rows, self.num_cols

    @property
    def is_normalized(self) -> bool:
        """Whether the graph is normalised already, by scales or in the weights."""
        has_scales = self.row_scale is not None or self.col_scale is not None
        return has_scales or self.normalization is not None

    @of_one
    def degrees(self) -> Int[Array, " rows"]:
        """Number of edges that enter each row."""
        return self.indptr[1:] - self.indptr[:-1]

    @of_one
    def uniform_degrees(self) -> tuple[int | None, int | None]:
        """Returns the common degree of all rows, and of all columns, as far as the host knows them.

        A degree is None where degrees differ, and for a graph that is traced, or has padding slots
        or no edge. The number is static: with it, the sum over the edges of a row is a sum over an
        axis.

        Example:
          >>> CSRGraph.from_edges([0, 1, 0, 2], [0, 0, 1, 1], 2, num_senders=3).uniform_degrees()
          (2, None)
        """
        known = self.__dict__.get("_uniform_degrees")
        if known is None:
            if not is_concrete(self.indptr, self.indices):
                return None, None
            offsets = self.indptr, self._plan().transposed_indptr
            rows, columns = (_uniform_degree(o, self.num_edges) for o in offsets)
            known = self.__dict__["_uniform_degrees"] = rows, columns
        return known

    @of_one
    def with_known_degrees(self, degrees: tuple[int | None, int | None]) -> CSRGraph:
        """Returns the same, possibly traced, graph with ``uniform_degrees`` known to the caller."""
        graph = self._with_fields()
        graph.__dict__["_uniform_degrees"] = degrees
        return graph

    @property
    def senders(self) -> Int[Array, " edges"]:
        """Sender of each edge slot: ``indices`` by another name."""
        return self.indices

    @of_one
    def receivers(self) -> Int[Array, " edges"]:
        """Row of each edge; padding slots get ``num_rows``, which is out of range."""
        return row_ids(self.indptr, self.num_edges)

    @property
    def edge_order(self) -> Int[Array, " edges"] | np.ndarray:
        """Position in the input of each edge slot, int32 [edges] (int64 beyond 2^31 - 1 edges).

        ``features[graph.edge_order]`` brings edge features from input order into the graph's. A
        loop that ``with_self_loops`` has added has no position in the input, and -1 here. Padding
        edges are last. The order is an array of numpy, or traced inside of ``jit``.

        Four bytes an edge are kept only on request: by ``from_edges`` and ``from_edge_index`` with
        ``edge_data``, by ``from_graphs_tuple`` with ``return_edges``, and by ``from_networkx``.
        ``with_weights``, ``normalized``, ``prepared``, ``with_self_loops`` and ``transpose`` keep
        it. A pytree has no place for it, so graphs that were passed to or returned by ``jit``,
        ``jax.tree.map`` or a checkpoint do not know it.

        Raises:
          ValueError: if the graph does not know its order.
        """
        require_one("CSRGraph.edge_order", "self", self)
        order = known_order(self)
        if order is None:
            expected = (
                "built with edge_data (() keeps the order alone), and not have passed through jit "
                "or another function of pytrees"
            )
            raise bad_input("CSRGraph.edge_order", "self", expected, "a graph of unknown order")
        return order

    # -- derived graphs ----------------------------------------------------------------------

    @of_one
    def prepared(self) -> CSRGraph:
        """Returns this graph with its plan, made on the host and cached if the graph is concrete.

        Where the default device is a GPU the plan has ``edge_blocks``, with which the backward of
        ``maxk_spmm`` is faster. Making these on the host takes several times as long as the rest of
        the plan, up to 6 s for ten million edges; inside ``jit`` they are made on the device.

        Raises:
          ValueError: if a concrete graph has invalid offsets or senders.
        """
        if self.plan is not None:
            return self
        return self._with_fields(plan=self._plan(edge_blocks=_on_gpu()))

    def _with_fields(self, **fields: Any) -> CSRGraph:
        """Returns the same edges, in the same order, with other values of some fields."""
        return keep_order(dataclasses.replace(self, **fields), known_order(self))

    def _plan(self, *, edge_blocks: bool = False) -> GraphPlan:
        if self.plan is not None:
            return self.plan
        if not is_concrete(self.indptr, self.indices):
            return make_traced_plan(
                self.indptr, self.indices, num_cols=self.num_cols, edge_blocks=edge_blocks
            )
        plan = self.__dict__.get("_host_plan")
        if plan is None:
            validate_structure(self)
            made = make_plan(self.indptr, self.indices, self.num_cols, edge_blocks=_on_gpu())
            plan = jax.tree.map(put_own, made)
            self.__dict__["_host_plan"] = plan
        return plan

    @of_one
    def made_plan(self) -> GraphPlan:
        """Returns the plan, made now if there is none; traced plans have no ``edge_blocks``."""
        return self._plan()

    @of_one
    def transpose(self) -> CSRGraph:
        """Returns the graph with senders and receivers exchanged."""
        plan = self._plan()
        weights = None if self.weights is None else jnp.asarray(self.weights)[plan.permutation]
        transposed = CSRGraph(
            indptr=plan.transposed_indptr,
            indices=plan.transposed_indices,
            weights=weights,
            num_cols=self.num_rows,
            row_scale=self.col_scale,
            col_scale=self.row_scale,
            plan=plan.transposed(self.indptr, self.indices),
            normalization=self.normalization,
        )
        return keep_order(transposed, reordered(known_order(self), plan.permutation))

    @of_one
    def with_weights(self, weights: npt.ArrayLike | None) -> CSRGraph:
        """Returns the same edges with other weights, given in the graph's edge order."""
        if weights is not None:
            where, weights = "CSRGraph.with_weights", as_array(weights)
            require_length(where, "weights", weights, self.num_edges, "per edge slot")
            require_floats(where, "weights", weights)
        # New weights discard a normalisation that was folded into the old ones.
        has_scales = self.row_scale is not None or self.col_scale is not None
        kind = self.normalization if has_scales else None
        return self._with_fields(weights=weights, normalization=kind)

    @of_one
    def normalized(self, kind: Normalization | None) -> CSRGraph:
        """Normalises by degree. Rows (and columns) without edges get scale zero.

        ``"mean"`` is D⁻¹ A. ``"sym"`` is D_r^-½ A D_c^-½ with the degrees of rows and of columns,
        the two being equal on an undirected graph. ``"gcn"`` is D_r^-½ A D_r^-½ with the degrees of
        rows at both ends, as in PyTorch Geometric's ``gcn_norm``; it adds no self loops. An
        unweighted graph stays without weights and carries the scales for the kernels to apply. On a
        weighted graph degrees are sums of weights, and the result is folded into the weights, so
        gradients see it; nonpositive sums count as no edges.

        Raises:
          ValueError: if ``kind`` is unknown, the graph is normalised already, or it is not square
            and ``kind`` is ``"gcn"``.
        """
        if kind is None:
            return self
        if kind not in ("mean", "sym", "gcn"):
            expected = "'mean', 'sym', 'gcn' or None"
            raise bad_input("CSRGraph.normalized", "kind", expected, repr(kind))
        if self.is_normalized:
            raise bad_input(
                "CSRGraph.normalized", "self", "not normalised yet", repr(self.normalization)
            )
        if kind == "gcn":
            made = gcn_coefficients(self, add_self_loops=False)
            graph = self if made.weights is None else self.with_weights(made.weights)
            graph = graph._with_fields(row_scale=made.scale, col_scale=made.scale)
        elif self.weights is None:
            columns = _column_degrees(self) if kind == "sym" else None
            row_scale, col_scale = degree_scales(self.degrees(), columns)
            graph = self._with_fields(row_scale=row_scale, col_scale=col_scale)
        else:
            graph = self.with_weights(self._normalized_weights(kind, self.weights))
        return graph._with_fields(normalization=kind)

    def _normalized_weights(self, kind: Normalization, weights: Any) -> Any:
        """Computes normalised weights, on the host in float64 or traced with few roundings."""
        is_host = is_concrete(self.indptr, self.indices, weights)
        if is_host and self.plan is None:
            validate_structure(self)
        xp: Any = np if is_host else jnp
        rows = (row_ids_on_host if is_host else row_ids)(self.indptr, self.num_edges)
        real = rows < self.num_rows
        columns = xp.where(real, xp.asarray(self.indices), self.num_cols)
        is_wide = is_host or weights.dtype == jnp.float64
        wide = xp.where(real, xp.asarray(weights), 0).astype(np.float64 if is_wide else np.float32)
        if is_host:
            row_sums = np.bincount(rows, wide, self.num_rows)[: self.num_rows]
            column_sums = np.bincount(columns, wide, self.num_cols)[: self.num_cols]
        else:
            row_sums, column_sums = sum_rows(wide, self.indptr), None
            if kind == "sym":
                plan = self.made_plan()
                column_sums = sum_rows(wide[plan.permutation], plan.transposed_indptr)
        made = normalized_weights(kind, Edges(rows, columns, wide), row_sums, column_sums)
        made = made.astype(weights.dtype)
        return put_own(made) if is_host else made

    @of_one
    def with_self_loops(self, weight: float = 1.0, *, duplicates: bool = False) -> CSRGraph:
        """Adds an edge from each node to itself where there is none yet.

        Args:
          weight: weight of each new edge; ignored on an unweighted graph.
          duplicates: whether to add the edge even where the node has a self loop already.

        Raises:
          ValueError: if the graph is not square, or is normalised already.
        """
        if self.num_rows != self.num_cols:
            raise bad_input("CSRGraph.with_self_loops", "self", "square", f"shape {self.shape}")
        if self.is_normalized:
            raise bad_input(
                "CSRGraph.with_self_loops", "self", "not normalised yet", repr(self.normalization)
            )
        is_host = is_concrete(self.indptr, self.indices)
        if is_host and self.plan is None:
            validate_structure(self)
        xp: Any = np if is_host else jnp
        indices = xp.asarray(self.indices)
        receivers = (row_ids_on_host if is_host else row_ids)(self.indptr, self.num_edges)
        nodes = xp.arange(self.num_rows, dtype=np.int32)
        real = receivers < self.num_rows
        missing = xp.ones(self.num_rows, bool)
        if not duplicates:
            missing = _unnamed(
                xp, self.num_rows, xp.where(real & (indices == receivers), indices, self.num_rows)
            )
        mask: Any = xp.concatenate([real, missing])
        senders = xp.concatenate([indices, nodes])
        receivers = xp.concatenate([receivers, nodes])
        weights: Any = None
        if self.weights is not None:
            wp: Any = np if is_concrete(self.weights, weight) else jnp
            new = wp.full(self.num_rows, weight, self.weights.dtype)
            weights = wp.concatenate([wp.asarray(self.weights), new])
        order = known_order(self)
        if order is not None:  # that of the edges, and -1 for each loop
            order = xp.concatenate([order, xp.full(self.num_rows, -1, order.dtype)])
        if is_host:
            there = np.flatnonzero(mask)
            senders, receivers, mask = senders[there], receivers[there], None
            weights = None if weights is None else take(weights, there)
            order = reordered(order, there)
        edges = EdgeList(senders, receivers, weights, mask)
        graph, slots = CSRGraph._sorted(EdgeNames(), edges, self.num_rows)
        return keep_order(graph, reordered(order, slots))

    @of_one
    def validate(self) -> CSRGraph:
        """Checks the values of all arrays on the host; call it outside ``jit``.

        On a validated graph no kernel reads out of bounds.

        Returns:
          Itself.

        Raises:
          ValueError: names the first bad entry: offsets that fall or leave the edge list, a
            sender out of range, a weight or scale that is not a number, a wrong dtype or length.
        """
        validate_graph(self)
        return self


def _on_gpu() -> bool:
    return jax.default_backend() == "gpu"


def _unnamed(xp: Any, count: int, nodes: Any) -> Any:
    """Which nodes are not among ``nodes``, [count] bool; the id ``count`` is no node."""
    if xp is np:
        unnamed = np.ones(count + 1, bool)
        unnamed[nodes] = False
        return unnamed[:count]
    return jnp.ones(count, bool).at[nodes].set(False, mode="drop")


def _uniform_degree(offsets: Int[Array, " rows+1"], num_edges: int) -> int | None:
    degrees = np.diff(np.asarray(offsets))
    if num_edges == 0 or (degrees != degrees[0]).any() or degrees.sum() != num_edges:
        return None
    return int(degrees[0])


def _column_degrees(graph: CSRGraph) -> Int[Array, " cols"]:
    if graph.plan is not None:
        offsets = graph.plan.transposed_indptr
        return offsets[1:] - offsets[:-1]
    real = graph.receivers() < graph.num_rows
    columns = jnp.where(real, graph.indices, graph.num_cols)
    return jnp.zeros(graph.num_cols, jnp.int32).at[columns].add(1, mode="drop")
