"""Pooling that keeps the best nodes of each graph: SortPool, TopKPooling."""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Float, Int

from jaxgnn._errors import bad_input
from jaxgnn._fractions import exact_fraction
from jaxgnn.graph import CSRGraph, GraphBatch
from jaxgnn.nn.shared.common_options import DocumentedModule
from jaxgnn.nn.shared.graph_ids import (
    check_batch,
    check_features,
    num_real_nodes,
    rows_where,
    spread_to_nodes,
)
from jaxgnn.nn.shared.maxk import check_kept, check_widths
from jaxgnn.nn.shared.options import checked_options, int_at_least, number, or_none


class SortPool(DocumentedModule):
    """The ``k`` nodes of each graph with the largest last feature, in descending order of it.

    The SortPooling of DGCNN (https://ojs.aaai.org/index.php/AAAI/article/view/11782). A graph with
    fewer nodes is padded with zeros. Nodes with equal features keep their order.

    Args:
      k: number of nodes kept for each graph.

    Example:
      >>> pair = GraphSample(senders=[0], receivers=[1], num_nodes=2)
      >>> batch = GraphBatch.from_graphs([pair, pair], pad_to=(8, 4))
      >>> nn.SortPool(3)(jnp.arange(8.0)[:, None], batch)[..., 0].tolist()
      [[1.0, 0.0, 0.0], [3.0, 2.0, 0.0], [0.0, 0.0, 0.0]]
    """

    @checked_options()
    def __init__(self, k: int):
        check_kept("SortPool", k)
        self.k = k

    def __call__(
        self, x: Float[Array, "nodes features"], batch: GraphBatch
    ) -> Float[Array, "graphs k features"]:
        """Keeps the first nodes of each graph.

        Args:
          x: features of the nodes.

        Returns:
          [graphs, k, features] in the dtype of ``x``, zeros if a graph has fewer nodes. PyTorch
          Geometric flattens the last two axes: ``y.reshape(graphs, -1)``.

        Raises:
          ValueError: if ``x`` does not have a row for each node slot of the batch.
        """
        check_batch("SortPool", x, batch)
        x = jnp.asarray(x)
        order, start = sort_by_score(x[:, -1], batch)
        place = jnp.arange(self.k, dtype=start.dtype)
        there = place < num_real_nodes(batch)[:, None]
        nodes = order[jnp.where(there, start[:, None] + place, 0)]
        return rows_where(there.ravel(), x[nodes.ravel()]).reshape(*there.shape, -1)


def sort_by_score(
    scores: Float[Array, " nodes"], batch: GraphBatch
) -> tuple[Int[Array, " nodes"], Int[Array, " graphs"]]:
    """Sorts nodes by graph, then by descending score; returns the order and the graphs' offsets.

    Padding comes last.
    """
    nodes = jnp.arange(scores.shape[0], dtype=jnp.int32)
    keys = (jnp.asarray(batch.graph_ids), -scores, nodes)
    _, _, order = lax.sort(keys, num_keys=3)
    counts = jnp.asarray(batch.num_nodes_of_each)
    return order, jnp.cumsum(counts, dtype=counts.dtype) - counts


class Pooled(NamedTuple):
    """Result of a pooling of a batch of graphs.

    Attributes:
      x: features of the kept nodes, [capacity, features], zeros for padding.
      batch: their graphs.
      node_ids: previous id of each node, int32 [capacity]; the previous number of nodes for
        padding. ``y.at[node_ids].set(x, mode="drop")`` puts features back.
    """

    x: Float[Array, "capacity features"]
    batch: GraphBatch
    node_ids: Int[Array, " capacity"]


