"""Normalisation by degree: scales of an unweighted graph, or new weights of a weighted one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxgnn._arrays.arrays import is_concrete, put_own, require_no_heads, shown_sides
from jaxgnn._arrays.identity_cache import IdentityMemory
from jaxgnn._errors import bad_input
from jaxgnn.graph.csr.validation import validate_structure
from jaxgnn.graph.plan.row_sums import sum_rows
from jaxgnn.graph.plan.sorting import row_ids, row_ids_on_host

if TYPE_CHECKING:
    from jaxgnn.graph.csr.csr_graph import CSRGraph

Normalization = Literal["mean", "sym", "gcn"]
"""Kind of normalisation: ``"mean"`` is ``D⁻¹ A``, ``"sym"`` is ``D_r^-½ A D_c^-½``, with the
degrees of rows and of columns, and ``"gcn"`` is ``D_r^-½ A D_r^-½``."""


def degree_scales(
    row_degrees: Int[Array, " rows"], column_degrees: Int[Array, " cols"] | None
) -> tuple[Float[Array, " rows"], Float[Array, " cols"] | None]:
    """The row and column scales of an unweighted graph; without column degrees those of ``"mean"``.

    They are float64 if JAX has float64 enabled, else float32. For degrees in numpy they are
    computed in float64 and rounded once, since numpy's powers of float32 are rounded once more.
    """
    dtype = jax.dtypes.canonicalize_dtype(jnp.float64)
    wide = np.float64 if isinstance(row_degrees, np.ndarray) else dtype

    def scale(degrees: Any, exponent: float) -> Any:
        return power_or_zero(degrees.astype(wide), exponent).astype(dtype)

    if column_degrees is None:
        return scale(row_degrees, -1.0), None
    return scale(row_degrees, -0.5), scale(column_degrees, -0.5)


class Edges(NamedTuple):
    """Both ends and the weight of each edge slot: numpy arrays, or traced ones.

    Padding slots have the weight zero, and ends past the last row and column.
    """

    rows: Any
    columns: Any
    weights: Any


def normalized_weights(
    kind: Normalization, edges: Edges, row_sums: Any, column_sums: Any
) -> Float[Array, " edges"] | np.ndarray:
    """The weights divided by sums of weights: ``w_ij / R_i``, or ``w_ij / √(R_i C_j)``.

    Args:
      kind: ``"mean"`` or ``"sym"``.
      edges: the edges, with weights in the dtype of the sums.
      row_sums: R, the sum of the weights of the edges that enter each row.
      column_sums: C, the sum of the weights of the edges that leave each column; unused for
        ``"mean"``.
    """
    if kind == "mean":
        return edges.weights * _of_ends(row_sums, -1.0, edges.rows)
    scale = _of_ends(row_sums, -0.5, edges.rows) * _of_ends(column_sums, -0.5, edges.columns)
    return edges.weights * scale


def _of_ends(sums: Any, exponent: float, ends: Any) -> Any:
    """Returns the scale at the end of each edge, zero for padding."""
    xp: Any = np if isinstance(sums, np.ndarray) else jnp
    return xp.append(power_or_zero(sums, exponent), xp.zeros(1, sums.dtype))[ends]


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


def gcn_coefficients(graph: CSRGraph, *, add_self_loops: bool) -> GCNCoefficients:
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


def every_node_has_a_loop(graph: CSRGraph) -> bool:
    """Whether each node of a square graph, not traced, has a self loop; computed once."""
    arrays = graph.indptr, graph.indices

    def ask() -> bool:
        rows, indices = _ends_on_host(graph)
        return not _without_loop(rows, indices, graph.num_rows).any()

    return _HAVE_LOOPS.get(arrays, None, ask)


def _computed_on_host(graph: CSRGraph, add_self_loops: bool) -> GCNCoefficients:
    made = _computed(graph, add_self_loops)
    dtype = jax.dtypes.canonicalize_dtype(np.float64)
    loops = made.loops if made.loops is not None and made.loops.any() else None
    return GCNCoefficients(
        scale=None if made.scale is None else put_own(made.scale.astype(dtype)),
        weights=None if made.weights is None else put_own(made.weights),
        loops=None if loops is None else put_own(loops.astype(dtype)),
    )


def _computed(graph: CSRGraph, add_self_loops: bool) -> GCNCoefficients:
    """The coefficients in the dtype of the sums: in numpy if the graph is concrete, else traced."""
    rows, indices = _ends(graph)
    xp: Any = np if isinstance(rows, np.ndarray) else jnp
    real = rows < graph.num_rows
    given: Any = graph.weights
    dtype = _dtype_of_sums(xp, given)
    if given is None:
        weights = None
        degrees = xp.diff(xp.asarray(graph.indptr)).astype(dtype)
    else:
        weights = xp.where(real, xp.asarray(given), 0).astype(dtype)
        if xp is np:
            degrees = np.bincount(rows, weights, graph.num_rows)[: graph.num_rows]
        else:
            degrees = sum_rows(weights, graph.indptr)
    missing = None
    if add_self_loops:
        missing = _without_loop(rows, indices, graph.num_rows)
        degrees = degrees + missing.astype(dtype)
    loops = None if missing is None else xp.where(missing, power_or_zero(degrees, -1.0), 0)
    if weights is None:
        return GCNCoefficients(power_or_zero(degrees, -0.5), None, loops)
    of_senders = degrees if xp is np else graph.sender_table(degrees)
    columns = xp.where(real, xp.asarray(graph.indices), of_senders.shape[0])
    made: Any = normalized_weights("sym", Edges(rows, columns, weights), degrees, of_senders)
    return GCNCoefficients(None, made.astype(given.dtype), loops)


def _dtype_of_sums(xp: Any, weights: Any) -> Any:
    if xp is np:
        return np.float64
    if weights is None:
        return jax.dtypes.canonicalize_dtype(jnp.float64)
    return jnp.float64 if weights.dtype == jnp.float64 else jnp.float32


def _ends(graph: CSRGraph) -> tuple[Any, Any]:
    """The receiver and the sender of each edge slot, in numpy if nothing of the graph is traced."""
    if not is_concrete(graph.indptr, graph.indices, graph.weights):
        return row_ids(graph.indptr, graph.num_edges), graph.senders_as_rows()
    return _ends_on_host(graph)


def _ends_on_host(graph: CSRGraph) -> tuple[np.ndarray, np.ndarray]:
    """The receiver and the sender of each edge slot, of a graph whose structure is concrete."""
    if graph.plan is None:
        validate_structure(graph)
    return row_ids_on_host(graph.indptr, graph.num_edges), np.asarray(graph.indices)


def _without_loop(rows: Any, indices: Any, num_nodes: int) -> Bool[Array, " nodes"] | np.ndarray:
    """A mask of nodes without an edge to themselves; the row of a padding slot is ``num_nodes``."""
    if isinstance(rows, np.ndarray):
        without = np.ones(num_nodes, bool)
        without[indices[(rows == indices) & (rows < num_nodes)]] = False
        return without
    looped = jnp.where(rows == indices, indices, num_nodes)
    return jnp.ones(num_nodes, bool).at[looped].set(False, mode="drop")
