"""What tensor cores multiply in the backward pass of dense layers: numbers as sums of terms.

Numbers of 16 bits are terms themselves. float32 numbers are sums of two bfloat16 ones, of whose
four products the three largest count. Unlike float32 numbers, terms can be multiplied along either
axis of how they lie in shared memory, as gradients need it; and both take the room of the number,
so tiles that were read are split where they are.
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
    """Of one dtype.

    Attributes:
      count: terms of a number.
      pairs: of the terms of two factors whose products count, the smallest first.
    """

    count: int
    pairs: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, dtype) -> Terms:
        """Of numbers of 16 bits or float32."""
        return _SPLIT if jnp.dtype(dtype) == jnp.float32 else _WHOLE

    @property
    def split(self) -> bool:
        """Whether numbers are not their own terms."""
        return self.count > 1

    def dtype(self, dtype):
        """Of the terms of numbers of a dtype."""
        return jnp.bfloat16 if self.split else dtype

    def prepare(self, kernel: jax.Array) -> jax.Array:
        """A kernel as it is to lie in memory, made by XLA before."""
        return bfloat16_parts.split(kernel, self.count) if self.split else kernel

    def rows_of(self, kernel, rows):
        """Some rows of a prepared kernel."""
        return kernel.at[:, rows] if self.split else kernel.at[rows]

    def tiles(self, dtype, places: int, rows: int, columns: int):
        """Shared memory for the terms of matrices; ``each`` takes one of them apart."""
        leading = (self.count,) if self.split else ()
        return tc.tiles(self.dtype(dtype), places, *leading, rows, columns)

    def each(self, matrix) -> list:
        """The terms of a matrix."""
        return [matrix.at[term] for term in range(self.count)] if self.split else [matrix]

    def product(self, *pairs: tuple[Sequence, Sequence]) -> jax.Array:
        """The sum of products of matrices, of each the terms, in float32 registers."""
        flat = [(left[a], right[b]) for a, b in self.pairs for left, right in pairs]
        return tc.product(*flat)

    def store(self, targets: Sequence, wide: jax.Array) -> None:
        """The terms of float32 numbers, rounded if there is but one."""
        if not self.split:
            (target,) = targets
            target[...] = wide.astype(target.dtype)
            return
        high = upper_half(wide)
        # No term is stored before all numbers are read: it may be to where they lie.
        parts = [part.astype(jnp.bfloat16) for part in (high, wide - high)]
        for target, part in zip(targets, parts, strict=True):
            target[...] = part


_WHOLE = Terms(1, ((0, 0),))
_SPLIT = Terms(2, ((1, 0), (0, 1), (0, 0)))


def split_tiles(dtype, width: int, *places: int):
    """Shared memory for tiles of rows as ``chunked``, which is also that of their terms."""
    chunked = tc.chunked(dtype, width, *places)
    shape = (*places, width // COLUMNS, _SPLIT.count, ROWS, COLUMNS)
    return tc.RefUnion(*chunked.refs, tc.tiles(jnp.bfloat16, *shape))


def split_views(union) -> tuple[Any, Any]:
    """What ``split_tiles`` is to a ring, and to the tensor cores once it was split."""
    *numbers, terms = union
    return numbers, terms


def reused_tiles(dtype, width: int, staged: int, places: int = 1):
    """Shared memory for the terms of tiles of rows, or for others that are copied."""
    chunked = tc.chunked(dtype, staged, places)
    return tc.RefUnion(_SPLIT.tiles(dtype, places, ROWS, width), *chunked.refs)


def reused_views(union) -> tuple[Any, Any]:
    """The terms, and the tile that is copied."""
    terms, *numbers = union
    return terms, numbers


@dataclass(frozen=True)
class Tile:
    """A tile of an array in shared memory, in chunks of 64 columns.

    Attributes:
      numbers: as they were read.
      terms: where these are split, None if they are not.
    """

    numbers: Any
    terms: Any = None

    def matrices(self, chunk) -> list:
        """The terms of a chunk, for tensor cores."""
        if self.terms is None:
            return [self.numbers.at[chunk]]
        return [self.terms.at[chunk, term] for term in range(_SPLIT.count)]

    def chunked_factors(self, kernel: Sequence) -> list[tuple]:
        """The factors of the product with a matrix, of which ``kernel`` are the terms."""
        parts = tc.columns_of(kernel[0].shape[0])
        return [
            (self.matrices(chunk), [term.at[part] for term in kernel])
            for chunk, part in enumerate(parts)
        ]

    def split(self, chunk) -> None:
        """A chunk, where it is."""
        _SPLIT.store(self.matrices(chunk), load_chunk(self.numbers, chunk))

    def load(self, chunk) -> jax.Array:
        """The numbers of a chunk, in float32 registers."""
        if self.terms is None:
            return load_chunk(self.numbers, chunk)
        first, *others = (tc.load_float32(term) for term in self.matrices(chunk))
        return sum(others, first)


def load_chunk(tile, chunk) -> jax.Array:
    """64 columns of a tile of numbers, of which less may lie together."""
    count = COLUMNS // tile.shape[-1]
    if count == 1:
        return tc.load_float32(tile.at[chunk])
    parts = [tc.load_float32(tile.at[chunk * count + part]) for part in range(count)]
    return jnp.concatenate(parts, axis=1)


def upper_half(wide: jax.Array) -> jax.Array:
    """float32 numbers rounded to bfloat16 ones, halves away from zero, but not yet stored as such.

    Of their bits, as a conversion there and back would be one of single numbers, which are slow.
    """
    bits = jax.lax.bitcast_convert_type(wide, jnp.int32) + jnp.int32(0x8000)
    return jax.lax.bitcast_convert_type(bits & jnp.int32(-0x10000), jnp.float32)
