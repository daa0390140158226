"""Recurrent networks for Sudoku: relational ones, and one over candidates and their groups."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, Unpack

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxgnn.models.saveable import saveable
from jaxgnn.models.sudoku_boards import (
    KINDS,
    checked_box,
    nan_without_digits,
    sudoku_graph,
    sudoku_positions,
    sudoku_relations,
)
from jaxgnn.models.sudoku_states import DigitStates, SudokuRecurrence, embedded, options_of_parts
from jaxgnn.nn import (
    EdgeMLP,
    FusedLinear,
    FusedMLP,
    LSTMState,
    LSTMUpdate,
    MessagePassing,
    NodeUpdate,
    check_widths,
)
from jaxgnn.nn.shared.common_options import CommonOptions, DocumentedModule
from jaxgnn.nn.shared.dropout import require_stream
from jaxgnn.nn.shared.options import checked_options

_MLP_LAYERS = 4


@saveable
class RecurrentRelationalNetwork(DocumentedModule):
    """The network of https://arxiv.org/abs/1711.08028 for Sudoku.

    Cells embed their digit, row and column, which an MLP joins to ``x``. At each step neighbours in
    ``sudoku_graph`` send ``mlp([h_i ; h_j])``, a cell adds them up to ``m``, and an LSTM reads
    ``mlp([m ; x])``; a linear layer scores the digits after every step. All MLPs have three
    hidden layers with ReLU, as wide as the state. It is trained by ``sudoku_cross_entropy`` of all
    steps, published with 1e-4 ``weight_penalty()``, and may run more steps than in training.

    In the published code edges also have a feature, which is always zero; it is omitted here, with
    its weights.

    Args:
      box: number of cells on a side of a box: 2 for 4×4, 3 for 9×9.
      features: width of the state of a cell.
      embedding_features: width of each of the three embeddings.
      edge_dropout: probability of dropping an edge in training.
      dtype: dtype of the computation; None for that of the parameters. The LSTM's memory is at
        least float32.

    Example:
      >>> model = RecurrentRelationalNetwork(box=2, features=8, num_steps=3, rngs=nnx.Rngs(0))
      >>> model(jnp.zeros((5, 16), jnp.int32)).shape  # steps, boards, cells, classes
      (3, 5, 16, 5)
    """

    @checked_options()
    def __init__(
        self,
        *,
        box: int = 3,
        features: int = 96,
        embedding_features: int = 16,
        num_steps: int = 32,
        edge_dropout: float = 0.0,
        recompute_every: int | Literal["auto"] | None = None,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        check_widths("RecurrentRelationalNetwork", features, embedding_features)
        sudoku_positions(box)
        flax_options, options = options_of_parts(common, rngs)
        side, widths = box * box, [features] * _MLP_LAYERS
        self.box = box
        self.digits = nnx.Embed(side + 1, embedding_features, **flax_options)
        self.rows = nnx.Embed(side, embedding_features, **flax_options)
        self.columns = nnx.Embed(side, embedding_features, **flax_options)
        self.encoder = FusedMLP([3 * embedding_features, *widths], activation="relu", **options)
        self.steps = MessagePassing(
            EdgeMLP(features, widths, edge_dropout=edge_dropout, **options),
            LSTMUpdate(features, features, widths, input_features=features, **options),
            num_steps=num_steps,
            recompute_every=recompute_every,
        )
        self.readout = nnx.Linear(features, side + 1, **flax_options)

    def __call__(
        self,
        puzzles: Int[Array, "*batch cells"],
        *,
        num_steps: int | None = None,
        warm_up: Int[Array, ""] | int | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "steps *batch cells classes"]:
        """Returns the logits after every step: class k is digit k; class 0 is unused.

        Args:
          puzzles: digits, 0 where blank. Under ``jit``, where invalid boards cannot raise an error,
            their logits are NaN.
          warm_up: number of steps to run before these, without gradient.

        Raises:
          ValueError: if ``puzzles`` are not digits, or have another number of cells than the model.
        """
        begin = self.recurrence(puzzles)
        options: dict[str, Any] = {"num_steps": num_steps, "warm_up": warm_up}
        options |= {"readout": self.readout, "rngs": rngs}
        _, logits = self.steps(begin.graph, begin.features, inputs=begin.inputs, **options)
        return nan_without_digits(logits, puzzles, self.box)

    def recurrence(self, puzzles: Int[Array, "*batch cells"]) -> SudokuRecurrence:
        """Returns the recurrence for these puzzles; the caller runs it step by step.

        Args:
          puzzles: digits, 0 where blank. Under ``jit`` they are not checked.

        Raises:
          ValueError: if ``puzzles`` are not digits, or have another number of cells than the model.
        """
        checked_box("RecurrentRelationalNetwork", puzzles, self.box)
        rows, columns, _ = sudoku_positions(self.box).T
        digits = embedded(self.digits, puzzles.astype(jnp.int32))
        positions = jnp.concatenate([self.rows(rows), self.columns(columns)], axis=-1)
        positions = jnp.broadcast_to(positions, (*puzzles.shape, positions.shape[-1]))
        x = self.encoder(jnp.concatenate([digits, positions], axis=-1))
        return SudokuRecurrence(self.steps, sudoku_graph(self.box), x, self.readout, inputs=x)

    def weight_penalty(self) -> Float[Array, ""]:
        """Half the sum of squares of the kernels of the three MLPs."""
        parameters = nnx.to_flat_state(nnx.state(self, nnx.Param))
        kernels = (p[...] for path, p in parameters if "layers" in path and path[-1] == "kernel")
        return 0.5 * jnp.sum(jnp.stack([jnp.sum(jnp.square(kernel)) for kernel in kernels]))


@saveable
class EquivariantRelationalNetwork(DigitStates):
    """A recurrent relational network equivariant to the symmetries of digits and cells.

    A state belongs to a cell and a digit, and all states share the same weights. Messages between
    cells are computed for each digit separately; their only position information is whether the two
    cells share a line or a box. The digits of a cell read each other's mean and maximum::

        m_ik = Σ_j mlp([h_ik ; h_jk ; line_ij ; box_ij])
        h_ik = LSTM(mlp([m_ik ; mean_l h_il ; max_l h_il ; x_ik]))

    where x is the kind of the candidate: blank cell, given as this digit, or given as another
    digit. Hence renaming the digits of a puzzle, exchanging rows or columns within a band,
    exchanging bands, or transposing the board transforms the answer in the same way, without data
    augmentation. Boards of all sizes share the same weights.

    Args:
      features: width of the state of a candidate.
      num_layers: number of layers of the message MLP, and of the MLP before the LSTM.
      edge_dropout: probability of dropping an edge, separately for each digit, in training.
      dtype: dtype of the computation; None for that of the parameters. The LSTM's memory is at
        least float32.

    Example:
      >>> model = EquivariantRelationalNetwork(features=8, num_steps=3, rngs=nnx.Rngs(0))
      >>> model(jnp.zeros((5, 16), jnp.int32)).shape  # steps, boards, cells, digits
      (3, 5, 16, 4)
      >>> model(jnp.zeros(81, jnp.int32)).shape
      (3, 81, 9)
    """

    @checked_options()
    def __init__(
        self,
        *,
        features: int = 64,
        num_layers: int = 3,
        num_steps: int = 32,
        edge_dropout: float = 0.0,
        recompute_every: int | Literal["auto"] | None = None,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        check_widths("EquivariantRelationalNetwork", features, num_layers)
        flax_options, options = options_of_parts(common, rngs)
        widths = [features] * num_layers
        self.kinds = nnx.Embed(KINDS, features, **flax_options)
        self.steps = MessagePassing(
            EdgeMLP(features, widths, edge_features=2, edge_dropout=edge_dropout, **options),
            _AmongDigits(
                LSTMUpdate(features, 3 * features, widths, input_features=features, **options)
            ),
            num_steps=num_steps,
            recompute_every=recompute_every,
        )
        self.readout = nnx.Linear(features, 1, **flax_options)

    def _edge_features(self, box: int, x: Array) -> Array:
        return jnp.asarray(sudoku_relations(box), x.dtype)


class _AmongDigits(NodeUpdate[LSTMState]):
    """An update of states [*batch, digits, cells, d] that also reads statistics over all digits."""

    def __init__(self, update: LSTMUpdate):
        self.update = update

    def start(self, h: Array) -> LSTMState:
        return self.update.start(h)

    def features(self, state: LSTMState) -> Array:
        return self.update.features(state)

    def __call__(
        self,
        state: LSTMState,
        messages: Array,
        inputs: Array | None = None,
        *,
        rngs: nnx.Rngs | None = None,
    ) -> LSTMState:
        h = self.features(state)
        alike = jnp.mean(h, axis=-3, keepdims=True), jnp.max(h, axis=-3, keepdims=True)
        parts = [messages, *(jnp.broadcast_to(a, h.shape).astype(messages.dtype) for a in alike)]
        return self.update(state, jnp.concatenate(parts, axis=-1), inputs, rngs=rngs)


_INPUT_FEATURES = 16
_GROUPS = 3  # line, box, cell


@saveable
class CandidateNetwork(DigitStates):
    """A recurrent network over candidates and the four groups that each belongs to.

    A candidate is a cell and a digit. It excludes the candidates of its digit in its row, its
    column and its box, and the other digits of its cell: these are its groups, each of which holds
    exactly one candidate that is right. All candidates share the same weights, as do all groups of
    one kind; rows and columns count as one kind::

        m_c = Σ_g relu(W h_c + W_g mean_{c' in g} h_c' + b_g)
        h_c = LSTM(mlp([m_c ; x_c]))

    where x is the kind of the candidate: blank cell, given as this digit, or given as another
    digit. The network is equivariant to permutations of digits, lines and bands, for boards of all
    sizes. ``EquivariantRelationalNetwork`` has the same symmetries but computes a message for each
    of 14,580 pairs of candidates; here each of 2,916 memberships takes one addition and no product.

    It is trained by ``sudoku_cross_entropy`` of all steps, and may run more steps than in training.

    Args:
      features: width of the state of a candidate.
      dtype: dtype of the computation; None for that of the parameters. The LSTM's memory is at
        least float32.

    Example:
      >>> model = CandidateNetwork(features=8, num_steps=3, rngs=nnx.Rngs(0))
      >>> model(jnp.zeros((5, 16), jnp.int32)).shape  # steps, boards, cells, digits
      (3, 5, 16, 4)
      >>> model(jnp.zeros(81, jnp.int32)).shape
      (3, 81, 9)
    """

    @checked_options()
    def __init__(
        self,
        *,
        features: int = 96,
        num_steps: int = 16,
        recompute_every: int | Literal["auto"] | None = None,
        rngs: nnx.Rngs,
        **common: Unpack[CommonOptions],
    ):
        check_widths("CandidateNetwork", features)
        flax_options, options = options_of_parts(common, rngs)
        self.kinds = nnx.Embed(KINDS, _INPUT_FEATURES, **flax_options)
        self.start = FusedLinear(_INPUT_FEATURES, features, **options)
        self.steps = MessagePassing(
            _GroupMessages(features, flax_options, options),
            LSTMUpdate(
                features, features, [features] * 2, input_features=_INPUT_FEATURES, **options
            ),
            num_steps=num_steps,
            recompute_every=recompute_every,
        )
        self.readout = nnx.Linear(features, 1, **flax_options)

    def _drawn_from(self, rngs: nnx.Rngs | None) -> None:
        """None, since nothing in this network is random."""
        if rngs is not None:
            require_stream(type(self).__name__, rngs, is_drawn_from=False)

    def _first_features(self, x: Array) -> Array:
        h: Any = self.start(x)
        return h


class _GroupMessages(nnx.Module):
    """Messages from the groups of each candidate; states are [*batch, digits, cells, d]."""

    def __init__(self, features: int, flax_options: dict, options: dict):
        self.candidate = FusedLinear(features, features, use_bias=False, **options)
        self.groups = nnx.List(
            nnx.Linear(features, features, **flax_options) for _ in range(_GROUPS)
        )

    def __call__(
        self,
        graph,
        h: Float[Array, "*batch digits cells d"],
        edge_features=None,
        *,
        weights=None,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "*batch digits cells d"]:
        candidates: Any = self.candidate(h)
        line, box, cell = self.groups
        rows, columns, boxes, cells = _means(_grid(h))
        heard = _heard(_grid(candidates), line(rows), line(columns), box(boxes), cell(cells))
        return heard.reshape(candidates.shape)


# The backward pass recomputes the sums and stores no array per group and candidate.
@partial(jax.checkpoint, prevent_cse=False)
def _heard(candidates: Array, *groups: Array) -> Array:
    """Computes ``Σ_g relu(candidates + g)``, with each group broadcast to its members."""
    return sum(
        (jax.nn.relu(candidates + group) for group in groups), start=jnp.zeros((), candidates.dtype)
    )


def _means(grid: Float[Array, "*grid d"]) -> tuple[Array, ...]:
    """Returns the means over rows, columns, boxes and cells, broadcast to their members.

    Sums of adjacent cells in a row are shared by rows and boxes, so that no sum is over two
    separate axes.
    """
    side = grid.shape[-6]
    wide = jnp.float64 if grid.dtype == jnp.float64 else jnp.float32
    neighbours = jnp.sum(grid, -2, dtype=wide, keepdims=True)
    sums = (
        jnp.sum(neighbours, -3, keepdims=True),
        jnp.sum(grid, (-5, -4), dtype=wide, keepdims=True),
        jnp.sum(neighbours, -4, keepdims=True),
        jnp.sum(grid, -6, dtype=wide, keepdims=True),
    )
    return tuple((total / side).astype(grid.dtype) for total in sums)


def _grid(h: Float[Array, "*batch digits cells d"]) -> Array:
    """Reshapes states to [*batch, digits, band, row in band, stack, column in stack, d]."""
    box = round(h.shape[-2] ** 0.25)
    return h.reshape(*h.shape[:-2], box, box, box, box, h.shape[-1])
