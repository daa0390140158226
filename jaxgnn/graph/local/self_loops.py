"""Graphs in which every node has one self loop, and features of the edges of such a graph.

Attention over neighbours gives each node exactly one loop: existing loops are removed first, then
one is added to each node, as PyTorch Geometric's attention layers do.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxgnn._arrays.arrays import (
    is_concrete,
    offset_dtype,
    own,
    put_own,
    require_floats,
    require_one,
    shown_sides,
)
from jaxgnn._arrays.identity_cache import IdentityMemory
from jaxgnn._errors import bad_input
from jaxgnn.graph.csr.masked_graph import edge_presence, masked, without_presence
from jaxgnn.graph.local.local_graph import LocalGraph, with_edges
from jaxgnn.graph.plan.built_parts import plan_on_demand
from jaxgnn.graph.plan.row_sums import sum_rows
from jaxgnn.graph.plan.sorting import row_ids, row_ids_on_host

if TYPE_CHECKING:
    from jaxgnn.graph.csr.csr_graph import CSRGraph

LoopReduce = Literal["mean", "add", "min", "max", "mul"]
"""Reduction of the features of the edges that enter a node to those of its self loop."""

FillValue = LoopReduce | float | Sequence[float]
"""Features of self loops: a reduction, one number, or one number for each feature."""


class LoopedGraph(NamedTuple):
    """A graph with one self loop for each node, and the origin of its edges.

    Attributes:
      graph: the graph, without weights and scales. The loop is the last edge of its row.
      sources: for each edge slot of ``graph`` the edge slot of the original graph, which had E of
        them; E + i for the loop of node i. In padding slots it is undefined.
      kept: for each edge slot of the original graph, whether ``graph`` has it: it is no padding and
        no self loop.
    """

    graph: CSRGraph
    sources: Int[Array, " new_edges"]
    kept: Bool[Array, " edges"]


_MADE: IdentityMemory[LoopedGraph] = IdentityMemory()


def with_one_loop_each(graph: CSRGraph) -> LoopedGraph:
    """Removes all self loops, then adds one to each node.

    An edge from sender ``i`` to receiver ``i`` is a loop, also in a bipartite graph. There the
    added loops are those of the first ``min(rows, columns)`` nodes.

    For a concrete graph it is computed on the host, and only once for the same arrays. A graph
    without padding gets none. A graph with padding, or a traced one, has as many slots as edge
    slots and loops together, so that graphs of one shape give graphs of one shape.

    Args:
      graph: the graph, whose weights and scales are dropped.

    Raises:
      ValueError: if a concrete graph has invalid offsets or senders, or several graphs are stacked.

    Example:
      >>> from jaxgnn import CSRGraph
      >>> made = with_one_loop_each(CSRGraph.from_edges([0, 0, 1], [0, 1, 2], 3))
      >>> made.graph.indices.tolist(), made.graph.receivers().tolist()
      ([0, 0, 1, 1, 2], [0, 1, 1, 2, 2])
      >>> made.sources.tolist(), made.kept.tolist()
      ([3, 1, 4, 2, 5], [False, True, True])
    """
    require_one("with_one_loop_each", "graph", graph)
    if isinstance(graph, LocalGraph):
        return _loops_on_device(graph)
    presence = edge_presence(graph)
    if presence is not None:  # Loops are present.
        looped = with_one_loop_each(without_presence(graph))
        of_all = jnp.append(presence, jnp.ones(_num_loops(graph), presence.dtype))
        return looped._replace(
            graph=masked(looped.graph, of_all.at[looped.sources].get(mode="clip"))
        )
    arrays = graph.indptr, graph.indices
    if not is_concrete(*arrays):
        return _looped(jnp, graph)
    graph.concrete_parts()  # This checks the structure.
    return _MADE.get(arrays, graph.num_cols, lambda: _looped(np, graph))


def _num_loops(graph: CSRGraph) -> int:
    is_square = graph.num_rows == graph.num_cols  # It may be a symbolic number.
    return graph.num_rows if is_square else min(graph.shape)


def _looped(xp: Any, graph: CSRGraph) -> LoopedGraph:
    """Adds the loop as the last edge of its row, and keeps the order of rows and edges."""
    is_host = xp is np
    num_edges, loops = graph.num_edges, _num_loops(graph)
    indptr, indices = xp.asarray(graph.indptr), xp.asarray(graph.indices)
    rows = (row_ids_on_host if is_host else row_ids)(indptr, num_edges)
    real = rows < graph.num_rows
    kept = real & (rows != indices)
    dtype = offset_dtype(num_edges + loops)
    before = xp.concatenate([xp.zeros(1, dtype), xp.cumsum(kept, dtype=dtype)])
    nodes = xp.arange(graph.num_rows + 1, dtype=dtype)
    offsets = before[indptr] + xp.minimum(nodes, loops)
    slots = int(offsets[-1]) if is_host and real.all() else num_edges + loops
    # The slot of each old edge, out of range if it is dropped, and of each loop.
    places = before[:-1] + xp.minimum(rows, loops).astype(dtype)
    places = xp.concatenate([xp.where(kept, places, slots), offsets[1 : loops + 1] - 1])
    old = xp.arange(num_edges + loops, dtype=dtype)
    if is_host:
        sources: Any = np.zeros(slots + 1, dtype)
        sources[places] = old
        sources = sources[:-1]
    else:
        sources = jnp.zeros(slots, dtype).at[places].set(old, mode="drop")
    senders = xp.concatenate([indices, xp.arange(loops, dtype=indices.dtype)])[sources]
    if not is_host:
        looped = type(graph)(offsets, senders, num_cols=graph.num_cols, in_range=graph.in_range)
        return LoopedGraph(looped, sources, kept)
    looped = type(graph)(put_own(offsets), put_own(senders), num_cols=graph.num_cols, in_range=True)
    return LoopedGraph(plan_on_demand(looped), own(sources), own(kept))


def _loops_on_device(graph: LocalGraph) -> LoopedGraph:
    """Returns the graph of one device's rows with its loops; padding rows get none."""
    if not graph.is_square:
        expected = "square; make layers between nodes of two kinds with add_self_loops=False"
        raise bad_input("with_one_loop_each", "graph", expected, shown_sides(graph))
    rows = graph.receivers()
    kept = (rows < graph.num_rows) & (rows != graph.senders_as_rows())
    bare = dataclasses.replace(graph, weights=None, row_scale=None, col_scale=None)
    looped, sources = with_edges(bare, kept, graph.is_real_row)
    return LoopedGraph(looped, sources, kept)


