"""Products of matrices by tensor cores, and how their sums lie in registers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.tensor_cores.memory import ROWS, columns_of

MOST_WIDTH = 256  # of a product


def product(*pairs, meanwhile=lambda: None) -> jax.Array:
    """The sum of products of matrices in shared memory, in float32 registers.

    ``meanwhile`` is done while the tensor cores are at it.
    """
    (a, b), *_ = pairs
    return sum_of_products(pairs, (a.shape[0], b.shape[1]), meanwhile)


def product_from_registers(pairs, columns: int, meanwhile) -> jax.Array:
    """As ``product``, where the left factors are arrays, as products lie in registers."""
    return sum_of_products(pairs, (ROWS, columns), meanwhile)


def sum_of_products(pairs, shape: tuple[int, int], meanwhile) -> jax.Array:
    """That of these ``pairs``, each asked for when the products before have begun."""

    def multiply(sums):
        for a, b in pairs:
            plgpu.wgmma(sums, a, b)
        meanwhile()
        return sums[...]

    return pl.run_scoped(multiply, plgpu.ACC(shape, jnp.float32))


def accumulate_into(sums: Sequence[jax.Array], multiply) -> Sequence[Any]:
    """What ``sums``, as products lie in registers, are after ``multiply(references to them)``."""
    return pl.run_state(multiply)([plgpu.ACC.init(array) for array in sums])


def chunked_factors(tile, kernel) -> list[tuple]:
    """The factors of the product of a tile in chunks of columns and a matrix."""
    parts = columns_of(kernel.shape[0], tile.shape[-1])
    return [(tile.at[k], kernel.at[part]) for k, part in enumerate(parts)]


def load_float32(tile) -> jax.Array:
    """From shared memory, as products lie in registers, in float32."""
    return plgpu.load(tile, layout=plgpu.Layout.WGMMA).astype(jnp.float32)


def rows_of_bias(bias, columns) -> jax.Array:
    """These ``columns`` in every row of a tile, as products lie in registers, in float32."""
    layout = plgpu.Layout.WGMMA.reduce(0)
    row = plgpu.load(bias.at[columns], layout=layout, optimized=False).astype(jnp.float32)
    return lax.broadcast_in_dim(row, (ROWS, *row.shape), (1,))
