"""Batches of sampled nodes: bipartite graphs of fixed shapes, with features and labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jaxgnn._arrays.arrays import own
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.plan.plan import make_plan
from jaxgnn.sampling._capacity import Capacity
from jaxgnn.sampling._source import RawSample, on_host


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


@dataclass(frozen=True, eq=False)
class EdgeValues:
    """Weights and normalisation of a graph, for the blocks of its samples.

    A row of a normalised graph sums over all of its edges, so a sum over a sample is multiplied by
    the number of all edges over that of the sampled ones: its expectation is the sum over all.

    Attributes:
      weights: of the edges of the user's graph, or None.
      row_scale: of the nodes, or None.
      col_scale: of the nodes, or None.
      normalization: kind of the normalisation, or None.
      degrees: number of edges of each row, for a normalised graph; else None.
    """

    weights: np.ndarray | None
    row_scale: np.ndarray | None
    col_scale: np.ndarray | None
    normalization: Any
    degrees: np.ndarray | None

    @classmethod
    def of(cls, graph: CSRGraph, degrees: np.ndarray, direction: str) -> EdgeValues:
        """Reads a concrete graph, with rows that draw ``degrees`` edges in a direction."""
        scales = (graph.row_scale, graph.col_scale)
        arrays = (graph.weights, *(scales if direction == "in" else scales[::-1]))
        weights, row_scale, col_scale = map(on_host, arrays)
        needed = degrees if graph.is_normalized else None
        return cls(weights, row_scale, col_scale, graph.normalization, needed)

    def fields(self, raw: RawSample, hop: int) -> dict[str, Any]:
        """The fields of the block of a hop, from the seeds outwards."""
        indptr, e_id, n_id = raw.indptr[hop], raw.e_id[hop], raw.n_id
        num_rows, num_cols = indptr.shape[0] - 1, raw.num_cols(hop)
        weights = None if self.weights is None else _taken(self.weights, e_id)
        row_scale, col_scale = self.row_scale, self.col_scale
        made: dict[str, Any] = {"weights": weights, "normalization": self.normalization}
        if col_scale is not None:
            made["col_scale"] = _taken(col_scale, n_id[:num_cols])
        if self.degrees is None:
            return made
        drawn = np.diff(indptr)
        missing = _taken(self.degrees, n_id[:num_rows]) / np.maximum(drawn, 1)
        if row_scale is not None:
            scales = _taken(row_scale, n_id[:num_rows])
            made["row_scale"] = (scales * missing).astype(row_scale.dtype)
        elif weights is not None:
            num_real = int(indptr[-1])
            weights[:num_real] *= np.repeat(missing, drawn).astype(weights.dtype)
        else:
            made["row_scale"] = missing.astype(np.float32)
        return made


def blocks_of(raw: RawSample, values: EdgeValues, *, with_plans: bool) -> tuple[CSRGraph, ...]:
    """The graphs of a sample, in the order in which layers are applied.

    Args:
      raw: the sample.
      values: weights and scales of the graph that it was drawn from.
      with_plans: whether to sort the edges by sender here, for gradients, and not in each step.
    """
    blocks = []
    for hop, (indptr, indices) in enumerate(zip(raw.indptr, raw.indices, strict=True)):
        num_cols = raw.num_cols(hop)
        own(indptr), own(indices)
        plan = make_plan(indptr, indices, num_cols) if with_plans else None
        fields = {"num_cols": num_cols, "plan": plan, "in_range": True, **values.fields(raw, hop)}
        blocks.append(CSRGraph(indptr, indices, **{name: own(v) for name, v in fields.items()}))
    return tuple(blocks[::-1])


def _taken(values: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Rows of an array; zeros where the id is -1."""
    made = np.take(values, ids, axis=0, mode="clip")
    made[ids < 0] = 0
    return made
