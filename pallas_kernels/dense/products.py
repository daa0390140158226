"""How tensor cores multiply rows by the kernel of a layer: a table by what is stored and asked for.

Numbers of 16 bits are multiplied exactly as they lie in shared memory. float32 numbers there are
either taken for TF32, whose products have a half of the speed, or become sums of two bfloat16
numbers in registers, of whose four products the three largest are added up::

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

_TF32 = (8, 10)  # its bits of exponent and mantissa
_PARTS = 2
_PAIRS = ((1, 0), (0, 1), (0, 0))  # of parts whose products count, the smallest first


@dataclass(frozen=True)
class Products:
    """One way to multiply.

    Attributes:
      prepare: a kernel as it is to lie in memory, made by XLA before.
      allocate: shared memory for such a kernel, of so many rows and columns, in front of which is an
        axis of length one.
      multiply: the product, in float32 registers, of rows and a kernel in such a place; the last
        argument is done while the tensor cores are at it. Rows are a tile of chunks of columns.
      from_registers: whether rows may also be a float32 array in registers.
      warpgroups: at most, whose registers are enough, for products of up to 128 columns.
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
    """Transposed: in 32 bits, tensor cores want sums to go along what lies together.

    Of the rows, which nobody rounds before, they leave out the bits that TF32 has not.
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
    _, height, width = kernel.shape

    def pairs():
        """Rows are split chunk by chunk, while the tensor cores are at the chunk before."""
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
