"""Norms over the nodes of a batch of graphs, which ignore padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from jaxgnn._arrays.arrays import as_jax
from jaxgnn._errors import bad_input
from jaxgnn.graph import GraphBatch, LocalGraph, mean_over_nodes
from jaxgnn.nn.shared.common_options import DocumentedModule
from jaxgnn.nn.shared.graph_ids import (
    check_batch,
    check_features,
    means,
    rows_where,
    spread_to_nodes,
)
from jaxgnn.nn.shared.maxk import check_widths
from jaxgnn.nn.shared.options import checked_options, flag, fraction, one_of, positive
from jaxgnn.ops.core.dtypes import accumulation_dtype


class _Norm(DocumentedModule):
    """Base class of norms with a scale and a shift for each feature."""

    def __init__(self, features: int, epsilon: float, use_affine: bool, param_dtype: jnp.dtype):
        check_widths(type(self).__name__, features)
        self.features = features
        self.epsilon = epsilon
        self.scale = nnx.Param(jnp.ones(features, param_dtype)) if use_affine else None
        self.bias = nnx.Param(jnp.zeros(features, param_dtype)) if use_affine else None

    def __call__(
        self, x: Float[Array, "nodes features"], batch: GraphBatch | LocalGraph | None = None
    ) -> Float[Array, "nodes features"]:
        """Normalises the features.

        Args:
          batch: the graphs of the nodes; None if all are of one graph, without padding; or the
            device's part of a graph that is spread over devices, whose nodes all count.

        Returns:
          The normalised features in the dtype of ``x``, zeros for padding.
        """
        name = type(self).__name__
        mask = _real_nodes(name, x, batch)
        check_features(name, x, self.features)
        x = as_jax(name, "x", x)
        wide = x.astype(accumulation_dtype(x.dtype))
        wide = wide if mask is None else rows_where(mask, wide)
        mean = self._mean(_mean_of_graphs(batch))
        centred = self._centred(wide, mean)
        normed = centred / jnp.sqrt(mean(jnp.square(centred)) + self.epsilon)
        if self.scale is not None and self.bias is not None:
            normed = normed * self.scale[...].astype(normed.dtype) + self.bias[...].astype(
                normed.dtype
            )
        return (normed if mask is None else rows_where(mask, normed)).astype(x.dtype)

    def _mean(self, of_graphs: _Mean) -> _Mean:
        """The means that the norm subtracts, from the means over the nodes of each graph."""
        return of_graphs

    def _centred(self, x: Array, mean: _Mean) -> Array:
        """The features minus their mean."""
        return x - mean(x)


class GraphNorm(_Norm):
    """Normalises each feature over the nodes of each graph.

    ``y = γ (x - α μ_g) / √(var_g + ε) + β``, where ``μ_g`` is the mean over the nodes of the graph,
    ``α`` is learnt, and ``var_g`` is the mean of ``(x - α μ_g)²``. See
    https://arxiv.org/abs/2009.03294.

    Args:
      features: width of the node features.

    Example:
      >>> pair = GraphSample(senders=[0], receivers=[1], num_nodes=2)
      >>> batch = GraphBatch.from_graphs([pair, pair], pad_to=(8, 4))
      >>> y = nn.GraphNorm(1)(jnp.arange(8.0)[:, None] ** 2, batch)
      >>> jnp.round(y[:, 0], 3).tolist()
      [-1.0, 1.0, -1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    """

    @checked_options()
    def __init__(
        self, features: int, *, epsilon: float = 1e-5, param_dtype: jnp.dtype = jnp.float32
    ):
        super().__init__(features, epsilon, True, param_dtype)
        self.mean_scale = nnx.Param(jnp.ones(features, param_dtype))

    def _centred(self, x: Array, mean: _Mean) -> Array:
        return x - mean(x) * self.mean_scale[...].astype(x.dtype)


class LayerNorm(_Norm):
    """Normalises over the features of each node, or over all features and nodes of each graph.

    ``y = γ (x - μ) / √(var + ε) + β``, see https://arxiv.org/abs/1607.06450. PyTorch Geometric
    normalises whole graphs by default (``mode="graph"``). If it gets no batch, it adds ``ε`` to the
    standard deviation there: ``(x - μ) / (√var + ε)``.

    Args:
      mode: ``"node"`` or ``"graph"``: the set over which mean and variance are taken.
      use_affine: whether there are ``γ`` and ``β``.

    Example:
      >>> jnp.round(nn.LayerNorm(2)(jnp.array([[1.0, 3.0], [5.0, 5.0]])), 3).tolist()
      [[-1.0, 1.0], [0.0, 0.0]]
    """

    @checked_options(mode=one_of("node", "graph"))
    def __init__(
        self,
        features: int,
        *,
        mode: Literal["node", "graph"] = "node",
        epsilon: float = 1e-5,
        use_affine: bool = True,
        param_dtype: jnp.dtype = jnp.float32,
    ):
        super().__init__(features, epsilon, use_affine, param_dtype)
        self.mode = mode

    def _mean(self, of_graphs: _Mean) -> _Mean:
        def mean(values: Array) -> Array:
            of_node = jnp.mean(values, axis=-1, keepdims=True)
            return of_node if self.mode == "node" else of_graphs(of_node)

        return mean


class PairNorm(DocumentedModule):
    """Keeps the distances between the nodes of a graph from shrinking with depth.

    ``y_i = s x̃_i / √(ε + mean_j ‖x̃_j‖²)`` of the centred features ``x̃_i = x_i - μ_g``. With
    ``individually`` each node is divided by its own length, ``y_i = s x̃_i / (ε + ‖x̃_i‖)``. See
    https://arxiv.org/abs/1909.12223.

    Args:
      scale: ``s``.
      individually: whether each node is scaled by its own length, the PairNorm-SI of the paper.

    Example:
      >>> jnp.round(nn.PairNorm()(jnp.array([[1.0, 1.0], [5.0, 1.0]])), 3).tolist()
      [[-1.0, 0.0], [1.0, 0.0]]
    """

    @checked_options(scale=positive, individually=flag)
    def __init__(self, *, scale: float = 1.0, individually: bool = False, epsilon: float = 1e-5):
        self.scale = scale
        self.individually = individually
        self.epsilon = epsilon

    def __call__(
        self, x: Float[Array, "nodes features"], batch: GraphBatch | LocalGraph | None = None
    ) -> Float[Array, "nodes features"]:
        """Centres and scales the features.

        Args:
          batch: the graphs of the nodes; None if all are of one graph, without padding; or the
            device's part of a graph that is spread over devices, whose nodes all count.

        Returns:
          The normalised features in the dtype of ``x``, zeros for padding.
        """
        mask = _real_nodes("PairNorm", x, batch)
        x = as_jax("PairNorm", "x", x)
        if mask is not None:
            x = rows_where(mask, x)
        elif x.ndim != 2:
            raise bad_input("PairNorm", "x", "of shape [nodes, features]", f"shape {x.shape}")
        wide, mean = x.astype(accumulation_dtype(x.dtype)), _mean_of_graphs(batch)
        centred = wide - mean(wide)
        squares = jnp.sum(jnp.square(centred), axis=-1, keepdims=True)
        if self.individually:
            # The root has no gradient at zero, where the node equals its graph's mean.
            lengths = jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1)), 0)
            normed = self.scale * centred / (self.epsilon + lengths)
        else:
            normed = self.scale * centred / jnp.sqrt(self.epsilon + mean(squares))
        return (normed if mask is None else rows_where(mask, normed)).astype(x.dtype)


class BatchNorm(DocumentedModule):
    """Normalises each feature over all nodes of a batch except its padding.

    ``y = γ (x - μ) / √(var + ε) + β``, see https://arxiv.org/abs/1502.03167. In training, which
    ``train()`` sets, mean and variance are those of the batch, and running averages of them are
    kept, which are used in evaluation, which ``eval()`` sets. Both variances are divided by the
    number of nodes n; PyTorch divides that of the running average by n - 1. A batch without nodes,
    of padding alone, leaves the averages as they are. This is ``nnx.BatchNorm`` with the mask of
    the batch.

    Args:
      momentum: share of the running averages that is kept in a step; PyTorch's is one minus this.
      rngs: random streams, unused; layers of Flax have them.

    Example:
      >>> pair = GraphSample(senders=[0], receivers=[1], num_nodes=2)
      >>> batch = GraphBatch.from_graphs([pair], pad_to=(4, 4))
      >>> layer = nn.BatchNorm(1, rngs=nnx.Rngs(0))
      >>> jnp.round(layer(jnp.array([[1.0], [3.0], [9.0], [9.0]]), batch)[:, 0], 3).tolist()
      [-1.0, 1.0, 0.0, 0.0]
    """

    @checked_options(momentum=fraction)
    def __init__(
        self,
        features: int,
        *,
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        dtype: jnp.dtype | None = None,
        param_dtype: jnp.dtype = jnp.float32,
        rngs: nnx.Rngs,
    ):
        check_widths("BatchNorm", features)
        self.features = features
        self.norm = nnx.BatchNorm(
            features,
            momentum=momentum,
            epsilon=epsilon,
            dtype=dtype,
            param_dtype=param_dtype,
            # The variance as the mean of squared differences, which loses no digits.
            use_fast_variance=False,
            rngs=rngs,
        )

    def __call__(
        self, x: Float[Array, "nodes features"], batch: GraphBatch | LocalGraph | None = None
    ) -> Float[Array, "nodes features"]:
        """Normalises the features.

        Args:
          batch: the graphs of the nodes; None if there is no padding; or the device's part of a
            graph that is spread over devices, whose nodes all count.

        Returns:
          The normalised features, zeros for padding.
        """
        mask = _real_nodes("BatchNorm", x, batch)
        check_features("BatchNorm", x, self.features)
        x = as_jax("BatchNorm", "x", x)
        if mask is None:
            # Without a node there is nothing to learn from.
            return self.norm(x) if x.shape[0] else self.norm(x, use_running_average=True)
        x = rows_where(mask, jnp.asarray(x))
        if isinstance(batch, LocalGraph):
            return rows_where(mask, self._normalise_devices(x, batch))
        return rows_where(mask, self._normalise_batch(x, mask))

    def _normalise_batch(
        self, x: Float[Array, "nodes features"], mask: Bool[Array, " nodes"]
    ) -> Array:
        """Normalises by the nodes of the mask; without any, the running averages stay.

        Means over nothing would be NaN, also in gradients: then all rows count, which are zeros.
        """
        norm, has_nodes = self.norm, jnp.any(mask)
        if norm.use_running_average:
            return norm(x)
        before = norm.mean[...], norm.var[...]
        normed = norm(x, mask=(mask | ~has_nodes)[:, None])
        for running, kept in zip((norm.mean, norm.var), before, strict=True):
            running[...] = jnp.where(has_nodes, running[...], kept)
        return normed

    def _normalise_devices(self, x: Float[Array, "nodes features"], graph: LocalGraph) -> Array:
        """Normalises by the mean and variance over the nodes of all devices."""
        norm = self.norm
        if norm.use_running_average:
            return norm(x)
        wide = x.astype(accumulation_dtype(x.dtype))
        mean = mean_over_nodes(graph, wide)
        variance = mean_over_nodes(graph, jnp.square(wide - mean))
        for running, new in ((norm.mean, mean), (norm.var, variance)):
            kept = norm.momentum * running[...]
            running[...] = kept + (1 - norm.momentum) * new.astype(running.dtype)
        normed = (wide - mean) / jnp.sqrt(variance + norm.epsilon)
        assert norm.scale is not None and norm.bias is not None
        scale, bias = norm.scale[...], norm.bias[...]
        normed = normed * scale.astype(wide.dtype) + bias.astype(wide.dtype)
        return normed.astype(norm.dtype or jnp.promote_types(x.dtype, scale.dtype))


type _Mean = Callable[[Array], Array]
"""Function from values of the nodes to means of the nodes' graphs, which broadcast with them."""


def _real_nodes(
    where: str, x: Array, batch: GraphBatch | LocalGraph | None
) -> Bool[Array, " nodes"] | None:
    """Mask of the rows of ``x`` that are not padding; None if all are nodes."""
    if batch is None:
        return None
    if not isinstance(batch, LocalGraph):
        return jnp.asarray(check_batch(where, x, batch).node_mask)
    if x.ndim < 2 or x.shape[0] != batch.num_rows:
        expected = f"of shape [{batch.num_rows}, ...], a row for each node of the device"
        raise bad_input(where, "x", expected, f"shape {x.shape}")
    return batch.is_real_row


def _mean_of_graphs(batch: GraphBatch | LocalGraph | None) -> _Mean:
    """The mean over each graph of a batch, or over all nodes if there is no batch."""
    if batch is None:
        return lambda values: jnp.mean(values, axis=0, keepdims=True)
    if isinstance(batch, LocalGraph):
        return lambda values: mean_over_nodes(batch, values)[None]
    return lambda values: spread_to_nodes(means(values, batch), batch)
