"""A readout that keeps the first nodes of each graph in the order of their last feature."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxgnn.graph import GraphBatch
from jaxgnn.nn.shared.common_options import DocumentedModule
from jaxgnn.nn.shared.graph_ids import check_batch, num_real_nodes, rows_where
from jaxgnn.nn.shared.maxk import check_kept
from jaxgnn.nn.shared.options import checked_options


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
        order, start = by_score(x[:, -1], batch)
        place = jnp.arange(self.k, dtype=start.dtype)
        there = place < num_real_nodes(batch)[:, None]
        nodes = order[jnp.where(there, start[:, None] + place, 0)]
        return rows_where(there.ravel(), x[nodes.ravel()]).reshape(*there.shape, -1)


def by_score(
    scores: Float[Array, " nodes"], batch: GraphBatch
) -> tuple[Int[Array, " nodes"], Int[Array, " graphs"]]:
    """The nodes graph by graph, by descending score, and the offset of each graph.

    The padding graph's nodes come last, in any order.
    """
    nodes = jnp.arange(scores.shape[0], dtype=jnp.int32)
    keys = (jnp.asarray(batch.graph_ids), -scores, nodes)
    _, _, order = lax.sort(keys, num_keys=3)
    counts = jnp.asarray(batch.num_nodes_of_each)
    return order, jnp.cumsum(counts, dtype=counts.dtype) - counts
