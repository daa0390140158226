"""Deep graph convolutions with initial residuals."""

from __future__ import annotations

from typing import Unpack

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn.graph import CBSR, CSRGraph
from jaxgnn.models._layer_scan import LayerScan
from jaxgnn.models.saveable import saveable
from jaxgnn.nn import (
    Activation,
    FusedLinear,
    KernelMode,
    MaxK,
    aggregate,
    apply_linear,
    check_widths,
)
from jaxgnn.nn.conv.gcnii import identity_mix, identity_share
from jaxgnn.nn.shared.common_options import CommonOptions, DocumentedModule, Settings
from jaxgnn.nn.shared.dropout import Dropout
from jaxgnn.nn.shared.maxk import Features, check_kept, make_activation
from jaxgnn.nn.shared.options import checked_options, int_at_least, number, one_of, rate


@saveable
class GCNII(DocumentedModule):
    """Node classifier of many layers, from https://arxiv.org/abs/2007.02133, with ReLU or MaxK.

    With the symmetrically normalised adjacency P, layer l of L computes

        s = (1 - alpha) P act(z) + alpha h0
        z = (1 - beta) s + beta s W,    beta = log(strength / l + 1)

    from z = ``lin_in x`` and h0 = act(z) before the first layer. The scores are those of
    ``lin_out`` for act(z) of the last one. The share ``alpha`` of h0 keeps deep layers from
    oversmoothing, and the falling ``beta`` keeps them near the identity. All layers are run by one
    ``lax.scan``, so that compilation time does not depend on the depth. The paper's activation
    is ReLU. With MaxK, ``P act(z)`` reads ``k`` numbers of each neighbour.

    Args:
      hidden_features: width of the hidden layers.
      out_features: number of classes, or of tasks.
      num_layers: number of convolutions.
      activation: ``"relu"`` or ``"maxk"``.
      alpha: share of the initial features in each layer's input.
      strength: how far the layers are from the identity, λ in the paper.
      dropout: probability of zeroing an entry before each convolution and before ``lin_out`` in
        training.
      implementation: name of the kernels of the sparse ops; linear layers run the fastest kernels
        unless it is ``"xla"``. None for the default.

    Example:
      >>> graph = CSRGraph.from_edges([0, 1, 2], [1, 2, 0], num_nodes=3).with_self_loops()
      >>> model = GCNII(8, 16, 5, num_layers=64, rngs=nnx.Rngs(0))
      >>> model(graph, jnp.ones((3, 8))).shape
      (3, 5)
    """

    @checked_options(
        num_layers=int_at_least(1), alpha=rate, strength=number, activation=one_of("maxk", "relu")
    )
    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        num_layers: int = 8,
        activation: Activation = "relu",
        k: int | None = None,
        alpha: float = 0.1,
        strength: float = 0.5,
        dropout: float = 0.5,
        kernel_mode: KernelMode = "auto",
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        check_widths("GCNII", in_features, hidden_features, out_features)
        settings = Settings(**common)
        implementation, options = settings.implementation, settings.dtypes | {"rngs": rngs}
        self.maxk = make_activation("GCNII", activation, k, hidden_features, implementation)
        self.implementation = implementation
        self.dropout = Dropout(dropout, "GCNII")
        self.lin_in = FusedLinear(in_features, hidden_features, **options)
        self.body = LayerScan(
            [
                _Layer(
                    FusedLinear(hidden_features, hidden_features, use_bias=False, **options),
                    Dropout(dropout, "GCNII"),
                    self.maxk,
                    alpha=alpha,
                    beta=identity_share(strength, place),
                    kernel_mode=kernel_mode,
                    implementation=implementation,
                )
                for place in range(1, num_layers + 1)
            ]
        )
        self.lin_out = FusedLinear(hidden_features, out_features, **options)

    def __call__(
        self,
        graph: CSRGraph,
        x: Float[Array, "*batch nodes in"] | CSRGraph,
        *,
        rngs: nnx.Rngs | None = None,
        k: int | None = None,
    ) -> Float[Array, "*batch nodes out"]:
        """Returns the class scores of each node.

        Args:
          graph: graph with self loops, symmetrically normalised or not normalised.
          x: node features; for bags of words and other rows of mostly zeros also a sparse matrix,
            ``CSRGraph.from_scipy(matrix)`` with a row for each node and a column for each feature.
        """
        if not graph.is_normalized:
            graph = graph.normalized("sym")
        if k is not None:
            check_kept("GCNII", k, self.lin_out.in_features)
        z = apply_linear(self.lin_in, x, self.implementation)
        initial = self._activated(z, k)
        z = self.body(graph, z, rngs=rngs, initial=initial, k=k)
        h = self.dropout(self._activated(z, k), rngs, graph)
        return apply_linear(self.lin_out, h, self.implementation)

    def _activated(
        self, z: Float[Array, "*batch nodes d"], k: int | None
    ) -> Float[Array, "*batch nodes d"]:
        h = _activate(self.maxk, z, k)
        return ops.todense(h, implementation=self.implementation) if isinstance(h, CBSR) else h


class _Layer(nnx.Module):
    """An activation, then one convolution with a share of the initial features."""

    def __init__(
        self,
        linear: FusedLinear,
        dropout: Dropout,
        maxk: MaxK | None,
        *,
        alpha: float,
        beta: float,
        kernel_mode: KernelMode,
        implementation: ops.Name | None,
    ):
        self.linear = linear
        self.dropout = dropout
        self.maxk = maxk
        self.alpha = alpha
        # An array, so that the layers of a scan have one structure.
        self.beta = nnx.Variable(jnp.asarray(beta, jnp.float32))
        self.kernel_mode: KernelMode = kernel_mode
        self.implementation = implementation

    def __call__(
        self,
        graph: CSRGraph,
        z: Float[Array, "*batch nodes d"],
        *,
        rngs: nnx.Rngs | None,
        initial: Float[Array, "*batch nodes d"],
        k: int | None,
    ) -> Float[Array, "*batch nodes d"]:
        h = self.dropout(_activate(self.maxk, z, k), rngs, graph)
        options = {"kernel_mode": self.kernel_mode, "implementation": self.implementation}
        support = (1 - self.alpha) * aggregate(graph, h, **options) + self.alpha * initial
        beta = self.beta[...].astype(z.dtype)
        linear = apply_linear(self.linear, support, self.implementation)
        return identity_mix(support, linear, beta)


def _activate(maxk: MaxK | None, z: Array, k: int | None) -> Features:
    return jax.nn.relu(z) if maxk is None else maxk(z, k)
