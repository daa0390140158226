"""Reductions over edges that are present to a degree, in plain JAX."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jaxgnn._arrays.arrays import rows_at
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.csr.masked_graph import row_presence
from jaxgnn.graph.plan.row_sums import sum_rows
from jaxgnn.ops.core.dtypes import accumulation_dtype
from pallas_kernels.arguments.reductions import ARRAYS, REDUCTIONS


def masked_reductions(
    graph: CSRGraph,
    presence: Float[Array, " edges"],
    messages: Float[Array, "edges dim"],
    names: Sequence[str],
) -> Float[Array, "rows columns"]:
    """The reductions of ``aggregate``, side by side, in which edge e counts ``presence[e]`` times.

    Edges of presence 0 change nothing. All but the sum and the extremes are means by weights, to be
    multiplied by ``row_presence``. An extreme is that of numbers that go from the edge's own to the
    lowest of the row as its presence falls; at presence 0 the edge is never the only one that has
    the extreme.
    """
    edges = _MaskedEdges(graph, presence, messages)
    parts = [jnp.where(edges.total > 0, edges.reduced(name), 0) for name in names]
    return jnp.concatenate(parts, axis=-1).astype(messages.dtype)


class _MaskedEdges:
    """The numbers of the edges, in the accumulation dtype; a method for each compiled reduction."""

    def __init__(self, graph: CSRGraph, presence: Array, messages: Array):
        wide = accumulation_dtype(messages.dtype)
        self.indptr, self.rows, self.num_rows = graph.indptr, graph.receivers(), graph.num_rows
        self.real = (self.rows < self.num_rows)[:, None]
        self.shares = jnp.where(self.real, presence[:, None], 0).astype(wide)
        self.is_there = self.shares > 0
        self.values = jnp.where(self.real, messages.astype(wide), 0)
        self.total = sum_rows(self.shares, self.indptr)
        self.divisor = jnp.where(self.total > 0, self.total, 1)
        self.presence = row_presence(self.indptr, self.shares[:, 0], None)[:, None]

    def reduced(self, name: str) -> Array:
        """The reduction of this name."""
        reduction = REDUCTIONS[name]
        if reduction.value is None:
            return getattr(self, name)()
        total = self._sum(reduction.of_each(self.values))
        return self.presence * reduction.of_sum(total, self.divisor)

    def _of_edges(self, per_row: Array) -> Array:
        return rows_at(per_row, self.rows, are_sorted=True)

    def _highest(self, values: Array) -> Array:
        return jax.ops.segment_max(values, self.rows, self.num_rows, indices_are_sorted=True)

    def _sum(self, values: Array) -> Array:
        return sum_rows(jnp.where(self.is_there, self.shares * values, 0), self.indptr)

    def sum(self) -> Array:
        return self._sum(self.values)

    def mean(self) -> Array:
        return self.presence * self._mean(self.values)

    def _mean(self, values: Array) -> Array:
        return self._sum(values) / self.divisor

    def _variance(self) -> Array:
        return self._mean((self.values - self._of_edges(self._mean(self.values))) ** 2)

    def var(self) -> Array:
        return self.presence * self._variance()

    def std(self) -> Array:
        return self.presence * ARRAYS.root(self._variance())

    def max(self) -> Array:
        return self._extreme(self.values)

    def min(self) -> Array:
        return -self._extreme(-self.values)

    def _extreme(self, values: Array) -> Array:
        """The largest number of each row, times the largest presence: zero without any edge."""
        lowest = -self._highest(jnp.where(self.real, -values, -jnp.inf))
        lowest = self._of_edges(jnp.where(jnp.isfinite(lowest), lowest, 0))
        return self._highest(lowest + self.shares * (values - lowest)) * self._highest(self.shares)

    def _exponentials(self) -> tuple[Array, Array, Array]:
        """Exponentials times the presence, the shift of each row, and ``row_presence`` by them."""
        shift = self._highest(lax.stop_gradient(jnp.where(self.is_there, self.values, -jnp.inf)))
        shift = jnp.where(shift == -jnp.inf, 0, shift)
        shifted = jnp.where(self.is_there, self.values - self._of_edges(shift), 0)
        factors = jnp.where(self.is_there, jnp.exp(shifted), 0)
        presence = row_presence(self.indptr, self.shares[:, 0], factors)
        return self.shares * factors, shift, presence

    def softmax(self) -> Array:
        exponentials, _, presence = self._exponentials()
        total = sum_rows(exponentials, self.indptr)
        sums = sum_rows(exponentials * self.values, self.indptr)
        return presence * sums / jnp.where(total > 0, total, 1)

    def logsumexp(self) -> Array:
        exponentials, shift, presence = self._exponentials()
        total = sum_rows(exponentials, self.indptr)
        return presence * (jnp.log(jnp.where(total > 0, total, 1)) + shift)
