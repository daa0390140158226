"""Normalisation by degree: scales of an unweighted graph, or new weights of a weighted one."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

Normalization = Literal["mean", "sym", "gcn"]
"""Kind of normalisation: ``"mean"`` is ``D⁻¹ A``, ``"sym"`` is ``D_r^-½ A D_c^-½``, with the
degrees of rows and of columns, and ``"gcn"`` is ``D_r^-½ A D_r^-½``."""


def degree_scales(
    row_degrees: Int[Array, " rows"], column_degrees: Int[Array, " cols"] | None
) -> tuple[Float[Array, " rows"], Float[Array, " cols"] | None]:
    """The row and column scales of an unweighted graph; without column degrees those of ``"mean"``.

    They are float64 if JAX has float64 enabled, else float32. For degrees in numpy they are
    computed in float64 and rounded once, since numpy's powers of float32 are rounded once more.
    """
    dtype = jax.dtypes.canonicalize_dtype(jnp.float64)
    wide = np.float64 if isinstance(row_degrees, np.ndarray) else dtype

    def scale(degrees: Any, exponent: float) -> Any:
        return power_or_zero(degrees.astype(wide), exponent).astype(dtype)

    if column_degrees is None:
        return scale(row_degrees, -1.0), None
    return scale(row_degrees, -0.5), scale(column_degrees, -0.5)


class Edges(NamedTuple):
    """Both ends and the weight of each edge slot: numpy arrays, or traced ones.

    Padding slots have the weight zero, and ends past the last row and column.
    """

    rows: Any
    columns: Any
    weights: Any


def normalized_weights(
    kind: Normalization, edges: Edges, row_sums: Any, column_sums: Any
) -> Float[Array, " edges"] | np.ndarray:
    """The weights divided by sums of weights: ``w_ij / R_i``, or ``w_ij / √(R_i C_j)``.

    Args:
      kind: ``"mean"`` or ``"sym"``.
      edges: the edges, with weights in the dtype of the sums.
      row_sums: R, the sum of the weights of the edges that enter each row.
      column_sums: C, the sum of the weights of the edges that leave each column; unused for
        ``"mean"``.
    """
    if kind == "mean":
        return edges.weights * _of_ends(row_sums, -1.0, edges.rows)
    scale = _of_ends(row_sums, -0.5, edges.rows) * _of_ends(column_sums, -0.5, edges.columns)
    return edges.weights * scale


def _of_ends(sums: Any, exponent: float, ends: Any) -> Any:
    """Returns the scale at the end of each edge, zero for padding."""
    xp: Any = np if isinstance(sums, np.ndarray) else jnp
    return xp.append(power_or_zero(sums, exponent), xp.zeros(1, sums.dtype))[ends]


def power_or_zero(degrees: Any, exponent: float) -> Any:
    """``degrees ** exponent`` where positive, else zero, with finite gradients in both cases."""
    xp: Any = np if isinstance(degrees, np.ndarray) else jnp
    positive = degrees > 0
    return xp.where(positive, xp.where(positive, degrees, 1) ** exponent, 0)
