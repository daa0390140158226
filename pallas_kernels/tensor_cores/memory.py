"""Tiles of 64 rows in shared memory: their layout, and loads by the copy engine.

Rows past the end of an array are loaded as zeros and are not stored. The copy engine (TMA) handles
both, and ``tensor_cores.stores`` where registers are stored to global memory directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.tensor_cores.launching import WARPGROUP

ROWS = 64  # rows of a tile, which a warpgroup multiplies at once
_SWIZZLE = 128  # bytes of a row that are contiguous in shared memory
# Columns of a chunk of 16-bit numbers. Widths are multiples of it for float32 as well.
COLUMNS = 64
GROUP = 8  # rows that are swizzled together in shared memory
_ALIGNMENT = 1024  # bytes that arrays in shared memory are aligned to


def aligned(size: int) -> int:
    """Returns the bytes of shared memory that an array of ``size`` bytes takes."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def tiled(dtype, swizzle: int = _SWIZZLE) -> tuple:
    """Returns the transforms of matrices in shared memory, tiled and swizzled for tensor cores."""
    tiling = plgpu.TilingTransform((GROUP, swizzle // jnp.dtype(dtype).itemsize))
    return tiling, plgpu.SwizzleTransform(swizzle)


def tiles(dtype, *shape: int, swizzle: int = _SWIZZLE):
    """Returns scratch memory for matrices in the layout of the tensor cores."""
    return plgpu.SMEM(shape, dtype, transforms=tiled(dtype, swizzle))


def chunk_columns(dtype) -> int:
    """Returns how many columns form a chunk: 128 bytes of a row, which are copied at once."""
    return _SWIZZLE // jnp.dtype(dtype).itemsize


def copied_tiles(dtype, *shape: int):
    """Returns scratch memory for tiles that tensor cores multiply and the copy engine transfers.

    It is the same memory in two views, which ``tile_views`` returns. For the copy engine a tile
    consists of single rows: as groups of eight rows, arrays in global memory would have to have a
    multiple of eight rows.
    """
    rows = (plgpu.TilingTransform((1, chunk_columns(dtype))), plgpu.SwizzleTransform(_SWIZZLE))
    return plgpu.RefUnion(tiles(dtype, *shape), plgpu.SMEM(shape, dtype, transforms=rows))


def tile_views(union) -> tuple[Any, Any]:
    """Returns the two views of ``copied_tiles``.

    The first is for tensor cores and registers, the second for the copy engine.
    """
    matrices, rows = union
    return matrices, rows


def chunked(dtype, width: int, *places: int):
    """Returns scratch memory for tiles of rows that are copied, with their columns in chunks."""
    columns = chunk_columns(dtype)
    return copied_tiles(dtype, *places, width // columns, ROWS, columns)


def start_loads(sources, targets, loaded) -> None:
    """Lets the first warpgroup start copies into shared memory, which arrive at ``loaded``."""

    def load():
        for source, target in zip(sources, targets, strict=True):
            plgpu.copy_gmem_to_smem(source, target, loaded)

    pl.when(lax.axis_index(WARPGROUP) == 0)(load)


@dataclass(frozen=True)
class TiledInput:
    """Columns of an array in global memory that are read tile by tile.

    Attributes:
      source: the array, [rows, at least first + width].
      width: how many columns are read.
      first: the first of these columns.
    """

    source: Any
    width: int
    first: Any = 0


class Ring:
    """A ring buffer in shared memory, into which the copy engine loads tiles of inputs ahead.

    Each slot holds one tile of rows of every input.
    """

    @staticmethod
    def scratch(dtype, widths: Sequence[int], slots: tuple[int, ...], **options) -> dict:
        """Returns the scratch memory and barriers of a ring.

        Args:
          dtype: dtype of the inputs.
          widths: width of each input.
          slots: how many slots the ring has, as a shape of one or two axes.
          options: ``barriers``, a shape, by default one barrier for each slot; and ``slot_widths``,
            how many columns a slot has for each input, by default its width.
        """
        slot_widths, barriers = options.get("slot_widths", widths), options.get("barriers", slots)
        arrivals = sum(widths) // chunk_columns(dtype)
        return {
            "tiles": [chunked(dtype, width, *slots) for width in slot_widths],
            "full": plgpu.Barrier(num_arrivals=arrivals, num_barriers=barriers),
        }

    def __init__(self, scratch: dict, inputs: Sequence[TiledInput]):
        """Uses the memory and barriers that ``Ring.scratch`` allocated for these inputs."""
        tiles, copied = zip(*map(tile_views, scratch["tiles"]), strict=True)
        self._inputs, self._tiles, self._copied, self._full = (
            inputs,
            tiles,
            copied,
            scratch["full"],
        )

    def load(self, rows, slot: tuple, barrier: tuple | None = None) -> None:
        """Starts to load ``rows`` of all inputs into a slot; they arrive at a barrier.

        By default that is the slot's own barrier.
        """
        full = self._full.at[slot if barrier is None else barrier]
        for array, target in zip(self._inputs, self._copied, strict=True):
            size = target.shape[-1]
            for chunk in range(array.width // size):
                source = array.source.at[rows, columns_at(array.first, chunk, size)]
                plgpu.copy_gmem_to_smem(source, target.at[(*slot, chunk)], full)

    def wait(self, barrier: tuple) -> None:
        """Waits until a load has arrived. Every load of a barrier has to be waited for."""
        plgpu.barrier_wait(self._full.at[barrier])

    def tiles(self, slot: tuple) -> list:
        """Returns the tile of each input in a slot, in chunks of columns, for the tensor cores."""
        return [tile.at[slot] for tile in self._tiles]

    def copy_tiles(self, slot: tuple) -> list:
        """Returns the tile of each input in a slot in the layout of the copy engine."""
        return [tile.at[slot] for tile in self._copied]


def rows_of(tile) -> pl.Slice:
    """Returns the slice of rows of a tile."""
    return pl.ds(tile * ROWS, ROWS)


def columns_at(first, chunk, size: int = COLUMNS) -> pl.Slice:
    """Returns the slice of columns of a chunk, counted from the ``first`` column on."""
    start = first + chunk * size
    return pl.ds(start if isinstance(start, int) else pl.multiple_of(start, size), size)


def columns_of(width: int, size: int = COLUMNS) -> list[slice]:
    """Returns the slices of columns of all chunks of a row."""
    return [slice(first, first + size) for first in range(0, width, size)]


def count_strided_tiles(rows: int, first, step: int):
    """Returns how many tiles there are among ``first``, ``first + step``, ... of these rows."""
    return count_strided(-(-rows // ROWS), first, step)


def count_strided(count, first, step: int):
    """Returns how many of ``first``, ``first + step``, ... are less than ``count``."""
    return (count - first + step - 1) // step


def in_shared_memory(rows) -> bool:
    """Returns whether rows are a reference to shared memory, and not an array in registers."""
    return not isinstance(rows, jax.Array)
