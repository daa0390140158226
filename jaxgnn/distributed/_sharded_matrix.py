"""ShardedMatrix: sparse features of nodes, such as bags of words, on the devices of their nodes."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxgnn._errors import bad_input
from jaxgnn.distributed._blocks import Layout, edge_numbers, offsets_of, padded, stacked
from jaxgnn.distributed._partition import edges_of
from jaxgnn.graph import CSRGraph, is_concrete
from jaxgnn.graph.local.local_graph import LocalMatrix


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class ShardedMatrix:
    """A sparse matrix whose rows are spread over devices like the nodes of a ShardedGraph.

    All devices have all columns. Inside of ``sharded`` it is the matrix of the device's own rows,
    which layers accept instead of dense features.

    Attributes:
      blocks: the rows of all devices, with a leading axis.
      mesh: the mesh.
      axis: name of the axis.
      layout: the place of the node of each row.
    """

    blocks: LocalMatrix
    mesh: Mesh = field(metadata={"static": True})
    axis: str = field(metadata={"static": True})
    layout: Layout = field(metadata={"static": True})

    @property
    def rows(self) -> int:
        """Rows of each device, padding included."""
        return self.layout.rows

    def __repr__(self) -> str:
        """Shows the sizes of the matrix and the number of devices."""
        devices, stored = self.blocks.indices.shape
        return (
            f"ShardedMatrix(devices={devices}, rows={self.rows}, columns={self.blocks.num_cols}, "
            f"stored={stored})"
        )

    @property
    def local(self) -> LocalMatrix:
        """The rows of the device, inside of ``jax.shard_map``.

        Raises:
          ValueError: outside of ``shard_map``, where the rows of all devices are present.
        """
        leading = self.blocks.indptr.shape[0]
        if leading != 1 or is_concrete(self.blocks.indptr):
            expected = f"read inside of jax.shard_map with {PartitionSpec(self.axis)} for it"
            raise bad_input("ShardedMatrix.local", "self", expected, f"{leading} blocks")
        return jax.tree.map(lambda array: array[0], self.blocks)


def shard_matrix(matrix: CSRGraph, layout: Layout, mesh: Mesh, axis: str) -> ShardedMatrix:
    """Spreads the rows of a sparse matrix; it has one for each node of the layout."""
    indptr, indices = np.asarray(matrix.indptr), np.asarray(matrix.indices)
    weights = None if matrix.weights is None else np.asarray(matrix.weights)
    degrees = np.diff(indptr)
    stored = max(1, *(int(degrees[members].sum()) for members in layout.members))

    def make(place: int) -> LocalMatrix:
        members = layout.members[place]
        positions = edges_of(indptr, members)
        graph = CSRGraph(
            indptr=jnp.asarray(offsets_of(degrees[members], layout.rows, stored)),
            indices=jnp.asarray(padded(indices[positions], stored)),
            weights=None if weights is None else jnp.asarray(padded(weights[positions], stored)),
            num_cols=matrix.num_cols,
        ).prepared("spmm")
        return LocalMatrix(
            indptr=graph.indptr,
            indices=graph.indices,
            weights=graph.weights,
            num_cols=matrix.num_cols,
            plan=graph.plan,
            in_range=True,
            numbers=edge_numbers(indptr, members, layout.rows, matrix.num_edges),
        )

    return ShardedMatrix(stacked(mesh, axis, make), mesh, axis, layout)
