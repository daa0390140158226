"""CSRGraph: a sparse adjacency in compressed rows, as a pytree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, overload

import jax
import numpy.typing as npt
import scipy.sparse
from jaxtyping import Array, Int, PyTree

from jaxgnn._arrays.arrays import (
    is_concrete,
    require_weights,
    requires_one,
    shown_sides,
    take,
)
from jaxgnn._errors import bad_input
from jaxgnn.graph.csr import build
from jaxgnn.graph.csr.edge_list import (
    EdgeList,
    EdgeNames,
    as_array,
    keep_order,
    known_order,
    reordered,
    rows_of_edge_index,
)
from jaxgnn.graph.csr.interchange import NetworkXAttributes, to_scipy
from jaxgnn.graph.csr.normalization import normalized_graph
from jaxgnn.graph.csr.rows import CompressedRows, Normalization
from jaxgnn.graph.csr.self_loops import with_self_loops
from jaxgnn.graph.csr.validation import validate_graph
from jaxgnn.graph.plan.built_parts import (
    ALL_PARTS,
    OPS,
    available,
    given_plan,
    makes_plan,
    parts_for,
    parts_of_leaves,
    plan_on_demand,
)
from jaxgnn.graph.plan.plan import Part


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class CSRGraph(CompressedRows):
    """A sparse adjacency in compressed sparse rows: ``y_i = r_i Σ_j w_ij c_j x_j``.

    Row ``i`` is the receiver, ``indices[indptr[i]:indptr[i + 1]]`` are its senders. Repeated
    edges are allowed and count as often as they occur. Slots of ``indices`` after ``indptr[-1]``
    are padding and never read, so graphs of different edge counts can share one shape and one
    compilation.

    An unweighted graph has ``weights=None`` and no weight array is read from memory. The scales
    hold a degree normalisation that the kernels apply (``normalized``); they are constants of
    the structure, and no gradient flows to them.

    The constructors sort the edges. The other arrays that ops need, such as the transpose, are the
    parts of a ``plan``. An op that gets a concrete graph builds the parts that it needs, once,
    outside of the pytree. As a pytree a concrete graph from a constructor includes the parts that
    ``spmm`` and its gradients need, and ``prepared`` adds others. For a traced graph, missing parts
    are computed inside of every step.

    Attributes:
      indptr: row offsets, int32 (int64 beyond 2^31 - 1 edges).
      indices: sender of each edge, int32 [edges].
      weights: edge weights, [edges], or [edges, heads] for ``spmm`` of features with an axis of
        heads; None for ones.
      num_cols: number of senders; defaults to the number of rows.
      row_scale: ``r_i``, float32 (float64 under ``jax.enable_x64``), or None for ones.
      col_scale: ``c_j``, float32 (float64 under ``jax.enable_x64``), or None for ones.
      plan: transpose and work schedules, or None. That of a graph from a constructor is built when
        it is first read.
      normalization: kind of normalisation that ``normalized`` has applied, or None.
      in_range: whether offsets and senders are known to be in range, because the host has checked
        them or a constructor guarantees it. In other traced graphs, ops replace a sender out of
        range by the nearest node, 0 or the last.
    """

    # -- constructors --------------------------------------------------------------------------

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
    @build.takes_both_ends
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
          >>> import numpy as np
          >>> lengths = np.array([20.0, 0.5, 1.0])
          >>> graph, lengths = CSRGraph.from_edges([2, 0, 1], [1, 0, 1], 3, edge_data=lengths)
          >>> graph.senders.tolist(), graph.receivers().tolist(), lengths.tolist()
          ([0, 2, 1], [0, 1, 1], [0.5, 20.0, 1.0])
          >>> graph.edge_order.tolist()
          [1, 0, 2]
        """
        edges = EdgeList(senders, receivers, weights, edge_mask)
        return build.from_edges(cls, EdgeNames(), edges, (num_nodes, num_senders), edge_data)

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
        return build.from_edges(cls, names, edges, (num_nodes, num_senders), edge_data)

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
        return build.from_scipy(cls, matrix, weighted)

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
        return build.from_networkx(cls, graph, weight, node_attributes, edge_attributes)

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
        return build.from_graphs_tuple(cls, graphs, weights, padded, return_edges)

    # -- exports -------------------------------------------------------------------------------

    @requires_one
    def to_scipy(self) -> scipy.sparse.csr_array:
        """Returns the matrix that the graph multiplies features by, as a scipy CSR array.

        ``graph.to_scipy() @ x`` is ``spmm(graph, x)``: an entry is ``r_i w_ij c_j``. Padding is
        dropped. Repeated edges stay repeated entries, which scipy adds up where it multiplies.
        Entries are float32, or float64 if the weights or scales are.

        Raises:
          ValueError: if the graph is traced, has weights for several heads, or invalid offsets or
            senders.

        Example:
          >>> graph = CSRGraph.from_edges([0, 1], [1, 1], 2).normalized("mean")
          >>> graph.to_scipy().toarray().tolist()
          [[0.0, 0.0], [0.5, 0.5]]
        """
        return to_scipy(self)

    @requires_one
    def to_graphs_tuple(
        self,
        nodes: PyTree = None,
        edges: PyTree = None,
        globals: PyTree = None,
        *,
        padded: bool = False,
    ) -> Any:
        """Returns a jraph ``GraphsTuple`` of one graph, whose edges are in the order of the slots.

        Weights and scales are not part of a ``GraphsTuple``; pass ``edges=graph.weights`` to
        include the weights.

        Args:
          nodes: a pytree of arrays [rows, ...], or None.
          edges: a pytree of arrays [edge slots, ...] in the graph's order, or None.
          globals: a pytree of arrays [1, ...], or None.
          padded: False drops padding slots, with their ``edges``; their number has to be
            known, so the graph must be concrete. True, which works under ``jit`` too, appends a
            second graph, as ``jraph.pad_with_graphs`` does: it has one node, all padding slots as
            its edges, and zeros for its node and globals.

        Returns:
          The tuple. ``from_graphs_tuple(made, padded=padded)`` returns the edges of this graph;
          with ``padded`` there is one more node.

        Raises:
          ValueError: if the graph is not square, if it is traced without ``padded``, or if a leaf
            has another leading axis; the message names its path.
        """
        from jaxgnn.graph.csr.jraph import graphs_tuple

        return graphs_tuple(self, nodes, edges, globals, padded=padded)

    batch: ClassVar[Callable[..., Any]]
    """Joins many graphs to a ``GraphBatch``; it is ``GraphBatch.from_graphs``."""

    # -- derived graphs ------------------------------------------------------------------------

    @requires_one
    def prepared(self, *ops: str) -> CSRGraph:
        """Returns this graph with the parts that ops need, built now, as a part of the pytree.

        Call this for graphs that are passed to a jitted function, which cannot keep the parts that
        it computes. The result has more leaves, so such a function compiles once more for it. Parts
        of a concrete graph are built on the host, or on a GPU if there is one and it is large.

        The names are ``"spmm"``, ``"sddmm"``, ``"segment_softmax"``, ``"gat_attention"``,
        ``"gatv2_attention"``, ``"dot_attention"``, ``"maxk_spmm"`` and ``"edge_mlp_aggregate"``.
        Without weights ``"spmm"`` needs the least. On a GPU ``"maxk_spmm"`` needs the edges by
        block, with which its backward pass is faster; they cost up to twice the memory of
        ``indices``.

        Args:
          ops: names of ops of ``jaxgnn.ops``; without any, all parts are built.

        Raises:
          ValueError: if an op is unknown, or a concrete graph has invalid offsets or senders.

        Example:
          >>> graph = CSRGraph.from_edges([0, 1], [1, 0], 2).prepared("sddmm")
          >>> graph.plan
          GraphPlan(permutation, schedule, transpose)
        """
        for op in ops:
            if op not in OPS:
                raise bad_input("CSRGraph.prepared", "ops", f"among {', '.join(OPS)}", repr(op))
        if not ops:
            return self.with_parts(*available(ALL_PARTS))
        weighted = self.weights is not None
        parts = frozenset[Part]().union(*(parts_for(op, weighted=weighted) for op in ops))
        if makes_plan(self):  # It keeps the parts that it has already.
            parts |= parts_of_leaves(weighted=weighted)
        return self.with_parts(*parts)

    @requires_one
    def transpose(self) -> CSRGraph:
        """Returns the graph with senders and receivers exchanged."""
        is_host = is_concrete(self.indptr, self.indices)
        follows = self.weights is not None or known_order(self) is not None
        parts: tuple[Part, ...] = ("schedule", "transpose", "permutation")
        plan = self.made_plan(*parts[: 3 if follows else 2])
        current = given_plan(self)
        transposed = CSRGraph(
            indptr=plan.transposed_indptr,
            indices=plan.transposed_indices,
            weights=None if self.weights is None else take(self.weights, plan.permutation),
            num_cols=self.num_rows,
            row_scale=self.col_scale,
            col_scale=self.row_scale,
            plan=None if is_host else plan.transposed(self.indptr, self.indices),
            normalization=self.normalization,
            in_range=self.in_range,
        )
        if is_host:
            flipped = self.concrete_parts().flipped()
            transposed.__dict__["_parts"] = flipped
            if current is None:
                plan_on_demand(transposed, like=self)
            else:
                always = frozenset[Part](("schedule", "transpose"))
                kept = (current.parts & {"permutation"}) | always
                object.__setattr__(transposed, "plan", flipped.plan(kept))
        return keep_order(transposed, reordered(known_order(self), plan.permutation))

    @requires_one
    def with_weights(self, weights: npt.ArrayLike | None) -> CSRGraph:
        """Returns the same edges with other weights, given in the graph's edge order.

        Args:
          weights: floating [edges], or [edges, heads] for ``spmm`` of features with an axis of
            heads; None for an unweighted graph.

        Raises:
          ValueError: if there is not one entry or row for each edge slot, of a floating dtype.
        """
        if weights is not None:
            where, weights = "CSRGraph.with_weights", as_array(weights)
            require_weights(where, "weights", weights, self.num_edges, "per edge slot")
        elif self.weights is None:
            return self
        # New weights discard a normalisation that was folded into the old ones.
        has_scales = self.row_scale is not None or self.col_scale is not None
        kind = self.normalization if has_scales else None
        return self._with_fields(weights=weights, normalization=kind)

    @requires_one
    def without_weights(self) -> CSRGraph:
        """Returns the edges alone: without weights, scales and normalisation.

        For layers and ops that refuse a graph with weights, such as those of attention.

        Example:
          >>> graph = CSRGraph.from_edges([0, 1], [1, 1], 2, [0.5, 2.0]).normalized("mean")
          >>> bare = graph.without_weights()
          >>> bare.weights, bare.normalization
          (None, None)
        """
        return self._with_fields(weights=None, row_scale=None, col_scale=None, normalization=None)

    @requires_one
    def normalized(self, kind: Normalization | None) -> CSRGraph:
        """Normalises by degree. Rows (and columns) without edges get scale zero.

        ``"mean"`` is D⁻¹ A. ``"sym"`` is D_r^-½ A D_c^-½ with the degrees of rows and of columns,
        which are equal on an undirected graph. ``"gcn"`` is D_r^-½ A D_r^-½ with the degrees of
        rows at both ends, as in PyTorch Geometric's ``gcn_norm``; it adds no self loops. An
        unweighted graph stays without weights and carries the scales for the kernels to apply. On a
        weighted graph degrees are sums of weights, and the result is folded into the weights, so
        gradients flow through it; nonpositive sums count as no edges.

        Raises:
          ValueError: if ``kind`` is unknown, the graph is normalised already or has weights for
            several heads, or it is not square and ``kind`` is ``"gcn"``.
        """
        return normalized_graph(self, kind)

    @requires_one
    def with_self_loops(
        self,
        weight: float = 1.0,
        *,
        duplicates: bool = False,
        num_real_nodes: int | Int[Array, ""] | None = None,
    ) -> CSRGraph:
        """Adds an edge from each node to itself unless there is one already.

        A graph without padding gets one slot for each loop. A graph with padding, or a traced one,
        gets one slot for each node, whatever its values are, so that graphs of one shape give
        graphs of one shape.

        Args:
          weight: weight of each new edge; ignored on an unweighted graph.
          duplicates: whether to add the edge even if the node has a self loop already.
          num_real_nodes: number of nodes that are no padding, which come first; padding nodes get
            no loop. For a ``GraphBatch``, ``batch.node_mask.sum()``. None for all.

        Raises:
          ValueError: if the graph is not square, or is normalised already; or if ``num_real_nodes``
            is no integer from 0 up to the number of nodes.
        """
        if not self.is_square:
            raise bad_input("CSRGraph.with_self_loops", "self", "square", shown_sides(self))
        if self.is_normalized:
            raise bad_input(
                "CSRGraph.with_self_loops", "self", "not normalised yet", repr(self.normalization)
            )
        if is_concrete(self.indptr, self.indices):
            self.concrete_parts()  # This checks the structure.
        return self._with_loops(weight, duplicates, num_real_nodes)

    def _with_loops(self, weight: float, duplicates: bool, num_real_nodes: Any) -> CSRGraph:
        """Implements ``with_self_loops``, after its checks."""
        return with_self_loops(self, weight, duplicates=duplicates, num_real_nodes=num_real_nodes)

    @requires_one
    def validate(self) -> CSRGraph:
        """Checks the values of all arrays on the host, and returns itself; call it outside ``jit``.

        On a validated graph no kernel reads out of bounds.

        Raises:
          ValueError: names the first bad entry: offsets that fall or leave the edge list, a
            sender out of range, a weight or scale that is not a number, a wrong dtype or length.
        """
        validate_graph(self)
        object.__setattr__(self, "in_range", True)
        return self
