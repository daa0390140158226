"""Node classifiers on hypergraphs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Literal, Unpack

import jax
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn import nn
from jaxgnn.graph import Incidence
from jaxgnn.models.saveable import saveable
from jaxgnn.nn.shared.common_options import CommonOptions, DocumentedModule, Settings
from jaxgnn.nn.shared.dropout import Dropout
from jaxgnn.nn.shared.options import checked_options, named_one_of

HypergraphKind = Literal[
    "hgnn",
    "hcha",
    "unigcn",
    "unisage",
    "unigin",
    "unigat",
    "hnhn",
    "alldeepsets",
    "allsettransformer",
    "hypergcn",
]
"""Convolutions of a ``HypergraphGNN``, whose docstring describes them."""

_CONVOLUTIONS: dict[str, Callable[..., nnx.Module]] = {
    "hgnn": partial(nn.HypergraphConv, normalization="sym"),
    "hcha": nn.HypergraphConv,
    "unigcn": nn.UniGCNConv,
    "unisage": partial(nn.UniSAGEConv, aggregation="mean"),
    "unigin": nn.UniGINConv,
    "unigat": nn.UniGATConv,
    "hnhn": nn.HNHNConv,
    "alldeepsets": partial(nn.AllDeepSetsConv, aggregation="mean"),
    "allsettransformer": nn.AllSetTransformerConv,
    "hypergcn": nn.HyperGCNConv,
}
# Kinds that end in an MLP: in the last layer hidden layers would only be as wide as the number of
# classes.
_ENDING_IN_AN_MLP = ("alldeepsets", "allsettransformer")


@saveable
class HypergraphGNN(DocumentedModule):
    """Convolutions over a hypergraph, with relu and dropout between them.

    Args:
      hidden_features: width of the features between the convolutions.
      out_features: number of classes.
      num_layers: number of convolutions.
      kind: kind of convolution: ``"hgnn"`` and ``"hcha"`` are ``nn.HypergraphConv``, with symmetric
        and with mean normalization; the others have the names of their layers. ``"unisage"`` and
        ``"alldeepsets"`` aggregate by means. The AllSet kinds end in a linear layer after the last
        convolution.
      dropout: probability of zeroing an entry of a layer's input in training.

    Example:
      >>> hypergraph = Incidence.from_hyperedges([{0, 1, 2}, {2, 3}], num_nodes=4)
      >>> model = HypergraphGNN(8, 16, 3, kind="hgnn", rngs=nnx.Rngs(0))
      >>> model(hypergraph, jnp.ones((4, 8))).shape
      (4, 3)
    """

    @checked_options(kind=named_one_of(*_CONVOLUTIONS))
    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        num_layers: int = 2,
        kind: HypergraphKind = "hgnn",
        dropout: float = 0.5,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        name = "HypergraphGNN"
        nn.check_widths(name, in_features, hidden_features, out_features)
        settings = Settings(**common)
        options = settings.dtypes | {"rngs": rngs}
        classifies = kind in _ENDING_IN_AN_MLP
        last = hidden_features if classifies else out_features
        widths = [in_features, *[hidden_features] * (num_layers - 1), last]
        make = partial(_CONVOLUTIONS[kind], implementation=settings.implementation)
        self.layers = nnx.List(make(a, b, **options) for a, b in pairwise(widths))
        linear = nnx.Linear(hidden_features, out_features, **options) if classifies else None
        self.classifier = linear
        self.dropout = Dropout(dropout, name)

    def __call__(
        self,
        incidence: Incidence,
        x: Float[Array, "*batch nodes in"],
        *,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "*batch nodes classes"]:
        """Returns the class scores of each node.

        Args:
          x: features of the nodes; all leading axes share the hypergraph.
        """
        for number, layer in enumerate(self.layers):
            x = layer(incidence, self._prepared(x, number, rngs))
        if self.classifier is None:
            return x
        return self.classifier(self._prepared(x, len(self.layers), rngs))

    def _prepared(self, x: Array, number: int, rngs: nnx.Rngs | None) -> Array:
        """Returns the input of layer ``number``: ReLU, except for the first layer, and dropout."""
        x = x if number == 0 else jax.nn.relu(x)
        return self.dropout(x, rngs)
