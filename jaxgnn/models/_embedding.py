"""Embeddings of few different values at many positions."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn.dtypes import promote_dtype
from jaxtyping import Array, Float, Int


def embedded(table: nnx.Embed, values: Int[Array, "*shape"]) -> Float[Array, "*shape d"]:
    """Looks up ``table(values)`` by selecting among few rows.

    The gradient is one sum for each row. The gradient of a gather would instead add the terms of
    many positions into the same few rows, one after another.
    """
    (rows,) = promote_dtype((table.embedding[...],), dtype=table.dtype)
    chosen = jnp.broadcast_to(rows[0], (*values.shape, rows.shape[1]))
    for value in range(1, rows.shape[0]):
        chosen = jnp.where((values == value)[..., None], rows[value], chosen)
    return chosen
