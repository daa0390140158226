"""Readouts: from the features of nodes to one row for each graph of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxgnn._arrays.arrays import as_jax
from jaxgnn._errors import bad_input
from jaxgnn.graph import GraphBatch
from jaxgnn.nn.shared.graph_ids import (
    check_batch,
    extremes,
    means,
    num_real_nodes,
    rows_where,
    sums,
    variances,
)

PoolReduce = Literal["sum", "mean", "max", "min", "var", "std"]
"""Reductions of the nodes of a graph to one row."""

# Added to a variance, so that the gradient of its root is finite at zero.
_EPSILON = 1e-5


def _deviations(x: Float[Array, "nodes *rest"], batch: GraphBatch) -> Float[Array, "graphs *rest"]:
    """The standard deviations; zero for a graph without nodes."""
    return rows_where(num_real_nodes(batch) > 0, jnp.sqrt(variances(x, batch) + _EPSILON))


_REDUCES: dict[str, Callable[[Array, GraphBatch], Array]] = {
    "sum": sums,
    "mean": means,
    "max": lambda x, batch: extremes(x, batch, largest=True),
    "min": lambda x, batch: extremes(x, batch, largest=False),
    "var": variances,
    "std": _deviations,
}


def pool(
    x: Float[Array, "nodes *features"],
    batch: GraphBatch,
    reduce: PoolReduce | Sequence[PoolReduce],
) -> Float[Array, "graphs *out"]:
    """Reduces the nodes of each graph to one row: ``y_g = reduce_{i in g} x_i``.

    Padding is ignored, whatever it contains. Sums are computed in float32 (float64 for float64) and
    rounded once. The gradient of a maximum or minimum is shared among entries equal to it.
    ``"var"`` has the number of nodes in its denominator, and ``"std"`` is
    ``√(var + 1e-5)``, whose gradient is finite for graphs of one node.

    Args:
      x: features of the nodes, [nodes, ...].
      batch: the graphs of the nodes.
      reduce: ``"sum"``, ``"mean"``, ``"max"``, ``"min"``, ``"var"`` or ``"std"``; or several of
        them, whose results are concatenated along the last axis.

    Returns:
      [graphs, ...] in the dtype of ``x``, zeros for padding graphs and for graphs without nodes.

    Raises:
      ValueError: if ``x`` does not have a row for each node slot of the batch, is not of floats,
        the batch has no graphs, or ``reduce`` has no such name.

    Example:
      >>> from jaxgnn.graph import GraphSample
      >>> pair = GraphSample(senders=[0], receivers=[1], num_nodes=2)
      >>> batch = GraphBatch.from_graphs([pair, pair], pad_to=(8, 4))
      >>> x = jnp.arange(8.0)[:, None]
      >>> pool(x, batch, "mean")[:, 0].tolist()
      [0.5, 2.5, 0.0]
      >>> pool(x, batch, ["min", "max"]).tolist()
      [[0.0, 1.0], [2.0, 3.0], [0.0, 0.0]]
    """
    where = "nn.pool"
    names = [reduce] if isinstance(reduce, str) else reduce
    known = get_args(PoolReduce)
    if not isinstance(names, Sequence) or not names or any(name not in known for name in names):
        raise bad_input(where, "reduce", f"among {', '.join(known)}", repr(reduce))
    check_batch(where, x, batch)
    x = as_jax(where, "x", x)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise bad_input(where, "x", "of a floating dtype", x.dtype)
    found = [_REDUCES[name](x, batch).astype(x.dtype) for name in names]
    return found[0] if isinstance(reduce, str) else jnp.concatenate(found, axis=-1)
