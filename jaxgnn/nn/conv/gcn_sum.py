"""Weighted sum over neighbours and the node itself, used by graph convolutional networks."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn._arrays.arrays import shown_sides
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph, every_node_has_a_loop, gcn_coefficients, is_concrete
from jaxgnn.nn.shared.node_draws import bernoulli_of_edges, bernoulli_of_rows
from jaxgnn.ops.core.dtypes import accumulation_dtype


class GCNSum(NamedTuple):
    """Product with ``P``, whose entries are ``w_ij / √(d_i d_j)`` for edges and self loops.

    ``loops`` are the weights of the self loops that are added to the normalised graph, or None.
    """

    graph: CSRGraph
    loops: Float[Array, " nodes"] | None

    def __call__(
        self, x: Float[Array, "*batch nodes d"], implementation: ops.Name | None
    ) -> Float[Array, "*batch nodes d"]:
        """Computes ``P x``, the sum over neighbours and the node itself."""
        return self.add_loop_terms(ops.spmm(self.graph, x, implementation=implementation), x)

    def add_loop_terms(self, aggregated: Array, x: Array) -> Array:
        """Adds the nodes' own terms to the sums over their neighbours."""
        if self.loops is None:
            return aggregated
        # In half precision the sum is rounded once more, but not the product.
        wide = accumulation_dtype(aggregated.dtype)
        loop_terms = self.loops.astype(wide)[:, None] * x.astype(wide)
        return (aggregated.astype(wide) + loop_terms).astype(aggregated.dtype)

    def dropped(self, rate: float, key: Array) -> GCNSum:
        """Drops each entry of ``P`` with a probability, and scales up the others."""
        of_edges, of_loops = jax.random.split(key)
        edge_weights, graph = self.graph.weights, self.graph
        weights = jnp.ones(graph.num_edges) if edge_weights is None else jnp.asarray(edge_weights)
        kept = bernoulli_of_edges("dropout", of_edges, 1 - rate, graph, weights.shape, 0)
        graph = graph.with_weights(jnp.where(kept, weights / (1 - rate), 0))
        if self.loops is None:
            return GCNSum(graph, None)
        kept = bernoulli_of_rows("dropout", of_loops, 1 - rate, graph, self.loops.shape, 0)
        return GCNSum(graph, jnp.where(kept, self.loops / (1 - rate), 0))


def gcn_sum(where: str, graph: CSRGraph, *, normalize: bool, add_self_loops: bool) -> GCNSum:
    """Normalises a graph, unless it is already normalised: such a graph is used unchanged.

    Without ``normalize`` every graph is used unchanged. Warns once if self loops are requested for
    a concrete graph that is already normalised and lacks some.
    """
    if graph.is_normalized or not normalize:
        if add_self_loops:
            _warn_of_missing_loops(where, graph)
        return GCNSum(graph, None)
    if not graph.is_square:
        expected = "square, or normalised by the caller"
        raise bad_input(where, "graph", expected, shown_sides(graph))
    coefficients = gcn_coefficients(graph, add_self_loops=add_self_loops)
    if coefficients.weights is not None:
        graph = graph.with_weights(coefficients.weights)
    scales = {"row_scale": coefficients.scale, "col_scale": coefficients.scale}
    return GCNSum(dataclasses.replace(graph, **scales, normalization="gcn"), coefficients.loops)


def _warn_of_missing_loops(where: str, graph: CSRGraph) -> None:
    """Warns once in a process about a concrete graph that was normalised without all self loops."""
    if (
        graph.is_square
        and is_concrete(graph.indptr, graph.indices)
        and not every_node_has_a_loop(graph)
    ):
        warn_once(
            f"{where}: the graph is normalised already, so the self loops that it lacks are not "
            "added: pass graph.with_self_loops().normalized('gcn'), or make the layer with "
            "add_self_loops=False"
        )


@functools.cache
def warn_once(message: str) -> None:
    """Warns once in a process."""
    warnings.warn(message, stacklevel=2)
