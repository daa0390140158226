"""Edges of a graph without some that are excluded, by their ranks among those that are left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True, eq=False)
class EdgesLeft:
    """Numbers of edges in a graph that some edges have been deleted from.

    Attributes:
      excluded: positions of the deleted edges in the arrays of the graph, distinct and ascending,
        in NumPy or in JAX; padding in JAX is beyond all positions.
    """

    excluded: Any

    @classmethod
    def of(cls, excluded: np.ndarray | None) -> EdgesLeft:
        """Takes positions on the host; None for none."""
        return cls(np.empty(0, np.int64) if excluded is None else excluded)

    def ranks(self, positions: Any) -> Any:
        """Returns the number of edges that are left before each position."""
        xp: Any = np if isinstance(self.excluded, np.ndarray) else jnp
        return positions - xp.searchsorted(self.excluded, positions)

    def positions(self, ranks: Any) -> Any:
        """Returns the position of each edge that is left, by the number of those before it."""
        xp: Any = np if isinstance(self.excluded, np.ndarray) else jnp
        places = xp.arange(self.excluded.shape[0], dtype=self.excluded.dtype)
        # Edges that are left before each excluded one; the edge of a rank follows those up to it.
        before = self.excluded - places
        return ranks + xp.searchsorted(before, ranks, side="right")
