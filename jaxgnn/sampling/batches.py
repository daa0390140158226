"""Batches of sampled nodes: bipartite graphs of fixed shapes, with features and labels."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from jaxgnn._arrays.arrays import own
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph, EdgeType, HeteroGraph
from jaxgnn.graph.plan.plan import make_plan
from jaxgnn.graph.plan.sorting import row_ids, row_ids_on_host
from jaxgnn.sampling.capacity import Capacity, HeteroCapacity
from jaxgnn.sampling.drawing import HostGraph, RawSample, id_dtype
from jaxgnn.sampling.features.stores import rows_or_zeros
from jaxgnn.sampling.memory import check_files, filled
from jaxgnn.sampling.reference import Hop
from jaxgnn.sampling.relations import Relation, TypedHops


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


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class EdgeValues:
    """Weights and normalisation of a graph, for the blocks of its samples, in NumPy or in JAX.

    A row of a normalised graph sums over all of its edges, so a sum over a sample is multiplied by
    the number of all edges over that of the sampled ones: its expectation is the sum over all.

    Attributes:
      weights: of the edges of the user's graph, or None.
      row_scale: of the nodes, or None.
      col_scale: of the nodes, or None.
      degrees: number of edges of each row, for a normalised graph; else None.
      normalization: kind of the normalisation, or None.
    """

    weights: Any
    row_scale: Any
    col_scale: Any
    degrees: Any
    normalization: Any = dataclasses.field(metadata={"static": True})

    @classmethod
    def of(cls, graph: CSRGraph, degrees: Any, direction: str) -> EdgeValues:
        """Reads a concrete graph, with rows that draw ``degrees`` edges in a direction."""
        scales = (graph.row_scale, graph.col_scale)
        row_scale, col_scale = scales if direction == "in" else scales[::-1]
        needed = degrees if graph.is_normalized else None
        return cls(graph.weights, row_scale, col_scale, needed, graph.normalization)

    def check_files(self, where: str) -> None:
        """Raises ValueError if a file that an array is mapped from has become shorter."""
        names = "weights", "row_scale", "col_scale"
        check_files(where, **{f"graph.{name}": getattr(self, name) for name in names})

    def fields(self, raw: RawSample, hop: int) -> dict[str, Any]:
        """The fields of the block of a hop, from the seeds outwards."""
        indptr, n_id = raw.indptr[hop], raw.n_id
        num_rows, num_cols = indptr.shape[0] - 1, raw.num_cols(hop)
        weights = None if self.weights is None else _taken(self.weights, raw.e_id[hop])
        of_block: dict[str, Any] = {"weights": weights, "normalization": self.normalization}
        if self.col_scale is not None:
            of_block["col_scale"] = _taken(self.col_scale, n_id[:num_cols])
        if self.degrees is None:
            return of_block
        xp: Any = np if isinstance(indptr, np.ndarray) else jnp
        # Quotients of float32, which are the same on a device.
        drawn = xp.maximum(xp.diff(indptr), 1).astype(np.float32)
        missing = _taken(self.degrees, n_id[:num_rows]).astype(np.float32) / drawn
        if weights is not None and self.row_scale is None:
            find = row_ids_on_host if xp is np else row_ids
            of_edges = xp.append(missing, xp.zeros(1, missing.dtype))[find(indptr, len(weights))]
            of_block["weights"] = weights * of_edges.astype(weights.dtype)
            return of_block
        if self.row_scale is not None:
            scales = _taken(self.row_scale, n_id[:num_rows])
            missing = scales * missing.astype(scales.dtype)
        return of_block | {"row_scale": missing}


def blocks_of(raw: RawSample, values: EdgeValues, *, with_plans: bool) -> tuple[CSRGraph, ...]:
    """The graphs of a sample, in the order in which layers are applied.

    Args:
      raw: the sample, in NumPy or in JAX.
      values: weights and scales of the graph that it was drawn from, of the same kind.
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


def parts_of(raw: RawSample, values: EdgeValues, *, with_plans: bool) -> dict[str, Any]:
    """The fields of a ``SampledBatch`` that describe the sample, in the order of layers."""
    return {
        "blocks": blocks_of(raw, values, with_plans=with_plans),
        "n_id": raw.n_id,
        "e_id": raw.e_id[::-1],
        "seed_ids": raw.seed_ids,
        "num_nodes": raw.num_nodes[::-1],
        "num_edges": raw.num_edges[::-1],
        "batch": raw.owners,
    }


