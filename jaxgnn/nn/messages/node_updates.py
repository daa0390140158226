"""Updates of nodes from their messages: by an MLP, or by a recurrent cell."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn.dtypes import promote_dtype
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from jaxgnn import ops
from jaxgnn._errors import bad_input
from jaxgnn.nn.shared.activations import CELL_FUNCTIONS
from jaxgnn.nn.shared.common_options import DocumentedModule
from jaxgnn.nn.shared.linear import FusedLinear, FusedMLP
from jaxgnn.nn.shared.maxk import check_widths
from jaxgnn.nn.shared.options import activation as known_activation
from jaxgnn.nn.shared.options import checked_options


class NodeUpdate[State](DocumentedModule):
    """Base class of updates, with the interface that ``MessagePassing`` requires.

    Subclasses define ``start``, ``features`` and ``__call__``.

    A state holds the features that other nodes read, and may hold more. It keeps its shapes and
    dtypes from step to step.
    """

    def start(self, h: Float[Array, "*batch nodes d"]) -> State:
        """Returns the state before the first step, from the features ``h``."""
        raise NotImplementedError(f"{type(self).__name__}: a NodeUpdate defines start")

    def features(self, state: State) -> Float[Array, "*batch nodes d"]:
        """Returns the features from which messages are computed."""
        raise NotImplementedError(f"{type(self).__name__}: a NodeUpdate defines features")

    def __call__(
        self,
        state: State,
        messages: Float[Array, "*batch nodes m"],
        inputs: Float[Array, "*batch nodes x"] | None = None,
        *,
        rngs: nnx.Rngs | None = None,
    ) -> State:
        """Returns the state after a step.

        Args:
          state: state before the step.
          messages: aggregated messages of each node.
          inputs: inputs of each node, equal at every step.
          rngs: random streams of this step, with one named ``dropout`` in training.
        """
        raise NotImplementedError(f"{type(self).__name__}: a NodeUpdate defines __call__")


class PlainUpdate(NodeUpdate[Array]):
    """Base class of updates whose state is only the features."""

    def start(self, h: Float[Array, "*batch nodes d"]) -> Array:
        """Returns ``h`` itself, which is the initial state."""
        return h

    def features(self, state: Array) -> Float[Array, "*batch nodes d"]:
        """Returns the state itself, which is the features."""
        return state


class MLPUpdate(PlainUpdate):
    """An MLP: ``h' = mlp([h ; messages ; inputs])``, with ``h`` added if ``residual``.

    Args:
      features: width of the state h.
      hidden_features: widths of the hidden layers, a sequence.
      residual: whether to add h.
      activation: activation between the layers.

    Example:
      >>> update = nn.MLPUpdate(8, 4, [16], rngs=nnx.Rngs(0))
      >>> update(update.start(jnp.ones((3, 8))), jnp.ones((3, 4))).shape
      (3, 8)
    """

    @checked_options(activation=known_activation)
    def __init__(
        self,
        features: int,
        message_features: int,
        hidden_features: Sequence[int] = (),
        *,
        input_features: int = 0,
        residual: bool = False,
        activation: ops.Activation | None = "relu",
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        implementation: ops.Name | None = None,
        rngs: nnx.Rngs,
    ):
        check_widths(type(self).__name__, features, message_features)
        self.message_features = message_features
        self.dtype = dtype
        self.residual = residual
        self.mlp = FusedMLP(
            [features + message_features + input_features, *hidden_features, features],
            activation=activation,
            dtype=dtype,
            param_dtype=param_dtype,
            implementation=implementation,
            rngs=rngs,
        )

    def __call__(
        self,
        state: Array,
        messages: Float[Array, "*batch nodes m"],
        inputs: Float[Array, "*batch nodes x"] | None = None,
        *,
        rngs: nnx.Rngs | None = None,
    ) -> Array:
        """Returns the state after a step.

        Args:
          rngs: ignored, because there is no dropout.
        """
        _check_messages(self, messages)
        y = self.mlp(_side_by_side(self.dtype, state, messages, inputs)).astype(state.dtype)
        return state + y if self.residual else y


def _check_messages(update: Any, messages: Array) -> None:
    """Raises ValueError unless messages have the width of the update."""
    if messages.shape[-1] != update.message_features:
        expected = f"{update.message_features} wide, which is message_features"
        raise bad_input(type(update).__name__, "messages", expected, messages.shape[-1])


class _CellUpdate[State](NodeUpdate[State]):
    """A recurrent cell on ``[messages ; inputs]``, or on an MLP of them if it has layers."""

    @checked_options(activation=known_activation)
    def __init__(
        self,
        features: int,
        message_features: int,
        mlp_features: Sequence[int] = (),
        *,
        input_features: int = 0,
        activation: ops.Activation | None = "relu",
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        implementation: ops.Name | None = None,
        rngs: nnx.Rngs,
    ):
        check_widths(type(self).__name__, features, message_features)
        linear_options: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        fused = linear_options | {"implementation": implementation}
        widths = [message_features + input_features, *mlp_features]
        self.message_features = message_features
        self.dtype = dtype
        self.mlp = FusedMLP(widths, activation=activation, **fused) if mlp_features else None
        self._make_cell(widths[-1], features, linear_options, fused)

    def _make_cell(self, width: int, features: int, linear_options: Any, fused: Any) -> None:
        """Creates the cell on features of a width, with the options of linear or fused layers."""
        raise NotImplementedError

    def _read(self, messages: Array, inputs: Array | None) -> Array:
        _check_messages(self, messages)
        x = _side_by_side(self.dtype, messages, inputs)
        return x if self.mlp is None else self.mlp(x)


class GRUUpdate(_CellUpdate[Array], PlainUpdate):
    """A gated recurrent unit: ``h' = GRU(h, mlp([messages ; inputs]))``.

    The cell is ``nnx.GRUCell`` (https://arxiv.org/abs/1406.1078), which gated graph networks use
    (https://arxiv.org/abs/1511.05493).

    Args:
      features: width of the state h.
      mlp_features: widths of the layers of an MLP before the cell; empty for no MLP.
      activation: activation between the layers of the MLP.

    Example:
      >>> update = nn.GRUUpdate(8, 4, rngs=nnx.Rngs(0))
      >>> update(update.start(jnp.ones((3, 8))), jnp.ones((3, 4))).shape
      (3, 8)
    """

    def _make_cell(self, width: int, features: int, linear_options: Any, fused: Any) -> None:
        self.cell = nnx.GRUCell(width, features, **CELL_FUNCTIONS, **linear_options)

    def __call__(
        self,
        state: Array,
        messages: Float[Array, "*batch nodes m"],
        inputs: Float[Array, "*batch nodes x"] | None = None,
        *,
        rngs: nnx.Rngs | None = None,
    ) -> Array:
        """Returns the state after a step.

        Args:
          rngs: ignored, because there is no dropout.
        """
        h, x = promote_dtype((state, self._read(messages, inputs)), dtype=self.dtype)
        return self.cell(h, x)[0].astype(state.dtype)


class LSTMState(NamedTuple):
    """State of an ``LSTMUpdate``.

    Attributes:
      hidden: features of the nodes.
      cell: memory, in float32 at least, because it accumulates over steps.
      is_first: whether no step has run, so that ``hidden`` is not an output of the cell.
    """

    hidden: Float[Array, "*batch nodes d"]
    cell: Float[Array, "*batch nodes d"]
    is_first: Bool[Array, ""]


class LSTMUpdate(_CellUpdate[LSTMState]):
    """Long short-term memory: ``h', c' = LSTM(h, c, mlp([messages ; inputs]))``.

    Recurrent relational networks (https://arxiv.org/abs/1711.08028) use it. Messages of the first
    step are computed from the initial features, but the cell's memory and hidden state start at
    zero::

        i, f, g, o = [x ; h] W + b
        c' = σ(f + 1) c + σ(i) tanh(g),  h' = σ(o) tanh(c')

    Args:
      features: width of the state h.
      mlp_features: widths of the layers of an MLP before the cell; empty for no MLP.
      activation: activation between the layers of the MLP.
      dtype: dtype of the computation; None for the promoted dtype of state and parameters. The
        memory has at least float32.

    Example:
      >>> update = nn.LSTMUpdate(8, 4, [16, 8], rngs=nnx.Rngs(0))
      >>> state = update(update.start(jnp.ones((3, 8))), jnp.ones((3, 4)))
      >>> update.features(state).shape
      (3, 8)
    """

    def _make_cell(self, width: int, features: int, linear_options: Any, fused: Any) -> None:
        self.gates = FusedLinear(width + features, 4 * features, **fused)

    def start(self, h: Float[Array, "*batch nodes d"]) -> LSTMState:
        """Returns the features ``h`` with a memory of zeros."""
        dtype = jnp.float64 if h.dtype == jnp.float64 else jnp.float32
        return LSTMState(h, jnp.zeros_like(h, dtype=dtype), jnp.array(True))

    def features(self, state: LSTMState) -> Float[Array, "*batch nodes d"]:
        """Returns the hidden state, which is the features."""
        return state.hidden

    def __call__(
        self,
        state: LSTMState,
        messages: Float[Array, "*batch nodes m"],
        inputs: Float[Array, "*batch nodes x"] | None = None,
        *,
        rngs: nnx.Rngs | None = None,
    ) -> LSTMState:
        """Returns the state after a step.

        Args:
          rngs: ignored, because there is no dropout.
        """
        hidden = jnp.where(state.is_first, 0, state.hidden)
        z: Any = self.gates(_side_by_side(self.dtype, self._read(messages, inputs), hidden))
        h, cell = _lstm_cell(z, state.cell)
        return LSTMState(h.astype(hidden.dtype), cell, jnp.zeros_like(state.is_first))


# The backward pass stores the input of the gates, not the six arrays computed from it.
@partial(jax.checkpoint, prevent_cse=False)
def _lstm_cell(z: Array, cell: Array) -> tuple[Array, Array]:
    """Computes the next hidden state and memory from the gates ``z`` before their activations."""
    i, f, g, o = jnp.split(z.astype(cell.dtype), 4, axis=-1)
    cell = jax.nn.sigmoid(f + 1) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(cell), cell


def _side_by_side(dtype: DTypeLike | None, *parts: Array | None) -> Array:
    """Concatenates the features of all parts, in their promoted dtype if ``dtype`` is None."""
    arrays = promote_dtype(tuple(part for part in parts if part is not None), dtype=dtype)
    return jnp.concatenate(arrays, axis=-1)
