"""Layers of edges between both of their ends and a sum over each row."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from pallas_kernels import _edge_backward, _edge_forward
from pallas_kernels._edge_backward import BackwardTile
from pallas_kernels._edge_forward import EdgeTile
from pallas_kernels._edge_places import ROWS, EdgeLayers, Places, Tables
from pallas_kernels._edge_tiles import Plan
from pallas_kernels._pieces import Pieces, add_pieces

# Longer rows are cut, also where all are as long.
_MOST_STEPS = 256


def edge_reduce(
    graph: Pieces,
    layers: EdgeLayers,
    activation: str | None,
    activate_last: bool,
    degree: int | None,
    tile: EdgeTile | None = None,
) -> jax.Array:
    """``y_i = Σ_j w_ij layers(receivers_i + senders_j)``, in float32, rounded once.

    Args:
      graph: its weights and scales play no part.
      layers: see there; an activation in front of each.
      activation: name, or None.
      activate_last: whether it also stands behind the last.
      degree: edges of every row, if all are known to have as many.
      tile: by default what suits the shapes.

    Returns:
      [batch, rows, last], of the dtype of ``receivers``; zero for a row without edges.
    """
    batch, rows, _ = layers.receivers.shape
    last = layers.kernels[-1].shape[1] if layers.kernels else layers.receivers.shape[-1]
    if batch * rows * graph.num_edges == 0:
        return jnp.zeros((batch, rows, last), layers.receivers.dtype)
    places, tables = places_of(graph, batch, layers.senders.shape[1], degree)
    flat = layers.flat()
    y, partial = _edge_forward.forward(
        places, tables, flat, activation, activate_last, slots(graph), tile
    )
    return _whole_rows(graph, partial, y.reshape(batch, rows, last))


def edge_reduce_backward(
    graph: Pieces,
    layers: EdgeLayers,
    dy: jax.Array,
    activation: str | None,
    activate_last: bool,
    degree: int | None,
    tile: BackwardTile | None = None,
) -> EdgeLayers:
    """Gradients of ``edge_reduce`` to ``layers``.

    Those of both ends are added up atomically, so their last bits change from run to run.

    Args:
      graph: as there.
      layers: likewise.
      dy: [batch, rows, last].
      activation: as there.
      activate_last: likewise.
      degree: likewise.
      tile: by default what suits the shapes.

    Returns:
      Of the shapes and dtypes of ``layers``.
    """
    batch, rows, _ = layers.receivers.shape
    if batch * rows * graph.num_edges == 0:
        return jax.tree.map(jnp.zeros_like, layers)
    places, tables = places_of(graph, batch, layers.senders.shape[1], degree)
    made = _edge_backward.backward(
        places,
        tables,
        layers.flat(),
        dy.reshape(-1, dy.shape[-1]),
        activation,
        activate_last,
        tile,
    )
    dreceivers = made.receivers.reshape(layers.receivers.shape)
    dsenders, dweights = made.senders.reshape(layers.senders.shape), made.weights
    if layers.weights is not None and dweights is not None:
        if places.degree is None:
            is_real = jnp.arange(graph.num_edges, dtype=graph.indptr.dtype) < graph.indptr[-1]
            dweights = jnp.where(is_real, dweights, 0)
        if layers.weights.shape[0] < batch:
            dweights = jnp.sum(dweights, axis=0, keepdims=True)
    return made._replace(receivers=dreceivers, senders=dsenders, weights=dweights)


def goes_forth(layers: EdgeLayers, activation: str | None, activate_last: bool) -> bool:
    """Whether ``edge_reduce`` has room for these layers."""
    return EdgeTile.choose(_plan(layers, activation, activate_last).stack) is not None


def goes_back(layers: EdgeLayers, activation: str | None, activate_last: bool) -> bool:
    """Whether ``edge_reduce_backward`` has room for these layers."""
    return _edge_backward.supported(_plan(layers, activation, activate_last))


def _plan(layers: EdgeLayers, activation: str | None, activate_last: bool) -> Plan:
    """Of any graph."""
    return Plan.of(Places(1, 1, 1, 1), layers, activation, activate_last)


def _whole_rows(graph: Pieces, partial: jax.Array | None, y: jax.Array) -> jax.Array:
    """With the rows of several pieces."""
    if partial is None or not graph.has_long_rows:
        return y
    plain = dataclasses.replace(graph, weights=None, row_scale=None, col_scale=None)
    return jax.vmap(add_pieces, (None, 0, 0))(plain, partial, y)


def slots(graph: Pieces) -> int:
    """Of partial sums, at least one."""
    return graph.partial_sums(1)[0].shape[0] if graph.has_long_rows else 1


def places_of(graph: Pieces, batch: int, cols: int, degree: int | None) -> tuple[Places, Tables]:
    """How the edges of a batch of graphs are dealt out."""
    shape = batch, graph.num_rows, cols, graph.num_edges
    if degree is not None and degree <= _MOST_STEPS:
        return Places(*shape, degree), Tables(graph.indices)
    count = graph.pieces.shape[0]
    padded = -(-count // ROWS) * ROWS
    units = jnp.pad(graph.pieces, (0, padded - count))
    is_piece = jnp.arange(padded, dtype=jnp.int32) < graph.counts[1]
    rows = jnp.where(is_piece, graph.unit_rows[units], 0)
    starts = graph.unit_offsets[units]
    row_length = graph.indptr[rows + 1] - graph.indptr[rows]
    size = graph.edges_per_piece
    lengths = jnp.minimum(graph.indptr[rows + 1] - starts, size)
    # As ``Pieces.slot`` has it.
    part = starts // size + jnp.where(lengths == size, 0, graph.num_edges // size + 1)
    listed = (
        rows,
        jnp.where(is_piece, starts, -1),
        jnp.where(is_piece, lengths, 0),
        jnp.where(row_length <= size, -1, part),
    )
    listed = (numbers.astype(jnp.int32) for numbers in listed)
    return Places(*shape, None, padded), Tables(graph.indices, *listed)
