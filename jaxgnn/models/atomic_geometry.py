"""Positions, cells and edges of structures of atoms, as potentials read them from a batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxgnn._arrays.arrays import as_jax, is_concrete, shown
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph, GraphBatch
from jaxgnn.ops.shared import at_ends


class AtomicEdges(NamedTuple):
    """Edges of a batch of structures, from senders to receivers.

    Attributes:
      vectors: from receiver to sender, image included, [edges, 3]; zero in padding.
      distances: their lengths, [edges]; zero in padding.
    """

    vectors: Float[Array, "edges 3"]
    distances: Float[Array, " edges"]

    @classmethod
    def of_vectors(cls, vectors: Float[Array, "edges 3"]) -> AtomicEdges:
        """The edges with their lengths, whose derivatives are zero where a vector is zero."""
        squares = jnp.sum(jnp.square(vectors), axis=-1)
        is_zero = squares == 0  # NaN is not zero and stays.
        distances = jnp.where(is_zero, 0, jnp.sqrt(jnp.where(is_zero, 1, squares)))
        return cls(vectors, distances)

    def directions(self) -> Float[Array, "edges 3"]:
        """Vectors of length one; zero, with derivatives of zero, where the distance is zero."""
        lengths = jnp.where(self.distances == 0, 1, self.distances)
        return self.vectors / lengths[:, None]


class Structures(NamedTuple):
    """Arrays of a batch of structures; padding is overwritten by fixed values.

    Attributes:
      graph: the edges, by receiver.
      positions: [nodes, 3]; zero in padding.
      species: int32 [nodes]; zero in padding.
      cells: cell vectors as rows, [graphs, 3, 3]; identities in padding.
      images: whole cells by which the sender of an edge is displaced, [edges, 3]; zero in padding.
      graph_ids: structure of each node, int32 [nodes].
    """

    graph: CSRGraph
    positions: Float[Array, "nodes 3"]
    species: Int[Array, " nodes"]
    cells: Float[Array, "graphs 3 3"]
    images: Float[Array, "edges 3"]
    graph_ids: Int[Array, " nodes"]

    @classmethod
    def from_batch(cls, where: str, batch: Any) -> Structures:
        """Reads a batch; ValueError names ``where`` and an array that is missing or does not fit.

        Args:
          where: the public function or class, for error messages.
          batch: a ``GraphBatch`` of samples such as ``models.atomic_sample`` makes.
        """
        return cls.from_checked(check_structures(where, batch))

    @classmethod
    def from_checked(cls, batch: GraphBatch) -> Structures:
        """Reads a batch that ``check_structures`` has passed."""
        where = "Structures"
        positions = as_jax(where, "batch.nodes['positions']", batch.nodes["positions"])
        dtype = np.promote_types(positions.dtype, np.float32)
        is_node, is_graph = jnp.asarray(batch.node_mask), jnp.asarray(batch.graph_mask)
        cells = as_jax(where, "batch.globals['cell']", batch.globals["cell"]).astype(dtype)
        species = as_jax(where, "batch.nodes['species']", batch.nodes["species"], jnp.int32)
        identity = jnp.eye(3, dtype=dtype)
        images = as_jax(where, "batch.edges['images']", batch.edges["images"])
        is_edge = jnp.asarray(batch.edge_mask())
        return cls(
            graph=batch.graph,
            positions=jnp.where(is_node[:, None], positions.astype(dtype), 0),
            species=jnp.where(is_node, species, 0),
            cells=jnp.where(is_graph[:, None, None], cells, identity),
            images=jnp.where(is_edge[:, None], images.astype(dtype), 0),
            graph_ids=jnp.asarray(batch.graph_ids),
        )

    def edges(self) -> AtomicEdges:
        """Vectors ``r_s + images · cell - r_r`` of all edges, differentiable by both."""
        dtype = self.positions.dtype
        if self.graph.num_edges == 0:
            return AtomicEdges(jnp.zeros((0, 3), dtype), jnp.zeros(0, dtype))
        # Gathered by node, so that the gradient of the cells is a sum by row and then by graph.
        of_nodes = self.cells[self.graph_ids].reshape(-1, 9)
        ends = jnp.concatenate([self.positions, of_nodes], axis=1)
        receiving = at_ends("receivers", self.graph, ends)
        cells = receiving[:, 3:].reshape(-1, 3, 3)
        # Products of numbers, since a GPU would multiply matrices in a lower precision.
        shifts = jnp.sum(self.images[:, :, None] * cells, axis=1)
        vectors = at_ends("senders", self.graph, self.positions) + shifts - receiving[:, :3]
        is_edge = self.graph.receivers() < self.graph.num_rows
        return AtomicEdges.of_vectors(jnp.where(is_edge[:, None], vectors, 0))


def atomic_edges(batch: GraphBatch) -> AtomicEdges:
    """Vectors and lengths of the edges of a batch of structures, for potentials of one's own.

    Vectors point from receiver to sender, ``r_s + images · cell - r_r``, in the order of the
    batch's edges. Differentiable by positions and cells any number of times. Atoms at one place
    have the distance zero, whose derivatives are zero. Padding is zero, whatever it contained.

    Args:
      batch: structures that ``models.atomic_sample`` made.

    Raises:
      ValueError: if the batch lacks an array of a structure, or one has another shape or dtype.

    Example:
      >>> import numpy as np
      >>> from jaxgnn import models
      >>> from jaxgnn.graph import GraphBatch
      >>> pair = models.atomic_sample(np.array([[0.0, 0, 0], [0, 0, 2.0]]), [0, 0], 5.0)
      >>> edges = models.atomic_edges(GraphBatch.from_graphs([pair]))
      >>> edges.vectors.tolist(), edges.distances.tolist()
      ([[0.0, 0.0, 2.0], [0.0, 0.0, -2.0]], [2.0, 2.0])
    """
    batch = check_structures("models.atomic_edges", batch)
    return Structures.from_checked(recentred(batch)).edges()


def recentred(batch: GraphBatch) -> GraphBatch:
    """Subtracts the position of the first atom of each structure, if rounding needs it.

    Samples of ``models.atomic_sample`` do not. Float64 positions of numpy from elsewhere, which JAX
    would round to float32, are subtracted before. Vectors of edges do not change.
    """
    positions = batch.nodes["positions"]
    is_rounded = jax.dtypes.canonicalize_dtype(positions.dtype).itemsize < positions.dtype.itemsize
    if not isinstance(positions, np.ndarray) or not is_rounded or not is_concrete(batch.graph_ids):
        return batch
    ids = np.asarray(batch.graph_ids)
    first = np.zeros(batch.num_graphs, int)
    first[ids[::-1]] = np.arange(len(ids))[::-1]
    nodes = {**batch.nodes, "positions": positions - positions[first[ids]]}
    return dataclasses.replace(batch, nodes=nodes)


def strained(
    batch: GraphBatch, positions: Float[Array, "nodes 3"], strain: Float[Array, "graphs 3 3"] | None
) -> GraphBatch:
    """The batch with other positions, and with each structure and its cell deformed.

    Args:
      batch: a batch that ``Structures.from_batch`` reads.
      positions: finite positions, zero in padding, [nodes, 3].
      strain: ``ε`` of each structure, of which the symmetric part is applied: ``r (1 + ε)``; None
        for no deformation.
    """
    of_graphs = dict(batch.globals)
    if strain is not None:
        symmetric = (strain + jnp.swapaxes(strain, -1, -2)) / 2
        of_nodes = symmetric[jnp.asarray(batch.graph_ids)]
        positions = positions + jnp.sum(positions[:, :, None] * of_nodes, axis=1)
        is_graph = jnp.asarray(batch.graph_mask)[:, None, None]
        batch_cells = jnp.asarray(of_graphs["cell"]).astype(positions.dtype)
        cells = jnp.where(is_graph, batch_cells, jnp.eye(3, dtype=positions.dtype))
        of_graphs["cell"] = cells + jnp.sum(cells[..., None] * symmetric[:, None], axis=2)
    nodes = {**batch.nodes, "positions": positions}
    return dataclasses.replace(batch, nodes=nodes, globals=of_graphs)


def check_structures(where: str, batch: Any) -> GraphBatch:
    """Raises ValueError unless the batch has all arrays of structures, in their shapes."""
    if not isinstance(batch, GraphBatch):
        expected = "a GraphBatch of samples of models.atomic_sample"
        raise bad_input(where, "batch", expected, type(batch).__name__)
    nodes, edges, graphs = len(batch.node_mask), batch.graph.num_edges, batch.num_graphs
    wanted: dict[tuple[str, str], tuple[tuple[int, ...], Any]] = {
        ("nodes", "positions"): ((nodes, 3), jnp.floating),
        ("nodes", "species"): ((nodes,), jnp.integer),
        ("edges", "images"): ((edges, 3), None),
        ("globals", "cell"): ((graphs, 3, 3), jnp.floating),
    }
    for (field, name), (shape, kind) in wanted.items():
        features, argument = getattr(batch, field), f"batch.{field}['{name}']"
        if not isinstance(features, Mapping) or name not in features:
            expected = "in the batch; make its samples by models.atomic_sample"
            raise bad_input(where, argument, expected, shown(features))
        array = features[name]
        if jnp.shape(array) != shape or (kind and not jnp.issubdtype(array.dtype, kind)):
            of = "" if kind is None else f"{kind.__name__} "
            raise bad_input(where, argument, f"{of}{list(shape)}", shown(array))
    return batch
