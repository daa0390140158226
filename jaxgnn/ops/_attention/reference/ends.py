"""Values of nodes at the ends of edges, in the accumulation dtype."""

from __future__ import annotations

from typing import Protocol

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxgnn._arrays.arrays import rows_at
from jaxgnn.ops.core.dtypes import accumulation_dtype


class Edges(Protocol):
    """The edges of a graph, or some of them, as scores read them."""

    @property
    def num_rows(self) -> int:
        """Number of receivers, which is the number of rows of the graph."""
        ...

    @property
    def indices(self) -> Int[Array, " edges"]:
        """The sender of each edge slot."""
        ...

    def receivers(self) -> Int[Array, " edges"]:
        """The receiver of each edge slot, ascending; ``num_rows`` in padding slots."""
        ...


def at_rows(
    graph: Edges, values: Float[Array, "rows *rest"], padding: float = 0.0
) -> Float[Array, "edges *rest"]:
    """The values of each edge's receiver; ``padding`` in padding slots."""
    # Rows ascend, so that the gradient is a sorted sum.
    wide = values.astype(accumulation_dtype(values.dtype))
    return rows_at(wide, graph.receivers(), padding, are_sorted=True)


def at_columns(
    graph: Edges, values: Float[Array, "cols groups *rest"], heads: int
) -> Float[Array, "edges heads *rest"]:
    """The values of each edge's sender, those of a group once for each of its heads."""
    found = values.astype(accumulation_dtype(values.dtype))[graph.indices]
    return repeat_groups(found, heads)


def repeat_groups(values: Float[Array, "edges groups *rest"], heads: int) -> Array:
    """The values of a group once for each of its heads, [E, H, ...]."""
    return jnp.repeat(values, heads // values.shape[1], axis=1)


def of_real_edges(graph: Edges, values: Float[Array, "edges *rest"]) -> Array:
    """The values of edges, and zeros in padding slots, whose contents are undefined."""
    real = graph.receivers() < graph.num_rows
    found = values.astype(accumulation_dtype(values.dtype))
    return jnp.where(real.reshape(-1, *[1] * (values.ndim - 1)), found, 0)


def leaky_relu(x: Array, slope: float) -> Array:
    """``x`` if at least 0, else ``slope x``; -inf, which masks an edge, for every slope."""
    return jnp.where((x >= 0) | (x == -jnp.inf), x, slope * x)