def looped_features(
    graph: CSRGraph,
    looped: LoopedGraph,
    features: Float[Array, "*batch edges features"],
    fill_value: FillValue = "mean",
) -> Float[Array, "*batch new_edges features"]:
    """Returns features of the edges of a graph in which every node has one self loop.

    Differentiable in ``features``.

    Args:
      graph: the graph without the new loops.
      looped: the result of ``with_one_loop_each`` for it.
      features: features of the edge slots of ``graph``.
      fill_value: features of a loop: ``"mean"``, ``"add"``, ``"min"``, ``"max"`` or ``"mul"`` for
        the mean, sum, smallest, largest or product over the edges that enter the node,
        without the removed loops; one number; or one number for each feature. A node without such
        edges gets zero, and one for ``"mul"``.

    Returns:
      Features of the edge slots of ``looped.graph``, finite ones in padding slots if those of all
      edges are.

    Raises:
      ValueError: if ``features`` are no floating numbers, or not as many as edge slots, or
        ``fill_value`` is not as above.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxgnn import CSRGraph
      >>> graph = CSRGraph.from_edges([0, 0, 1], [1, 2, 2], 3)
      >>> features = jnp.array([[1.0], [2.0], [4.0]])
      >>> looped_features(graph, with_one_loop_each(graph), features).ravel().tolist()
      [0.0, 1.0, 1.0, 2.0, 4.0, 3.0]
    """
    where = "looped_features"
    if jnp.ndim(features) < 2 or features.shape[-2] != graph.num_edges:
        expected = f"of shape [..., {graph.num_edges}, features], one row for each edge slot"
        raise bad_input(where, "features", expected, f"shape {jnp.shape(features)}")
    features = jnp.asarray(features)
    require_floats(where, "features", features)
    loops = _loop_features(where, graph, looped.kept, jnp.moveaxis(features, -2, 0), fill_value)
    loops = jnp.moveaxis(loops[: _num_loops(graph)], 0, -2)
    # The contents of padding are undefined.
    real = jnp.where(looped.kept[:, None], features, 0)
    return jnp.take(jnp.concatenate([real, loops], axis=-2), looped.sources, axis=-2, mode="clip")


