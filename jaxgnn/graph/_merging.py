"""Making one edge of all edges from one node to another, in numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from jaxgnn._errors import bad_input

Reduce = Literal["sum", "mean", "min", "max", "mul"]
"""How the weights of edges that become one are combined."""

_UFUNCS: dict[Reduce, Callable[..., np.ndarray]] = {
    "sum": np.add.reduceat,
    "mean": np.add.reduceat,  # then divided by the number of edges
    "min": np.minimum.reduceat,
    "max": np.maximum.reduceat,
    "mul": np.multiply.reduceat,
}


class Merged(NamedTuple):
    """Distinct edges, sorted by receiver and then by sender.

    Attributes:
      senders: sender of each new edge.
      receivers: receiver of each new edge.
      weights: combined weights, or None.
      slots: new edge that each old edge has become part of.
    """

    senders: np.ndarray
    receivers: np.ndarray
    weights: np.ndarray | None
    slots: np.ndarray


def check_reduce(where: str, reduce: str) -> None:
    """Raises ValueError unless ``reduce`` is the name of a reduction."""
    if reduce not in _UFUNCS:
        raise bad_input(where, "reduce", f"one of {', '.join(map(repr, _UFUNCS))}", repr(reduce))


def merge_edges(
    senders: np.ndarray, receivers: np.ndarray, weights: np.ndarray | None, reduce: Reduce
) -> Merged:
    """Makes one edge of all edges that have the same two ends.

    Args:
      senders: int32 [edges].
      receivers: int32 [edges].
      weights: floating [edges], combined in float64 and returned in their dtype; or None.
      reduce: how weights are combined.
    """
    order = np.lexsort((senders, receivers))
    senders, receivers = senders[order], receivers[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = (senders[1:] != senders[:-1]) | (receivers[1:] != receivers[:-1])
    starts = np.flatnonzero(is_first)
    slots = np.empty(len(order), np.int64)
    slots[order] = np.cumsum(is_first) - 1
    if weights is not None:
        dtype = weights.dtype
        wide = weights[order].astype(np.float64)
        combined = _UFUNCS[reduce](wide, starts) if len(starts) else wide
        if reduce == "mean":
            combined = combined / np.diff(starts, append=len(order))
        weights = combined.astype(dtype)
    return Merged(senders[starts], receivers[starts], weights, slots)
