"""Steps of a Sudoku network, and a base class of networks with a state for each candidate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn.dtypes import promote_dtype
from jaxtyping import Array, Float, Int

from jaxgnn.graph import CSRGraph
from jaxgnn.models.sudoku_boards import (
    box_of,
    candidate_kinds,
    checked_box,
    nan_without_digits,
    sudoku_graph,
)
from jaxgnn.nn import LSTMState, MessagePassing
from jaxgnn.nn.shared.common_options import CommonOptions, DocumentedModule, Settings


def embedded(table: nnx.Embed, values: Int[Array, "*shape"]) -> Float[Array, "*shape d"]:
    """Looks up ``table(values)`` by selecting among few rows.

    The gradient is one sum for each row; that of a gather adds many terms one after another.
    """
    (rows,) = promote_dtype((table.embedding[...],), dtype=table.dtype)
    chosen = jnp.broadcast_to(rows[0], (*values.shape, rows.shape[1]))
    for value in range(1, rows.shape[0]):
        chosen = jnp.where((values == value)[..., None], rows[value], chosen)
    return chosen


def options_of_parts(common: CommonOptions, rngs: nnx.Rngs) -> tuple[dict[str, Any], ...]:
    """Returns the options of Flax's layers in a network, and those of the library's layers."""
    settings = Settings(**common)
    flax_options = settings.dtypes | {"rngs": rngs}
    return flax_options, flax_options | {"implementation": settings.implementation}


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
    """Adds Gaussian noise of deviation ``scale`` to the memory of an LSTM, or to the features."""
    if isinstance(state, LSTMState):
        return state._replace(cell=_add_noise(state.cell, key, scale))
    return _add_noise(state, key, scale)


def _add_noise(memory: Array, key: Array, scale: Any) -> Array:
    noise = jax.random.normal(key, memory.shape, memory.dtype)
    return memory + (scale * noise).astype(memory.dtype)


class DigitStates(DocumentedModule):
    """Base class of networks with states [*batch, digits, cells, d], for boards of all sizes.

    Attributes:
      kinds: embeddings of the kinds of candidates, which are the inputs of every step.
      steps: the messages and the update.
      readout: from a state to the score of its digit.
    """

    kinds: nnx.Embed
    steps: MessagePassing
    readout: nnx.Linear

    def __call__(
        self,
        puzzles: Int[Array, "*batch cells"],
        *,
        num_steps: int | None = None,
        warm_up: Int[Array, ""] | int | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "steps *batch cells digits"]:
        """Returns the logits of the digits after every step.

        Args:
          puzzles: digits, 0 where blank, of a Sudoku of any box size. Under ``jit``, where invalid
            boards cannot raise an error, their logits are NaN.
          warm_up: number of steps to run before these, without gradient.
          rngs: random streams with one named ``dropout`` in training; None in evaluation. Networks
            without dropout ignore it.

        Raises:
          ValueError: if ``puzzles`` are not digits, or not of as many cells as a Sudoku has.
        """
        begin, rngs = self.recurrence(puzzles), self._drawn_from(rngs)
        options: dict[str, Any] = {"num_steps": num_steps, "warm_up": warm_up, "rngs": rngs}
        options |= {"readout": self.readout, "inputs": begin.inputs}
        _, logits = self.steps(begin.graph, begin.features, begin.edge_features, **options)
        box = box_of(type(self).__name__, "puzzles", puzzles)
        return nan_without_digits(jnp.swapaxes(logits[..., 0], -1, -2), puzzles, box)

    def recurrence(self, puzzles: Int[Array, "*batch cells"]) -> SudokuRecurrence:
        """Returns the steps for these puzzles, which the caller makes one at a time.

        Under ``jit`` puzzles are not checked.
        """
        box = checked_box(type(self).__name__, puzzles)
        x = embedded(self.kinds, candidate_kinds(puzzles.astype(jnp.int32), box))
        return SudokuRecurrence(
            self.steps,
            sudoku_graph(box),
            self._first_features(x),
            lambda h: jnp.swapaxes(self.readout(h)[..., 0], -1, -2),
            inputs=x,
            edge_features=self._edge_features(box, x),
        )

    def _drawn_from(self, rngs: nnx.Rngs | None) -> nnx.Rngs | None:
        """Derives the random streams of the steps from those of the call."""
        return rngs

    def _first_features(self, x: Array) -> Array:
        """Computes the features before the first step from the inputs."""
        return x

    def _edge_features(self, box: int, x: Array) -> Array | None:
        """The features of the edges in the dtype of ``x``, or None."""
        return None
