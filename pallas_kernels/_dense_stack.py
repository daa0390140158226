"""Stacks of dense layers, narrow enough for shared memory: their shapes, and what kernels share.

A block keeps weights. Its warpgroups go through tiles of 64 rows, which the copy engine reads ahead
and writes back. Rows behind the last one are read as zeros and not written: it sees to both, or
``store`` does.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels import _simt
from pallas_kernels._dense_activations import ACTIVATIONS, Activation
from pallas_kernels._dense_pieces import StoreChunk

ROWS = 64  # of a tile: what a warpgroup multiplies at once
_SWIZZLE = 128  # bytes of a row that lie together in shared memory
COLUMNS = 64  # that many 16-bit numbers: widths are multiples, also of float32 ones
GROUP = 8  # rows that lie together in shared memory
MOST_WIDTH = 256  # of a product
# Of an H100 or H200; lowering needs no device. Some of the memory is left for barriers.
MULTIPROCESSORS = 132
SHARED_BYTES = 227 * 1024 - 1024
_ALIGNMENT = 1024  # of arrays in shared memory
# Axes of the grid. An axis of a user's mesh that had one of these names would be taken for it.
BLOCK, PART, WARPGROUP = "jaxgnn.block", "jaxgnn.part", "jaxgnn.warpgroup"
RANK = "jaxgnn.rank"  # of a block in its cluster


@dataclass(frozen=True)
class Stack:
    """What is known of the layers when kernels are made.

    Attributes:
      widths: of the input, and of the output of each layer.
      biased: whether each layer has a bias.
      activations: behind each layer.
      dtype: of everything in memory, 16 bits or float32.
      precision: of float32, a key of ``_dense_products.PRODUCTS``; None for 16 bits.
    """

    widths: tuple[int, ...]
    biased: tuple[bool, ...]
    activations: tuple[str | None, ...]
    dtype: jnp.dtype
    precision: str | None = None

    @classmethod
    def of(cls, x, kernels, biases, activations, precision: str | None = None) -> Stack:
        """That of these arguments."""
        widths = (x.shape[1], *(kernel.shape[1] for kernel in kernels))
        biased = tuple(bias is not None for bias in biases)
        return cls(widths, biased, tuple(activations), jnp.dtype(x.dtype), precision)

    def part(self, start: int, stop: int) -> Stack:
        """The layers from ``start`` to before ``stop``."""
        layers = slice(start, stop)
        return dataclasses.replace(
            self,
            widths=self.widths[start : stop + 1],
            biased=self.biased[layers],
            activations=self.activations[layers],
        )

    def linear_last(self) -> Stack:
        """The same with nothing behind the last layer."""
        return dataclasses.replace(self, activations=(*self.activations[:-1], None))

    @property
    def layers(self) -> int:
        """How many."""
        return len(self.biased)

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Of the kernels."""
        return tuple(itertools.pairwise(self.widths))

    def activation(self, layer: int) -> Activation | None:
        """Behind the ``layer``, None for nothing."""
        name = self.activations[layer]
        return None if name is None else ACTIVATIONS[name]

    @property
    def last(self) -> Activation | None:
        """Behind the last layer."""
        return self.activation(self.layers - 1)

    def parameter_bytes(self, parts: int = 1) -> int:
        """Of what a block keeps in shared memory, if it has one of so many parts of the kernels."""
        kernels = sum(rows * columns for rows, columns in self.shapes)
        biases = itertools.compress(self.widths[1:], self.biased)
        itemsize = self.dtype.itemsize
        return kernels * itemsize // parts + sum(aligned(width * itemsize) for width in biases)

    def row_bytes(self, *widths: int) -> int:
        """Of a tile of rows of these widths."""
        return ROWS * sum(widths) * self.dtype.itemsize

    def bias_of(self, biases, layer: int) -> Any:
        """Among those that there are, None if there is none."""
        return biases[sum(self.biased[:layer])] if self.biased[layer] else None


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


def faces(union) -> tuple[Any, Any]:
    """What ``copied_tiles`` is to the tensor cores and the registers, and to the copy engine."""
    matrices, rows = union
    return matrices, rows


