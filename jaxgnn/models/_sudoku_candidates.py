"""A recurrent network over the candidates of a Sudoku, equivariant to the digits."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxgnn import ops
from jaxgnn.models._saveable import saveable
from jaxgnn.models._sudoku_grid import KINDS
from jaxgnn.models._sudoku_states import DigitStates
from jaxgnn.nn import FusedLinear, LSTMUpdate, MessagePassing, check_widths
from jaxgnn.nn.shared.dropout import require_stream
from jaxgnn.nn.shared.options import checked_options

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
        implementation: ops.Name | None = None,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        check_widths("CandidateNetwork", features)
        own: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        options = own | {"implementation": implementation}
        self.kinds = nnx.Embed(KINDS, _INPUT_FEATURES, **own)
        self.start = FusedLinear(_INPUT_FEATURES, features, **options)
        self.steps = MessagePassing(
            _GroupMessages(features, own, options),
            LSTMUpdate(
                features, features, [features] * 2, input_features=_INPUT_FEATURES, **options
            ),
            num_steps=num_steps,
            recompute_every=recompute_every,
        )
        self.readout = nnx.Linear(features, 1, **own)

    def _drawn_from(self, rngs: nnx.Rngs | None) -> None:
        """None, since nothing in this network is random."""
        if rngs is not None:
            require_stream(type(self).__name__, rngs, is_drawn_from=False)

    def _first_features(self, x: Array) -> Array:
        h: Any = self.start(x)
        return h


class _GroupMessages(nnx.Module):
    """Messages from the groups of each candidate; states are [*batch, digits, cells, d]."""

    def __init__(self, features: int, own: dict, options: dict):
        self.candidate = FusedLinear(features, features, use_bias=False, **options)
        self.groups = nnx.List(nnx.Linear(features, features, **own) for _ in range(_GROUPS))

    def __call__(
        self,
        graph,
        h: Float[Array, "*batch digits cells d"],
        edge_features=None,
        *,
        weights=None,
        rngs: nnx.Rngs | None = None,
    ) -> Float[Array, "*batch digits cells d"]:
        own: Any = self.candidate(h)
        line, box, cell = self.groups
        rows, columns, boxes, cells = _means(_as_grid(h))
        heard = _heard(_as_grid(own), line(rows), line(columns), box(boxes), cell(cells))
        return heard.reshape(own.shape)


# The backward pass recomputes the sums and stores no array per group and candidate.
@partial(jax.checkpoint, prevent_cse=False)
def _heard(own: Array, *groups: Array) -> Array:
    """Computes ``Σ_g relu(own + g)``, with each group broadcast to its members."""
    return sum((jax.nn.relu(own + group) for group in groups), start=jnp.zeros((), own.dtype))


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


def _as_grid(h: Float[Array, "*batch digits cells d"]) -> Array:
    """Reshapes states to [*batch, digits, band, row in band, stack, column in stack, d]."""
    box = round(h.shape[-2] ** 0.25)
    return h.reshape(*h.shape[:-2], box, box, box, box, h.shape[-1])
