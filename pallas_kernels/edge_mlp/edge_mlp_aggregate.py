"""Dense layers on edges, from receivers and senders, and their sum over the edges of each row.

This module chooses among the kernels of the folder and prepares their tables.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from pallas_kernels.chip import Chip
from pallas_kernels.edge_mlp import backward as edge_backward
from pallas_kernels.edge_mlp import chunks as edge_chunks
from pallas_kernels.edge_mlp import forward as edge_forward
from pallas_kernels.edge_mlp import ring_forward as edge_ring_forward
from pallas_kernels.edge_mlp import wide as edge_wide
from pallas_kernels.edge_mlp.backward_needs import BackwardNeeds, BackwardTile
from pallas_kernels.edge_mlp.chunks import ChunkTile
from pallas_kernels.edge_mlp.edge_tiles import ROWS, EdgeLayers, Places, Tables
from pallas_kernels.edge_mlp.forward import EdgeTile
from pallas_kernels.edge_mlp.ring_forward import RingTile
from pallas_kernels.edge_mlp.tiles import Plan
from pallas_kernels.edge_mlp.wide import WideTile
from pallas_kernels.graph.rows import Pieces, add_pieces

# Rows of more edges are cut into pieces: graphs of one degree, and graphs whose rows are listed.
_MOST_REGULAR, _MOST_STEPS = 256, 64


def edge_reduce(
    graph: Pieces,
    layers: EdgeLayers,
    activation: str | None,
    activate_last: bool,
    degree: int | None,
    tile: EdgeTile | RingTile | None = None,
) -> jax.Array:
    """``y_i = Σ_j w_ij layers(receivers_i + senders_j + features_ij)``, in float32, rounded once.

    Args:
      graph: edges sorted by rows, and their pieces; its weights and scales are ignored.
      layers: arrays of nodes and edges, and the kernels and biases.
      activation: name of the activation before each kernel, or None.
      activate_last: whether the activation is also applied after the last kernel.
      degree: edges of every row, if all rows are known to have equally many.
      tile: how blocks share the work; by default chosen for the shapes.

    Returns:
      [batch, rows, last], of the dtype of ``receivers``; zero for a row without edges.
    """
    batch, rows, _ = layers.receivers.shape
    last = layers.kernels[-1].shape[1] if layers.kernels else layers.receivers.shape[-1]
    if batch * rows * graph.num_edges == 0:
        return jnp.zeros((batch, rows, last), layers.receivers.dtype)
    places, tables = places_of(graph, batch, layers.senders.shape[1], degree)
    tile = tile or _forward_tile(_plan(layers, activation, activate_last))
    arguments = places, tables, layers.flat(), activation, activate_last, slots(graph)
    if isinstance(tile, RingTile):
        y, partial = edge_ring_forward.forward(*arguments, tile)
    elif isinstance(tile, WideTile):
        y, partial = edge_wide.forward(*arguments, tile)
    else:
        y, partial = edge_forward.forward(*arguments, tile)
    y = y.reshape(batch, rows, last)
    return y if partial is None else _whole_rows(graph, partial, y)


def edge_reduce_backward(
    graph: Pieces,
    layers: EdgeLayers,
    dy: jax.Array,
    activation: str | None,
    activate_last: bool,
    degree: int | None,
    tile: BackwardTile | ChunkTile | None = None,
) -> EdgeLayers:
    """Gradients of ``edge_reduce`` to all arrays of ``layers``.

    Gradients of receivers and senders are added atomically, so their last bits differ between runs.

    Args:
      graph: edges sorted by rows, and their pieces; its weights and scales are ignored.
      layers: arrays of nodes and edges, and the kernels and biases.
      dy: [batch, rows, last], the gradient of the result.
      activation: name of the activation before each kernel, or None.
      activate_last: whether the activation is also applied after the last kernel.
      degree: edges of every row, if all rows are known to have equally many.
      tile: how blocks share the work; by default chosen for the shapes.

    Returns:
      Gradients of the shapes and dtypes of ``layers``; features that elements of the batch share
      have float32 gradients.
    """
    batch, rows, _ = layers.receivers.shape
    if batch * rows * graph.num_edges == 0:
        return jax.tree.map(jnp.zeros_like, layers)
    places, tables = places_of(graph, batch, layers.senders.shape[1], degree)
    arguments = places, tables, layers.flat(), dy.reshape(-1, dy.shape[-1])
    how = activation, activate_last
    tile = tile or _backward_tile(_plan(layers, *how), places)
    if isinstance(tile, ChunkTile):
        made = edge_chunks.backward(*arguments, *how, tile)
    else:
        made = edge_backward.backward(*arguments, *how, tile)
    dreceivers = made.receivers.reshape(layers.receivers.shape)
    dsenders, dweights = made.senders.reshape(layers.senders.shape), made.weights
    is_real = None
    if places.degree is None:
        is_real = jnp.arange(graph.num_edges, dtype=graph.indptr.dtype) < graph.indptr[-1]
    if layers.weights is not None and dweights is not None:
        dweights = dweights if is_real is None else jnp.where(is_real, dweights, 0)
        if layers.weights.shape[0] < batch:
            dweights = jnp.sum(dweights, axis=0, keepdims=True)
    dfeatures = made.features
    if dfeatures is not None and is_real is not None:
        dfeatures = jnp.where(is_real[:, None], dfeatures, 0)
    ends = {"receivers": dreceivers, "senders": dsenders}
    return made._replace(**ends, weights=dweights, features=dfeatures)


def fits_forward(layers: EdgeLayers, activation: str | None, activate_last: bool) -> bool:
    """Whether a kernel of ``edge_reduce`` fits a multiprocessor for these layers."""
    return _forward_tile(_plan(layers, activation, activate_last)) is not None


def _forward_tile(plan: Plan) -> EdgeTile | RingTile | None:
    """The tile for these layers, with all kernels in shared memory if they fit; or None."""
    is_wide = max(plan.stack.widths) > edge_forward.MOST_WIDTH
    kinds = WideTile if is_wide else EdgeTile, RingTile
    tiles = (kind.choose(Chip.current(), plan.stack, features=plan.has_features) for kind in kinds)
    return next((tile for tile in tiles if tile is not None), None)


def fits_backward(layers: EdgeLayers, activation: str | None, activate_last: bool) -> bool:
    """Whether a kernel of ``edge_reduce_backward`` fits a multiprocessor for these layers."""
    return _backward_tile(_plan(layers, activation, activate_last), None) is not None


def streams_kernels(
    layers: EdgeLayers, activation: str | None, activate_last: bool, *, backward: bool
) -> bool:
    """Whether kernels are streamed from memory, or in the backward pass their gradients to it."""
    plan = _plan(layers, activation, activate_last)
    tile = _backward_tile(plan, None) if backward else _forward_tile(plan)
    return isinstance(tile, RingTile | ChunkTile)


def _backward_tile(plan: Plan, places: Places | None) -> BackwardTile | ChunkTile | None:
    """The tile for these layers, with gradients of kernels in registers if they fit; or None."""
    needs = BackwardNeeds(plan)
    is_narrow = edge_backward.supported(plan)
    tile = (BackwardTile if is_narrow else ChunkTile).choose(Chip.current(), needs)
    return tile if tile is None or places is None else tile.suited_to(places)


def _plan(layers: EdgeLayers, activation: str | None, activate_last: bool) -> Plan:
    """The plan of the layers on an arbitrary graph, for choices that do not depend on the graph."""
    return Plan.of(Places(1, 1, 1, 1), layers, activation, activate_last)


def _whole_rows(graph: Pieces, partial: jax.Array, y: jax.Array) -> jax.Array:
    """``y`` with the rows that were cut into several pieces, summed from ``partial``."""
    cut = _cut(graph)
    return jax.vmap(add_pieces, (None, 0, 0))(cut, partial, y) if cut.has_long_rows else y


def _cut(graph: Pieces) -> Pieces:
    """The graph with pieces of the length that the tables list, as ``add_pieces`` takes it."""
    return dataclasses.replace(
        graph, weights=None, row_scale=None, col_scale=None, edges_per_piece=_MOST_STEPS
    )


def slots(graph: Pieces) -> int:
    """Number of partial sums of pieces of rows, at least one."""
    cut = _cut(graph)
    return cut.partial_sums(1)[0].shape[0] if cut.has_long_rows else 1


def places_of(graph: Pieces, batch: int, cols: int, degree: int | None) -> tuple[Places, Tables]:
    """Assigns the edges of a batch of copies of the graph to places in tiles."""
    shape = batch, graph.num_rows, cols, graph.num_edges
    if degree is not None and degree <= _MOST_REGULAR:
        return Places(*shape, degree), Tables(graph.indices)
    rows, starts, lengths = (numbers.astype(jnp.int32) for numbers in _parts(graph))
    count = rows.shape[0]
    behind = (0, -count % ROWS)
    rows, lengths = jnp.pad(rows, behind), jnp.pad(lengths, behind)
    starts = jnp.pad(starts, behind, constant_values=-1)
    # The same index of the partial sum as ``Pieces.slot``.
    part = starts // _MOST_STEPS
    part += jnp.where(lengths == _MOST_STEPS, 0, graph.num_edges // _MOST_STEPS + 1)
    is_whole = graph.indptr[rows + 1] - graph.indptr[rows] <= _MOST_STEPS
    steps = jnp.max(lengths.reshape(-1, ROWS), axis=1)
    tables = Tables(graph.indices, rows, starts, lengths, jnp.where(is_whole, -1, part), steps)
    return Places(*shape, None, rows.shape[0]), tables


def _parts(graph: Pieces) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Row, first edge and length of all parts of pieces, of at most ``_MOST_STEPS`` edges each.

    First come the full parts except the last of each piece. Then comes the last part of each piece,
    in the order of the pieces, which are sorted by length: most rows have no other. Unused entries
    have the first edge -1 and the length zero.
    """
    numbers = jnp.arange(graph.pieces.shape[0], dtype=jnp.int32)
    is_piece = numbers < graph.counts[1]
    rows = jnp.where(is_piece, graph.unit_rows[graph.pieces], 0)
    starts = graph.unit_offsets[graph.pieces]
    lengths = jnp.minimum(graph.indptr[rows + 1] - starts, graph.edges_per_piece)
    lengths = jnp.where(is_piece, lengths, 0)
    before = jnp.maximum(lengths - 1, 0) // _MOST_STEPS
    last = (
        rows,
        jnp.where(is_piece, starts + before * _MOST_STEPS, -1),
        lengths - before * _MOST_STEPS,
    )
    most = graph.num_edges // _MOST_STEPS
    if most == 0:
        return last
    ends = jnp.cumsum(before)
    piece = jnp.repeat(numbers, before, total_repeat_length=most)
    part = jnp.arange(most, dtype=ends.dtype)
    is_part = part < ends[-1]
    within = part - (ends[piece] - before[piece])
    full = (
        rows[piece],
        jnp.where(is_part, starts[piece] + within * _MOST_STEPS, -1),
        jnp.where(is_part, _MOST_STEPS, 0),
    )
    made = [jnp.concatenate(pair) for pair in zip(full, last, strict=True)]
    return made[0], made[1], made[2]
