"""The number that is explained: an entry of the predictions, or a function of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxgnn._errors import bad_input

_EXPECTED = (
    "a node, a pair (node, class), an array of nodes, or a function of the predictions that "
    "returns a scalar"
)


class Target:
    """One number of the predictions, or several in turn.

    Args:
      where: the function that errors name.
      target: a node (a graph, if there is a row of predictions for each graph), a pair of a node
        and a class, an array of nodes, or a function of the predictions.
      predictions: predictions for the graph with all edges.

    Attributes:
      rows: rows of the predictions, one for each number; None for a function.
      classes: their columns.
      is_one: whether the result has no axis of targets.

    Raises:
      ValueError: if the target is none of these, is out of range, or predictions do not have a row
        for each node.
    """

    def __init__(self, where: str, target: Any, predictions: Any):
        self.rows: Int[np.ndarray, " targets"] | None = None
        self.classes: Int[np.ndarray, " targets"] | None = None
        self.is_one = True
        self._function: Callable[[Any], Array] | None = target if callable(target) else None
        if self._function is not None:
            value = self._function(predictions)
            if jnp.shape(value) != () or not jnp.issubdtype(value.dtype, jnp.floating):
                got = f"a function that returns {value.dtype}{list(jnp.shape(value))}"
                raise bad_input(where, "target", _EXPECTED, got)
            return
        if not hasattr(predictions, "shape") or predictions.ndim not in (1, 2):
            shape = getattr(predictions, "shape", type(predictions).__name__)
            expected = "a function of the predictions, where these are no array [nodes, classes]"
            raise bad_input(where, "target", expected, f"{target!r} for predictions of {shape}")
        self._read(where, target, predictions)

    def _read(self, where: str, value: Any, predictions: Array) -> None:
        table = predictions if predictions.ndim == 2 else predictions[:, None]
        classes = None
        if isinstance(value, tuple):
            if len(value) != 2:
                raise bad_input(where, "target", _EXPECTED, repr(value))
            value, classes = value
        self.rows = _ids(where, "target", value, table.shape[0], "rows")
        self.is_one = np.ndim(value) == 0
        if classes is None:
            self.classes = np.asarray(jnp.argmax(table, axis=1))[self.rows]
        else:
            ids = _ids(where, "target[1]", classes, table.shape[1], "classes")
            if ids.size not in (1, self.rows.size):
                expected = f"one class, or one for each of {self.rows.size} nodes"
                raise bad_input(where, "target[1]", expected, f"{ids.size} classes")
            self.classes = np.broadcast_to(ids, self.rows.shape)

    def value(self, predictions: Any, at: tuple[Array, Array] | None) -> Float[Array, ""]:
        """Returns the number to explain; ``at`` is a row and a column, None for a function."""
        if self._function is not None or at is None:
            assert self._function is not None
            return self._function(predictions).astype(jnp.float32)
        return predictions.reshape(predictions.shape[0], -1)[at].astype(jnp.float32)

    def explained(self, predictions: Any) -> Float[Array, "targets _"]:
        """The predictions for each target: all their columns, or the value of a function."""
        if self.rows is None:
            return self.value(predictions, None)[None, None]
        return predictions.reshape(predictions.shape[0], -1)[self.rows].astype(jnp.float32)

    def log_probability(self, predictions: Any, at: tuple[Array, Array] | None) -> Float[Array, ""]:
        """Returns the logarithm of the probability of the class; the value itself for a function.

        Of predictions with one column it is that of the sign of the logit.
        """
        if at is None:
            return self.value(predictions, at)
        table = predictions.reshape(predictions.shape[0], -1).astype(jnp.float32)
        if table.shape[1] == 1:
            return jax.nn.log_sigmoid(table[at[0], 0])
        return jax.nn.log_softmax(table[at[0]])[at[1]]


def _ids(where: str, argument: str, value: Any, count: int, of: str) -> Int[np.ndarray, " ids"]:
    """Integers in ``[0, count)``, in an array of one axis; ``of`` says what they number."""
    ids = np.asarray(value)
    is_integer = ids.dtype.kind in "iu" and ids.ndim <= 1
    if not is_integer:
        raise bad_input(where, argument, _EXPECTED, repr(value))
    if ids.size == 0 or (ids < 0).any() or (ids >= count).any():
        raise bad_input(where, argument, f"in [0, {count}), {of} of predictions", value)
    return np.atleast_1d(ids)
