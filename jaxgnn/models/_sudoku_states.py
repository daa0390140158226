"""Base class of recurrent networks whose states belong to a cell and a digit of a Sudoku."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxgnn.models._embedding import embedded
from jaxgnn.models._sudoku_grid import (
    box_of,
    candidate_kinds,
    check_digits,
    nan_without_digits,
    sudoku_graph,
)
from jaxgnn.models._sudoku_recurrence import SudokuRecurrence
from jaxgnn.nn import MessagePassing
from jaxgnn.nn.shared.common_options import DocumentedModule


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

        Args:
          puzzles: digits, 0 where blank, of a Sudoku of any box size. Under ``jit`` they are not
            checked.

        Raises:
          ValueError: if ``puzzles`` are not digits, or not of as many cells as a Sudoku has.
        """
        name = type(self).__name__
        box = box_of(name, "puzzles", puzzles)
        check_digits(name, "puzzles", puzzles, box)
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
        """The random streams of the steps, from those of the call."""
        return rngs

    def _first_features(self, x: Array) -> Array:
        """The features before the first step, from the inputs."""
        return x

    def _edge_features(self, box: int, x: Array) -> Array | None:
        """The features of the edges in the dtype of ``x``, or None."""
        return None
