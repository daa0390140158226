"""Arrays of a graph as kernels take them, compiled or Pallas."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from jaxgnn.graph.csr.csr_graph import CSRGraph
from jaxgnn.graph.plan.built_parts import given_plan
from jaxgnn.graph.plan.edge_blocks import EdgeBlocks, Limits, blocks_for


def structure(graph: CSRGraph) -> tuple[Array, Array, Array]:
    """The operands that every sparse kernel starts with: unit rows, unit offsets, indices."""
    schedule = graph.made_plan("schedule").schedule
    return schedule.rows, schedule.offsets, graph.indices


def pieces(graph: CSRGraph) -> tuple[Array, ...]:
    """The first operands of sparse CUDA kernels: indptr, the schedule with its pieces, indices."""
    schedule = graph.made_plan("schedule").schedule
    offsets = schedule.offsets
    return (
        graph.indptr.astype(offsets.dtype),
        schedule.rows,
        offsets,
        schedule.pieces,
        schedule.piece_counts,
        graph.indices,
    )


def edge_blocks(graph: CSRGraph, limits: Limits, row_bytes: int) -> EdgeBlocks | None:
    """The edges by block, or None if they are not listed or rows of ``row_bytes`` are too wide.

    Blocks of wider rows do not fit the shared memory of a GPU. Blocks that were built for a graph
    without weights do not store the places of weights.
    """
    plan = given_plan(graph)
    options = () if plan is None else plan.edge_blocks
    if graph.weights is not None:
        options = tuple(blocks for blocks in options if blocks.edges is not None)
    return blocks_for(limits, options, row_bytes)


def coefficients(graph: CSRGraph) -> tuple[Array | None, ...]:
    """Returns weights and scales in float32, None where the graph has none."""
    return as_float32(graph.weights), *scales(graph)


def scales(graph: CSRGraph) -> tuple[Array | None, Array | None]:
    """Returns the scales of a normalised graph in float32, None where it has none."""
    return as_float32(graph.row_scale), as_float32(graph.col_scale)


def as_float32(array: Array | None) -> Array | None:
    """Casts an array to float32 and returns None for None."""
    return None if array is None else array.astype(jnp.float32)
