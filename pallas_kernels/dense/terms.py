"""Terms: the numbers that tensor cores multiply in the backward pass of dense layers.

Numbers of 16 bits are their own terms. float32 numbers are split into two bfloat16 terms, of whose
four products the three largest are added up. Unlike float32 numbers, 16-bit terms can be multiplied
along either axis of their layout in shared memory, as gradients need it. Two terms take as much
memory as the number, so tiles that were loaded are split in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import tensor_cores as tc
from pallas_kernels.tensor_cores import COLUMNS, ROWS, bfloat16_parts


@dataclass(frozen=True)
class Terms:
    """Split of the numbers of a dtype into terms.

    Attributes:
      count: terms of a number.
      pairs: pairs of terms of two factors whose products are added up, the smallest first.
    """

    count: int
    pairs: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, dtype) -> Terms:
        """Returns the terms of numbers of 16 bits or of float32."""
        return _SPLIT if jnp.dtype(dtype) == jnp.float32 else _WHOLE

    @property
    def split(self) -> bool:
        """Whether numbers have to be split into terms."""
        return self.count > 1

    def dtype(self, dtype):
        """Returns the dtype of the terms of numbers of a dtype."""
        return jnp.bfloat16 if self.split else dtype

    def prepare(self, kernel: jax.Array) -> jax.Array:
        """Returns a kernel as the block loads it, split into terms.

        XLA runs it before the kernel.
        """
        return bfloat16_parts.split(kernel, self.count) if self.split else kernel

    def rows_of(self, kernel, rows):
        """Returns some rows of a prepared kernel."""
        return kernel.at[:, rows] if self.split else kernel.at[rows]

    def tiles(self, dtype, places: int, rows: int, columns: int):
        """Returns scratch memory for the terms of matrices; ``each`` separates them."""
        leading = (self.count,) if self.split else ()
        return tc.tiles(self.dtype(dtype), places, *leading, rows, columns)

    def each(self, matrix) -> list:
        """Returns references to the terms of a matrix."""
        return [matrix.at[term] for term in range(self.count)] if self.split else [matrix]

    def product(self, *pairs: tuple[Sequence, Sequence]) -> jax.Array:
        """Returns the sum of products of matrices, given as their terms, in float32 registers."""
        flat = [(left[a], right[b]) for a, b in self.pairs for left, right in pairs]
        return tc.product(*flat)

    def store(self, targets: Sequence, wide: jax.Array) -> None:
        """Stores the terms of float32 numbers, or the rounded numbers if they are not split."""
        if not self.split:
            (target,) = targets
            target[...] = wide.astype(target.dtype)
            return
        high = upper_half(wide)
        # All numbers have been read before the first term is stored, since it may overwrite them.
        parts = [part.astype(jnp.bfloat16) for part in (high, wide - high)]
        for target, part in zip(targets, parts, strict=True):
            target[...] = part


_WHOLE = Terms(1, ((0, 0),))
_SPLIT = Terms(2, ((1, 0), (0, 1), (0, 0)))


def split_tiles(dtype, width: int, *places: int):
    """Returns scratch memory for tiles of rows and, in the same place, for their terms."""
    chunked = tc.chunked(dtype, width, *places)
    shape = (*places, width // COLUMNS, _SPLIT.count, ROWS, COLUMNS)
    return tc.RefUnion(*chunked.refs, tc.tiles(jnp.bfloat16, *shape))


def split_views(union) -> tuple[Any, Any]:
    """Returns the views of ``split_tiles``: the numbers for a ring, and the terms."""
    *numbers, terms = union
    return numbers, terms


def reused_tiles(dtype, width: int, staged: int, places: int = 1):
    """Returns scratch memory for terms of tiles, or for other tiles that are copied."""
    chunked = tc.chunked(dtype, staged, places)
    return tc.RefUnion(_SPLIT.tiles(dtype, places, ROWS, width), *chunked.refs)


def reused_views(union) -> tuple[Any, Any]:
    """Returns the views of ``reused_tiles``: the terms, and the tiles that are copied."""
    terms, *numbers = union
    return terms, numbers


@dataclass(frozen=True)
class Tile:
    """A tile of an input in shared memory, in chunks of 64 columns.

    Attributes:
      numbers: the numbers as they were loaded.
      terms: their terms in the same memory, or None if numbers are not split.
    """

    numbers: Any
    terms: Any = None

    def matrices(self, chunk) -> list:
        """Returns the terms of a chunk, for tensor cores."""
        if self.terms is None:
            return [self.numbers.at[chunk]]
        return [self.terms.at[chunk, term] for term in range(_SPLIT.count)]

    def chunked_factors(self, kernel: Sequence) -> list[tuple]:
        """Returns the pairs of chunks whose products add up to that with a kernel's terms."""
        parts = tc.columns_of(kernel[0].shape[0])
        return [
            (self.matrices(chunk), [term.at[part] for term in kernel])
            for chunk, part in enumerate(parts)
        ]

    def split(self, chunk) -> None:
        """Splits a chunk into its terms, in place."""
        _SPLIT.store(self.matrices(chunk), load_chunk(self.numbers, chunk))

    def load(self, chunk) -> jax.Array:
        """Loads the numbers of a chunk into registers, as float32."""
        if self.terms is None:
            return load_chunk(self.numbers, chunk)
        first, *others = (tc.load_float32(term) for term in self.matrices(chunk))
        return sum(others, first)


def load_chunk(tile, chunk) -> jax.Array:
    """Loads 64 columns of a tile, whose chunks in memory may be narrower, as float32."""
    count = COLUMNS // tile.shape[-1]
    if count == 1:
        return tc.load_float32(tile.at[chunk])
    parts = [tc.load_float32(tile.at[chunk * count + part]) for part in range(count)]
    return jnp.concatenate(parts, axis=1)


def upper_half(wide: jax.Array) -> jax.Array:
    """Rounds float32 numbers to bfloat16 precision, halves away from zero, and keeps float32.

    It works on the bits: conversions to bfloat16 and back would be done one number at a time.
    """
    bits = jax.lax.bitcast_convert_type(wide, jnp.int32) + jnp.int32(0x8000)
    return jax.lax.bitcast_convert_type(bits & jnp.int32(-0x10000), jnp.float32)
