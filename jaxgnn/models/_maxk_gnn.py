"""The three networks of MaxK-GNN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Unpack

import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph, Normalization
from jaxgnn.models._layer_scan import HyperBody, LayerScan
from jaxgnn.models.saveable import saveable
from jaxgnn.nn import (
    Activation,
    FusedLinear,
    GCNConv,
    GINConv,
    KernelMode,
    SAGEConv,
    apply_linear,
    check_widths,
)
from jaxgnn.nn.shared.common_options import CommonOptions, DocumentedModule, Settings
from jaxgnn.nn.shared.options import (
    checked_options,
    int_at_least,
    is_integer,
    named_one_of,
    one_of,
    or_none,
)

Kind = Literal["sage", "gcn", "gin"]

_CONVOLUTIONS = {"sage": SAGEConv, "gcn": GCNConv, "gin": GINConv}
_NORMALIZATIONS: dict[str, Normalization | None] = {"sage": "mean", "gcn": "sym", "gin": None}
# The published network does not add self loops, and the model normalises once for all layers.
_OPTIONS = {"gcn": {"use_linear_bias": True, "add_self_loops": False}}


@saveable
class MaxKGNN(DocumentedModule):
    """Node classifier with MaxK or ReLU activations, from https://arxiv.org/abs/2312.08656.

    ``lin_in``, then ``num_layers`` times convolution and LayerNorm, then ``lin_out``:

    - ``"sage"``: act, dropout, ``W_self h + W_neigh mean h``. ``lin_in`` is linear.
    - ``"gcn"``: linear, act, dropout, symmetric normalised sum, bias. ReLU after ``lin_in``.
    - ``"gin"``: linear, act, dropout, ``(1 + ε) h`` plus the sum. ReLU after ``lin_in``.

    The published network has no residual connections, and deep ones oversmooth. With
    ``hyper_connections=n`` LayerNorm and convolution, in this order, are the branch of an
    ``nn.HyperConnection`` over n streams (https://arxiv.org/abs/2601.02451); an ``nn.HyperHead``
    and one more LayerNorm precede ``lin_out``. With one stream this is a residual connection with a
    gate before and after the branch.

    Args:
      hidden_features: width of the hidden layers.
      out_features: number of classes, or of tasks.
      num_layers: number of convolutions.
      kind: kind of convolution: ``"sage"``, ``"gcn"`` or ``"gin"``.
      activation: ``"maxk"`` or ``"relu"``.
      k: kept entries per row for ``"maxk"``: one number, or one for each layer.
      dropout: probability of zeroing an activated entry in training.
      norm: whether LayerNorm follows each convolution, or precedes it with ``hyper_connections``.
      hyper_connections: number of streams, or None for the published network.
      scan_layers: whether to run the layers by ``lax.scan``: one compilation for any number of
        layers, stacked parameters, and one ``k`` for all layers.
      implementation: name of the kernels of the sparse ops and of hyper-connections; linear layers
        run the fastest kernels unless it is ``"xla"``. None for the default.

    Raises:
      ValueError: if an option is not as above, or ``k`` has the wrong length.

    Example:
      >>> from jaxgnn.graph import CSRGraph, Normalization
      >>> graph = CSRGraph.from_edges(senders=[0, 1, 2], receivers=[1, 2, 2], num_nodes=3)
      >>> model = MaxKGNN(8, 32, 5, kind="sage", activation="maxk", k=4, rngs=nnx.Rngs(0))
      >>> model(graph, jnp.ones((3, 8))).shape
      (3, 5)
    """

    @checked_options(
        kind=named_one_of(*_CONVOLUTIONS),
        activation=one_of("maxk", "relu"),
        hyper_connections=or_none(int_at_least(1)),
    )
    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        num_layers: int = 3,
        kind: Kind = "sage",
        activation: Activation = "maxk",
        k: int | Sequence[int] | None = 32,
        dropout: float = 0.5,
        norm: bool = True,
        hyper_connections: int | None = None,
        scan_layers: bool = False,
        kernel_mode: KernelMode = "auto",
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        check_widths("MaxKGNN", in_features, hidden_features, out_features)
        ks = layer_ks(k if activation == "maxk" else None, num_layers)
        _check_ks(ks, hidden_features, scan_layers)
        settings = Settings(**common)
        implementation, dtypes = settings.implementation, settings.dtypes
        extra: dict[str, Any] = _OPTIONS.get(kind, {})
        self.kind = kind
        self.num_layers = num_layers
        self.scan_layers = scan_layers
        self.implementation = implementation
        self.lin_in = FusedLinear(
            in_features,
            hidden_features,
            activation=None if kind == "sage" else "relu",
            **dtypes,
            rngs=rngs,
        )
        convolutions = [
            _CONVOLUTIONS[kind](
                hidden_features,
                hidden_features,
                activation=activation,
                k=layer_k,
                dropout=dropout,
                kernel_mode=kernel_mode,
                implementation=implementation,
                **extra,
                **dtypes,
                rngs=rngs,
            )
            for layer_k in ks
        ]
        norms = [
            nnx.LayerNorm(hidden_features, epsilon=1e-5, **dtypes, rngs=rngs)
            # Each branch begins with a norm, so one more norm ends the network.
            for _ in range(num_layers + (hyper_connections is not None) if norm else 0)
        ]
        if hyper_connections is None and not scan_layers:
            self.convolutions, self.norms = nnx.List(convolutions), nnx.List(norms)
            self.body = None
        elif hyper_connections is None:
            self.body = LayerScan(_layers(convolutions, norms, scan=True, norm_first=False))
        else:
            layers = _layers(convolutions, norms, scan=scan_layers, norm_first=True)
            options = {"num_streams": hyper_connections, "implementation": implementation}
            options |= {"features": hidden_features, "rngs": rngs}
            self.body = HyperBody(layers, norms[-1] if norm else None, scan_layers, options)
        self.lin_out = FusedLinear(hidden_features, out_features, **dtypes, rngs=rngs)

    def __call__(
        self,
        graph: CSRGraph | Sequence[CSRGraph],
        x: Float[Array, "*batch nodes in"] | CSRGraph,
        *,
        rngs: nnx.Rngs | None = None,
        k: int | Sequence[int] | None = None,
    ) -> Float[Array, "*batch nodes out"]:
        """Returns the class scores of each node.

        Args:
          graph: graph without normalisation, or with the normalisation that the layers use; or a
            block for each layer, ``blocks`` of a ``sampling.SampledBatch``, for the scores of the
            rows of the last. Scanned layers and hyper-connections take no blocks.
          x: node features; for bags of words and other rows of mostly zeros also a sparse matrix,
            ``CSRGraph.from_scipy(matrix)`` with a row for each node and a column for each feature.
          k: kept entries per row instead of the layers' ``k``, one number or one for each
            layer, for schedules.
        """
        graphs = self._normalized(graph)
        h = apply_linear(self.lin_in, x, self.implementation)
        ks = layer_ks(k, self.num_layers)
        if self.body is not None:
            _check_scan(self.scan_layers, ks)
            h = self.body(graphs[0], h, rngs=rngs, ks=ks)
            return apply_linear(self.lin_out, h, self.implementation)
        for i, (convolution, layer_k) in enumerate(zip(self.convolutions, ks, strict=True)):
            of_ends: Any = h
            if isinstance(graph, tuple | list) and self.kind != "gcn":
                of_ends = h[..., : graphs[i].num_rows, :], h
            h = convolution(graphs[i], of_ends, rngs=rngs, k=layer_k)
            if self.norms:
                h = self.norms[i](h)
        return apply_linear(self.lin_out, h, self.implementation)

    def _normalized(self, graph: CSRGraph | Sequence[CSRGraph]) -> list[CSRGraph]:
        """The normalised graph of each layer: one for all, or a block for each."""
        kind = _NORMALIZATIONS[self.kind]
        if not isinstance(graph, tuple | list):
            one: Any = graph
            return [one if one.is_normalized else one.normalized(kind)] * self.num_layers
        if self.body is not None or len(graph) != self.num_layers:
            of_layers = "" if self.body else f", or {self.num_layers} blocks, one for each layer"
            raise bad_input("MaxKGNN", "graph", f"one graph{of_layers}", f"{len(graph)} blocks")
        return [block if block.is_normalized else block.normalized(kind) for block in graph]


class _Layer(nnx.Module):
    """A convolution with a norm before or after it; selects its ``k`` from those of all layers."""

    def __init__(
        self, convolution: nnx.Module, norm: nnx.Module | None, place: int, norm_first: bool
    ):
        self.convolution = convolution
        self.norm = norm
        self.place = place
        self.norm_first = norm_first

    def __call__(
        self,
        graph: CSRGraph,
        h: Float[Array, "*batch nodes d"],
        *,
        rngs: nnx.Rngs | None,
        ks: tuple[int | None, ...],
    ) -> Float[Array, "*batch nodes d"]:
        if self.norm is not None and self.norm_first:
            h = self.norm(h)
        h = self.convolution(graph, h, rngs=rngs, k=ks[self.place])
        return h if self.norm is None or self.norm_first else self.norm(h)


def _layers(
    convolutions: Sequence[nnx.Module],
    norms: Sequence[nnx.Module],
    *,
    scan: bool,
    norm_first: bool,
) -> list[_Layer]:
    return [
        # Scanned layers must not depend on their position.
        _Layer(convolution, norms[i] if norms else None, 0 if scan else i, norm_first)
        for i, convolution in enumerate(convolutions)
    ]


def layer_ks(k: int | Sequence[int] | None, num_layers: int) -> tuple[int | None, ...]:
    """Returns one ``k`` for each layer, from a number, a sequence, or None."""
    if k is None or isinstance(k, int | np.integer):
        return (k,) * num_layers
    if not hasattr(k, "__len__") or len(k) != num_layers:
        raise bad_input("MaxKGNN", "k", f"one number, or one for each of {num_layers} layers", k)
    return tuple(k)


def _check_ks(ks: tuple[int | None, ...], hidden_features: int, scan_layers: bool) -> None:
    for layer_k in ks:
        if layer_k is not None and not (is_integer(layer_k) and 1 <= layer_k <= hidden_features):
            raise bad_input("MaxKGNN", "k", f"in 1..{hidden_features}", layer_k)
    _check_scan(scan_layers, ks)


def _check_scan(scan_layers: bool, ks: tuple[int | None, ...]) -> None:
    if scan_layers and len(set(ks)) > 1:
        raise bad_input("MaxKGNN", "k", "one number for scanned layers", ks)
