"""Batches of sampled nodes of several types: relations of fixed shapes, with features."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jaxgnn._arrays.arrays import own
from jaxgnn.graph import CSRGraph, EdgeType, HeteroGraph
from jaxgnn.graph.plan.plan import make_plan
from jaxgnn.sampling._hetero_capacity import HeteroCapacity
from jaxgnn.sampling._memory import filled
from jaxgnn.sampling._reference import Hop
from jaxgnn.sampling._source import HostGraph, id_dtype
from jaxgnn.sampling._typed_hops import Relation, TypedHops


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class HeteroBatch:
    """Seeds with a sample of their neighbourhoods along relations, in fixed shapes; a pytree.

    Block i has all relations, between the nodes that layer i reads. The next block has the first of
    these nodes, so features are cut before each layer:

        for layer, block in zip(layers, batch.blocks):
            x = layer(block, {t: x[t][:count] for t, count in block.num_nodes.items()})

    beginning with ``batch.x``. Seed i has the row ``x[batch.seed_type][batch.seed_ids[i]]`` of the
    last result. Nodes that only a former layer needed, and padding, have no edges in a block: their
    results are finite but arbitrary, and a loss counts ``seed_mask`` alone.

    Attributes:
      blocks: the relations for each layer, in the order in which layers are applied.
      n_id: for each type the node of the graph for each row of ``x``, -1 for padding; the seeds
        come first. int32 [nodes] (int64 beyond 2^31 - 1 nodes).
      e_id: for each relation and block the position of each edge slot in the arrays of its graph,
        -1 for padding; None if the loader was made with ``edge_ids=False``.
      seed_ids: row of the last result for each seed, int32 [batch_size]; 0 for padding.
      seed_mask: False for padding seeds, bool [batch_size].
      num_nodes: for each type the number of nodes of each block that are no padding, then of seeds,
        int32 [blocks + 1].
      num_edges: for each relation the number of edges of each block, int32 [blocks].
      seed_type: type of the seeds.
      x: features of the nodes of ``n_id``, for each type that the loader has features of, [nodes,
        ...]; zeros in padding.
      y: labels of the seeds, [batch_size, ...], zeros in padding; None without labels.
      batch: for each type the place in the batch of the seed of each node, ``batch_size`` for
        padding, int32 [nodes]. None unless the loader has ``seed_times``, where each seed has nodes
        of its own.
    """

    blocks: tuple[HeteroGraph, ...]
    n_id: dict[str, Int[Array, " nodes"]]
    e_id: dict[EdgeType, tuple[Int[Array, " edges"], ...]] | None
    seed_ids: Int[Array, " batch"]
    seed_mask: Bool[Array, " batch"]
    num_nodes: dict[str, Int[Array, " blocks+1"]]
    num_edges: dict[EdgeType, Int[Array, " blocks"]]
    seed_type: str = dataclasses.field(metadata={"static": True})
    x: dict[str, Any]
    y: Any = None
    batch: dict[str, Int[Array, " nodes"]] | None = None

    def __repr__(self) -> str:
        """Shows numbers of slots instead of arrays."""
        nodes = {t: n.shape[-1] for t, n in self.n_id.items()}
        edges = {e: tuple(block[e].num_edges for block in self.blocks) for e in self.blocks[0]}
        return f"HeteroBatch({self.batch_size} {self.seed_type!r}, nodes {nodes}, edges {edges})"

    @property
    def batch_size(self) -> int:
        """Number of seeds, including padding."""
        return self.seed_ids.shape[-1]

    @property
    def node_mask(self) -> dict[str, Bool[Array, " nodes"]]:
        """For each type, False for padding in ``n_id`` and ``x``; works under ``jit``."""
        return {t: jnp.asarray(n_id) >= 0 for t, n_id in self.n_id.items()}

    def edge_mask(self, layer: int) -> dict[EdgeType, Bool[Array, " edges"]]:
        """For each relation of a block, False for padding edge slots; works under ``jit``."""
        return {
            edge_type: jnp.arange(graph.num_edges) < jnp.asarray(graph.indptr)[-1]
            for edge_type, graph in self.blocks[layer].items()
        }


def typed_parts_of(
    found: TypedHops,
    relations: dict[EdgeType, Relation],
    edge_weights: dict[EdgeType, np.ndarray | None],
    num_nodes: Mapping[str, int],
    capacity: HeteroCapacity,
    *,
    with_plans: bool,
) -> dict[str, Any]:
    """The fields of a ``HeteroBatch`` that describe the sample, in the order of layers.

    Args:
      found: a sample that fits into the capacity.
      relations: what it was drawn from; ids of nodes and edges are those of the user's graph.
      edge_weights: for each relation the weights of the user's graph, or None.
      num_nodes: number of nodes of each type of the graph.
      capacity: numbers of slots.
      with_plans: whether to sort the edges by sender here, for gradients, and not in each step.
    """
    hops = range(len(found.hops[0]))[::-1]
    graphs: list[dict[EdgeType, CSRGraph]] = [{} for _ in hops]
    e_id: dict[EdgeType, tuple[np.ndarray, ...]] = {}
    for (edge_type, relation), drawn in zip(relations.items(), found.hops, strict=True):
        slots = capacity.edges[edge_type]
        ids = [_edge_ids(relation.graph, drawn[hop].e_id) for hop in hops]
        for block, hop, edges in zip(graphs, hops, ids, strict=True):
            shape = tuple(capacity.nodes[t][hop + 1] for t in (relation.receiver, relation.sender))
            weights = edge_weights[edge_type]
            taken = None if weights is None else filled(weights[edges], slots[hop], 0)
            block[edge_type] = _graph(drawn[hop], shape, slots[hop], taken, with_plans)
        e_id[edge_type] = tuple(
            filled(edges, slots[hop], -1, id_dtype(relation.graph.num_edges))
            for hop, edges in zip(hops, ids, strict=True)
        )
    return {
        "blocks": tuple(
            HeteroGraph(block, num_nodes={t: n[hop + 1] for t, n in capacity.nodes.items()})
            for block, hop in zip(graphs, hops, strict=True)
        ),
        "n_id": {
            t: filled(ids, capacity.nodes[t][-1], -1, id_dtype(num_nodes[t]))
            for t, ids in found.n_id.items()
        },
        "e_id": e_id,
        "num_nodes": {t: n[::-1].astype(np.int32) for t, n in found.num_nodes.items()},
        "num_edges": {
            e: np.array([len(drawn[hop].e_id) for hop in hops], np.int32)
            for e, drawn in zip(relations, found.hops, strict=True)
        },
    }


def _edge_ids(graph: HostGraph, positions: np.ndarray) -> np.ndarray:
    return positions if graph.edge_ids is None else graph.edge_ids[positions]


def _graph(
    hop: Hop, shape: Sequence[int], slots: int, weights: np.ndarray | None, with_plan: bool
) -> CSRGraph:
    """One relation of a block; rows behind those that were drawn for have no edges."""
    num_rows, num_cols = shape
    indptr: Any = np.full(num_rows + 1, len(hop.senders), np.int32)
    indptr[: len(hop.indptr)] = hop.indptr
    indices: Any = filled(hop.senders, slots, 0, np.int32)
    own(indptr), own(indices)
    plan = make_plan(indptr, indices, num_cols) if with_plan else None
    return CSRGraph(
        indptr, indices, weights=own(weights), num_cols=num_cols, plan=plan, in_range=True
    )
