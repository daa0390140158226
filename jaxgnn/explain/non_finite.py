"""Inputs of a model with numbers that are not finite, on which no explained prediction depends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

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
      ValueError: if a prediction that is explained depends on such a number; names the first.
    """
    leaves, structure = jax.tree.flatten(inputs)
    numbers, total = _numbered(leaves)
    if not total:
        return inputs

    def keep_first(count: Any) -> tuple[Any, ...]:
        """The inputs with as many of the numbers that are not finite, and zero for the others."""
        pairs = zip(leaves, numbers, strict=True)
        kept = [x if n is None else jnp.where(jnp.asarray(n) < count, x, 0) for x, n in pairs]
        return jax.tree.unflatten(structure, kept)

    run = jax.jit(lambda count: goal.explained(model(*keep_first(count))))
    finite = np.asarray(run(0), np.float64)
    fits = _equal(goal.explained(predictions), finite)
    if fits.all():
        return keep_first(0)
    row = int(np.argmin(fits))
    # The first that changes the prediction, by bisection: with more of them it stays changed.
    low, high = 0, total
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _equal(run(middle), finite)[row] else (low, middle)
    target = "the target" if goal.rows is None else f"row {goal.rows[row]}"
    sizes = [len(jax.tree.leaves(tree)) for tree in inputs]
    names = np.repeat(_ARGUMENTS[: len(inputs)], sizes).tolist()
    for name, leaf, places in zip(names, leaves, numbers, strict=True):
        for place in [] if places is None else np.argwhere(places == low).tolist():
            expected = f"finite where the prediction for {target} depends on it"
            raise bad_input(where, name, expected, f"{np.asarray(leaf)[tuple(place)]} at {place}")
    raise AssertionError("one of the numbers was found")


def _numbered(leaves: list[Any]) -> tuple[list[Int[np.ndarray, "..."] | None], int]:
    """Numbers what is not finite, from 0 on through all arrays, with -1 for what is; their count.

    None stands for arrays that are finite.
    """
    numbers: list[Any] = []
    total = 0
    for leaf in leaves:
        wrong = _not_finite(leaf)
        count = 0 if wrong is None else int(wrong.sum())
        if wrong is None or not count:
            numbers.append(None)
            continue
        places = np.where(wrong, total - 1 + np.cumsum(wrong).reshape(wrong.shape), -1)
        numbers.append(places.astype(np.int32))
        total += count
    return numbers, total


def _not_finite(leaf: Any) -> Bool[np.ndarray, "..."] | None:
    if not hasattr(leaf, "dtype") or not jnp.issubdtype(leaf.dtype, jnp.floating):
        return None
    return ~np.isfinite(np.asarray(leaf).astype(np.float64))


def _equal(values: Any, finite: np.ndarray) -> Bool[np.ndarray, " targets"]:
    """Returns whether predictions of each target are those for finite inputs, up to rounding."""
    scale = np.abs(finite[np.isfinite(finite)]).max(initial=0.0)
    values = np.asarray(values, np.float64)
    return np.isclose(values, finite, rtol=1e-4, atol=1e-6 * scale).all(axis=1)
