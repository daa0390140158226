"""Embeddings of a few values in many places."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn.dtypes import promote_dtype
from jaxtyping import Array, Float, Int


def embedded(table: nnx.Embed, values: Int[Array, "*shape"]) -> Float[Array, "*shape d"]:
    """``table(values)`` as a choice among few rows.

    Its gradient is a sum for each of them. That of a gather adds up what comes from many places
    into the same few rows, one after another.
    """
    (rows,) = promote_dtype((table.embedding[...],), dtype=table.dtype)
    chosen = jnp.broadcast_to(rows[0], (*values.shape, rows.shape[1]))
    for value in range(1, rows.shape[0]):
        chosen = jnp.where((values == value)[..., None], rows[value], chosen)
    return chosen
