"""Graph convolutions with initial residuals, for deep networks."""

from __future__ import annotations

import math
from typing import Unpack

from flax import nnx
from jaxtyping import Array, Float

from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph
from jaxgnn.nn.conv.gcn_sum import gcn_sum
from jaxgnn.nn.shared.common_options import CommonOptions
from jaxgnn.nn.shared.layer import GraphLayer
from jaxgnn.nn.shared.maxk import check_widths
from jaxgnn.nn.shared.options import checked_options, flag, fraction, int_at_least, positive


def identity_share(strength: float, place: int) -> float:
    """The share β of the linear map in layer ``place``, from 1; the rest is the identity."""
    return math.log(strength / place + 1)


def identity_mix(
    support: Float[Array, "*batch nodes d"],
    mapped: Float[Array, "*batch nodes d"],
    beta: float | Array,
) -> Float[Array, "*batch nodes d"]:
    """Mixes the sums ``s`` of a layer with their product: ``(1 - β) s + β s W``."""
    return (1 - beta) * support + beta * mapped


class GCNIIConv(GraphLayer):
    """Convolution near the identity: ``y = (1 - β) s + β s W``, ``s = (1 - α) P x + α x_0``.

    See https://arxiv.org/abs/2007.02133. ``P`` is the normalised adjacency of ``nn.GCNConv``, with
    self loops, and ``β = log(strength / place + 1)`` falls with the place of the layer. It computes
    what PyTorch Geometric's ``GCN2Conv`` does. ``models.GCNII`` is the whole network, which runs
    its layers by one scan.

    Args:
      features: width of input and output.
      alpha: share of the initial features, in [0, 1].
      strength: distance of the layers from the identity, λ in the paper and θ in PyTorch Geometric;
        None for β = 1.
      place: the place of the layer in the network, from 1.
      share_weights: whether one matrix multiplies both terms of ``s``; False for two.

    Example:
      >>> graph = CSRGraph.from_edges(senders=[0, 1], receivers=[1, 2], num_nodes=3)
      >>> x = initial = jnp.ones((3, 8))
      >>> rngs = nnx.Rngs(0)
      >>> for place in (1, 2, 3):
      ...     x = nn.GCNIIConv(8, strength=0.5, place=place, rngs=rngs)(graph, x, initial)
      >>> x.shape
      (3, 8)
    """

    applies_weights = True

    @checked_options(
        alpha=fraction,
        strength=lambda value: None if value is None else positive(value),
        place=int_at_least(1),
        share_weights=flag,
    )
    def __init__(
        self,
        features: int,
        *,
        alpha: float = 0.1,
        strength: float | None = None,
        place: int = 1,
        share_weights: bool = True,
        add_self_loops: bool | None = None,
        normalize: bool = True,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        super().__init__(**common)
        check_widths(self._name, features)
        self.features = features
        self.alpha = alpha
        self.beta = 1.0 if strength is None else identity_share(strength, place)
        self.normalize = normalize
        self.add_self_loops = normalize if add_self_loops is None else add_self_loops
        options = {"use_bias": False, "rngs": rngs}
        self.linear = self._linear(features, features, **options)
        self.initial_linear = None if share_weights else self._linear(features, features, **options)

    def __call__(
        self,
        graph: CSRGraph,
        x: Float[Array, "*batch nodes features"],
        initial: Float[Array, "*batch nodes features"],
    ) -> Float[Array, "*batch nodes features"]:
        """Applies the convolution.

        Args:
          graph: square graph; one that is already normalised is used unchanged.
          x: features of the nodes, the output of the previous layer.
          initial: ``x_0``, the input of the first layer, of the shape of ``x``.
        """
        self._check(graph, x, self.features)
        self._check_square(graph)
        if getattr(initial, "shape", None) != x.shape:
            got = f"shape {initial.shape}" if hasattr(initial, "shape") else repr(initial)
            raise bad_input(self._name, "initial", f"of shape {x.shape}, as x", got)
        x, initial = self._to_floats(x, initial)
        options = {"normalize": self.normalize, "add_self_loops": self.add_self_loops}
        total = gcn_sum(self._name, graph, **options)(x, self.implementation)
        neighbours, residual = (1 - self.alpha) * total, self.alpha * initial
        support = neighbours + residual
        if self.initial_linear is None:
            mapped = self._apply(self.linear, support)
        else:
            mapped = self._apply(self.linear, neighbours) + self._apply(
                self.initial_linear, residual
            )
        return identity_mix(support, mapped, self.beta)
