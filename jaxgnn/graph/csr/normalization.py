"""Normalisation by degree: scales of an unweighted graph, or new weights of a weighted one."""

from __future__ import annotations

from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxgnn._arrays.arrays import is_concrete, put_own, require_no_heads, shown_sides
from jaxgnn._arrays.identity_cache import IdentityMemory
from jaxgnn._errors import bad_input
from jaxgnn.graph.csr.rows import CompressedRows, Normalization
from jaxgnn.graph.plan.row_sums import sum_rows
from jaxgnn.graph.plan.sorting import row_ids, row_ids_on_host


def normalized_graph[Graph: CompressedRows](graph: Graph, kind: Normalization | None) -> Graph:
    """The graph with the scales or weights of a kind of normalisation; unchanged for None."""
    where = "CSRGraph.normalized"
    if kind is None:
        return graph
    if kind not in get_args(Normalization):
        raise bad_input(where, "kind", "'mean', 'sym', 'gcn' or None", repr(kind))
    if graph.is_normalized:
        raise bad_input(where, "self", "not normalised yet", repr(graph.normalization))
    require_no_heads(where, "self", graph.weights)
    if kind == "gcn":
        scale, weights, _ = gcn_coefficients(graph, add_self_loops=False)
        fields = {"weights": weights, "row_scale": scale, "col_scale": scale}
    elif graph.weights is None:
        fields = degree_scales(graph, kind)
    else:
        fields = {"weights": normalized_weights(graph, kind)}
    return graph._with_fields(**fields, normalization=kind)


def degree_scales(graph: CompressedRows, kind: Normalization) -> dict[str, Any]:
    """The scales of an unweighted graph for ``"mean"`` or ``"sym"``, on the host unless traced.

    On the host they are rounded once, from float64.
    """
    dtype = jax.dtypes.canonicalize_dtype(jnp.float64)
    is_host = is_concrete(graph.indptr, graph.indices)
    if is_host:
        graph.concrete_parts()  # This checks the structure.

    def scale(degrees: Any, exponent: float) -> Any:
        if not is_host:
            return power_or_zero(degrees.astype(dtype), exponent)
        return put_own(power_or_zero(np.asarray(degrees, np.float64), exponent).astype(dtype))

    if kind == "mean":
        return {"row_scale": scale(graph.degrees(), -1.0), "col_scale": None}
    row_degrees, column_degrees = graph.degrees(), graph._column_degrees()
    return {"row_scale": scale(row_degrees, -0.5), "col_scale": scale(column_degrees, -0.5)}


def power_or_zero(degrees: Any, exponent: float) -> Any:
    """``degrees ** exponent`` where positive, else zero, with finite gradients in both cases."""
    xp: Any = np if isinstance(degrees, np.ndarray) else jnp
    positive = degrees > 0
    return xp.where(positive, xp.where(positive, degrees, 1) ** exponent, 0)


class GCNCoefficients(NamedTuple):
    """Factors of the neighbours and of the node itself in a sum over both.

    Attributes:
      scale: factor of a node as receiver and as sender, for a graph without weights; or None.
      weights: normalised weight of each edge slot, for a graph with weights; or None.
      loops: weight of the self loop that is added to each node, zero for a node that has one
        already; None if none is added.
    """

    scale: Float[Array, " nodes"] | None
    weights: Float[Array, " edges"] | None
    loops: Float[Array, " nodes"] | None


_COEFFICIENTS: IdentityMemory[GCNCoefficients] = IdentityMemory()
_HAVE_LOOPS: IdentityMemory[bool] = IdentityMemory()


def gcn_coefficients(graph: CompressedRows, *, add_self_loops: bool) -> GCNCoefficients:
    """Computes the normalisation of a square graph that is not normalised yet.

    On a concrete graph it is computed on the host in float64, and only once for the same arrays,
    also if a jitted function closes over the graph. Gradients flow to traced weights. Sums of
    weights that are not positive count as no edges.

    Args:
      graph: the graph, which keeps its edges; padding slots have the weight zero.
      add_self_loops: whether a self loop of weight one is added to each node without one.

    Raises:
      ValueError: if the graph is not square, or a concrete graph has invalid offsets or senders.
    """
    if not graph.is_square:
        raise bad_input("CSRGraph.normalized('gcn')", "self", "square", shown_sides(graph))
    require_no_heads("CSRGraph.normalized('gcn')", "self", graph.weights)
    arrays = graph.indptr, graph.indices, graph.weights
    if not is_concrete(*arrays):
        return _computed(graph, add_self_loops)
    options = add_self_loops, jax.config.jax_enable_x64
    return _COEFFICIENTS.get(arrays, options, lambda: _computed_on_host(graph, add_self_loops))


def every_node_has_a_loop(graph: CompressedRows) -> bool:
    """Returns whether each node of a square graph, not traced, has a self loop; computed once."""
    arrays = graph.indptr, graph.indices

    def ask() -> bool:
        rows, indices = _ends_on_host(graph)
        return not nodes_without_loop(rows, indices, graph.num_rows).any()

    return _HAVE_LOOPS.get(arrays, None, ask)


