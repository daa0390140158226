"""Products of matrices on tensor cores (wgmma), whose sums are in registers in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.tensor_cores.memory import ROWS, columns_of

MOST_WIDTH = 256  # columns of a product at most


def product(*pairs, meanwhile=lambda: None) -> jax.Array:
    """Returns the sum of the products of pairs of matrices in shared memory, in float32 registers.

    ``meanwhile`` runs while the tensor cores are multiplying.
    """
    (a, b), *_ = pairs
    return sum_of_products(pairs, (a.shape[0], b.shape[1]), meanwhile)


def product_from_registers(pairs, columns: int, meanwhile) -> jax.Array:
    """Returns the sum of products whose left factors are arrays in registers, in wgmma's layout.

    ``meanwhile`` runs while the tensor cores are multiplying.
    """
    return sum_of_products(pairs, (ROWS, columns), meanwhile)


def sum_of_products(pairs, shape: tuple[int, int], meanwhile) -> jax.Array:
    """Returns the sum of the products of ``pairs``, each computed when the one before has started.

    ``meanwhile`` runs while the tensor cores are multiplying.
    """

    def multiply(sums):
        for a, b in pairs:
            plgpu.wgmma(sums, a, b)
        meanwhile()
        return sums[...]

    return pl.run_scoped(multiply, plgpu.ACC(shape, jnp.float32))


def accumulate_into(sums: Sequence[jax.Array], multiply) -> Sequence[Any]:
    """Runs ``multiply`` on accumulators that start from ``sums``; returns their final values."""
    return pl.run_state(multiply)([plgpu.ACC.init(array) for array in sums])


def chunked_factors(tile, kernel) -> list[tuple]:
    """Returns the pairs of chunks whose products add up to that of a tile and a matrix."""
    parts = columns_of(kernel.shape[0], tile.shape[-1])
    return [(tile.at[k], kernel.at[part]) for k, part in enumerate(parts)]


def load_float32(tile) -> jax.Array:
    """Loads a tile from shared memory in the layout of products' registers, as float32."""
    return plgpu.load(tile, layout=plgpu.Layout.WGMMA).astype(jnp.float32)


def rows_of_bias(bias, columns) -> jax.Array:
    """Loads these ``columns`` of a bias, broadcast to the rows of a tile, as float32."""
    layout = plgpu.Layout.WGMMA.reduce(0)
    row = plgpu.load(bias.at[columns], layout=layout, optimized=False).astype(jnp.float32)
    return lax.broadcast_in_dim(row, (ROWS, *row.shape), (1,))
