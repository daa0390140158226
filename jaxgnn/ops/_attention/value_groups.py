"""Weighted sums by head, where consecutive heads share the values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Float


def sum_by_group(
    sums: Callable[[Array, Any], Array], weights: Float[Array, "edges heads"], values: Any
) -> Float[Array, "rows heads dim"]:
    """The sums of each head, over the values of its group; axis 1 of ``values`` has the groups.

    Args:
      sums: from the weights of the heads of one group, [E, heads of a group], and its values to
        its sums, [N, heads of a group, Dv].
      weights: weights of all heads.
      values: pytree of arrays whose second axis is that of the groups.
    """
    groups = jax.tree.leaves(values)[0].shape[1]
    edges, heads = weights.shape
    of_groups = weights.reshape(edges, groups, heads // groups)
    y = jax.vmap(sums, in_axes=(1, 1), out_axes=1)(of_groups, values)
    return y.reshape(y.shape[0], heads, y.shape[-1])