def chunked(dtype, width: int, *places: int):
    """Shared memory for tiles of rows that are copied: their columns in chunks."""
    columns = chunk_columns(dtype)
    return copied_tiles(dtype, *places, width // columns, ROWS, columns)


def launch(
    body,
    name: str,
    results,
    grid: tuple[int, int],
    warpgroups: int,
    scratch,
    *,
    barriers: bool = True,
    cluster: int = 1,
):
    """A Pallas kernel of ``body``, with the axes ``BLOCK``, ``PART`` and ``WARPGROUP``.

    Without ``barriers``, the warps of a warpgroup meet only where ``body`` asks for it. In clusters
    of several blocks there is the axis ``RANK`` as well; a grid is one of clusters then.
    """

    def kernel(*references, **scratch_references):
        # Indices have 32 bits, whatever numbers the program around has.
        with jax.enable_x64(False):
            body(scratch_references, *references)

    kernel.__name__ = name
    return plgpu.kernel(
        kernel,
        out_type=results,
        grid=grid,
        grid_names=(BLOCK, PART),
        cluster=(cluster,) if cluster > 1 else (),
        cluster_names=(RANK,) if cluster > 1 else (),
        num_threads=warpgroups,
        thread_name=WARPGROUP,
        scratch_types=scratch,
        # Exponentials by the hardware's, whose error float32 hardly shows.
        compiler_params=plgpu.CompilerParams(
            approx_math=True, reduction_scratch_bytes=0, unsafe_no_auto_barriers=not barriers
        ),
    )


def ask_for(sources, targets, loaded) -> None:
    """The first warpgroup does; whoever reads them waits for ``loaded``."""

    def load():
        for source, target in zip(sources, targets, strict=True):
            plgpu.copy_gmem_to_smem(source, target, loaded)

    pl.when(lax.axis_index(WARPGROUP) == 0)(load)


@dataclass(frozen=True)
class Stream:
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
    def form(dtype, widths: Sequence[int], places: tuple[int, ...], **options) -> dict:
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

    def __init__(self, scratch: dict, streams: Sequence[Stream]):
        """Of memory of that ``form``."""
        tiles, copied = zip(*map(faces, scratch["tiles"]), strict=True)
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

    def held(self, place: tuple) -> list:
        """The tiles there, in chunks of columns."""
        return [tile.at[place] for tile in self._tiles]

    def copied(self, place: tuple) -> list:
        """The same to the copy engine."""
        return [tile.at[place] for tile in self._copied]


def zero_in(loop) -> jax.Array:
    """Zero, in a loop with this variable, of at most 2^30 steps; which the compiler can not tell.

    Addresses made with it are not moved out of the loop, where they would take registers from
    those who have the fewest.
    """
    return lax.shift_right_logical(loop, jnp.int32(30))


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


def own_tiles(rows: int, first, step: int):
    """How many of the tiles ``first``, ``first + step``, ... there are."""
    return own(-(-rows // ROWS), first, step)


def own(count, first, step: int):
    """How many of ``first``, ``first + step``, ... are less than ``count``."""
    return (count - first + step - 1) // step


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


def added_to(sums: Sequence[jax.Array], multiply) -> Sequence[Any]:
    """What ``sums``, as products lie in registers, are after ``multiply(references to them)``."""
    return pl.run_state(multiply)([plgpu.ACC.init(array) for array in sums])


def by_chunks(tile, kernel) -> list[tuple]:
    """The factors of the product of a tile in chunks of columns and a matrix."""
    parts = columns_of(kernel.shape[0], tile.shape[-1])
    return [(tile.at[k], kernel.at[part]) for k, part in enumerate(parts)]


def in_shared_memory(rows) -> bool:
    """As references are; arrays are in registers."""
    return not isinstance(rows, jax.Array)


def load(tile) -> jax.Array:
    """From shared memory, as products lie in registers, in float32."""
    return plgpu.load(tile, layout=plgpu.Layout.WGMMA).astype(jnp.float32)


def store(values: jax.Array, result, first_row, column: int) -> None:
    """A chunk of 16-bit numbers, as products lie in registers, straight to global memory.

    Args:
      values: [ROWS, COLUMNS].
      result: [rows, width], which may end before the chunk does.
      first_row: where the chunk begins.
      column: likewise.
    """
    _simt.inline(StoreChunk(column), [first_row], [(result, ())], [values])


def finish(stack: Stack, layer: int, z: jax.Array, columns: slice, bias) -> jax.Array:
    """What a layer makes of these columns of its product."""
    z, activation = add_bias(z[:, columns], bias, columns), stack.activation(layer)
    return z if activation is None else activation.value(z)


def add_bias(z: jax.Array, bias, columns) -> jax.Array:
    """``bias`` lies in shared memory, or is None; ``z`` has these ``columns``."""
    if bias is None:
        return z
    return z + rows_of_bias(bias, columns)


def rows_of_bias(bias, columns) -> jax.Array:
    """These ``columns`` in every row of a tile, as products lie in registers, in float32."""
    layout = plgpu.Layout.WGMMA.reduce(0)
    row = plgpu.load(bias.at[columns], layout=layout, optimized=False).astype(jnp.float32)
    return lax.broadcast_in_dim(row, (ROWS, *row.shape), (1,))
