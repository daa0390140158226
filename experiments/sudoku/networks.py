"""The network of a recipe, its loss, and its answers."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from experiments.sudoku.data import Drawn, Pool, draw
from experiments.sudoku.recipes import Recipe
from jaxgnn import models, ops
from jaxgnn.models import sudoku_cross_entropy, sudoku_digits, sudoku_focal_loss

_NETWORKS = {
    "candidate": "CandidateNetwork",
    "equivariant": "EquivariantRelationalNetwork",
    "relational": "RecurrentRelationalNetwork",
    "gated": "SudokuGNN",
}


def network_options(recipe: Recipe) -> dict[str, Any]:
    """Constructor options of a recipe's network, as JSON values."""
    options = {"features": recipe.features, "num_steps": recipe.num_steps}
    if recipe.network == "gated":
        return options | {"dropout": recipe.dropout}
    return options if recipe.network == "candidate" else options | {"edge_dropout": recipe.dropout}


def network_name(recipe: Recipe) -> str:
    """Name of the network's class in ``jaxgnn.models``."""
    return _NETWORKS[recipe.network]


def make_network(
    recipe: Recipe, seed: int = 0, implementation: ops.Name | None = None
) -> nnx.Module:
    """The network of a recipe.

    Raises:
      ValueError: if an option is invalid.
    """
    return getattr(models, network_name(recipe))(
        **network_options(recipe),
        recompute_every=recipe.recompute_every,
        implementation=implementation,
        dtype=jnp.dtype(recipe.dtype),
        rngs=nnx.Rngs(seed),
    )


def logits_of(model: Any, puzzles: jax.Array, num_steps: int | None = None) -> jax.Array:
    """Logits after every step, [steps, batch, cells, classes], of any of the networks."""
    every: Any = {"every_step": True} if isinstance(model, models.SudokuGNN) else {}
    return model(puzzles, num_steps=num_steps, **every)


def training_loss(model: Any, batch: Pool | Drawn, rngs: nnx.Rngs, recipe: Recipe):
    """The loss on a batch, which may still have to be drawn, and accuracies after the last step.

    Returns:
      The loss, and the shares of blank cells and of whole puzzles that are right; these are NaN in
      the same cases as in ``Measurement``.
    """
    drawn = batch if isinstance(batch, Drawn) else draw(rngs.batch(), batch, recipe)
    puzzles, solutions = drawn
    if isinstance(model, models.SudokuGNN):
        last = model(puzzles, rngs=rngs)
        loss = sudoku_focal_loss(last, solutions, puzzles)
    else:
        warm_up: Any = {"warm_up": _warm_up(rngs.warm_up(), recipe)} if recipe.warm_up else {}
        logits = model(puzzles, rngs=rngs, **warm_up)
        loss, last = sudoku_cross_entropy(logits, solutions), logits[-1]
        if recipe.weight_penalty:
            loss = loss + recipe.weight_penalty * model.weight_penalty()
    digits = sudoku_digits(last)
    counted, lost = counted_cells(digits, puzzles, solutions)
    right = (digits == solutions) | ~counted
    cells = 1 - jnp.sum(~right) / jnp.maximum(jnp.sum(counted), 1)
    scores = {"cell accuracy": cells, "puzzle accuracy": jnp.mean(right.all(axis=-1))}
    return loss, {name: jnp.where(lost.any(), jnp.nan, score) for name, score in scores.items()}


def counted_cells(
    answers: jax.Array, puzzles: jax.Array, solutions: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Masks of the cells that count in a score, and of the boards that have no valid score.

    Args:
      answers: [*steps, batch, cells], in the format of ``sudoku_digits``.
      puzzles: [batch, cells], 0 where blank.
      solutions: [batch, cells], below 1 where the digit is not known.

    Returns:
      [batch, cells] bool, whether a cell is blank and has a solution; and [*steps, batch] bool,
      whether such a cell has no answer, or a solution that is not a digit.
    """
    counted = (puzzles == 0) & (solutions > 0)
    side = round(math.sqrt(puzzles.shape[-1]))
    return counted, jnp.any(counted & ((answers == 0) | (solutions > side)), axis=-1)


def _warm_up(key: jax.Array, recipe: Recipe) -> jax.Array:
    """Number of warm-up steps: 0 in half of the batches, 1 to ``recipe.warm_up`` in the others."""
    some_key, count_key = jax.random.split(key)
    count = jax.random.randint(count_key, (), 1, recipe.warm_up + 1)
    return jnp.where(jax.random.bernoulli(some_key), count, 0)