class TopKPooling(DocumentedModule):
    """Keeps the nodes of each graph with the best scores, and the edges between them.

    ``s_i = tanh(p · x_i / ‖p‖)`` with a learnt ``p``. Of a graph of n nodes the ``⌈ratio · n⌉``
    best are kept, or the ``k`` best, best first and of equal ones the first, with the features
    ``s_i x_i``. See Graph U-Nets, https://arxiv.org/abs/1905.05178; PyTorch Geometric has it under
    the same name. The product is exact for a ratio of at most nine decimals, and for floats that
    are next to a fraction: 0.6 of 25 nodes are 15, and ``1 - 0.7`` of 10 are 3. (PyTorch Geometric
    rounds it to float32, and keeps 16 of 25.)

    The new batch has a fixed shape, ``⌈ratio · nodes⌉ + graphs`` node slots or ``k · graphs``, and
    one more for padding, so that a jitted network compiles once. It has the edge slots of the old
    one. Unused slots belong to the first padding graph. If all graphs are real, they belong to
    none: their id is the number of graphs.

    Args:
      ratio: share of the nodes that is kept, in (0, 1]; None with ``k``.
      k: number of nodes kept in each graph, or None.

    Raises:
      ValueError: if an option has a type or value other than described above, or both ``ratio`` and
        ``k`` are given, or neither.

    Example:
      >>> path = GraphSample(senders=[0, 1, 2], receivers=[1, 2, 3], num_nodes=4)
      >>> batch = GraphBatch.from_graphs([path, path], pad_to=(12, 8))
      >>> layer = nn.TopKPooling(5, ratio=0.5, rngs=nnx.Rngs(0))
      >>> x, pooled, _ = layer(jnp.ones((12, 5)), batch)
      >>> pooled.num_nodes_of_each.tolist(), pooled.graph.degrees()[:4].tolist()
      ([2, 2, 6], [0, 1, 0, 1])
    """

    @checked_options(ratio=or_none(number), k=or_none(int_at_least(1)))
    def __init__(
        self,
        in_features: int,
        *,
        ratio: float | None = None,
        k: int | None = None,
        param_dtype: jnp.dtype = jnp.float32,
        rngs: nnx.Rngs,
    ):
        check_widths("TopKPooling", in_features)
        if (ratio is None) == (k is None):
            expected = "given, or k in its place, and not both"
            raise bad_input("TopKPooling", "ratio", expected, f"{ratio} and k={k}")
        if ratio is not None and not 0 < ratio <= 1:
            raise bad_input("TopKPooling", "ratio", "in (0, 1]", ratio)
        self.ratio = ratio or 1.0
        self.k = k
        draws = jax.random.uniform(rngs.params(), (in_features,), jnp.float32, -1, 1)
        self.direction = nnx.Param((draws / in_features**0.5).astype(param_dtype))

    def __call__(self, x: Float[Array, "nodes features"], batch: GraphBatch) -> Pooled:
        """Keeps the best nodes.

        Args:
          batch: the graphs of the nodes, not normalised. Its features of nodes and edges follow
            their nodes and edges; those of the graphs are unchanged.

        Returns:
          The features, graphs and previous ids of the kept nodes.

        Raises:
          ValueError: if ``x`` does not fit the batch or the layer, or the graph is normalised.
        """
        check_batch("TopKPooling", x, batch)
        check_features("TopKPooling", x, self.direction[...].shape[0])
        if batch.graph.is_normalized:
            expected = "of a graph that is not normalised yet, since degrees change"
            raise bad_input("TopKPooling", "batch", expected, repr(batch.graph.normalization))
        x = rows_where(jnp.asarray(batch.node_mask), jnp.asarray(x))
        direction = self.direction[...].astype(x.dtype)
        scores = jnp.tanh(x @ direction / jnp.linalg.norm(direction))
        order, is_kept = self._best(scores, batch)
        nodes = x.shape[0]
        # The kept nodes of ``order`` in their order, padded with the number of nodes.
        (at,) = jnp.nonzero(is_kept, size=self._capacity(batch), fill_value=nodes)
        node_ids = jnp.pad(order, (0, 1), constant_values=nodes)[at]
        kept = rows_at(node_ids, x) * rows_at(node_ids, scores)[:, None]
        return Pooled(kept, batch_of_nodes(batch, node_ids), node_ids)

    def _capacity(self, batch: GraphBatch) -> int:
        nodes, graphs = batch.node_mask.shape[0], batch.num_graphs
        of_ratio = int(_numbers_kept(exact_fraction(self.ratio), nodes)[-1]) + graphs
        most = of_ratio if self.k is None else graphs * self.k
        return min(most, nodes) + 1

    def _best(self, scores: Array, batch: GraphBatch) -> tuple[Array, Array]:
        """Sorts nodes by graph, then by descending score; returns the order and a mask."""
        count = num_real_nodes(batch)
        if self.k is not None:
            wanted = jnp.minimum(count, self.k)
        else:
            wanted = jnp.asarray(_numbers_kept(exact_fraction(self.ratio), scores.shape[0]))[count]
        order, start = sort_by_score(scores, batch)
        place = jnp.arange(order.shape[0], dtype=start.dtype)
        within = place - spread_to_nodes(start, batch)  # nodes are in the order of their graphs
        return order, within < spread_to_nodes(wanted, batch)


