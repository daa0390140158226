"""MaskedGraph: a graph whose edges are present to a degree, by which one can differentiate."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._arrays.arrays import as_jax, is_concrete, require_no_heads
from jaxgnn._errors import bad_input
from jaxgnn.graph.csr.csr_graph import CSRGraph
from jaxgnn.graph.csr.rows import Normalization
from jaxgnn.graph.plan.built_parts import given_plan, plan_on_demand
from jaxgnn.graph.plan.row_sums import sum_rows


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class MaskedGraph(CSRGraph):
    """A graph with a presence for each edge: 1 for an edge that is there, 0 for one that is not.

    Layers and ops accept it instead of the graph. Their result is that of the graph without the
    edges of presence 0, and between 0 and 1 it is differentiable in the presence:

    - Sums multiply the message of an edge by its presence.
    - Weights of a mean and of a softmax are multiplied by the presence, and what they reduce to is
      multiplied by ``row_presence``. So where all edges are present the derivative by the presence
      of an edge is its weight times its message, also for a row with a single edge.
    - Extremes lower the number of an edge towards the lowest of its row.

    ``masked`` builds one.

    The presence is part of ``weights``, so that degrees and normalisations count it. Ops that
    refuse weights read ``presence`` itself.

    Attributes:
      weights: weights of the edges times their presence.
      presence: presence of each edge slot, in [0, 1].
      given_weights: weights of the edges without the presence, or None.
    """

    presence: Float[Array, " edges"] = dataclasses.field(default=cast(Array, None))
    given_weights: Float[Array, "edges *heads"] | None = None

    def degrees(self) -> Float[Array, " rows"]:
        """Returns the sum of the presence of the edges that enter each row."""
        return sum_rows(self.presence, jnp.asarray(self.indptr))

    def uniform_degrees(self) -> tuple[int | None, int | None]:
        """(None, None): degrees depend on the presence."""
        return None, None

    def without_weights(self) -> CSRGraph:
        """The same edges with the same presence, without weights, scales and normalisation."""
        bare = _plain(self, None, row_scale=None, col_scale=None, normalization=None)
        return masked(bare, self.presence)

    def with_weights(self, weights: Any) -> CSRGraph:
        """The same edges with these weights, which the caller has made from the presence."""
        return _plain(self, self.weights).with_weights(weights)

    def transpose(self) -> CSRGraph:
        """Returns the graph with senders and receivers exchanged."""
        return from_columns(self.columns().transpose(), self)

    def normalized(self, kind: Normalization | None) -> CSRGraph:
        """Normalises by degrees that count the presence."""
        normalized = _plain(self, self.weights).normalized(kind)
        if kind == "mean":
            weights_alone, rows = self.given_weights, self.receivers()
            factors = (
                None
                if weights_alone is None
                else jnp.abs(weights_alone).astype(self.presence.dtype)
            )
            of_rows = row_presence(self.indptr, self.presence, factors)
            shares = of_rows.at[rows].get(mode="fill", fill_value=0, indices_are_sorted=True)
            weights = jnp.asarray(normalized.weights)
            weights = weights * shares.astype(weights.dtype)
            return self._with_fields(weights=weights, normalization=kind)
        return self._with_fields(weights=normalized.weights, normalization=normalized.normalization)

    def _with_loops(self, weight: float, duplicates: bool, num_real_nodes: Any) -> CSRGraph:
        """Adds loops, which are present."""
        of_loops: Any = jnp.array([1.0, weight, weight], self.presence.dtype)
        looped = self.columns()._with_loops(of_loops, duplicates, num_real_nodes)
        return from_columns(looped, self)

    def columns(self) -> CSRGraph:
        """The edges with presence, given weights and weights as columns, to be put in new orders.

        Raises:
          ValueError: if the graph has weights for several heads.
        """
        require_no_heads("MaskedGraph", "self", self.weights)
        weights = self.presence if self.given_weights is None else self.given_weights
        arrays = (jnp.asarray(a, self.presence.dtype) for a in (weights, self.weights))
        return _plain(self, jnp.stack([self.presence, *arrays], axis=1))


def masked(graph: CSRGraph, presence: Float[Array, " edges"]) -> MaskedGraph:
    """Returns a graph with a presence for each of its edge slots; see ``MaskedGraph``.

    Scales of a graph that is normalised already stay as they are.

    Args:
      graph: a graph of one device.
      presence: floating numbers in [0, 1], one for each edge slot; those of padding are ignored.

    Raises:
      ValueError: if the graph is part of one that is spread over devices, or there is another
        number of entries than of edge slots.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxgnn import CSRGraph, ops
      >>> graph = CSRGraph.from_edges([0, 1], [2, 2], 3)
      >>> made = masked(graph, jnp.array([1.0, 0.0]))
      >>> ops.aggregate(made, jnp.array([[1.0], [5.0]]), "max").ravel().tolist()
      [0.0, 0.0, 1.0]
    """
    if type(graph) is not CSRGraph:
        expected = "a CSRGraph that is not masked and not spread over devices"
        raise bad_input("masked", "graph", expected, type(graph).__name__)
    presence = as_jax("masked", "presence", presence)
    if presence.shape != (graph.num_edges,) or not jnp.issubdtype(presence.dtype, jnp.floating):
        expected = f"floating of shape ({graph.num_edges},), one entry for each edge slot"
        raise bad_input("masked", "presence", expected, f"{presence.dtype}{list(presence.shape)}")
    real = graph.receivers() < graph.num_rows
    presence = jnp.where(real, presence, 0)
    weights = graph.weights
    if weights is None:
        product = presence
    else:
        weights = jnp.asarray(weights)
        product = (weights.T * presence.astype(weights.dtype)).T
    fields = {f.name: getattr(graph, f.name) for f in dataclasses.fields(CSRGraph)}
    fields |= {"weights": product, "plan": given_plan(graph)}
    return _share_parts(MaskedGraph(**fields, presence=presence, given_weights=weights), graph)


def edge_presence(graph: Any) -> Float[Array, " edges"] | None:
    """The presence of each edge slot, zero in padding slots; None if all edges are present."""
    return graph.presence if isinstance(graph, MaskedGraph) else None


def row_presence(
    indptr: Any, presence: Float[Array, " edges"], factors: Float[Array, "edges *heads"] | None
) -> Float[Array, "rows *heads"]:
    """``Σ m² f / Σ m f`` over the edges of each row: the mean of the presence m, by itself times f.

    It is 1 for a row whose edges have a presence of 0 or 1, not all 0; and 0 where all are 0.

    Args:
      indptr: row offsets.
      presence: presence of each edge slot, zero in padding slots.
      factors: nonnegative factor f of each edge slot; None for ones.
    """
    shares = presence if factors is None else presence.reshape(-1, *[1] * (factors.ndim - 1))
    products = shares if factors is None else jnp.where(shares > 0, shares * factors, 0)
    total, squares = (sum_rows(a, jnp.asarray(indptr)) for a in (products, products * shares))
    return jnp.where(total > 0, squares / jnp.where(total > 0, total, 1), 0)


def log_presence(presence: Float[Array, " edges"]) -> Float[Array, " edges"]:
    """The addend of the scores of a softmax: the logarithm of the presence, -inf for none."""
    is_there = presence > 0
    return jnp.where(is_there, jnp.log(jnp.where(is_there, presence, 1)), -jnp.inf)


def unmasked(graph: Any, *, apart: bool) -> Any:
    """Returns a masked graph as a plain one, and other graphs unchanged.

    Args:
      graph: the graph.
      apart: whether the weights are those without the presence, which the caller applies.
    """
    if not isinstance(graph, MaskedGraph):
        return graph
    return _plain(graph, graph.given_weights if apart else graph.weights)


def without_presence(graph: Any) -> Any:
    """Returns the edges of a masked graph, all present, with their own weights."""
    return unmasked(graph, apart=True)


def from_columns(graph: CSRGraph, like: MaskedGraph) -> MaskedGraph:
    """Returns the masked graph of a plain one with the columns of ``MaskedGraph.columns``."""
    assert graph.weights is not None
    presence, weights_alone, weights = (graph.weights[:, column] for column in range(3))
    result = masked(_plain(graph, None if like.given_weights is None else weights_alone), presence)
    dtype = jnp.asarray(like.weights).dtype
    return cast(MaskedGraph, result._with_fields(weights=weights.astype(dtype)))


def _plain(graph: CSRGraph, weights: Any, **changed: Any) -> CSRGraph:
    """Returns the edges as a graph that is not masked, with these weights."""
    fields = {f.name: getattr(graph, f.name) for f in dataclasses.fields(CSRGraph)}
    fields |= {"weights": weights, "plan": given_plan(graph), **changed}
    return _share_parts(CSRGraph(**fields), graph)


def _share_parts[Graph: CSRGraph](graph: Graph, like: CSRGraph) -> Graph:
    """Shares the parts that are built on demand with a graph of the same edges."""
    if is_concrete(like.indptr, like.indices):
        graph.__dict__["_parts"] = like.concrete_parts()
    return plan_on_demand(graph, like=like)
