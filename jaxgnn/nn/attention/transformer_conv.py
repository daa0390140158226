"""Dot-product attention over neighbours: the graph transformer, and AGNN."""

from __future__ import annotations

from typing import Any, Unpack

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn.graph import CSRGraph, with_one_loop_each
from jaxgnn.nn.attention.attention_layer import AttentionLayer, EdgeOptions, Heads, checked
from jaxgnn.nn.shared.common_options import CommonOptions
from jaxgnn.nn.shared.layer import Ends, GraphLayer
from jaxgnn.ops.core.dtypes import accumulation_dtype


class TransformerConv(AttentionLayer):
    """A graph transformer's attention: ``y_i = W_root x_i + b + Σ_j p_ij (v_j + u_ij)``.

    ``p_i = softmax_j(⟨q_i, k_j + u_ij⟩ / √out_features)`` for each head, where queries, keys and
    values are linear maps of the features of nodes, with biases of their own, and ``u = W_e e`` is
    one of those of edges. See https://arxiv.org/abs/2009.03509. It computes what PyTorch
    Geometric's ``TransformerConv`` does with the same weights, and adds no self loops. A graph with
    weights or scales is refused.

    With ``beta`` a gate replaces the sum: ``y_i = g_i r_i + (1 - g_i) m_i`` with
    ``g_i = σ(⟨w, [m_i; r_i; m_i - r_i]⟩)``, where ``r_i`` is the term of the node itself, and
    ``m_i`` that of its neighbours.

    Args:
      beta: whether the gate replaces the sum; it is ignored without ``root_weight``.
      use_bias: whether this map has a bias.

    Example:
      >>> graph = CSRGraph.from_edges(senders=[0, 1, 2], receivers=[1, 2, 2], num_nodes=3)
      >>> layer = nn.TransformerConv(8, 4, heads=2, beta=True, rngs=nnx.Rngs(0))
      >>> layer(graph, jnp.ones((3, 8))).shape
      (3, 8)
    """

    @checked
    def __init__(
        self,
        in_features: int | tuple[int, int],
        out_features: int,
        *,
        heads: int = 1,
        concat: bool = True,
        beta: bool = False,
        dropout: float = 0.0,
        edge_dim: int | None = None,
        root_weight: bool = True,
        use_bias: bool = True,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        super().__init__(
            in_features,
            Heads(heads, out_features, concat),
            EdgeOptions(dim=edge_dim),
            dropout=dropout,
            **common,
        )
        of, width, out = self.in_widths, self.heads.width, self.heads.out_features
        self.query_linear = self._linear(of.dst, width, rngs=rngs)
        self.key_linear = self._linear(of.src, width, rngs=rngs)
        self.value_linear = self._linear(of.src, width, rngs=rngs)
        self.edge_linear = self._edge_linear(rngs)
        root = self._linear(of.dst, out, use_bias=use_bias, rngs=rngs) if root_weight else None
        gate = self._linear(3 * out, 1, use_bias=False, rngs=rngs) if root and beta else None
        self.root_linear, self.beta_linear = root, gate

    def _attend(
        self, graph: CSRGraph, ends: Ends[Array], edge_features: Array | None, options: Any
    ) -> Any:
        values = self._projected(self.value_linear, ends.src)
        return ops.dot_attention(
            graph,
            self._projected(self.query_linear, ends.dst),
            self._projected(self.key_linear, ends.src),
            values,
            edge_features=edge_features,
            edge_kernel=self._edge_kernel(values.dtype),
            **options,
        )

    def _result(self, y: Array, ends: Ends[Array]) -> Array:
        y = self._joined(y)
        if self.root_linear is None:
            return y
        root = self._apply(self.root_linear, ends.dst)
        if self.beta_linear is None:
            return y + root
        gate = self._apply(self.beta_linear, jnp.concatenate([y, root, y - root], axis=-1))
        gate = jax.nn.sigmoid(gate)
        return gate * root + (1 - gate) * y


class AGNNConv(GraphLayer):
    """Attention by similarity: ``y_i = Σ_j p_ij x_j``, ``p_i = softmax_j(β cos(x_i, x_j))``.

    See https://arxiv.org/abs/1803.03735. β is the only parameter, from one. It computes what
    PyTorch Geometric's ``AGNNConv`` does. A graph with weights or scales is refused.

    By default existing self loops are removed, and each node gets one. For a concrete graph this is
    done once. For a graph that is an argument of a jitted function it is done in every call:
    prepare it outside with ``jaxgnn.graph.with_one_loop_each``, and set ``add_self_loops=False``.

    Args:
      requires_grad: whether β is learnt; if False, it is one.
      add_self_loops: whether each node gets one self loop instead of those that it has.
      param_dtype: dtype of β.

    Example:
      >>> graph = CSRGraph.from_edges(senders=[0, 1, 2], receivers=[1, 2, 2], num_nodes=3)
      >>> nn.AGNNConv()(graph, jnp.array([[1.0], [2.0], [4.0]])).ravel().tolist()
      [1.0, 1.5, 3.0]
    """

    @checked
    def __init__(
        self,
        *,
        requires_grad: bool = True,
        add_self_loops: bool = True,
        **common: Unpack[CommonOptions],
    ):
        super().__init__(**common)
        self.add_self_loops = add_self_loops
        self.beta = nnx.Param(jnp.ones((), self.param_dtype)) if requires_grad else None

    def __call__(
        self, graph: CSRGraph, x: Float[Array, "*batch nodes in"]
    ) -> Float[Array, "*batch nodes in"]:
        """Applies the layer.

        Args:
          graph: square graph.
          x: features of the nodes; leading axes share the graph.
        """
        x = self._ends(graph, x, None).src
        self._check_square(graph, "since each node is compared with its neighbours")
        if self.add_self_loops:
            graph = with_one_loop_each(graph).graph
        wide = x.astype(accumulation_dtype(x.dtype))
        squares = jnp.sum(wide * wide, axis=-1, keepdims=True)
        unit = wide * jax.lax.rsqrt(jnp.maximum(squares, 1e-24))
        queries = unit if self.beta is None else unit * self.beta[...].astype(wide.dtype)
        queries, keys, values = (z.astype(x.dtype)[..., None, :] for z in (queries, unit, x))
        options = {"scale": 1.0, "implementation": self.implementation}
        y: Any = ops.dot_attention(graph, queries, keys, values, **options)
        return y[..., 0, :]
