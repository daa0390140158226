"""Graphs and shapes that every sparse op is tested on, degenerate ones first of all."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxgnn.graph import CSRGraph


@dataclass(frozen=True)
class GraphCase:
    """A named graph.

    Attributes:
      name: describes what is special about the graph.
      build: function that builds the graph, equal at each call.
    """

    name: str
    build: Callable[[], CSRGraph]


def _random(
    num_rows: int,
    num_edges: int,
    *,
    num_cols: int | None = None,
    hub: int = 0,
    weighted: bool = False,
    masked: float = 0.0,
    dtype: Any = "float32",
) -> CSRGraph:
    """A multigraph with uniformly random ends; the first ``hub`` edges all enter the middle row.

    ``masked`` is the fraction of edges that are padding.
    """
    rng = np.random.default_rng(num_rows + num_edges)
    num_cols = num_rows if num_cols is None else num_cols
    senders = rng.integers(0, max(num_cols, 1), num_edges)
    receivers = rng.integers(0, max(num_rows, 1), num_edges)
    receivers[:hub] = num_rows // 2
    weights = rng.normal(size=num_edges).astype(dtype) if weighted else None
    mask = rng.random(num_edges) >= masked if masked else None
    return CSRGraph.from_edges(
        senders, receivers, num_rows, weights, num_senders=num_cols, edge_mask=mask
    )


def _repeated() -> CSRGraph:
    """Three nodes, every edge four times, one node isolated."""
    return CSRGraph.from_edges(np.repeat([0, 1, 1], 4), np.repeat([1, 0, 1], 4), 3)


GRAPHS = (
    GraphCase("one_node_no_edges", lambda: _random(1, 0)),
    GraphCase("one_self_loop", lambda: CSRGraph.from_edges([0], [0], 1)),
    GraphCase("no_edges", lambda: _random(5, 0)),
    GraphCase("isolated_nodes", lambda: _random(40, 20)),
    GraphCase("repeated_edges", _repeated),
    GraphCase("unweighted", lambda: _random(50, 400)),
    GraphCase("weighted", lambda: _random(50, 400, weighted=True)),
    GraphCase("weighted_bfloat16", lambda: _random(50, 300, weighted=True, dtype=jnp.bfloat16)),
    GraphCase("bipartite", lambda: _random(30, 200, num_cols=17, weighted=True)),
    GraphCase("padding_edges", lambda: _random(33, 300, weighted=True, masked=0.4)),
    GraphCase("all_padding", lambda: _random(7, 20, masked=1.0)),
    GraphCase("mean", lambda: _random(41, 300, hub=60).normalized("mean")),
    GraphCase("sym", lambda: _random(41, 300, hub=60).normalized("sym")),
    GraphCase("sym_weighted", lambda: _positive(_random(41, 300, weighted=True)).normalized("sym")),
    GraphCase("bfloat16_scales", lambda: _bfloat16(_random(41, 300).normalized("sym"))),
    GraphCase("padding_and_sym", lambda: _random(29, 200, masked=0.3).normalized("sym")),
    # Longer than one work unit (256 edges), and than the run of units that one CPU task takes.
    GraphCase("one_row_has_all_edges", lambda: _random(9, 700, hub=700, weighted=True)),
    GraphCase("hub_row_spans_tasks", lambda: _random(300, 40_000, hub=39_000).normalized("mean")),
    GraphCase("hub_sender_spans_tasks", lambda: _random(300, 40_001, hub=39_000).transpose()),
)
"""Graphs to test an op on: empty, irregular, padded, normalised, with hubs."""


def _positive(graph: CSRGraph) -> CSRGraph:
    assert graph.weights is not None
    return graph.with_weights(jnp.abs(graph.weights) + 0.1)


def _bfloat16(graph: CSRGraph) -> CSRGraph:
    """Casts the scales to bfloat16, as casting all arrays of a model does."""
    assert graph.row_scale is not None and graph.col_scale is not None
    return dataclasses.replace(
        graph,
        row_scale=graph.row_scale.astype(jnp.bfloat16),
        col_scale=graph.col_scale.astype(jnp.bfloat16),
    )


DIMS = (1, 3, 16, 70, 256, 300)
"""Feature widths: one, odd, a vector, no power of two, the last with 8-bit ids and beyond."""

MAXK_SHAPES = (
    (1, 1),
    (8, 1),
    (8, 8),
    (16, 3),
    (70, 5),
    (64, 31),
    (64, 33),
    (256, 2),
    (256, 16),
    (256, 255),
    (300, 32),
)
"""(dim, k) with tails below a vector or a warp, k = 1, k = dim, and 16-bit column ids."""

DTYPES = ("float32", "bfloat16")
"""Names of the dtypes that ops are tested in."""
