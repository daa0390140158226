"""The steps of a Sudoku network, one at a time, for callers that decide when to stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jaxtyping import Array, Float

from jaxgnn.graph import CSRGraph
from jaxgnn.nn import LSTMState, MessagePassing


@dataclass(frozen=True)
class SudokuRecurrence:
    """A network and its puzzles, which run one step at a time.

    Attributes:
      layer: the messages and the update of a step.
      graph: the graph of the messages.
      features: [*batch, nodes, d], features before the first step.
      readout: from features to logits [*batch, cells, classes].
      inputs: [*batch, nodes, x] or None, inputs of the update of every step.
      edge_features: [*batch, edges, e] or None, features of the edges.
    """

    layer: MessagePassing
    graph: CSRGraph
    features: Float[Array, "*batch nodes d"]
    readout: Callable[[Array], Array]
    inputs: Float[Array, "*batch nodes x"] | None = None
    edge_features: Float[Array, "*batch edges e"] | None = None

    def start(self) -> Any:
        """Returns the state before the first step."""
        return self.layer.update.start(self.features)

    def step(self, state: Any) -> tuple[Any, Float[Array, "*batch cells classes"]]:
        """Returns the state after one more step, and the logits that are read from it."""
        update = self.layer.update
        arrived = self.layer.messages(self.graph, update.features(state), self.edge_features)
        state = update(state, arrived, self.inputs)
        return state, self.readout(update.features(state))


def perturbed(state: Any, key: Array, scale: Float[Array, ""] | float) -> Any:
    """Adds Gaussian noise to the memory of a state.

    Args:
      state: a state of a ``SudokuRecurrence``: the memory of an LSTM is changed, or the features
        where the state is only features.
      key: a key of ``jax.random``.
      scale: standard deviation of the noise; with 0 the state stays as it is.
    """
    if isinstance(state, LSTMState):
        return state._replace(cell=_with_noise(state.cell, key, scale))
    return _with_noise(state, key, scale)


def _with_noise(memory: Array, key: Array, scale: Any) -> Array:
    noise = jax.random.normal(key, memory.shape, memory.dtype)
    return memory + (scale * noise).astype(memory.dtype)
