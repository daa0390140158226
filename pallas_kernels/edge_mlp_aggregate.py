"""Layers of edges between both of their ends and a sum over each row."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from pallas_kernels import _edge_forward
from pallas_kernels._edge_forward import EdgeTile
from pallas_kernels._edge_places import ROWS, EdgeLayers, Places, Tables
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
    y = y.reshape(batch, rows, last)
    if partial is not None and graph.has_long_rows:
        plain = dataclasses.replace(graph, weights=None, row_scale=None, col_scale=None)
        y = jax.vmap(add_pieces, (None, 0, 0))(plain, partial, y)
    return y


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
