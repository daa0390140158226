"""Methods to multiply rows by the kernel of a layer on tensor cores, by dtype and precision.

Numbers of 16 bits are multiplied exactly. float32 numbers are either rounded to TF32, whose
products have half of the speed, or split in registers into sums of two bfloat16 parts, of whose
four products the three largest are added up::

    x = x₀ + x₁,  w = w₀ + w₁,  x w ≈ x₁ w₀ + x₀ w₁ + x₀ w₀
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels import tensor_cores as tc
from pallas_kernels.dense.terms import load_chunk, upper_half
from pallas_kernels.tensor_cores import bfloat16_parts

_TF32 = (8, 10)  # bits of exponent and mantissa
_PARTS = 2
_PAIRS = ((1, 0), (0, 1), (0, 0))  # of parts whose products count, the smallest first


@dataclass(frozen=True)
class Products:
    """One way to multiply.

    Attributes:
      prepare: returns a kernel in the form in which the block loads it; XLA runs it before the
        kernel.
      allocate: returns scratch memory for such a kernel, given its rows and columns, with a leading
        axis of length one.
      multiply: returns the product of rows and such a kernel in float32 registers. The rows are a
        tile in chunks of columns. The last argument is called while the tensor cores are
        multiplying.
      from_registers: whether rows may also be a float32 array in registers.
      warpgroups: how many warpgroups at most have enough registers for products of up to 128
        columns.
    """

    prepare: Callable[[jax.Array], jax.Array]
    allocate: Callable[[Any, int, int], Any]
    multiply: Callable[[Any, Any, Callable[[], None]], jax.Array]
    from_registers: bool
    warpgroups: int


def _unchanged(kernel: jax.Array) -> jax.Array:
    return kernel


def _allocate(dtype, rows: int, columns: int):
    return tc.tiles(dtype, 1, rows, columns)


def _multiply(rows, kernel, meanwhile) -> jax.Array:
    return tc.product(*tc.chunked_factors(rows, kernel), meanwhile=meanwhile)


def _rounded_to_tf32(kernel: jax.Array) -> jax.Array:
    """Rounds a kernel to TF32 and transposes it.

    In 32 bits, tensor cores need the summed axis to be the contiguous one. They truncate the rows
    to TF32 themselves.
    """
    return lax.reduce_precision(kernel, *_TF32).T


def _allocate_transposed(dtype, rows: int, columns: int):
    return tc.tiles(dtype, 1, columns, rows)


def _multiply_transposed(rows, kernel, meanwhile) -> jax.Array:
    return tc.product(*tc.chunked_factors(rows, kernel.T), meanwhile=meanwhile)


def _split(kernel: jax.Array) -> jax.Array:
    return bfloat16_parts.split(kernel, _PARTS)


def _allocate_parts(dtype, rows: int, columns: int):
    del dtype
    return tc.tiles(jnp.bfloat16, 1, _PARTS, rows, columns)


def _multiply_parts(rows, kernel, meanwhile) -> jax.Array:
    """Multiplies float32 rows by a kernel that is split into bfloat16 parts."""
    _, height, width = kernel.shape

    def pairs():
        """Splits rows chunk by chunk, while the tensor cores multiply the chunk before."""
        for number, columns in enumerate(tc.columns_of(height)):
            wide = load_chunk(rows, number) if tc.in_shared_memory(rows) else rows[:, columns]
            high = upper_half(wide)
            parts = [part.astype(jnp.bfloat16) for part in (high, wide - high)]
            for part, of_kernel in _PAIRS:
                yield parts[part], kernel.at[of_kernel, columns]

    return tc.product_from_registers(pairs(), width, meanwhile)


PRODUCTS: Mapping[str | None, Products] = MappingProxyType(
    {
        None: Products(_unchanged, _allocate, _multiply, False, 4),
        "tf32": Products(_rounded_to_tf32, _allocate_transposed, _multiply_transposed, False, 4),
        "bf16x3": Products(_split, _allocate_parts, _multiply_parts, True, 3),
    }
)
