"""Pieces of the edges of a graph, for arrays with an axis of edges and one of heads and columns.

Such an array is never stored at full length: its axis of edges is cut into pieces, which are
processed one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Shaped

from jaxgnn.ops._core import dispatch
from jaxgnn.ops._core.custom_gradient import custom_vjp

# Entries of the largest array of a piece: edges times heads times columns.
ENTRIES = 2**24

# Edges of a piece whose heads or columns are known only when an exported program is called.
_OF_UNKNOWN_WIDTH = 4096


def edges_of_piece(edges: int, width: int, nodes: tuple[int, ...] = ()) -> int:
    """The number of edges of a piece, symbolic for an unknown number of edges or nodes.

    Args:
      edges: number of edge slots of the graph.
      width: entries of an edge, heads times columns.
      nodes: numbers of nodes whose arrays of ``width`` are read and written for each piece. A piece
        has at least as many edges, so that this does not take longer than its own work.
    """
    most = ENTRIES // max(width, 1) if isinstance(width, int) else _OF_UNKNOWN_WIDTH
    for size in nodes:
        most = jax.core.max_dim(most, size)
    return jax.core.max_dim(1, jax.core.min_dim(edges, most))


def cut(
    array: Shaped[Array, "edges *rest"], size: int, padding: int = 0
) -> Shaped[Array, "pieces size *rest"]:
    """The array in pieces of ``size`` along its first axis; ``padding`` fills the last piece."""
    edges = array.shape[0]
    pieces = max(1, -(-edges // size)) if isinstance(edges, int) else 1
    missing = pieces * size - edges
    ends = [(0, missing)] + [(0, 0)] * (array.ndim - 1)
    return jnp.pad(array, ends, constant_values=padding).reshape(pieces, size, *array.shape[1:])


class Cut(NamedTuple):
    """Pieces of arrays of edges, padded so that every piece is whole.

    Attributes:
      size: edges of a piece, symbolic for an unknown number of edges.
      edges: edges of all.
    """

    size: int
    edges: int

    @property
    def number(self) -> int:
        """Number of pieces; the last one may be partly padding."""
        return -(-self.edges // self.size)

    @property
    def room(self) -> int:
        """Padding edges to append: a whole piece if the number of edges is not known."""
        is_known = isinstance(self.edges, int) and isinstance(self.size, int)
        return self.number * self.size - self.edges if is_known and self.edges else self.size

    def padded(self, array: Shaped[Array, "edges *rest"], padding: Any = 0) -> Array:
        """The array, followed by ``padding``."""
        room = jnp.full((self.room, *array.shape[1:]), padding, array.dtype)
        return jnp.concatenate([array, room])

    def part(self, i: Any, array: Shaped[Array, "padded *rest"]) -> Array:
        """The entries of the edges of a piece."""
        return lax.dynamic_slice_in_dim(array, i * self.size, self.size)


@partial(custom_vjp, nondiff_argnums=(0, 1))
def in_turn(
    function: Callable[[Any, Any, Any], tuple[Any, Any]],
    cut: Cut,
    fixed: Any,
    shared: Any,
    of_edges: Any,
) -> tuple[Any, Any]:
    """Calls a function for each piece, one after the other, and sums a part of its results.

    A gradient is the same with another function, which recomputes the arrays of a piece and sums
    the gradients to the arrays that all pieces share. So the memory of derivatives of any order is
    that of one piece, besides the results. (When JAX differentiates a loop, it keeps the values for
    the second derivative of every step, with or without ``jax.checkpoint``.)

    Args:
      function: ``function(fixed, shared, piece) -> (summed, made)``, pytrees of floating arrays;
        ``made`` has an axis of edges. It may not hold traced arrays.
      cut: the pieces.
      fixed: pytree of padded arrays of edges that have no gradient.
      shared: pytree of floating arrays that every piece gets.
      of_edges: pytree of padded floating arrays of edges.

    Returns:
      The sum of all ``summed``, and ``made`` of all edges, padded.
    """
    fixed, shared, of_edges = dispatch.match_varying(fixed, shared, of_edges)

    def of_piece(i, fixed, shared, of_edges):
        part = partial(cut.part, i)
        return function(jax.tree.map(part, fixed), shared, jax.tree.map(part, of_edges))

    def add(i, results):
        sums, whole = results
        summed, made = of_piece(i, fixed, shared, of_edges)
        write = partial(lax.dynamic_update_slice_in_dim, start_index=i * cut.size, axis=0)
        return jax.tree.map(jnp.add, sums, summed), jax.tree.map(write, whole, made)

    summed, made = jax.eval_shape(partial(of_piece, 0), fixed, shared, of_edges)
    zeros = (
        jax.tree.map(lambda kind: jnp.zeros(kind.shape, kind.dtype), summed),
        jax.tree.map(
            lambda kind: jnp.zeros((cut.edges + cut.room, *kind.shape[1:]), kind.dtype), made
        ),
    )
    zeros, *_ = dispatch.match_varying(zeros, fixed, shared, of_edges)
    return lax.fori_loop(0, cut.number, add, zeros)


def _in_turn_forward(function, cut, fixed, shared, of_edges):
    return in_turn(function, cut, fixed, shared, of_edges), (fixed, shared, of_edges)


def _in_turn_backward(function, cut, residuals, slopes):
    fixed, shared, of_edges = residuals
    of_sums, of_made = slopes
    both = in_turn(partial(_pulled, function), cut, fixed, (shared, of_sums), (of_edges, of_made))
    return None, *both


def _pulled(function, fixed, shared, piece):
    """The gradients of ``function`` to the arrays that all pieces share, and to the piece."""
    (shared, of_sums), (piece, of_piece) = shared, piece
    _, pull_back = jax.vjp(partial(function, fixed), shared, piece)
    return pull_back((of_sums, of_piece))


in_turn.defvjp(_in_turn_forward, _in_turn_backward)