@functools.lru_cache(maxsize=32)
def _numbers_kept(ratio: Fraction, most: int) -> np.ndarray:
    """Tabulates ``⌈ratio · n⌉`` for n = 0 … ``most``; on a device the product could overflow."""
    counts = np.arange(most + 1, dtype=np.int64)
    kept = -(-counts * ratio.numerator // ratio.denominator)
    # A graph with nodes keeps at least one, also if the ratio is rounded to 0.
    return np.maximum(kept, counts > 0).astype(np.int32)


def batch_of_nodes(batch: GraphBatch, node_ids: Int[Array, " capacity"]) -> GraphBatch:
    """The batch of selected nodes and of the edges between them, in a fixed shape.

    The new batch has a node slot for each id, and the edge slots of the old one. Ids are in the
    order of their graphs; the number of nodes stands for an unused slot, which belongs to the first
    padding graph, or to none.
    """
    nodes, capacity = batch.node_mask.shape[0], node_ids.shape[0]
    real = node_ids < nodes
    slot_of = jnp.full(nodes, capacity, jnp.int32)
    slot_of = slot_of.at[node_ids].set(jnp.arange(capacity, dtype=jnp.int32), mode="drop")
    old = batch.graph
    rows = jnp.asarray(old.receivers())
    receivers = jnp.where(rows < nodes, slot_of[jnp.minimum(rows, nodes - 1)], capacity)
    senders = slot_of[jnp.asarray(old.indices)]
    is_edge = (receivers < capacity) & (senders < capacity)
    graph, (edges,) = CSRGraph.from_edges(
        jnp.where(is_edge, senders, 0),
        jnp.where(is_edge, receivers, 0),
        capacity,
        weights=None if old.weights is None else jnp.asarray(old.weights),
        edge_mask=is_edge,
        edge_data=(jax.tree.map(jnp.asarray, batch.edges),),
    )
    # The first padding graph; the number of graphs, an invalid id, if all are real.
    padding = jnp.sum(jnp.asarray(batch.graph_mask), dtype=jnp.int32)
    ids = jnp.where(real, jnp.asarray(batch.graph_ids)[jnp.where(real, node_ids, 0)], padding)
    counts = jnp.zeros(batch.num_graphs, jnp.int32).at[ids].add(1, mode="drop")
    of_edges = jnp.where(is_edge, ids[jnp.minimum(receivers, capacity - 1)], padding)
    edge_counts = jnp.zeros(batch.num_graphs, jnp.int32).at[of_edges].add(1, mode="drop")
    there = jnp.arange(graph.num_edges) < jnp.asarray(graph.indptr)[-1]
    return GraphBatch(
        graph=graph,
        graph_ids=ids,
        num_nodes_of_each=counts,
        num_edges_of_each=edge_counts,
        node_mask=real,
        graph_mask=jnp.asarray(batch.graph_mask),
        nodes=jax.tree.map(lambda leaf: rows_at(node_ids, leaf), batch.nodes),
        edges=jax.tree.map(lambda leaf: rows_where(there, leaf), edges),
        globals=batch.globals,
    )


def rows_at(
    node_ids: Int[Array, " capacity"], x: Float[Array, "nodes *rest"]
) -> Float[Array, "capacity *rest"]:
    """Gathers the rows of these nodes; zeros for an id equal to the number of nodes."""
    x = jnp.asarray(x)
    real = node_ids < x.shape[0]
    return rows_where(real, x[jnp.where(real, node_ids, 0)])
