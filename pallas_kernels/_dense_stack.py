"""Stacks of dense layers, narrow enough for shared memory: their shapes, and the forward kernel.

A block keeps the weights of all layers. Each of its warpgroups has a stream of tiles of 64 rows and
a ring of slots of its own, which the copy engine fills ahead; a tile stays in its slot from the
input to the output, as every layer overwrites what it read. Rows behind the last one are read as
zeros and not written: the copy engine sees to both.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels._dense_activations import ACTIVATIONS, Activation

ROWS = 64  # of a tile: what a warpgroup multiplies at once
_SWIZZLE = 128  # bytes of a row that lie together in shared memory
COLUMNS = 64  # that many 16-bit numbers: widths are multiples
GROUP = 8  # rows that lie together in shared memory
_MOST_WIDTH = 256  # of a product
# Of an H100 or H200; lowering needs no device. Some of the memory is left for barriers.
MULTIPROCESSORS = 132
SHARED_BYTES = 227 * 1024 - 1024
_ALIGNMENT = 1024  # of arrays in shared memory
# Axes of the grid. An axis of a user's mesh that had one of these names would be taken for it.
BLOCK, WARPGROUP = "jaxgnn.block", "jaxgnn.warpgroup"


@dataclass(frozen=True)
class Stack:
    """What is known of the layers when kernels are made.

    Attributes:
      widths: of the input, and of the output of each layer.
      biased: whether each layer has a bias.
      activations: behind each layer.
      dtype: of everything in memory, 16 bits.
    """

    widths: tuple[int, ...]
    biased: tuple[bool, ...]
    activations: tuple[str | None, ...]
    dtype: jnp.dtype

    @classmethod
    def of(cls, x, kernels, biases, activations) -> Stack:
        """That of these arguments."""
        widths = (x.shape[1], *(kernel.shape[1] for kernel in kernels))
        biased = tuple(bias is not None for bias in biases)
        return cls(widths, biased, tuple(activations), jnp.dtype(x.dtype))

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

    def parameter_bytes(self) -> int:
        """Of what a block keeps in shared memory."""
        kernels = sum(rows * columns for rows, columns in self.shapes)
        biases = itertools.compress(self.widths[1:], self.biased)
        itemsize = self.dtype.itemsize
        return kernels * itemsize + sum(aligned(width * itemsize) for width in biases)

    def parameters(self) -> dict[str, list]:
        """Shared memory for the kernels and the biases."""
        biases = itertools.compress(self.widths[1:], self.biased)
        return {
            "kernels": [tiles(self.dtype, *shape) for shape in self.shapes],
            "biases": [plgpu.SMEM((width,), self.dtype) for width in biases],
        }

    def bias_of(self, biases, layer: int) -> Any:
        """Among those that there are, None if there is none."""
        return biases[sum(self.biased[:layer])] if self.biased[layer] else None


@dataclass(frozen=True)
class DenseTile:
    """How blocks and warpgroups share the rows.

    Attributes:
      blocks: at most this many, one for each multiprocessor.
      warpgroups: that go through tiles of rows.
      slots: tiles that each of them has in shared memory, read ahead.
    """

    blocks: int
    warpgroups: int
    slots: int

    @classmethod
    def choose(cls, stack: Stack) -> DenseTile | None:
        """The one heuristic of the forward pass: what fits, or None; reading ahead comes first."""
        if max(stack.widths) > _MOST_WIDTH:
            return None
        room = SHARED_BYTES - stack.parameter_bytes()
        fitting = room // (ROWS * max(stack.widths) * stack.dtype.itemsize)
        # A thread has 128 sums of 256 columns, for which only two warpgroups have registers.
        most = 4 if max(stack.widths) <= 64 else 3 if max(stack.widths) <= 128 else 2
        for warpgroups, slots in ((most, 4), (most, 3), (2, 3), (1, 4), (1, 3), (1, 2)):
            if warpgroups * slots <= fitting:
                return cls(MULTIPROCESSORS, warpgroups, slots)
        return None

    def limited_to(self, rows: int) -> DenseTile:
        """Without blocks that would have no rows."""
        return dataclasses.replace(self, blocks=min(self.blocks, -(-rows // ROWS)))


def aligned(size: int) -> int:
    """Bytes of shared memory that an array of ``size`` bytes takes."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def tiles(dtype, *shape: int, swizzle: int = _SWIZZLE):
    """Shared memory for matrices as the tensor cores and the copy engine take them."""
    tiling = plgpu.TilingTransform((GROUP, swizzle // jnp.dtype(dtype).itemsize))
    transforms = (tiling, plgpu.SwizzleTransform(swizzle))
    return plgpu.SMEM(shape, dtype, transforms=transforms)


def copied_tiles(dtype, *shape: int):
    """Shared memory for ``tiles`` of 64 columns, copied from or to arrays of any number of rows.

    The copy engine is told of rows in the same place: groups of eight it would look for in all of
    the array, whose rows then had to be a multiple.
    """
    rows = (plgpu.TilingTransform((1, COLUMNS)), plgpu.SwizzleTransform(_SWIZZLE))
    return plgpu.RefUnion(tiles(dtype, *shape), plgpu.SMEM(shape, dtype, transforms=rows))


def faces(union) -> tuple[Any, Any]:
    """What ``copied_tiles`` is to the tensor cores and the registers, and to the copy engine."""
    matrices, rows = union
    return matrices, rows


def forward(x, kernels, biases, activations, tile: DenseTile | None = None) -> jax.Array:
    """The output of the last layer.

    Args:
      x: [rows, width], bfloat16 or float16.
      kernels: [width of the layer before, width] each, multiples of 64.
      biases: [width] or None, each.
      activations: name or None, each.
      tile: by default what suits the shapes.

    Returns:
      [rows, last width], of the dtype of ``x``.
    """
    stack, rows = Stack.of(x, kernels, biases, activations), x.shape[0]
    if rows == 0:
        return jnp.zeros((0, stack.widths[-1]), x.dtype)
    result = jax.ShapeDtypeStruct((rows, stack.widths[-1]), x.dtype)
    tile = (tile or _chosen(stack)).limited_to(rows)
    ring = (tile.warpgroups, tile.slots)
    call = launch(
        functools.partial(_forward, stack, tile),
        "dense_forward",
        result,
        tile.blocks,
        tile.warpgroups,
        {
            **stack.parameters(),
            "slots": copied_tiles(stack.dtype, *ring, max(stack.widths) // COLUMNS, ROWS, COLUMNS),
            "full": plgpu.Barrier(num_arrivals=stack.widths[0] // COLUMNS, num_barriers=ring),
            "loaded": plgpu.Barrier(num_arrivals=stack.layers + sum(stack.biased)),
        },
    )
    return call(x, tuple(kernels), tuple(b for b in biases if b is not None))


def _chosen(stack: Stack) -> DenseTile:
    tile = DenseTile.choose(stack)
    if tile is None:
        raise ValueError(f"layers of widths {stack.widths} do not fit shared memory")
    return tile


def launch(body, name: str, results, blocks: int, warpgroups: int, scratch):
    """A Pallas kernel of ``body``, with the axes ``BLOCK`` and ``WARPGROUP``."""

    def kernel(*references, **scratch_references):
        body(scratch_references, *references)

    kernel.__name__ = name
    return plgpu.kernel(
        kernel,
        out_type=results,
        grid=(blocks,),
        grid_names=(BLOCK,),
        num_threads=warpgroups,
        thread_name=WARPGROUP,
        scratch_types=scratch,
        # Exponentials by the hardware's, whose error float32 hardly shows.
        compiler_params=plgpu.CompilerParams(approx_math=True, reduction_scratch_bytes=0),
    )


def load_parameters(sources, targets, loaded) -> None:
    """The first warpgroup asks for them; all of them wait."""

    def load():
        for source, target in zip(sources, targets, strict=True):
            plgpu.copy_gmem_to_smem(source, target, loaded)

    pl.when(lax.axis_index(WARPGROUP) == 0)(load)
    plgpu.barrier_wait(loaded)


def rows_of(tile) -> pl.Slice:
    """The rows of a tile."""
    return pl.ds(tile * ROWS, ROWS)


def own_tiles(rows: int, first, step: int):
    """How many of the tiles ``first``, ``first + step``, ... there are."""
    tiles_of_rows = -(-rows // ROWS)
    return (tiles_of_rows - first + step - 1) // step


def columns_of(width: int) -> list[slice]:
    """What lies side by side in shared memory."""
    return [slice(first, first + COLUMNS) for first in range(0, width, COLUMNS)]


def product(*pairs) -> jax.Array:
    """The sum of products of matrices in shared memory, in float32 registers."""

    def multiply(sums):
        for a, b in pairs:
            plgpu.wgmma(sums, a, b)
        return sums[...]

    shape = (pairs[0][0].shape[0], pairs[0][1].shape[1])
    return pl.run_scoped(multiply, plgpu.ACC(shape, jnp.float32))


def add_bias(z: jax.Array, bias, columns) -> jax.Array:
    """``bias`` lies in shared memory, or is None; ``z`` has these ``columns``."""
    if bias is None:
        return z
    layout = plgpu.Layout.WGMMA.reduce(0)
    row = plgpu.load(bias.at[columns], layout=layout, optimized=False).astype(jnp.float32)
    return z + lax.broadcast_in_dim(row, z.shape, (1,))


def _forward(stack: Stack, tile: DenseTile, scratch, x, kernels, biases, y) -> None:
    """A warpgroup's tiles."""
    (slots, copied), full = faces(scratch["slots"]), scratch["full"]
    in_smem = (scratch["kernels"], scratch["biases"])
    load_parameters([*kernels, *biases], [*in_smem[0], *in_smem[1]], scratch["loaded"])
    warpgroup, step = lax.axis_index(WARPGROUP), tile.blocks * tile.warpgroups
    first = lax.axis_index(BLOCK) * tile.warpgroups + warpgroup
    count = own_tiles(x.shape[0], first, step)
    columns = [columns_of(width) for width in stack.widths]

    def rows(i):
        return rows_of(first + i * step)

    def load(i):
        slot = lax.rem(i, tile.slots)
        for number, part in enumerate(columns[0]):
            target = copied.at[warpgroup, slot, number]
            plgpu.copy_gmem_to_smem(x.at[rows(i), part], target, full.at[warpgroup, slot])

    def reload(i):
        """Into the slot of the tile before, once that was written from there."""
        plgpu.wait_smem_to_gmem(0, wait_read_only=True)
        following = i - 1 + tile.slots
        pl.when((i > 0) & (following < count))(lambda: load(following))

    for i in range(tile.slots):
        pl.when(i < count)(functools.partial(load, jnp.int32(i)))

    @pl.loop(0, count)
    def _(i):
        slot = lax.rem(i, tile.slots)
        plgpu.barrier_wait(full.at[warpgroup, slot])
        held = slots.at[warpgroup, slot]
        for layer in range(stack.layers):
            kernel = in_smem[0][layer]
            pairs = [(held.at[k], kernel.at[part]) for k, part in enumerate(columns[layer])]
            z = product(*pairs)
            if layer == 0:
                reload(i)
            bias, activation = stack.bias_of(in_smem[1], layer), stack.activation(layer)
            for number, part in enumerate(columns[layer + 1]):
                made = add_bias(z[:, part], bias, part)
                made = made if activation is None else activation.value(made)
                held.at[number][...] = made.astype(stack.dtype)
            plgpu.commit_smem()
        for number, part in enumerate(columns[-1]):
            source = copied.at[warpgroup, slot, number]
            plgpu.copy_smem_to_gmem(source, y.at[rows(i), part])

    plgpu.wait_smem_to_gmem(0)
