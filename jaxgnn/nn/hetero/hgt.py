"""The heterogeneous graph transformer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn._errors import bad_input
from jaxgnn.graph import EdgeType, HeteroGraph
from jaxgnn.nn.hetero.hetero_conv import (
    check_features,
    check_is_hetero,
    checked_metadata,
    width_of_each,
)
from jaxgnn.nn.shared.common_options import CommonOptions
from jaxgnn.nn.shared.layer import GraphLayer
from jaxgnn.nn.shared.linear import FusedLinear
from jaxgnn.nn.shared.maxk import check_widths
from jaxgnn.nn.shared.options import checked_options

_glorot = nnx.initializers.glorot_uniform(batch_axis=0)


class HGTConv(GraphLayer):
    """Attention over all relations that enter a node: the heterogeneous graph transformer.

    See https://arxiv.org/abs/2003.01332. With a linear map for queries, keys and values of each
    type τ of nodes, and matrices ``A_r``, ``M_r`` and a number ``μ_r`` for each relation and head,

        m_i = Σ_r Σ_j p_ij M_r v_j,    p_i = softmax_{r, j}(μ_r ⟨q_i, A_r k_j⟩ / √d)
        y_i = σ(s_τ) W_τ gelu(m_i) + (1 - σ(s_τ)) x_i

    where the softmax is over the edges of all relations that enter node i, and d is the width of a
    head. The second term applies to types whose input is as wide as the output; others have
    ``y_i = W_τ gelu(m_i)``. It computes what PyTorch Geometric's ``HGTConv`` does. All relations
    are read by one launch of ``ops.dot_attention``. Graphs with weights are refused.

    Args:
      in_features: width of the input, or a dictionary with the width of each type of nodes.
      out_features: width of the output, all heads together.
      metadata: the types of nodes and the relations: ``graph.metadata``.
      heads: number of attention heads, which divides ``out_features``.

    Example:
      >>> writes = CSRGraph.from_edges([0, 1], [2, 0], 3, num_senders=2)
      >>> graph = HeteroGraph({("author", "writes", "paper"): writes}).with_reverse()
      >>> layer = nn.HGTConv(8, 4, graph.metadata, heads=2, rngs=nnx.Rngs(0))
      >>> y = layer(graph, {"author": jnp.ones((2, 8)), "paper": jnp.ones((3, 8))})
      >>> y["author"].shape, y["paper"].shape
      ((2, 4), (3, 4))
    """

    @checked_options()
    def __init__(
        self,
        in_features: int | Mapping[str, int],
        out_features: int,
        metadata: tuple[Sequence[str], Sequence[EdgeType]],
        *,
        heads: int = 1,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        super().__init__(**common)
        self.node_types, self.edge_types = checked_metadata(self._name, metadata)
        self.in_widths = width_of_each(self._name, in_features, self.node_types)
        check_widths(self._name, out_features)
        if out_features % heads:
            expected = f"a divisor of out_features, {out_features}"
            raise bad_input(self._name, "heads", expected, heads)
        self.heads, self.out_features = heads, out_features

        def linears(width: int, of: Sequence[str]) -> nnx.List:
            return nnx.List(self._linear(self.in_widths[t], width, rngs=rngs) for t in of)

        self.qkv_linears = linears(3 * out_features, self.node_types)
        dim = out_features // heads
        shape = len(self.edge_types) * heads, dim, dim
        self.key_kernel = nnx.Param(_glorot(rngs.params(), shape, self.param_dtype))
        self.value_kernel = nnx.Param(_glorot(rngs.params(), shape, self.param_dtype))
        self.priors = nnx.Param(jnp.ones((len(self.edge_types), heads), self.param_dtype))
        self.out_linears = nnx.List(
            self._linear(out_features, out_features, rngs=rngs) for _ in self.node_types
        )
        self.skips = nnx.Param(jnp.ones(len(self.node_types), self.param_dtype))

    def __call__(
        self, graph: HeteroGraph, x: Mapping[str, Float[Array, "*batch nodes in"]]
    ) -> dict[str, Float[Array, "*batch nodes out"]]:
        """Applies the layer.

        Args:
          graph: the relations. As an argument of a jitted function it should be
            ``graph.prepared()``; otherwise the edges are sorted in each call.
          x: features of each type of nodes; leading axes share the graph.

        Returns:
          Features of each type of nodes that is a receiver in some relation.
        """
        floats = self._checked_floats(graph, x)
        queries, keys, values = self._projected(floats)
        attended: Any = ops.dot_attention(
            graph.joined(),
            jnp.concatenate([queries[t] for t in self.node_types], axis=-3),
            self._relation_rows(keys, self.key_kernel, self.priors[...]),
            self._relation_rows(values, self.value_kernel, None),
            implementation=self.implementation,
        )
        messages = attended.reshape(*attended.shape[:-2], self.out_features)
        receiving, slices = {edge_type[2] for edge_type in self.edge_types}, graph.node_slices()
        return {
            node_type: self._result(place, messages[..., slices[node_type], :], floats[node_type])
            for place, node_type in enumerate(self.node_types)
            if node_type in receiving
        }

    def _checked_floats(self, graph: Any, x: Any) -> dict[str, Array]:
        """The features in one dtype; raises ValueError unless graph, features and layer fit."""
        check_is_hetero(self._name, graph)
        if graph.metadata != (self.node_types, self.edge_types):
            expected = f"of the relations {list(self.edge_types)}"
            raise bad_input(self._name, "graph", expected, list(graph.edge_types))
        for edge_type in graph.edge_types:
            self._refuse_weights(f"graph[{edge_type!r}]", graph[edge_type])
        check_features(self._name, graph, x)
        for name, width in self.in_widths.items():
            of = f"x[{name!r}]", x[name], graph.num_nodes[name]
            self._check_nodes(*of, width, f"{name} nodes")
        arrays = self._to_floats(*(x[name] for name in self.node_types))
        return dict(zip(self.node_types, arrays, strict=True))

    def _projected(self, x: Mapping[str, Array]) -> tuple[dict[str, Array], ...]:
        """Queries, keys and values of each type of nodes, [..., nodes, heads, dim]."""
        parts = {}
        for linear, node_type in zip(self.qkv_linears, self.node_types, strict=True):
            z = self._apply(linear, x[node_type])
            z = z.reshape(*z.shape[:-1], 3, self.heads, self.out_features // self.heads)
            parts[node_type] = z
        return tuple({t: z[..., place, :, :] for t, z in parts.items()} for place in range(3))

    def _relation_rows(
        self, x: Mapping[str, Array], kernel: nnx.Param, factors: Array | None
    ) -> Float[Array, "*batch senders heads dim"]:
        """Computes keys or values of each relation's senders, concatenated over the relations."""
        shape = len(self.edge_types), self.heads, *kernel.shape[1:]
        matrices = kernel[...].reshape(shape)
        if factors is not None:
            matrices = matrices * factors[..., None, None]
        parts = [
            (x[sender].swapaxes(-3, -2) @ matrix.astype(x[sender].dtype)).swapaxes(-3, -2)
            for matrix, (sender, _, _) in zip(matrices, self.edge_types, strict=True)
        ]
        return jnp.concatenate(parts, axis=-3)

    def _result(self, place: int, messages: Array, x: Array) -> Array:
        linear: FusedLinear = self.out_linears[place]
        y = self._apply(linear, jax.nn.gelu(messages, approximate=False))
        if x.shape[-1] != self.out_features:
            return y
        share = jax.nn.sigmoid(self.skips[...][place]).astype(y.dtype)
        return share * y + (1 - share) * x
