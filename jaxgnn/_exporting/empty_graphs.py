"""Graphs without edges in programs of symbolic sizes, which are at least one.

Such a graph is passed with one edge slot that is padding, which no op reads, and arrays of its
edges with one row of zeros. Results lose the rows of this slot.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from jaxgnn._errors import bad_input

_NAME = re.compile(r"\w+", re.ASCII)


def empty_sizes(
    paths: Sequence[str], leaves: Sequence[Any], avals: Sequence[Any]
) -> frozenset[str]:
    """Names of the numbers of edges that are zero in a call.

    Args:
      paths: path of each array among the arguments; that of the senders of a graph ends so.
      leaves: the arrays.
      avals: their symbolic shapes.
    """
    return frozenset(
        str(aval.shape[0])
        for path, leaf, aval in zip(paths, leaves, avals, strict=True)
        if path.endswith(".indices") and aval.ndim == 1 and leaf.shape == (0,)
        if _NAME.fullmatch(str(aval.shape[0])) and jax.export.is_symbolic_dim(aval.shape[0])
    )


def pad_empty_axes(leaf: Any, aval: Any, empty: frozenset[str]) -> Any:
    """Pads an array by one entry, zero, along each axis whose size is in ``empty``."""
    widths = [
        (0, int(str(name) in empty and size == 0))
        for size, name in zip(np.shape(leaf), aval.shape, strict=True)
    ]
    xp: Any = jnp if isinstance(leaf, jax.Array) else np
    return xp.pad(leaf, widths) if any(after for _, after in widths) else leaf


def strip_padding(where: str, result: Any, aval: Any, empty: frozenset[str]) -> Any:
    """Removes the entries of padding from a result, along axes whose size is in ``empty``.

    Raises:
      ValueError: if a size is an expression of one in ``empty``, such as ``edges + nodes``.
    """
    for name in map(str, aval.shape):
        if name not in empty and not empty.isdisjoint(_NAME.findall(name)):
            expected = f"of at least one edge, as a result has {name} rows"
            raise bad_input(where, "the graph", expected, "none")
    return result[tuple(slice(0 if str(name) in empty else None) for name in aval.shape)]
