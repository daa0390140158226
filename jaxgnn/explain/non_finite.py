"""Inputs of a model with numbers that are not finite, on which no explained prediction depends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.explain.targets import Target

_ARGUMENTS = ("graph", "x", "edge_features")


def finite_inputs(
    where: str,
    model: Callable[..., Any],
    inputs: tuple[Any, ...],
    predictions: Any,
    goal: Target,
) -> tuple[Any, ...]:
    """Returns the inputs with zero in the place of NaN and infinity.

    A message that is not finite does not vanish with the presence of its edge, as NaN times zero is
    NaN, and would spoil scores and checks of edges that do not reach the target.

    Args:
      where: the function that errors name.
      model: function of the inputs.
      inputs: the graph, features of nodes and, if there are any, features of edges.
      predictions: predictions for the inputs as they are.
      goal: the predictions that are explained.

    Raises:
      ValueError: if a prediction that is explained depends on such a number.
    """
    bad = [_first_non_finite(tree) for tree in inputs]
    names = [name for name, found in zip(_ARGUMENTS, bad, strict=False) if found]
    if not names:
        return inputs
    finite = jax.tree.map(_finite, inputs)
    before, after = (
        np.asarray(goal.explained(each), np.float64)
        for each in (predictions, jax.jit(lambda: model(*finite))())
    )
    scale = np.abs(after[np.isfinite(after)]).max(initial=0.0)
    fits = np.isclose(before, after, rtol=1e-4, atol=1e-6 * scale).all(axis=1)
    if not fits.all():
        target = "the target" if goal.rows is None else f"row {goal.rows[np.argmin(fits)]}"
        found = bad[_ARGUMENTS.index(names[0])]
        expected = f"finite where the prediction for {target} depends on it"
        raise bad_input(where, names[0], expected, found)
    return finite


def _is_floating(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)


def _finite(leaf: Any) -> Any:
    return jnp.where(jnp.isfinite(leaf), leaf, 0) if _is_floating(leaf) else leaf


def _first_non_finite(tree: Any) -> str | None:
    """The first number of a pytree that is not finite, and its place, as text."""
    for leaf in filter(_is_floating, jax.tree.leaves(tree)):
        values = np.asarray(leaf).astype(np.float64)
        places = np.argwhere(~np.isfinite(values))
        if places.size:
            place = tuple(places[0].tolist())
            return f"{values[place]} at {list(place)}"
    return None
