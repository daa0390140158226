"""Jumping knowledge: a representation of each node from the outputs of all layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxgnn._errors import bad_input
from jaxgnn.nn.shared.activations import CELL_FUNCTIONS
from jaxgnn.nn.shared.common_options import DocumentedModule
from jaxgnn.nn.shared.linear import FusedLinear, apply_linear
from jaxgnn.nn.shared.options import at_least, checked_options, instance_of, one_of, or_none


class JumpingKnowledge(DocumentedModule):
    """Combines the outputs ``h_1 … h_L`` of all layers of a network, node by node.

    - ``"concat"``: concatenated, ``L`` times as wide.
    - ``"max"``: the maximum of each feature.
    - ``"lstm"``: ``Σ_l softmax_l(a · [→h_l, ←h_l]) h_l``, weights from an LSTM over the layers in
      both directions.

    See https://arxiv.org/abs/1806.03536.

    Args:
      mode: ``"concat"``, ``"max"`` or ``"lstm"``.
      features: width of each layer's output, for ``"lstm"``; else None.
      num_layers: number of layers, for ``"lstm"``; its states have
        ``num_layers * features // 2`` features. Else None.
      rngs: random streams from which the initial parameters are drawn, for ``"lstm"``; else None.

    Example:
      >>> layers = [jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 0.0]])]
      >>> nn.JumpingKnowledge("max")(layers).tolist()
      [[3.0, 2.0]]
    """

    @checked_options(
        mode=one_of("concat", "max", "lstm"),
        features=or_none(at_least(1)),
        num_layers=or_none(at_least(1)),
        rngs=or_none(instance_of(nnx.Rngs, "an nnx.Rngs, such as nnx.Rngs(0)")),
    )
    def __init__(
        self,
        mode: Literal["concat", "max", "lstm"],
        *,
        features: int | None = None,
        num_layers: int | None = None,
        param_dtype: jnp.dtype = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ):
        self.mode = mode
        self.features = features
        self.num_layers = num_layers
        if mode != "lstm":
            return
        if features is None or num_layers is None or rngs is None:
            missing = {"features": features, "num_layers": num_layers, "rngs": rngs}
            name = next(name for name, value in missing.items() if value is None)
            raise bad_input("JumpingKnowledge", name, "given for mode='lstm'", None)
        width = max(num_layers * features // 2, 1)
        options = {"param_dtype": param_dtype, "rngs": rngs}
        self.forward = nnx.OptimizedLSTMCell(features, width, **CELL_FUNCTIONS, **options)
        self.backward = nnx.OptimizedLSTMCell(features, width, **CELL_FUNCTIONS, **options)
        self.attention = FusedLinear(2 * width, 1, **options)

    def __call__(
        self, layers: Sequence[Float[Array, "*batch nodes features"]]
    ) -> Float[Array, "*batch nodes out"]:
        """Combines the outputs of the layers.

        Args:
          layers: the output of each layer, all of one shape, except that for ``"concat"`` widths
            may differ.

        Raises:
          ValueError: if there are no layers, or their shapes do not fit.
        """
        self._check(layers)
        if self.mode == "concat":
            return jnp.concatenate(layers, axis=-1)
        stacked = jnp.stack(layers)
        if self.mode == "max":
            return jnp.max(stacked, axis=0)
        ahead, back = _states(self.forward, layers), _states(self.backward, layers[::-1])[::-1]
        states = jnp.concatenate([jnp.stack(ahead), jnp.stack(back)], axis=-1)
        logits = apply_linear(self.attention, states, None)
        weights = jax.nn.softmax(logits, axis=0).astype(stacked.dtype)
        return jnp.sum(weights * stacked, axis=0)

    def _check(self, layers: Sequence[Array]) -> None:
        name = "JumpingKnowledge"
        if not isinstance(layers, Sequence) or not layers:
            raise bad_input(name, "layers", "a list of at least one array", repr(layers))
        if self.mode == "lstm" and len(layers) != self.num_layers:
            expected = f"the outputs of {self.num_layers} layers"
            raise bad_input(name, "layers", expected, f"{len(layers)} arrays")
        first = layers[0].shape
        width = self.features if self.mode == "lstm" else first[-1]
        for place, layer in enumerate(layers):
            wanted = (*first[:-1], layer.shape[-1] if self.mode == "concat" else width)
            if layer.shape != wanted:
                raise bad_input(name, f"layers[{place}]", f"of shape {wanted}", layer.shape)


def _states(cell: nnx.OptimizedLSTMCell, inputs: Sequence[Array]) -> list[Array]:
    """The state of an LSTM after each of its inputs."""
    zeros = jnp.zeros((*inputs[0].shape[:-1], cell.hidden_features), inputs[0].dtype)
    memory, states = (zeros, zeros), []
    for x in inputs:
        memory, state = cell(memory, x)
        states.append(state)
    return states
