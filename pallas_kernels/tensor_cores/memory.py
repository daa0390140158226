"""Tiles of 64 rows in shared memory: how they lie there, and how the copy engine brings them.

Rows behind the last one are read as zeros and not written: the copy engine sees to both, or
``tensor_cores.store`` does where registers go straight to global memory.
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

ROWS = 64  # of a tile: what a warpgroup multiplies at once
_SWIZZLE = 128  # bytes of a row that lie together in shared memory
COLUMNS = 64  # that many 16-bit numbers: widths are multiples, also of float32 ones
GROUP = 8  # rows that lie together in shared memory
_ALIGNMENT = 1024  # of arrays in shared memory


def aligned(size: int) -> int:
    """Bytes of shared memory that an array of ``size`` bytes takes."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def tiled(dtype, swizzle: int = _SWIZZLE) -> tuple:
    """How matrices lie in shared memory for the tensor cores."""
    tiling = plgpu.TilingTransform((GROUP, swizzle // jnp.dtype(dtype).itemsize))
    return tiling, plgpu.SwizzleTransform(swizzle)


def tiles(dtype, *shape: int, swizzle: int = _SWIZZLE):
    """Shared memory for matrices as the tensor cores take them."""
    return plgpu.SMEM(shape, dtype, transforms=tiled(dtype, swizzle))


def chunk_columns(dtype) -> int:
    """Of numbers that lie together in shared memory, and so are copied at once."""
    return _SWIZZLE // jnp.dtype(dtype).itemsize


def copied_tiles(dtype, *shape: int):
    """Shared memory for ``tiles`` of a chunk, copied from or to arrays of any number of rows.

    The copy engine is told of rows in the same place: groups of eight it would look for in all of
    the array, whose rows then had to be a multiple.
    """
    rows = (plgpu.TilingTransform((1, chunk_columns(dtype))), plgpu.SwizzleTransform(_SWIZZLE))
    return plgpu.RefUnion(tiles(dtype, *shape), plgpu.SMEM(shape, dtype, transforms=rows))


def tile_views(union) -> tuple[Any, Any]:
    """What ``copied_tiles`` is to the tensor cores and the registers, and to the copy engine."""
    matrices, rows = union
    return matrices, rows


def chunked(dtype, width: int, *places: int):
    """Shared memory for tiles of rows that are copied: their columns in chunks."""
    columns = chunk_columns(dtype)
    return copied_tiles(dtype, *places, width // columns, ROWS, columns)


def start_loads(sources, targets, loaded) -> None:
    """The first warpgroup does; whoever reads them waits for ``loaded``."""

    def load():
        for source, target in zip(sources, targets, strict=True):
            plgpu.copy_gmem_to_smem(source, target, loaded)

    pl.when(lax.axis_index(WARPGROUP) == 0)(load)


@dataclass(frozen=True)
class TiledInput:
    """Columns of an array that are read tile by tile.

    Attributes:
      source: [rows, some width], in memory.
      width: how many columns.
      first: of these columns.
    """

    source: Any
    width: int
    first: Any = 0


class Ring:
    """Tiles of rows of some streams, which the copy engine reads into shared memory ahead."""

    @staticmethod
    def scratch(dtype, widths: Sequence[int], places: tuple[int, ...], **options) -> dict:
        """Of its memory.

        Args:
          dtype: of the streams.
          widths: of the streams.
          places: how many tiles it holds.
          options: ``barriers``, by default one for each place; and ``room``, columns of a tile of
            each stream, by default its width.
        """
        room, barriers = options.get("room", widths), options.get("barriers", places)
        arrivals = sum(widths) // chunk_columns(dtype)
        return {
            "tiles": [chunked(dtype, width, *places) for width in room],
            "full": plgpu.Barrier(num_arrivals=arrivals, num_barriers=barriers),
        }

    def __init__(self, scratch: dict, streams: Sequence[TiledInput]):
        """Of memory of that ``form``."""
        tiles, copied = zip(*map(tile_views, scratch["tiles"]), strict=True)
        self._streams, self._tiles, self._copied, self._full = (
            streams,
            tiles,
            copied,
            scratch["full"],
        )

    def load(self, rows, place: tuple, barrier: tuple | None = None) -> None:
        """Asks for ``rows``."""
        full = self._full.at[place if barrier is None else barrier]
        for stream, target in zip(self._streams, self._copied, strict=True):
            size = target.shape[-1]
            for chunk in range(stream.width // size):
                source = stream.source.at[rows, columns_at(stream.first, chunk, size)]
                plgpu.copy_gmem_to_smem(source, target.at[(*place, chunk)], full)

    def wait(self, barrier: tuple) -> None:
        """For what was asked for; who waits at all waits for each completion."""
        plgpu.barrier_wait(self._full.at[barrier])

    def tiles(self, place: tuple) -> list:
        """The tiles there, in chunks of columns."""
        return [tile.at[place] for tile in self._tiles]

    def copy_tiles(self, place: tuple) -> list:
        """The same to the copy engine."""
        return [tile.at[place] for tile in self._copied]


def rows_of(tile) -> pl.Slice:
    """The rows of a tile."""
    return pl.ds(tile * ROWS, ROWS)


def columns_at(first, chunk, size: int = COLUMNS) -> pl.Slice:
    """Those of a ``chunk`` of this size, from the ``first`` column on."""
    start = first + chunk * size
    return pl.ds(start if isinstance(start, int) else pl.multiple_of(start, size), size)


def columns_of(width: int, size: int = COLUMNS) -> list[slice]:
    """What lies side by side in shared memory."""
    return [slice(first, first + size) for first in range(0, width, size)]


def count_strided_tiles(rows: int, first, step: int):
    """How many of the tiles ``first``, ``first + step``, ... there are."""
    return count_strided(-(-rows // ROWS), first, step)


def count_strided(count, first, step: int):
    """How many of ``first``, ``first + step``, ... are less than ``count``."""
    return (count - first + step - 1) // step


def in_shared_memory(rows) -> bool:
    """As references are; arrays are in registers."""
    return not isinstance(rows, jax.Array)
