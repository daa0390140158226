"""Sums over edges and products along them, some edges at a time, in plain JAX.

An array with an axis of edges and one of heads and columns is never stored at full length: its axis
of edges is cut into pieces, which are processed one after the other.

``sums`` and ``products`` replace ``spmm`` and ``sddmm`` of several heads in derivatives of
attention, where no kernel can run. Each of the two is the gradient of the other, so derivatives of
any order use only these. An edge reads a row at one end and adds to a row at the other. Two arrays
of ids define these rows: receivers, senders or the numbers of the edges themselves. Ids past the
last row are those of padding: they read zeros, and their terms are dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Shaped

from jaxgnn._arrays.arrays import match_varying, rows_at
from jaxgnn.graph import CSRGraph
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.custom_gradient import custom_vjp, set_gradient

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
    """Pieces of ``size`` of all ``edges``, with arrays padded so that every piece is whole."""

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


def _of_in_turn(function, cut, fixed, shared, of_edges, slopes):
    of_sums, of_made = slopes
    both = in_turn(partial(_pulled, function), cut, fixed, (shared, of_sums), (of_edges, of_made))
    return None, *both


def _pulled(function, fixed, shared, piece):
    """The gradients of ``function`` to the arrays that all pieces share, and to the piece."""
    (shared, of_sums), (piece, of_piece) = shared, piece
    _, pull_back = jax.vjp(partial(function, fixed), shared, piece)
    return pull_back((of_sums, of_piece))


set_gradient(in_turn, _of_in_turn, 2)


def are_needed(kernel: dispatch.Kernel, request: dispatch.Request, *args: Any) -> bool:
    """Whether a call that names no implementation would run the plain formula here.

    Raises:
      NotImplementedError: if results have to be reproducible on a GPU: these sums are scatters.
    """
    if request.name is not None:
        return False
    with dispatch.deterministic(request.deterministic):
        return kernel.choose(dispatch.current_platform(), *args) == "xla"


class Ends(NamedTuple):
    """The row, column and number of each edge slot, all past the last one in padding slots."""

    receivers: Int[Array, " edges"]
    senders: Int[Array, " edges"]
    slots: Int[Array, " edges"]

    @classmethod
    def of(cls, graph: CSRGraph) -> Ends:
        """The ends of a graph's edge slots."""
        receivers = graph.receivers()
        real = receivers < graph.num_rows
        slots = jnp.arange(graph.num_edges, dtype=receivers.dtype)
        senders = jnp.where(real, graph.indices, graph.num_cols)
        return cls(receivers, senders, jnp.where(real, slots, graph.num_edges))


class Result(NamedTuple):
    """The number of rows of sums, and of their heads: one for all, or as many as weights have."""

    rows: int
    heads: int


@partial(custom_vjp, nondiff_argnums=(0,))
def sums(
    result: Result,
    sources: Int[Array, " edges"],
    targets: Int[Array, " edges"],
    weights: Float[Array, "edges heads"],
    values: Float[Array, "sources groups dim"],
) -> Float[Array, "targets groups dim"]:
    """``y_ih = Σ_e w_eh v_jh`` over the edges e from j to i, or the sum of that over the heads.

    An edge reads the row ``sources`` of the values and adds to the row ``targets`` of the sums.
    """
    size = _edges_of_piece(weights.shape, values.shape)
    weights, values = match_varying(weights, values)
    cut = Cut(size, weights.shape[0])
    ids = cut.padded(sources, values.shape[0]), cut.padded(targets, result.rows)
    weights = cut.padded(weights)

    def add(i, total):
        some = partial(cut.part, i)
        made = some(weights)[:, :, None] * rows_at(values, some(ids[0]))
        if result.heads == 1:
            made = jnp.sum(made, axis=1, keepdims=True)
        return total.at[some(ids[1])].add(made, mode="drop")

    zeros = jnp.zeros((*result, values.shape[2]), values.dtype)
    zeros, *_ = match_varying(zeros, weights, ids)
    return lax.fori_loop(0, cut.number, add, zeros)


@custom_vjp
def products(
    left: Int[Array, " edges"],
    right: Int[Array, " edges"],
    a: Float[Array, "left groups dim"],
    b: Float[Array, "right groups dim"],
) -> Float[Array, "edges heads"]:
    """``⟨a_ih, b_jh⟩`` for each edge between i and j and each head; zero in padding slots."""
    heads = jax.core.max_dim(a.shape[1], b.shape[1])
    size = _edges_of_piece((left.shape[0], heads), a.shape)
    a, b = match_varying(a, b)
    cut = Cut(size, left.shape[0])
    left, right = cut.padded(left, a.shape[0]), cut.padded(right, b.shape[0])

    def write(i, whole):
        some = partial(cut.part, i)
        made = jnp.sum(rows_at(a, some(left)) * rows_at(b, some(right)), axis=-1)
        return lax.dynamic_update_slice_in_dim(whole, made, i * size, 0)

    zeros = jnp.zeros((cut.edges + cut.room, heads), a.dtype)
    zeros, *_ = match_varying(zeros, a, left, right)
    return lax.fori_loop(0, cut.number, write, zeros)[: cut.edges]


def _edges_of_piece(weights: tuple[Any, ...], values: tuple[Any, ...]) -> int:
    """The number of edges of a piece, from the shapes of numbers of edges and of rows."""
    (edges, heads), (_, groups, dim) = weights, values
    return edges_of_piece(edges, jax.core.max_dim(heads, groups) * dim)


# The gradients. Ids have none.


def _of_sums(result, sources, targets, weights, values, dy):
    del result
    to_weights = products(targets, sources, dy, values)
    to_values = sums(Result(*values.shape[:2]), targets, sources, weights, dy)
    return None, None, jnp.broadcast_to(to_weights, weights.shape), to_values


def _of_products(left, right, a, b, de):
    to_a = sums(Result(*a.shape[:2]), right, left, de, b)
    return None, None, to_a, sums(Result(*b.shape[:2]), left, right, de, a)


set_gradient(sums, _of_sums, 1)
set_gradient(products, _of_products)
