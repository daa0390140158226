"""Readouts: from the features of nodes to one row for each graph of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn._arrays.arrays import as_jax
from jaxgnn._errors import bad_input
from jaxgnn.graph import GraphBatch
from jaxgnn.nn.shared.activations import CELL_FUNCTIONS
from jaxgnn.nn.shared.common_options import DocumentedModule
from jaxgnn.nn.shared.graph_ids import (
    check_batch,
    check_features,
    extremes,
    means,
    num_real_nodes,
    rows_where,
    softmax,
    spread_to_nodes,
    sums,
    variances,
)
from jaxgnn.nn.shared.maxk import check_widths
from jaxgnn.nn.shared.options import checked_options, function, or_none
from jaxgnn.ops.core.dtypes import accumulation_dtype
from jaxgnn.ops.shared import REDUCTIONS

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


def _pooled(reduction: Any) -> Callable[[Array, GraphBatch], Array]:
    """Makes a reduction that is computed from the sum of a function of each number."""

    def reduce(x: Array, batch: GraphBatch) -> Array:
        wide = rows_where(jnp.asarray(batch.node_mask), x.astype(accumulation_dtype(x.dtype)))
        count = jnp.maximum(num_real_nodes(batch), 1).astype(wide.dtype)
        count = jnp.expand_dims(count, range(1, x.ndim))
        pooled = reduction.of_sum(sums(reduction.of_each(wide), batch), count)
        return rows_where(num_real_nodes(batch) > 0, pooled)

    return reduce


_REDUCES |= {
    name: _pooled(reduction)
    for name, reduction in REDUCTIONS.items()
    if reduction.value is not None
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
    allowed = tuple(_REDUCES)
    if not isinstance(names, Sequence) or not names or any(name not in allowed for name in names):
        raise bad_input(where, "reduce", f"among {', '.join(allowed)}", repr(reduce))
    check_batch(where, x, batch)
    x = as_jax(where, "x", x)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise bad_input(where, "x", "of a floating dtype", x.dtype)
    parts = [_REDUCES[name](x, batch).astype(x.dtype) for name in names]
    return parts[0] if isinstance(reduce, str) else jnp.concatenate(parts, axis=-1)


class AttentionPooling(DocumentedModule):
    """Weighted sum of the nodes of each graph: ``y_g = Σ_i softmax_g(gate(x))_i value(x)_i``.

    The global attention of https://arxiv.org/abs/1511.05493, which PyTorch Geometric calls
    ``AttentionalAggregation``.

    Args:
      gate: function or module from the features of nodes to their logits, [nodes, 1], or to one
        for each feature, [nodes, out].
      value: function or module from the features to the summed values, [nodes, out]; None for the
        features themselves.

    Example:
      >>> pair = GraphSample(senders=[0], receivers=[1], num_nodes=2)
      >>> batch = GraphBatch.from_graphs([pair, pair], pad_to=(8, 4))
      >>> layer = nn.AttentionPooling(nn.FusedLinear(5, 1, rngs=nnx.Rngs(0)))
      >>> layer(jnp.ones((8, 5)), batch).shape
      (3, 5)
    """

    @checked_options(gate=function, value=or_none(function))
    def __init__(
        self, gate: Callable[[Array], Array], value: Callable[[Array], Array] | None = None
    ):
        self.gate = gate
        self.value = value

    def __call__(
        self, x: Float[Array, "nodes features"], batch: GraphBatch
    ) -> Float[Array, "graphs out"]:
        """Reduces the nodes of each graph to one row.

        Args:
          x: features of the nodes.

        Returns:
          [graphs, out] in the dtype of the values, zeros for padding graphs.

        Raises:
          ValueError: if ``x`` does not have a row for each node slot of the batch, or the gate has
            neither one logit for each node nor one for each feature of the values.
        """
        check_batch("AttentionPooling", x, batch)
        x = rows_where(jnp.asarray(batch.node_mask), x)
        values = x if self.value is None else self.value(x)
        logits = self.gate(x)
        if logits.shape not in ((x.shape[0], 1), values.shape):
            expected = f"to return shape {(x.shape[0], 1)} or {values.shape}"
            raise bad_input("AttentionPooling", "gate", expected, f"shape {logits.shape}")
        weights = softmax(logits, batch)
        return sums(weights * values.astype(weights.dtype), batch).astype(values.dtype)


class Set2Set(DocumentedModule):
    """Reads the nodes of each graph several times, each time with another query.

    A query is the output of an LSTM on the previous reading, ``q_t = LSTM(q*_{t-1})``. The reading
    is ``r_t = Σ_i softmax_g(x_i · q_t) x_i``, and ``q*_t = [q_t, r_t]``; the last one is the
    result. See https://arxiv.org/abs/1511.06391. The order of the nodes does not matter.

    Args:
      num_steps: number of readings.
      dtype: dtype of the LSTM; None for the promoted dtype of input and parameters.

    Example:
      >>> pair = GraphSample(senders=[0], receivers=[1], num_nodes=2)
      >>> batch = GraphBatch.from_graphs([pair, pair], pad_to=(8, 4))
      >>> layer = nn.Set2Set(5, num_steps=3, rngs=nnx.Rngs(0))
      >>> layer(jnp.ones((8, 5)), batch).shape
      (3, 10)
    """

    @checked_options()
    def __init__(
        self,
        in_features: int,
        *,
        num_steps: int = 4,
        dtype: jnp.dtype | None = None,
        param_dtype: jnp.dtype = jnp.float32,
        rngs: nnx.Rngs,
    ):
        check_widths("Set2Set", in_features)
        self.in_features = in_features
        self.num_steps = num_steps
        options: Any = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.lstm = nnx.OptimizedLSTMCell(2 * in_features, in_features, **CELL_FUNCTIONS, **options)

    def __call__(
        self, x: Float[Array, "nodes features"], batch: GraphBatch
    ) -> Float[Array, "graphs 2*features"]:
        """Reduces the nodes of each graph to one row.

        Args:
          x: features of the nodes.

        Returns:
          [graphs, 2 · features] in the dtype of ``x``, zeros for padding graphs.

        Raises:
          ValueError: if ``x`` does not have a row for each node slot of the batch, or another
            width.
        """
        check_batch("Set2Set", x, batch)
        check_features("Set2Set", x, self.in_features)
        x = rows_where(jnp.asarray(batch.node_mask), x)
        zeros = jnp.zeros((batch.num_graphs, self.in_features), x.dtype)
        memory, result = (zeros, zeros), jnp.concatenate([zeros, zeros], axis=-1)
        for _ in range(self.num_steps):
            memory, query = self.lstm(memory, result)
            query = query.astype(x.dtype)
            logits = jnp.sum(x * spread_to_nodes(query, batch), axis=-1, keepdims=True)
            weights = softmax(logits, batch)
            answer = sums(weights * x.astype(weights.dtype), batch).astype(x.dtype)
            result = jnp.concatenate([query, answer], axis=-1)
        return jnp.where(jnp.asarray(batch.graph_mask)[:, None], result, 0)
