"""CSRGraph: a sparse adjacency in compressed rows, as a pytree."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import scipy.sparse
from jaxtyping import Array, Float, Int

from jaxgnn._errors import bad_input
from jaxgnn.graph._arrays import (
    KeepsArrays,
    ids_in_range,
    is_concrete,
    kept,
    of_one,
    offset_dtype,
    put_own,
    require_floats,
    require_integers,
    require_length,
    require_size,
    shown,
    take,
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

    The constructors (``from_edges``, ``from_scipy``, ``from_graphs_tuple``) sort the edges and,
    on concrete input, also make the ``plan``. A graph built directly gets its plan on demand:
    once if concrete, inside every step if traced.

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
    ) -> CSRGraph:
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

        Raises:
          ValueError: on indices out of range, NaN weights, mismatched lengths or wrong dtypes.
        """
        senders, receivers = _array(senders, np.int32), _array(receivers, np.int32)
        weights = None if weights is None else _array(weights)
        edge_mask = None if edge_mask is None else _array(edge_mask, np.bool)
        num_cols = num_nodes if num_senders is None else num_senders
        _check_edge_list(senders, receivers, weights, edge_mask, num_nodes, num_cols)
        if not is_concrete(senders, receivers, weights, edge_mask):
            # A traced program may read the other arrays later, when it runs.
            arrays = senders, receivers, weights, edge_mask
            senders, receivers, weights, edge_mask = map(kept, arrays)
        if not is_concrete(senders, receivers):
            exists = ids_in_range(senders, num_cols) & ids_in_range(receivers, num_nodes)
            edge_mask = exists if edge_mask is None else edge_mask & exists
        indptr, permutation = sort_edges(receivers, num_nodes, edge_mask)
        if is_concrete(receivers, edge_mask):
            indptr, permutation = put_own(np.asarray(indptr)), put_own(np.asarray(permutation))
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
        return graph.prepared() if is_concrete(graph.indptr, graph.indices) else graph

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
        where = "CSRGraph.from_scipy"
        if not scipy.sparse.issparse(matrix) or matrix.ndim != 2:
            raise bad_input(
                where,
                "matrix",
                "a two-dimensional scipy.sparse matrix or array",
                type(matrix).__name__,
            )
        if not np.can_cast(matrix.dtype, np.float64):
            expected = "of a boolean, integer or floating dtype up to 64 bits"
            raise bad_input(where, "matrix", expected, matrix.dtype)
        for axis, size in enumerate(matrix.shape):
            require_size(where, f"matrix.shape[{axis}]", size)
        csr = matrix.tocsr()
        if weighted is None:
            weighted = bool(np.any(csr.data != 1))
        weights = None
        if weighted:
            dtype = csr.dtype if np.issubdtype(csr.dtype, np.floating) else np.float32
            weights = put_own(csr.data.astype(dtype))
        graph = cls(
            indptr=put_own(csr.indptr.astype(offset_dtype(csr.nnz))),
            indices=put_own(csr.indices.astype(np.int32)),
            weights=weights,
            num_cols=csr.shape[1],
        )
        return graph.validate().prepared()

    @classmethod
    def from_graphs_tuple(
        cls,
        graphs: Any,
        weights: npt.ArrayLike | None = None,
        *,
        padded: bool = False,
    ) -> CSRGraph:
        """Builds a graph from a jraph ``GraphsTuple``, batched or not. Works under ``jit``.

        Args:
          graphs: the tuple; node ids are numbered through the batch, so its graphs stay separate.
          weights: edge weights in the tuple's edge order; None for an unweighted graph.
          padded: True if the tuple went through ``jraph.pad_with_graphs``. The edges of the padding
            graphs are then dropped; otherwise they stay, between padding nodes.

        Raises:
          ValueError: if the tuple lacks senders or receivers, is said to be padded but has fewer
            than two graphs, or has invalid indices, lengths, dtypes or weights.
        """
        from jaxgnn.graph._jraph import edge_list

        senders, receivers, num_nodes, edge_mask = edge_list(graphs, padded=padded)
        return cls.from_edges(senders, receivers, num_nodes, weights, edge_mask=edge_mask)

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
        graph = dataclasses.replace(self)
        graph.__dict__["_uniform_degrees"] = degrees
        return graph

    @of_one
    def receivers(self) -> Int[Array, " edges"]:
        """Row of each edge; padding slots get ``num_rows``, which is out of range."""
        return row_ids(self.indptr, self.num_edges)

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
        return dataclasses.replace(self, plan=self._plan(edge_blocks=_on_gpu()))

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
        return CSRGraph(
            indptr=plan.transposed_indptr,
            indices=plan.transposed_indices,
            weights=weights,
            num_cols=self.num_rows,
            row_scale=self.col_scale,
            col_scale=self.row_scale,
            plan=plan.transposed(self.indptr, self.indices),
            normalization=self.normalization,
        )

    @of_one
    def with_weights(self, weights: npt.ArrayLike | None) -> CSRGraph:
        """Returns the same edges with other weights, given in the graph's edge order."""
        if weights is not None:
            where, weights = "CSRGraph.with_weights", _array(weights)
            require_length(where, "weights", weights, self.num_edges, "per edge slot")
            require_floats(where, "weights", weights)
        # New weights discard a normalisation that was folded into the old ones.
        has_scales = self.row_scale is not None or self.col_scale is not None
        kind = self.normalization if has_scales else None
        return dataclasses.replace(self, weights=weights, normalization=kind)

    @of_one
    def normalized(self, kind: Normalization | None) -> CSRGraph:
        """Normalises by degree. Rows (and columns) without edges get scale zero.

        ``"mean"`` is D⁻¹ A. ``"sym"`` is D_r^-½ A D_c^-½ with the degrees of rows and of columns,
        the two being equal on an undirected graph. An unweighted graph stays without weights and
        carries the scales for the kernels to apply. On a weighted graph degrees are sums of
        weights, and the result is folded into the weights, so gradients see it; nonpositive sums
        count as no edges.

        Raises:
          ValueError: if ``kind`` is unknown or the graph is normalised already.
        """
        if kind is None:
            return self
        if kind not in ("mean", "sym"):
            raise bad_input("CSRGraph.normalized", "kind", "'mean', 'sym' or None", repr(kind))
        if self.is_normalized:
            raise bad_input(
                "CSRGraph.normalized", "self", "not normalised yet", repr(self.normalization)
            )
        if self.weights is None:
            columns = _column_degrees(self) if kind == "sym" else None
            row_scale, col_scale = degree_scales(self.degrees(), columns)
            graph = dataclasses.replace(self, row_scale=row_scale, col_scale=col_scale)
        else:
            graph = self.with_weights(self._normalized_weights(kind, self.weights))
        return dataclasses.replace(graph, normalization=kind)

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
        if is_host:
            there = np.flatnonzero(mask)
            senders, receivers, mask = senders[there], receivers[there], None
            weights = None if weights is None else take(weights, there)
        return CSRGraph.from_edges(senders, receivers, self.num_rows, weights, edge_mask=mask)

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


