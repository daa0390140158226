"""A gated network over the cells and the constraints of a Sudoku."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxgnn.models.saveable import saveable
from jaxgnn.models.sudoku_boards import (
    checked_box,
    nan_without_digits,
    sudoku_constraint_graph,
    sudoku_positions,
)
from jaxgnn.models.sudoku_states import SudokuRecurrence, options_of_parts
from jaxgnn.nn import EdgeMLP, FusedLinear, MessagePassing, check_widths
from jaxgnn.nn.messages.node_updates import PlainUpdate
from jaxgnn.nn.shared.common_options import CommonOptions, DocumentedModule
from jaxgnn.nn.shared.dropout import Dropout
from jaxgnn.nn.shared.options import checked_options

_NAME = "SudokuGNN"
_CELL_FEATURES = 5


@saveable
class SudokuGNN(DocumentedModule):
    """Sudoku network in which cells and constraints exchange messages.

    The nodes are the cells, rows, columns and boxes. The input of a cell is its digit, whether it
    is given, its row, its column and its box, all as numbers from 0 to 1; a constraint begins with
    zeros. At each step, with the same parameters::

        m = mean_j W_2 gelu(W_1 [h_i ; h_j] + b_1) + b_2,  c = [norm(h) ; m]
        h ← norm(h + σ(W_g c) mlp(c))

    and after the last (or each) step an MLP scores the digits of the cells. It is trained by
    ``sudoku_focal_loss``. Dropout is applied inside all MLPs and after the encoder; in messages it
    drops whole edges, so that no mask per entry has to be stored.

    Args:
      box: number of cells on a side of a box: 2 for 4×4, 3 for 9×9.
      features: width of the state of a node.
      dropout: probability of zeroing an entry in training; half of it is used in two places.
      dtype: dtype of the computation; None for the dtype of the parameters.

    Example:
      >>> model = SudokuGNN(box=2, features=8, num_steps=3, rngs=nnx.Rngs(0))
      >>> model(jnp.zeros((5, 16), jnp.int32)).shape  # boards, cells, digits
      (5, 16, 4)
    """

    @checked_options()
    def __init__(
        self,
        *,
        box: int = 3,
        features: int = 96,
        num_steps: int = 32,
        dropout: float = 0.3,
        recompute_every: int | Literal["auto"] | None = None,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        check_widths(_NAME, features)
        sudoku_positions(box)
        flax_options, options = options_of_parts(common, rngs)
        wide = 2 * features
        self.box = box
        dtype, param_dtype = flax_options["dtype"], flax_options["param_dtype"]
        self.dtype = param_dtype if dtype is None else dtype
        self.encoder = _DropoutMLP([_CELL_FEATURES, wide, features], [dropout], options)
        self.norm = _norm(features, flax_options)
        self.dropout = Dropout(dropout / 2, _NAME)
        self.steps = MessagePassing(
            EdgeMLP(
                features,
                [wide, features],
                reduce="mean",
                activation="gelu_exact",
                edge_dropout=dropout,
                **options,
            ),
            _GatedUpdate(features, dropout, flax_options, options),
            num_steps=num_steps,
            recompute_every=recompute_every,
        )
        self.readout = _CellReadout(features, box * box, dropout, flax_options, options)

    def __call__(
        self,
        puzzles: Int[Array, "*batch cells"],
        *,
        num_steps: int | None = None,
        every_step: bool = False,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "*batch cells digits"]:
        """Returns the logits of the digits of each cell.

        Args:
          puzzles: digits, 0 where blank. Under ``jit``, where invalid boards cannot raise an error,
            their logits are NaN.
          every_step: whether to return the logits after every step, stacked along a first axis,
            without dropout in the readout.

        Raises:
          ValueError: if ``puzzles`` are not digits, or have another number of cells than the model.
        """
        begin = self.recurrence(puzzles, rngs=rngs)
        graph, encoded = begin.graph, begin.features
        options: dict[str, Any] = {"num_steps": num_steps, "rngs": rngs}
        if every_step:
            logits = self.steps(graph, encoded, readout=self.readout, **options)[1]
        else:
            h: Any = self.steps(graph, encoded, **options)
            logits = self.readout(h, rngs)
        return nan_without_digits(logits, puzzles, self.box)

    def recurrence(
        self, puzzles: Int[Array, "*batch cells"], *, rngs: nnx.Rngs | None = None
    ) -> SudokuRecurrence:
        """Returns the steps for these puzzles, which the caller makes one at a time.

        The steps have no dropout.

        Args:
          puzzles: digits, 0 where blank. Under ``jit`` they are not checked.
          rngs: random streams for the dropout of the encoder; None in evaluation.

        Raises:
          ValueError: if ``puzzles`` are not digits, or have another number of cells than the model.
        """
        checked_box(_NAME, puzzles, self.box)
        encoded = self.norm(self.encoder(self._inputs(puzzles), rngs))
        encoded = self.dropout(encoded, rngs)
        graph = sudoku_constraint_graph(self.box)
        return SudokuRecurrence(self.steps, graph, encoded, self.readout)

    def _inputs(self, puzzles: Array) -> Float[Array, "*batch nodes 5"]:
        side = self.box * self.box
        digits = puzzles.astype(self.dtype)[..., None] / side
        is_clue = (puzzles > 0).astype(self.dtype)[..., None]
        positions = jnp.asarray(sudoku_positions(self.box) / np.float32(side), self.dtype)
        positions = jnp.broadcast_to(positions, (*puzzles.shape, 3))
        cells = jnp.concatenate([digits, is_clue, positions], axis=-1)
        return jnp.pad(cells, [(0, 0)] * (cells.ndim - 2) + [(0, 3 * side), (0, 0)])


class _GatedUpdate(PlainUpdate):
    """``h ← norm(h + σ(W_g c) mlp(c))`` with ``c = [norm(h) ; messages]``."""

    def __init__(self, features: int, dropout: float, flax_options: dict, options: dict):
        self.norm_in = _norm(features, flax_options)
        self.mlp = _DropoutMLP([2 * features, 2 * features, features], [dropout], options)
        self.gate = nnx.Linear(2 * features, features, **flax_options)
        self.norm_out = _norm(features, flax_options)

    def __call__(
        self,
        state: Array,
        messages: Array,
        inputs: Array | None = None,
        *,
        rngs: nnx.Rngs | None = None,
    ) -> Array:
        c = jnp.concatenate([self.norm_in(state), messages], axis=-1)
        return self.norm_out(state + jax.nn.sigmoid(self.gate(c)) * self.mlp(c, rngs))


class _CellReadout(nnx.Module):
    """Scores of the digits, for the nodes that are cells."""

    def __init__(self, features: int, side: int, dropout: float, flax_options: dict, options: dict):
        self.cells = side * side
        self.norm = _norm(features, flax_options)
        widths = [features, 2 * features, features, side]
        self.mlp = _DropoutMLP(widths, [dropout, dropout / 2], options)

    def __call__(self, h: Array, rngs: nnx.Rngs | None = None) -> Array:
        return self.mlp(self.norm(h[..., : self.cells, :]), rngs)


class _DropoutMLP(nnx.Module):
    """Linear layers, with gelu and dropout between them."""

    def __init__(self, widths: list[int], rates: list[float], options: dict):
        layers = [
            FusedLinear(*pair, activation="gelu_exact" if i < len(rates) else None, **options)
            for i, pair in enumerate(pairwise(widths))
        ]
        self.layers = nnx.List(layers)
        self.dropouts = nnx.List([Dropout(rate, _NAME) for rate in rates])

    def __call__(self, x: Array, rngs: nnx.Rngs | None = None) -> Array:
        layers: list[Any] = list(self.layers)
        *hidden, last = layers
        for layer, dropout in zip(hidden, self.dropouts, strict=True):
            x = dropout(layer(x), rngs)
        return last(x)


def _norm(features: int, flax_options: dict) -> nnx.LayerNorm:
    return nnx.LayerNorm(features, epsilon=1e-5, **flax_options)
