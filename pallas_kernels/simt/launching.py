"""Launches kernels that are written with ``simt.warp``, through Mosaic GPU.

A whole kernel is one ``inline_mgpu`` body: Pallas provides its buffers, its shared memory and its
position in the grid, and ``simt.mosaic_warp`` records the instructions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.in_place import call_in_place
from pallas_kernels.simt.module_names import name_module
from pallas_kernels.simt.mosaic_warp import (
    WARPS_PER_WARPGROUP,
    MosaicWarp,
    WarpgroupWarp,
    pointer_of,
    strides_of,
    word_pairs,
)
from pallas_kernels.simt.values import Array, Shared, Value

# Axes of the grid. The prefix keeps them apart from the axes of a user's mesh.
_SLICE, _CLUSTER, _RANK, _WARPGROUP = (f"jaxgnn.{n}" for n in ("slice", "cluster", "rank", "group"))


@dataclass(frozen=True)
class Grid:
    """Numbers of warps, blocks and slices that run a kernel.

    Attributes:
      blocks: how many blocks a slice has.
      warps: how many warps a block has.
      slices: how many times the blocks are run, one slice after another.
      cluster: how many neighbouring blocks form a cluster and run at the same time; it divides
        ``blocks``.
    """

    blocks: int
    warps: int
    slices: int = 1
    cluster: int = 1


def launch(
    kernel: Callable[..., None],
    inputs: Any,
    outputs: Sequence[jax.ShapeDtypeStruct],
    *,
    name: str,
    grid: Grid,
    shared: Mapping[str, tuple[str, int]] | None = None,
    block_shared: Mapping[str, jax.ShapeDtypeStruct] | None = None,
    updated: Sequence[jax.Array] = (),
) -> tuple[jax.Array, ...]:
    """Launches ``kernel(warp, inputs, *updated, *outputs, **shared, **block_shared)`` in all warps.

    Under ``vmap``, all slices run for each member of the batch; arrays without a batch axis are not
    copied.

    Args:
      kernel: a function of a ``Warp``.
      inputs: a pytree of arrays, None allowed; the kernel gets it with an ``Array`` at each leaf.
      outputs: shapes and dtypes of the results. The kernel has to write all entries: they are not
        initialised.
      name: name of the kernel in profiles.
      grid: how many warps run it.
      shared: shared memory of each warp: names, each with the kind (f32 or i32) and the number of
        words.
      block_shared: names and shapes of arrays in shared memory that all warps of a block share.
      updated: arrays that the kernel changes in place; they are returned after the outputs.
    """
    leaves, tree = jax.tree.flatten(inputs)
    changing = [*updated, *outputs]
    specs = [(a.shape, a.dtype, True) for a in leaves] + [
        (a.shape, a.dtype, False) for a in changing
    ]
    scratch = _Scratch(grid, dict(shared or {}), dict(block_shared or {}))

    def record(_, cluster, rank, slice_number, memory, *buffers):
        name_module(name)
        warp = MosaicWarp(grid, cluster, rank, slice_number)
        arrays = [
            Array(warp, pointer_of(buffer), *spec)
            for buffer, spec in zip(buffers, specs, strict=True)
        ]
        given, rest = tree.unflatten(arrays[: len(leaves)]), arrays[len(leaves) :]
        run = functools.partial(kernel, warp, given, *rest, **scratch.divide(warp, memory))
        if grid.warps % WARPS_PER_WARPGROUP == 0:
            run()
        else:
            warp.when(warp.warp_in_block < grid.warps, run)

    # Pallas drops a kernel without outputs: such a kernel gets one output that is not passed to it.
    results = [*outputs] or [jax.ShapeDtypeStruct((1,), jnp.int32)]
    call = _pallas_kernel(record, results, len(specs), scratch.words, name, grid)
    if not updated:
        return tuple(call(*leaves)[: len(outputs)])
    made, changed = call_in_place(lambda *given: call(*given[:-1], *given[-1]), leaves, updated)
    return (*made[: len(outputs)], *changed)


def _pallas_kernel(record, results, count, words, name, grid):
    """Builds a Pallas kernel whose body ``record`` records from the first ``count`` buffers."""
    splat, reference = plgpu.Layout.WG_SPLAT, plgpu.RefType()
    inline = plgpu.inline_mgpu(arg_types=(*[splat] * 3, *[reference] * (count + 1)))

    def body(*buffers, memory):
        place = (lax.axis_index(axis) for axis in (_CLUSTER, _RANK, _SLICE))
        inline(record)(*place, memory, *buffers[:count])

    body.__name__ = name
    return plgpu.kernel(
        body,
        out_type=results,
        grid=(grid.slices, grid.blocks // grid.cluster),
        grid_names=(_SLICE, _CLUSTER),
        cluster=(grid.cluster,),
        cluster_names=(_RANK,),
        num_threads=-(-grid.warps // WARPS_PER_WARPGROUP),
        thread_name=_WARPGROUP,
        scratch_types={"memory": plgpu.SMEM((words,), jnp.float32)},
        compiler_params=plgpu.CompilerParams(
            lowering_semantics=plgpu.LoweringSemantics.Lane, reduction_scratch_bytes=0
        ),
    )


def inline(
    kernel: Callable[..., None],
    numbers: Sequence[Any],
    references: Sequence[tuple[Any, Any]],
    products: Sequence[jax.Array] = (),
    *,
    cluster: int = 1,
) -> None:
    """Runs ``kernel(warp, *numbers, *arrays, *words)`` in a warpgroup, within a Pallas kernel.

    Args:
      kernel: a function of a ``Warp``, for the four warps of a warpgroup, which
        act as a block; it must not call ``Warp.barrier``.
      numbers: i32 arguments, the same in all lanes.
      references: Pallas references to global or shared memory, each with the transforms that it was
        allocated with. The kernel gets the bytes in their order in memory, swizzled if the
        transforms say so. References to global memory may be slices of columns.
      products: arrays of 64 rows of 16-bit numbers in the register layout of tensor cores'
        products. For each, the kernel gets a list of pairs of words: in lane ``4 g + q``, pair j
        has the columns ``8 j + 2 q`` and the next one, of row ``16 warp + g`` and of the row eight
        below.
      cluster: blocks in the cluster that the kernel runs in.
    """
    specs = [(reference.shape, reference.dtype, False) for reference, _ in references]
    splat, product = plgpu.Layout.WG_SPLAT, plgpu.Layout.WGMMA
    memory = [plgpu.RefType(transforms) for _, transforms in references]
    types = (*[splat] * len(numbers), *memory, *[product] * len(products))

    @plgpu.inline_mgpu(arg_types=types)
    def record(_, *arguments):
        warp = WarpgroupWarp(cluster)
        first, last = len(numbers), len(numbers) + len(references)
        scalars, buffers, registers = arguments[:first], arguments[first:last], arguments[last:]
        arrays = [
            Array(warp, pointer_of(buffer), *spec, strides=strides_of(buffer))
            for buffer, spec in zip(buffers, specs, strict=True)
        ]
        words = [word_pairs(warp, fragments.registers) for fragments in registers]
        kernel(warp, *(Value(warp, "i32", n.registers.item()) for n in scalars), *arrays, *words)

    record(*(jnp.int32(n) for n in numbers), *(reference for reference, _ in references), *products)


@dataclass(frozen=True)
class _Scratch:
    """Shared memory of a block: the arrays that its warps share, then each warp's own words.

    Attributes:
      grid: how many warps the kernel has.
      per_warp: names, each with the kind and the number of words of each warp.
      per_block: names, each with shape and dtype; their first entries are aligned to 16 bytes.
    """

    grid: Grid
    per_warp: dict[str, tuple[str, int]]
    per_block: dict[str, jax.ShapeDtypeStruct]

    @property
    def words(self) -> int:
        """Words of shared memory per block, at least one, since an empty buffer is not allowed."""
        own = sum(count for _, count in self.per_warp.values())
        together = sum(map(_words_of, self.per_block.values()))
        return max(1, together + own * self.grid.warps)

    def divide(self, warp: MosaicWarp, memory: Any) -> dict[str, Array | Shared]:
        """Returns the arrays of the block and the words of this warp, by name."""
        if not self.per_warp and not self.per_block:
            return {}
        parts: dict[str, Array | Shared] = {}
        base, first = pointer_of(memory), 0
        for name, spec in self.per_block.items():
            pointer = warp.offset(base, warp.i32(first), 4)
            parts[name] = Array(warp, pointer, spec.shape, spec.dtype, False)
            first += _words_of(spec)
        at = warp.warp_in_block * sum(count for _, count in self.per_warp.values()) + first
        for name, (kind, count) in self.per_warp.items():
            parts[name] = Shared(warp, warp.offset(base, at, 4), kind)
            at = at + count
        return parts


def _words_of(spec: jax.ShapeDtypeStruct) -> int:
    """Returns the words that an array shared by a block takes, rounded up to 16 bytes."""
    return -(-math.prod(spec.shape) * spec.dtype.itemsize // 16) * 4