# One program on the device, where each of the many steps would be compiled by itself.
parts_on_device = jax.jit(functools.partial(parts_of, with_plans=False))


def _taken(values: Any, ids: Any) -> Any:
    """Rows of an array; zeros where the id is -1."""
    if not isinstance(values, np.ndarray):
        return rows_or_zeros(values, ids)
    rows = np.take(values, ids, axis=0, mode="clip")
    rows[ids < 0] = 0
    return rows


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
    sample: TypedHops,
    relations: dict[EdgeType, Relation],
    edge_weights: dict[EdgeType, np.ndarray | None],
    num_nodes: Mapping[str, int],
    capacity: HeteroCapacity,
    *,
    with_plans: bool,
) -> dict[str, Any]:
    """The fields of a ``HeteroBatch`` that describe the sample, in the order of layers.

    Args:
      sample: a sample that fits into the capacity.
      relations: what it was drawn from; ids of nodes and edges are those of the user's graph.
      edge_weights: for each relation the weights of the user's graph, or None.
      num_nodes: number of nodes of each type of the graph.
      capacity: numbers of slots.
      with_plans: whether to sort the edges by sender here, for gradients, and not in each step.
    """
    hops = range(len(sample.hops[0]))[::-1]
    graphs: list[dict[EdgeType, CSRGraph]] = [{} for _ in hops]
    e_id: dict[EdgeType, tuple[np.ndarray, ...]] = {}
    for (edge_type, relation), drawn in zip(relations.items(), sample.hops, strict=True):
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
            for t, ids in sample.n_id.items()
        },
        "e_id": e_id,
        "num_nodes": {t: n[::-1].astype(np.int32) for t, n in sample.num_nodes.items()},
        "num_edges": {
            e: np.array([len(drawn[hop].e_id) for hop in hops], np.int32)
            for e, drawn in zip(relations, sample.hops, strict=True)
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


def masked_mean(
    values: Shaped[Array, "entries *rest"], mask: Bool[Array, " entries"]
) -> Float[Array, ""]:
    """Mean of the values where a mask is True; zero, with zero gradients, where it never is.

    It is the loss of a batch from the losses of its seeds or pairs,
    ``masked_mean(losses, batch.seed_mask)``. Of several processes, some may have no seeds in the
    last step of an epoch. ``jnp.mean(losses, where=batch.seed_mask)`` is NaN there, which ends the
    training of these processes alone.

    The mean over processes of such means weights each process equally, also one that has fewer
    seeds than the others. ``drop_last=True`` leaves out the only step where numbers differ.

    Args:
      values: losses, or what else is averaged, [entries, ...]; integers and bools count as float32.
      mask: False for entries that do not count, [entries], or of the shape of ``values``.

    Returns:
      A scalar, in the dtype of ``values`` if that is floating, summed in float32 at least.

    Raises:
      ValueError: if ``mask`` is not of bools, or has not the leading shape of ``values``.

    Example:
      >>> import jax.numpy as jnp
      >>> losses = jnp.array([1.0, 3.0, jnp.nan])
      >>> masked_mean(losses, jnp.array([True, True, False])).item()
      2.0
      >>> masked_mean(losses, jnp.zeros(3, bool)).item()
      0.0
    """
    values, mask = jnp.asarray(values), jnp.asarray(mask)
    if mask.dtype != bool:
        raise bad_input("sampling.masked_mean", "mask", "of bools", f"dtype {mask.dtype}")
    if not mask.ndim or mask.shape != values.shape[: mask.ndim]:
        expected = f"of the leading shape of values, {values.shape}"
        raise bad_input("sampling.masked_mean", "mask", expected, f"shape {mask.shape}")
    dtype = values.dtype if jnp.issubdtype(values.dtype, jnp.floating) else jnp.dtype("float32")
    wide = dtype if dtype.itemsize > 4 else jnp.dtype("float32")
    entries = mask.reshape(*mask.shape, *(1,) * (values.ndim - mask.ndim))
    total = jnp.sum(jnp.where(entries, values.astype(wide), 0))
    count = jnp.sum(mask) * (values.size // max(mask.size, 1))
    # The count is at least one before it divides, or the gradient would be NaN.
    return (total / jnp.maximum(count, 1).astype(wide)).astype(dtype)
