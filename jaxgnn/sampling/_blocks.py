"""Batches of sampled nodes: bipartite graphs of fixed shapes, with features and labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jaxgnn.graph import CSRGraph
from jaxgnn.sampling._capacity import Capacity


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class SampledBatch:
    """Seeds with a sample of their neighbourhoods, in fixed shapes; a pytree.

    Each hop of the sample is a bipartite graph, a block. Its columns are the nodes that the hop and
    all hops nearer to the seeds have found, and its rows are the first of these columns. So a layer
    is called as ``h = layer(block, (h[:block.num_rows], h))``, beginning with ``h = batch.x``, and
    the rows of the last result begin with the seeds.

    Rows and columns after the real ones are padding. Padding rows have no edges, and no edge leaves
    a padding column. Their results are finite but arbitrary: a loss counts ``seed_mask`` alone.

    Attributes:
      blocks: a graph for each layer, in the order in which layers are applied: the last has the
        seeds as rows. Slots after ``indptr[-1]`` are padding.
      n_id: node of the graph for each column of the first block, beginning with the distinct seeds
        in their order; -1 for padding. int32 [nodes] (int64 beyond 2^31 - 1 nodes).
      e_id: for each block, the position in the graph's arrays of each edge slot, -1 for padding;
        None if the loader was made with ``edge_ids=False``.
      seed_ids: row of the last result for each seed, int32 [batch_size]; 0 for padding.
      seed_mask: False for padding seeds, bool [batch_size].
      num_nodes: number of real columns of each block, then of real rows of the last, int32
        [blocks + 1].
      num_edges: number of real edges of each block, int32 [blocks].
      x: features of the nodes of ``n_id``, [nodes, ...], zeros in padding; None without features.
      y: labels of the seeds, [batch_size, ...], zeros in padding; None without labels.
      batch: place in the batch of the seed of each node, ``batch_size`` for padding, int32 [nodes].
        None unless the loader has ``seed_times``, where each seed has nodes of its own.
    """

    blocks: tuple[CSRGraph, ...]
    n_id: Int[Array, " nodes"]
    e_id: tuple[Int[Array, " edges"], ...] | None
    seed_ids: Int[Array, " batch"]
    seed_mask: Bool[Array, " batch"]
    num_nodes: Int[Array, " blocks+1"]
    num_edges: Int[Array, " blocks"]
    x: Any = None
    y: Any = None
    batch: Any = None

    def __repr__(self) -> str:
        """Shows shapes instead of arrays."""
        shapes = ", ".join(
            f"[{block.num_rows}, {block.num_cols}] of {block.num_edges} edges"
            for block in self.blocks
        )
        kinds = {name: getattr(self, name) for name in ("x", "y")}
        shown = ", ".join(f"{name}={_shown(array)}" for name, array in kinds.items())
        return f"SampledBatch({self.batch_size} seeds, blocks {shapes}, {shown})"

    @property
    def batch_size(self) -> int:
        """Number of seeds, including padding."""
        return self.seed_ids.shape[-1]

    @property
    def capacity(self) -> Capacity:
        """Numbers of slots, from the seeds outwards."""
        blocks = self.blocks[::-1]
        nodes = (*(block.num_rows for block in blocks), self.n_id.shape[-1])
        return Capacity(nodes, tuple(block.num_edges for block in blocks))

    @property
    def node_mask(self) -> Bool[Array, " nodes"]:
        """False for padding in ``n_id`` and ``x``; works under ``jit``."""
        return jnp.asarray(self.n_id) >= 0

    def edge_mask(self, layer: int) -> Bool[Array, " edges"]:
        """False for padding edge slots of a block; works under ``jit``."""
        block = self.blocks[layer]
        return jnp.arange(block.num_edges) < jnp.asarray(block.indptr)[-1]


def _shown(array: Any) -> str:
    return "None" if array is None else f"{array.dtype}{list(array.shape)}"
