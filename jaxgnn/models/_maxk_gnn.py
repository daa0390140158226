"""The three networks of MaxK-GNN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph, Normalization
from jaxgnn.nn import Activation, GCNConv, GINConv, KernelMode, SAGEConv, check_widths

Kind = Literal["sage", "gcn", "gin"]

_CONVOLUTIONS = {"sage": SAGEConv, "gcn": GCNConv, "gin": GINConv}
_NORMALIZATIONS: dict[str, Normalization | None] = {"sage": "mean", "gcn": "sym", "gin": None}


class MaxKGNN(nnx.Module):
    """Node classifier with MaxK or ReLU activations, as in https://arxiv.org/abs/2312.08656.

    ``lin_in``, then ``num_layers`` times convolution and LayerNorm, then ``lin_out``:

    - ``"sage"``: act, dropout, ``W_self h + W_neigh mean h``. ``lin_in`` is linear.
    - ``"gcn"``: linear, act, dropout, symmetric normalised sum, bias. ReLU after ``lin_in``.
    - ``"gin"``: linear, act, dropout, ``(1 + ε) h`` plus the sum. ReLU after ``lin_in``.

    Args:
      in_features: width of the node features.
      hidden_features: width of the layers.
      out_features: classes, or tasks.
      num_layers: convolutions.
      kind: ``"sage"``, ``"gcn"`` or ``"gin"``.
      activation: ``"maxk"`` or ``"relu"``.
      k: for ``"maxk"``: kept entries per row, one number or one for each layer.
      dropout: probability of zeroing an activated entry in training.
      norm: LayerNorm after each convolution.
      kernel_mode: ``"auto"``, ``"maxk"`` or ``"dense"``, see ``jaxgnn.nn.SAGEConv``.
      implementation: passed to the ops.
      dtype: of the computation; None for that of the input.
      param_dtype: of the parameters.
      rngs: for the initial parameters.

    Raises:
      ValueError: if an option is not as above, or ``k`` has the wrong length.

    Example:
      >>> import jax.numpy as jnp
      >>> from flax import nnx
      >>> from jaxgnn.graph import CSRGraph, Normalization
      >>> from jaxgnn.models import MaxKGNN
      >>> graph = CSRGraph.from_edges(senders=[0, 1, 2], receivers=[1, 2, 2], num_nodes=3)
      >>> model = MaxKGNN(8, 32, 5, kind="sage", activation="maxk", k=4, rngs=nnx.Rngs(0))
      >>> model(graph, jnp.ones((3, 8))).shape
      (3, 5)
    """

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
        kernel_mode: KernelMode = "auto",
        implementation: ops.Name | None = None,
        dtype: jnp.dtype | None = None,
        param_dtype: jnp.dtype = jnp.float32,
        rngs: nnx.Rngs,
    ):
        if kind not in _CONVOLUTIONS:
            raise bad_input("MaxKGNN", "kind", f"one of {', '.join(_CONVOLUTIONS)}", repr(kind))
        check_widths("MaxKGNN", in_features, hidden_features, out_features)
        if num_layers < 1:
            raise bad_input("MaxKGNN", "num_layers", "at least 1", num_layers)
        ks = layer_ks(k if activation == "maxk" else None, num_layers)
        for layer_k in ks:
            if layer_k is not None and not 1 <= layer_k <= hidden_features:
                raise bad_input("MaxKGNN", "k", f"in 1..{hidden_features}", layer_k)
        dtypes = {"dtype": dtype, "param_dtype": param_dtype}
        extra: dict[str, Any] = {"use_linear_bias": True} if kind == "gcn" else {}
        self.kind = kind
        self.num_layers = num_layers
        self.lin_in = nnx.Linear(in_features, hidden_features, **dtypes, rngs=rngs)
        self.convolutions = nnx.List(
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
        )
        norms = num_layers if norm else 0
        self.norms = nnx.List(
            nnx.LayerNorm(hidden_features, epsilon=1e-5, **dtypes, rngs=rngs) for _ in range(norms)
        )
        self.lin_out = nnx.Linear(hidden_features, out_features, **dtypes, rngs=rngs)

    def __call__(
        self,
        graph: CSRGraph,
        x: Float[Array, "*batch nodes in"],
        *,
        rngs: nnx.Rngs | None = None,
        k: int | Sequence[int] | None = None,
    ) -> Float[Array, "*batch nodes out"]:
        """Class scores of each node.

        Args:
          graph: not normalised yet, or normalised as the layers want it.
          x: node features.
          rngs: a ``dropout`` stream in training, None in evaluation.
          k: overrides the layers' ``k``, one number or one for each, for schedules.
        """
        if not graph.is_normalized:
            graph = graph.normalized(_NORMALIZATIONS[self.kind])
        h = self.lin_in(x)
        if self.kind != "sage":
            h = jax.nn.relu(h)
        for i, (convolution, layer_k) in enumerate(
            zip(self.convolutions, layer_ks(k, self.num_layers), strict=True)
        ):
            h = convolution(graph, h, rngs=rngs, k=layer_k)
            if self.norms:
                h = self.norms[i](h)
        return self.lin_out(h)


def layer_ks(k: int | Sequence[int] | None, num_layers: int) -> tuple[int | None, ...]:
    """One ``k`` for each layer from a number, a sequence, or None.

    Raises:
      ValueError: if a sequence does not have one entry for each layer.
    """
    if k is None or isinstance(k, int | np.integer):
        return (k,) * num_layers
    if len(k) != num_layers:
        raise bad_input("MaxKGNN", "k", f"one number, or one for each of {num_layers} layers", k)
    return tuple(k)