def _array(values: Any, empty_dtype: Any = None) -> Any:
    """Converts to an array, of dtype ``empty_dtype`` if empty, since numpy makes [] float."""
    array = values if hasattr(values, "dtype") else np.asarray(values)
    return array if array.size or empty_dtype is None else np.zeros(array.shape, empty_dtype)


def _check_edge_list(senders, receivers, weights, edge_mask, num_nodes, num_cols):
    where = "CSRGraph.from_edges"
    require_size(where, "num_nodes", num_nodes)
    require_size(where, "num_senders", num_cols)
    for name, row, ids in (("senders", 0, senders), ("receivers", 1, receivers)):
        if ids.ndim == 2 and ids.shape[0] == 2:
            size = senders.shape[-1]
            expected = f"of shape ({size},); of an edge_index [2, edges] pass edge_index[{row}]"
            raise bad_input(where, name, expected, f"shape {ids.shape}")
    require_integers(where, "senders", senders)
    require_integers(where, "receivers", receivers)
    require_length(where, "receivers", receivers, receivers.size, "per edge")
    require_length(where, "senders", senders, receivers.shape[0], "per receiver")
    for name, values in (("weights", weights), ("edge_mask", edge_mask)):
        if values is not None:
            require_length(where, name, values, receivers.shape[0], "per edge")
    if weights is not None:
        require_floats(where, "weights", weights)
    if edge_mask is not None and edge_mask.dtype != bool:
        raise bad_input(where, "edge_mask", "of dtype bool", edge_mask.dtype)
    for name, ids, bound in (("senders", senders, num_cols), ("receivers", receivers, num_nodes)):
        if is_concrete(ids, edge_mask):
            _check_range(where, name, ids, edge_mask, bound)


def _check_range(where, name, ids, edge_mask, bound):
    ids = np.asarray(ids)
    outside = (ids < 0) | (ids >= bound)
    if edge_mask is not None:
        outside &= np.asarray(edge_mask)
    if outside.any():
        at = int(np.flatnonzero(outside)[0])
        raise bad_input(where, f"{name}[{at}]", f"in [0, {bound})", int(ids[at]))


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