def _computed_on_host(graph: CompressedRows, add_self_loops: bool) -> GCNCoefficients:
    exact = _computed(graph, add_self_loops)
    dtype = jax.dtypes.canonicalize_dtype(np.float64)
    loops = exact.loops if exact.loops is not None and exact.loops.any() else None
    return GCNCoefficients(
        scale=None if exact.scale is None else put_own(exact.scale.astype(dtype)),
        weights=None if exact.weights is None else put_own(exact.weights),
        loops=None if loops is None else put_own(loops.astype(dtype)),
    )


def _computed(graph: CompressedRows, add_self_loops: bool) -> GCNCoefficients:
    """The coefficients in the dtype of the sums: in numpy if the graph is concrete, else traced."""
    rows, senders = _ends(graph)
    xp: Any = np if isinstance(rows, np.ndarray) else jnp
    original: Any = graph.weights
    weights = None
    if original is None:
        dtype = np.float64 if xp is np else jax.dtypes.canonicalize_dtype(jnp.float64)
        degrees = xp.diff(xp.asarray(graph.indptr)).astype(dtype)
    else:
        weights, degrees = _weights_and_sums(graph, rows)
        dtype = weights.dtype
    loops = None
    if add_self_loops:
        missing = nodes_without_loop(rows, senders, graph.num_rows)
        degrees = degrees + missing.astype(dtype)
        loops = xp.where(missing, power_or_zero(degrees, -1.0), 0)
    if weights is None:
        return GCNCoefficients(power_or_zero(degrees, -0.5), None, loops)
    of_senders = degrees if xp is np else graph.sender_table(degrees)
    columns = xp.where(rows < graph.num_rows, xp.asarray(graph.indices), of_senders.shape[0])
    scale = _scales_at_ends(degrees, -0.5, rows) * _scales_at_ends(of_senders, -0.5, columns)
    return GCNCoefficients(None, (weights * scale).astype(original.dtype), loops)


def normalized_weights(graph: CompressedRows, kind: Normalization) -> Any:
    """Divides weights by sums of rows and columns: ``w_ij / R_i`` or ``w_ij / √(R_i C_j)``."""
    original: Any = graph.weights
    rows, _ = _ends(graph)
    weights, row_sums = _weights_and_sums(graph, rows)
    if kind == "mean":
        normalized = weights * _scales_at_ends(row_sums, -1.0, rows)
    else:
        is_host = isinstance(rows, np.ndarray)
        xp: Any = np if is_host else jnp
        columns = xp.where(rows < graph.num_rows, xp.asarray(graph.indices), graph.num_cols)
        if is_host:
            column_sums = np.bincount(columns, weights, graph.num_cols)[: graph.num_cols]
        else:
            column_sums = graph._sums_of_senders(weights)
        scale = _scales_at_ends(row_sums, -0.5, rows) * _scales_at_ends(column_sums, -0.5, columns)
        normalized = weights * scale
    normalized = normalized.astype(original.dtype)
    return put_own(normalized) if isinstance(normalized, np.ndarray) else normalized


def _weights_and_sums(graph: CompressedRows, rows: Any) -> tuple[Any, Any]:
    """The weights of the edge slots in the dtype of sums, zero for padding; and each row's sum."""
    original: Any = graph.weights
    if isinstance(rows, np.ndarray):
        weights = np.where(rows < graph.num_rows, np.asarray(original), 0).astype(np.float64)
        return weights, np.bincount(rows, weights, graph.num_rows)[: graph.num_rows]
    dtype = jnp.float64 if original.dtype == jnp.float64 else jnp.float32
    weights = jnp.where(rows < graph.num_rows, jnp.asarray(original), 0).astype(dtype)
    return weights, sum_rows(weights, graph.indptr)


def _scales_at_ends(sums: Any, exponent: float, ends: Any) -> Any:
    """Returns the scale at the end of each edge, zero for padding, whose end is past the last."""
    xp: Any = np if isinstance(sums, np.ndarray) else jnp
    return xp.append(power_or_zero(sums, exponent), xp.zeros(1, sums.dtype))[ends]


def _ends(graph: CompressedRows) -> tuple[Any, Any]:
    """The receiver and the sender of each edge slot, in numpy if nothing of the graph is traced."""
    if not is_concrete(graph.indptr, graph.indices, graph.weights):
        return row_ids(graph.indptr, graph.num_edges), graph.senders_as_rows()
    return _ends_on_host(graph)


def _ends_on_host(graph: CompressedRows) -> tuple[np.ndarray, np.ndarray]:
    """The receiver and the sender of each edge slot, of a graph whose structure is concrete."""
    graph.concrete_parts()  # This checks the structure.
    return row_ids_on_host(graph.indptr, graph.num_edges), np.asarray(graph.indices)


def nodes_without_loop(
    rows: Any, indices: Any, num_nodes: int
) -> Bool[Array, " nodes"] | np.ndarray:
    """A mask of nodes without an edge to themselves; the row of a padding slot is ``num_nodes``."""
    if isinstance(rows, np.ndarray):
        without = np.ones(num_nodes, bool)
        without[indices[(rows == indices) & (rows < num_nodes)]] = False
        return without
    looped = jnp.where(rows == indices, indices, num_nodes)
    return jnp.ones(num_nodes, bool).at[looped].set(False, mode="drop")