def _loop_features(
    where: str,
    graph: CSRGraph,
    kept: Bool[Array, " edges"],
    features: Float[Array, "edges *rest"],
    fill_value: FillValue,
) -> Float[Array, "rows *rest"]:
    if not isinstance(fill_value, str):
        return _constant(where, graph.num_rows, features, fill_value)
    if fill_value not in get_args(LoopReduce):
        expected = f"a number, numbers, or one of {', '.join(get_args(LoopReduce))}"
        raise bad_input(where, "fill_value", expected, repr(fill_value))
    presence = edge_presence(graph)
    if presence is not None:
        return _loops_of_masked(where, graph, jnp.where(kept, presence, 0), features, fill_value)
    rows, num_rows = graph.receivers(), graph.num_rows

    def of_edges(padding: float) -> Array:
        """Returns the features, and a neutral number for edges that do not count."""
        return jnp.where(kept.reshape(-1, *[1] * (features.ndim - 1)), features, padding)

    wide = jnp.float64 if features.dtype == jnp.float64 else jnp.float32
    if fill_value == "mul":
        return _products(of_edges(1).astype(wide), rows, num_rows).astype(features.dtype)
    counts = sum_rows(jnp.asarray(kept).astype(jnp.int32), jnp.asarray(graph.indptr))
    counts = counts.reshape(-1, *[1] * (features.ndim - 1))
    if fill_value in ("min", "max"):
        reduce, neutral = {
            "min": (jax.ops.segment_min, jnp.inf),
            "max": (jax.ops.segment_max, -jnp.inf),
        }[fill_value]
        reduced = reduce(of_edges(neutral), rows, num_rows, indices_are_sorted=True)
        return jnp.where(counts > 0, reduced, 0)
    sums = sum_rows(of_edges(0).astype(wide), jnp.asarray(graph.indptr))
    if fill_value == "mean":
        sums = sums / jnp.maximum(counts, 1).astype(wide)
    return sums.astype(features.dtype)


def _loops_of_masked(
    where: str,
    graph: CSRGraph,
    presence: Float[Array, " edges"],
    features: Float[Array, "edges *rest"],
    fill_value: str,
) -> Float[Array, "rows *rest"]:
    """Returns the sum or the mean, in which each edge counts by its presence."""
    if fill_value not in ("mean", "add"):
        expected = "'mean', 'add' or numbers, where edges are masked"
        raise bad_input(where, "fill_value", expected, repr(fill_value))
    wide = jnp.float64 if features.dtype == jnp.float64 else jnp.float32
    shares = presence.reshape(-1, *[1] * (features.ndim - 1)).astype(wide)
    indptr = jnp.asarray(graph.indptr)
    sums = sum_rows(jnp.where(shares > 0, shares * features.astype(wide), 0), indptr)
    if fill_value == "mean":
        counts = sum_rows(shares, indptr)
        sums = jnp.where(counts > 0, sums / jnp.where(counts > 0, counts, 1), 0)
    return sums.astype(features.dtype)


def _constant(where: str, num_rows: int, features: Array, value: Any) -> Array:
    """Returns the same features for all loops: one number, or one for each feature."""
    is_one = isinstance(value, numbers.Real | np.number) and not isinstance(value, bool)
    values = np.asarray([value] if is_one else value, np.float64)
    if values.shape not in ((1,), features.shape[-1:]) or not np.isfinite(values).all():
        expected = f"one finite number, or {features.shape[-1]} of them, one for each feature"
        raise bad_input(where, "fill_value", expected, repr(value))
    row = jnp.asarray(values, features.dtype)
    return jnp.broadcast_to(row, (num_rows, *features.shape[1:]))


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def _products(
    values: Float[Array, "edges *rest"], rows: Int[Array, " edges"], num_rows: int
) -> Float[Array, "rows *rest"]:
    """Returns the product of the values of each row's edges, one for a row without edges.

    ``jax.ops.segment_prod`` alone has no derivatives.
    """
    return jax.ops.segment_prod(values, rows, num_rows, indices_are_sorted=True)


@_products.defjvp
def _products_jvp(num_rows, primals, tangents):
    values, rows = primals
    zero = (values == 0).astype(jnp.int32)
    others = jnp.where(zero, 1, values)
    at_rows = {"mode": "clip", "indices_are_sorted": True}
    product = _products(others, rows, num_rows).at[rows].get(**at_rows)  # Without zeros.
    zeros = jax.ops.segment_sum(zero, rows, num_rows, indices_are_sorted=True)
    zeros_of_others = zeros.at[rows].get(**at_rows) - zero
    slopes = jnp.where(zeros_of_others == 0, product / others, 0)
    tangent = jax.ops.segment_sum(slopes * tangents[0], rows, num_rows, indices_are_sorted=True)
    return _products(values, rows, num_rows), tangent
