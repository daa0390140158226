"""CSRGraph: a sparse adjacency in compressed rows, as a pytree."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import scipy.sparse
from jaxtyping import Array, Float, Int, PyTree

from jaxgnn._arrays.arrays import (
    KeepsArrays,
    is_concrete,
    put_own,
    require_one,
    require_weights,
    requires_one,
    shown,
    shown_sides,
    take,
)
from jaxgnn._errors import bad_input
from jaxgnn.graph.csr.constructors import GraphConstructors
from jaxgnn.graph.csr.edge_list import (
    EdgeNames,
    as_array,
    keep_order,
    known_order,
    ordered_edge_data,
    reordered,
)
from jaxgnn.graph.csr.interchange import to_scipy
from jaxgnn.graph.csr.normalization import Normalization, normalized_graph
from jaxgnn.graph.csr.self_loops import with_self_loops
from jaxgnn.graph.csr.validation import arrays_of, bounded_graph, validate_graph, validate_structure
from jaxgnn.graph.plan.device_sorting import is_for_device
from jaxgnn.graph.plan.parts import (
    ALL_PARTS,
    OPS,
    ConcreteParts,
    PlanOnDemand,
    available,
    given_plan,
    makes_plan,
    parts_for,
    parts_of_leaves,
    plan_on_demand,
)
from jaxgnn.graph.plan.plan import GraphPlan, Part, make_traced_plan
from jaxgnn.graph.plan.row_sums import sum_rows
from jaxgnn.graph.plan.sorting import row_ids, row_ids_on_host


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class CSRGraph(KeepsArrays, GraphConstructors):
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

    indptr: Int[Array, " rows+1"]
    indices: Int[Array, " edges"]
    weights: Float[Array, "edges *heads"] | None = None
    num_cols: int = dataclasses.field(default=cast(int, None), metadata={"static": True})
    row_scale: Float[Array, " rows"] | None = None
    col_scale: Float[Array, " cols"] | None = None
    plan: GraphPlan | None = None
    normalization: Normalization | None = dataclasses.field(default=None, metadata={"static": True})
    in_range: bool = dataclasses.field(default=False, metadata={"static": True})

    def __post_init__(self):
        super().__post_init__()
        if self.num_cols is None:
            object.__setattr__(self, "num_cols", self.indptr.shape[-1] - 1)

    def __repr__(self) -> str:
        """Shows shapes instead of arrays, the parts that have been built, and the total size."""
        names = ("indptr", "indices", "weights", "row_scale", "col_scale")
        arrays = ", ".join(f"{name}={shown(getattr(self, name))}" for name in names)
        made = ", ".join(sorted(self._made()))
        rest = f"num_cols={self.num_cols}, normalization={self.normalization!r}, made=[{made}]"
        return f"CSRGraph({arrays}, {rest}, nbytes={self.nbytes})"

    def _repr_html_(self) -> str:
        """A table for notebooks, with a drawing of a small graph; shapes alone under a trace."""
        from jaxgnn.graph.html import html_of_graph

        return html_of_graph(self)

    @property
    def nbytes(self) -> int:
        """Size of all current arrays in bytes, including the parts that ops have built.

        Arrays that the graph shares with another one, such as its transpose, count for both.
        """
        arrays = jax.tree.leaves((arrays_of(self), self._made(), known_order(self)))
        distinct = {id(array): array for array in arrays if hasattr(array, "dtype")}
        return sum(array.size * array.dtype.itemsize for array in distinct.values())

    def _made(self) -> dict[str, Any]:
        """The parts that have been built from the structure, by name."""
        plan, parts = given_plan(self), self.__dict__.get("_parts")
        of_plan: dict[str, Any] = {} if plan is None else {p: plan.arrays_of(p) for p in plan.parts}
        if parts is None:
            return of_plan
        made = parts.made()
        return made | {part: (arrays, made.get(part)) for part, arrays in of_plan.items()}

    # -- exports -----------------------------------------------------------------------------

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
    def is_square(self) -> bool:
        """Whether rows and columns can be the same nodes."""
        return self.num_rows == self.num_cols

    @property
    def is_normalized(self) -> bool:
        """Whether the graph is normalised already, by scales or in the weights."""
        has_scales = self.row_scale is not None or self.col_scale is not None
        return has_scales or self.normalization is not None

    @requires_one
    def degrees(self) -> Int[Array, " rows"]:
        """Number of edges that enter each row."""
        if is_concrete(self.indptr):  # on the host, so that no length is compiled
            return put_own(np.diff(np.asarray(self.indptr)))
        return self.indptr[1:] - self.indptr[:-1]

    @requires_one
    def uniform_degrees(self) -> tuple[int | None, int | None]:
        """Returns the common degree of all rows, and of all columns, if the host knows them.

        A degree is None where degrees differ, and for a graph that is traced, has padding slots
        or no edge. The number is static, so that a sum over edges can be one over an axis.

        Example:
          >>> CSRGraph.from_edges([0, 1, 0, 2], [0, 0, 1, 1], 2, num_senders=3).uniform_degrees()
          (2, None)
        """
        known = self.__dict__.get("_uniform_degrees")
        if known is None:
            if not is_concrete(self.indptr, self.indices):
                return None, None
            known = self.__dict__["_uniform_degrees"] = self.concrete_parts().uniform_degrees
        return known

    @requires_one
    def with_known_degrees(self, degrees: tuple[int | None, int | None]) -> CSRGraph:
        """Returns the same, possibly traced, graph with ``uniform_degrees`` known to the caller."""
        graph = self._with_fields()
        graph.__dict__["_uniform_degrees"] = degrees
        return graph

    @property
    def senders(self) -> Int[Array, " edges"]:
        """Sender of each edge slot: an alias of ``indices``."""
        return self.indices

    @requires_one
    def senders_as_rows(self) -> Int[Array, " edges"]:
        """The row that is the same node as the sender of each edge slot of a square graph."""
        return jnp.asarray(self.indices)

    @requires_one
    def sender_table(self, of_nodes: Array) -> Array:
        """The table that ``indices`` point into: the array, which has a row for each node."""
        return of_nodes

    @requires_one
    def receivers(self) -> Int[Array, " edges"]:
        """Row of each edge; padding slots get ``num_rows``, which is out of range."""
        if is_concrete(self.indptr, self.indices) and not is_for_device(self.num_edges):
            self.concrete_parts()  # checks the structure
            return put_own(row_ids_on_host(self.indptr, self.num_edges))
        return row_ids(jnp.asarray(self.indptr), self.num_edges)

    @property
    def edge_order(self) -> Int[Array, " edges"] | np.ndarray:
        """Position in the input of each edge slot, int32 [edges] (int64 beyond 2^31 - 1 edges).

        A loop that ``with_self_loops`` has added has -1. Padding edges are last. The order is a
        numpy array, or traced inside of ``jit``.

        It is kept only on request: by ``from_edges`` and ``from_edge_index`` with ``edge_data``, by
        ``from_graphs_tuple`` with ``return_edges``, and by ``from_networkx``. Methods that derive
        graphs keep it. It is not part of the pytree, so graphs that were passed to or returned by
        ``jit``, ``jax.tree.map`` or a checkpoint do not have it.

        Raises:
          ValueError: if the graph does not have its order.
        """
        return self._known_order("CSRGraph.edge_order")

    def _known_order(self, where: str) -> Any:
        """The position in the input of each edge slot; ValueError in the name of ``where``."""
        require_one(where, "self", self)
        order = known_order(self)
        if order is None:
            expected = (
                "built with edge_data (() keeps the order alone), and not have passed through jit "
                "or another function of pytrees"
            )
            raise bad_input(where, "self", expected, "a graph of unknown order")
        return order

    def sort_edges(self, edges: PyTree) -> PyTree:
        """Brings features of edges from the order of the input into that of the edge slots.

        Constructors do this with their ``edge_data``; here it is for data that comes later. The
        graph has to be built with ``edge_data``, ``()`` for no data yet.

        Args:
          edges: a pytree of arrays [edges, ...], with an entry for each edge of the input, padding
            included.

        Returns:
          The same tree of JAX arrays, with an entry for each edge slot.

        Raises:
          ValueError: if the graph does not know its order (see ``edge_order``) or has self loops
            that ``with_self_loops`` has added, which have no entry; or an array does not have one
            entry for each edge.

        Example:
          >>> import jax.numpy as jnp
          >>> graph, _ = CSRGraph.from_edges([2, 1, 0], [1, 0, 1], 3, edge_data=())
          >>> graph.sort_edges(jnp.array([20.0, 0.5, 1.0])).tolist()
          [0.5, 20.0, 1.0]
        """
        where = "CSRGraph.sort_edges"
        order = self._known_order(where)
        if is_concrete(order) and (np.asarray(order) < 0).any():
            expected = "without self loops that with_self_loops has added"
            way = "sort the features by the graph from before, then choose those of the loops"
            raise bad_input(where, "self", expected, f"some; {way}")
        return ordered_edge_data(EdgeNames(where, edge_data="edges"), edges, order)

    # -- derived graphs ----------------------------------------------------------------------

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
        if makes_plan(self):  # besides the parts that it has already
            parts |= parts_of_leaves(weighted=weighted)
        return self.with_parts(*parts)

    @requires_one
    def prepared_for(self, op: str | None) -> CSRGraph:
        """Returns this graph with the parts that an op needs; a traced one stays unchanged."""
        if not is_concrete(self.indptr, self.indices):
            return self
        return self.with_parts(*parts_for(op, weighted=self.weights is not None))

    @requires_one
    def with_parts(self, *parts: Part) -> CSRGraph:
        """Returns this graph, its ids clamped if traced, with these parts of a plan."""
        graph = self if is_concrete(self.indptr, self.indices) else bounded_graph(self)
        made = graph.made_plan(*parts)
        if made is given_plan(graph):
            return graph
        return graph._with_fields(plan=made, in_range=True)

    @property
    def structure(self) -> CSRGraph:
        """The same edges with the same scales, without weights."""
        return self if self.weights is None else self._with_fields(weights=None)

    def _with_fields(self, **fields: Any) -> CSRGraph:
        """Returns the same edges, in the same order, with other values of some fields."""
        made = dataclasses.replace(self, **{"plan": given_plan(self), **fields})
        if is_concrete(self.indptr, self.indices):
            made.__dict__["_parts"] = self._shared_parts()
        return plan_on_demand(keep_order(made, known_order(self)), like=self)

    @requires_one
    def concrete_parts(self) -> ConcreteParts:
        """Returns the parts of this concrete graph, whose offsets and senders are checked once."""
        parts = self._shared_parts()
        if not parts.is_checked:
            if given_plan(self) is None and not makes_plan(self):
                validate_structure(self)
            parts.is_checked = True
        return parts

    def _shared_parts(self) -> ConcreteParts:
        """The same object for all graphs that have been derived with the same edges."""
        parts = self.__dict__.get("_parts")
        if parts is None:
            plan = given_plan(self)
            parts = ConcreteParts.of(self.indptr, self.indices, self.num_cols, plan)
            self.__dict__["_parts"] = parts
        return parts

    @requires_one
    def made_plan(self, *parts: Part) -> GraphPlan:
        """Returns a plan with these parts, by default all but the edge blocks, built if missing."""
        wanted = frozenset[Part](parts or ("schedule", "transpose", "permutation"))
        there = given_plan(self)
        missing = wanted if there is None else there.missing(wanted)
        if there is not None and not missing:
            return there
        if is_concrete(self.indptr, self.indices):
            made = self.concrete_parts().plan(wanted)
        else:
            blocks = "edge_blocks" in missing
            ids = jnp.asarray(self.indptr), jnp.asarray(self.indices)
            made = make_traced_plan(*ids, num_cols=self.num_cols, edge_blocks=blocks)
            made = GraphPlan().with_parts_of(made, wanted)
        return made if there is None else there.with_parts_of(made, missing)

    @requires_one
    def transpose(self) -> CSRGraph:
        """Returns the graph with senders and receivers exchanged."""
        is_host = is_concrete(self.indptr, self.indices)
        follows = self.weights is not None or known_order(self) is not None
        parts: tuple[Part, ...] = ("schedule", "transpose", "permutation")
        plan = self.made_plan(*parts[: 3 if follows else 2])
        given = given_plan(self)
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
            if given is None:
                plan_on_demand(transposed, like=self)
            else:
                always = frozenset[Part](("schedule", "transpose"))
                kept = (given.parts & {"permutation"}) | always
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

    def _sums_of_senders(self, of_edges: Array) -> Array:
        """The sum over the edges that leave each node, by ``indices``; traced."""
        plan = self.made_plan()
        return sum_rows(of_edges[plan.permutation], plan.transposed_indptr)

    def _column_degrees(self) -> Int[Array, " cols"] | np.ndarray:
        """Number of edges that leave each column; in numpy if the graph is concrete."""
        plan = given_plan(self)
        if is_concrete(self.indptr, self.indices):
            real = np.asarray(self.indices)[: np.asarray(self.indptr)[-1]]
            return np.bincount(real, minlength=self.num_cols)[: self.num_cols]
        if plan is not None and plan.transposed_indptr is not None:
            return plan.transposed_indptr[1:] - plan.transposed_indptr[:-1]
        columns = jnp.where(self.receivers() < self.num_rows, self.indices, self.num_cols)
        return jnp.zeros(self.num_cols, jnp.int32).at[columns].add(1, mode="drop")

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
            self.concrete_parts()  # checks the structure
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


type.__setattr__(CSRGraph, "plan", PlanOnDemand())
