"""Pieces of the edges of a graph, for what has an axis of edges and one of heads and columns.

Such an array is never made at full length: its axis of edges is cut into pieces, which come one
after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Shaped

from jaxgnn.ops._core import dispatch
from jaxgnn.ops._core.custom_gradient import custom_vjp

# Entries of the largest array of a piece: edges times heads times columns.
ENTRIES = 2**24


def edges_of_piece(edges: int, width: int, nodes: tuple[int, ...] = ()) -> int:
    """The number of edges of a piece; all, if sizes are known only when an exported program runs.

    Args:
      edges: number of edge slots of the graph.
      width: entries of an edge, heads times columns.
      nodes: numbers of nodes whose arrays of ``width`` are read and written for each piece. A piece
        has as many edges at least, so that this does not take longer than its own work.
    """
    if not all(isinstance(size, int) for size in (edges, width, *nodes)):
        return edges
    return max(1, min(edges, max((ENTRIES // max(width, 1), *nodes))))


def cut(
    array: Shaped[Array, "edges *rest"], size: int, padding: int = 0
) -> Shaped[Array, "pieces size *rest"]:
    """The array in pieces of ``size`` along its first axis; ``padding`` fills the last piece."""
    edges = array.shape[0]
    pieces = max(1, -(-edges // size)) if isinstance(edges, int) else 1
    missing = pieces * size - edges
    ends = [(0, missing)] + [(0, 0)] * (array.ndim - 1)
    return jnp.pad(array, ends, constant_values=padding).reshape(pieces, size, *array.shape[1:])


@partial(custom_vjp, nondiff_argnums=(0,))
def in_turn(
    function: Callable[[Any, Any, Any], tuple[Any, Any]], fixed: Any, shared: Any, pieces: Any
) -> tuple[Any, Any]:
    """Calls a function of each piece, one after the other; adds up one part of what it returns.

    A gradient is the same with another function, which makes again what belongs to a piece and
    adds up the gradients to what all pieces share. So the memory of derivatives of any order is
    that of a piece, beside the results. (Where JAX differentiates a loop, it keeps what the second
    derivative needs of every step, ``jax.checkpoint`` or not.)

    Args:
      function: ``function(fixed, shared, piece) -> (summed, made)``, pytrees of floating arrays.
        It may not hold traced arrays.
      fixed: pytree of arrays that have no gradient, with a leading axis for the pieces, of which
        there is one at least.
      shared: pytree of floating arrays that every piece gets.
      pieces: pytree of floating arrays with a leading axis for the pieces.

    Returns:
      The sum of all ``summed``, and ``made`` with a leading axis for the pieces.
    """

    def add(sums, piece):
        fixed, piece = piece
        summed, made = function(fixed, shared, piece)
        return jax.tree.map(jnp.add, sums, summed), made

    fixed, shared, pieces = dispatch.match_varying(fixed, shared, pieces)

    def sums_of_first(fixed, shared, pieces):
        fixed, first = jax.tree.map(lambda array: array[0], (fixed, pieces))
        return function(fixed, shared, first)[0]

    kinds = jax.eval_shape(sums_of_first, fixed, shared, pieces)
    zeros = jax.tree.map(lambda kind: jnp.zeros(kind.shape, kind.dtype), kinds)
    zeros, *_ = dispatch.match_varying(zeros, shared, pieces)
    return lax.scan(add, zeros, (fixed, pieces))


def _in_turn_forward(function, fixed, shared, pieces):
    return in_turn(function, fixed, shared, pieces), (fixed, shared, pieces)


def _in_turn_backward(function, residuals, slopes):
    fixed, shared, pieces = residuals
    of_sums, of_pieces = slopes
    both = in_turn(partial(_pulled, function), fixed, (shared, of_sums), (pieces, of_pieces))
    return None, *both


def _pulled(function, fixed, shared, piece):
    """The gradients of ``function`` to what all pieces share, and to the piece."""
    (shared, of_sums), (piece, of_piece) = shared, piece
    _, pull_back = jax.vjp(partial(function, fixed), shared, piece)
    return pull_back((of_sums, of_piece))


in_turn.defvjp(_in_turn_forward, _in_turn_backward)
