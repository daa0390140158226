"""Deep graph convolutions with initial residuals."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn.graph import CSRGraph
from jaxgnn.models._layer_scan import LayerScan
from jaxgnn.nn import FusedLinear, apply_linear, check_widths
from jaxgnn.nn._dropout import Dropout
from jaxgnn.nn._options import at_least, checked_options, number, rate


class GCNII(nnx.Module):
    """Node classifier of many layers, from https://arxiv.org/abs/2007.02133.

    With the symmetrically normalised adjacency P, layer l of L computes

        s = (1 - alpha) P h + alpha h0
        h = relu((1 - beta) s + beta s W),    beta = log(strength / l + 1)

    from the features h0 behind the first linear layer. The share ``alpha`` of h0 keeps deep layers
    from averaging all nodes away, and the falling ``beta`` keeps them near the identity. All layers
    are run by one ``lax.scan``, so that compilation takes as long for any depth.

    Args:
      in_features: width of the node features.
      hidden_features: width of the hidden layers.
      out_features: number of classes, or of tasks.
      num_layers: number of convolutions.
      alpha: share of the initial features in each layer's input.
      strength: how far the layers are from the identity, λ in the paper.
      dropout: probability of zeroing an entry of a layer's input in training.
      implementation: name of the kernels of the sparse op; linear layers run the fastest kernels
        unless it is ``"xla"``. None for the default.
      dtype: dtype of the computation; None for the promoted dtype of input and parameters.
      param_dtype: dtype of the parameters.
      rngs: random streams from which the initial parameters are drawn.

    Raises:
      ValueError: if a width or the number of layers is not positive, or ``alpha`` is not in [0, 1).

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from jaxgnn import CSRGraph
      >>> from jaxgnn.models import GCNII
      >>> graph = CSRGraph.from_edges([0, 1, 2], [1, 2, 0], num_nodes=3).with_self_loops()
      >>> model = GCNII(8, 16, 5, num_layers=64, rngs=nnx.Rngs(0))
      >>> model(graph, jnp.ones((3, 8))).shape
      (3, 5)
    """

    @checked_options(num_layers=at_least(1), alpha=rate, strength=number)
    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        num_layers: int = 8,
        alpha: float = 0.1,
        strength: float = 0.5,
        dropout: float = 0.6,
        implementation: ops.Name | None = None,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        check_widths("GCNII", in_features, hidden_features, out_features)
        options: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.implementation = implementation
        self.dropout = Dropout(dropout, "GCNII")
        self.lin_in = FusedLinear(in_features, hidden_features, activation="relu", **options)
        self.body = LayerScan(
            [
                _Layer(
                    FusedLinear(hidden_features, hidden_features, use_bias=False, **options),
                    Dropout(dropout, "GCNII"),
                    alpha=alpha,
                    beta=math.log(strength / place + 1),
                    implementation=implementation,
                )
                for place in range(1, num_layers + 1)
            ]
        )
        self.lin_out = FusedLinear(hidden_features, out_features, **options)

    def __call__(
        self,
        graph: CSRGraph,
        x: Float[Array, "*batch nodes in"],
        *,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "*batch nodes out"]:
        """Returns the class scores of each node.

        Args:
          graph: graph with self loops, symmetrically normalised or not normalised.
          x: node features.
          rngs: random streams with one named ``dropout`` in training; None in evaluation.
        """
        if not graph.is_normalized:
            graph = graph.normalized("sym")
        h = apply_linear(self.lin_in, self.dropout(x, rngs), self.implementation)
        h = self.body(graph, h, rngs=rngs, initial=h)
        return apply_linear(self.lin_out, self.dropout(h, rngs), self.implementation)


class _Layer(nnx.Module):
    """One convolution with a share of the initial features."""

    def __init__(
        self,
        linear: FusedLinear,
        dropout: Dropout,
        *,
        alpha: float,
        beta: float,
        implementation: ops.Name | None,
    ):
        self.linear = linear
        self.dropout = dropout
        self.alpha = alpha
        # An array, so that the layers of a scan have one structure.
        self.beta = nnx.Variable(jnp.asarray(beta, jnp.float32))
        self.implementation = implementation

    def __call__(
        self,
        graph: CSRGraph,
        h: Float[Array, "*batch nodes d"],
        *,
        rngs: nnx.Rngs | None,
        initial: Float[Array, "*batch nodes d"],
    ) -> Float[Array, "*batch nodes d"]:
        neighbours = ops.spmm(graph, self.dropout(h, rngs), implementation=self.implementation)
        support = (1 - self.alpha) * neighbours + self.alpha * initial
        beta = self.beta[...].astype(h.dtype)
        linear = apply_linear(self.linear, support, self.implementation)
        return jax.nn.relu((1 - beta) * support + beta * linear)
