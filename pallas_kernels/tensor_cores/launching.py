"""Pallas kernels of warpgroups: how one is launched, and what its axes are called."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

# Axes of the grid. An axis of a user's mesh that had one of these names would be taken for it.
BLOCK, PART, WARPGROUP = "jaxgnn.block", "jaxgnn.part", "jaxgnn.warpgroup"
RANK = "jaxgnn.rank"  # of a block in its cluster


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


def opaque_zero(loop) -> jax.Array:
    """Zero, in a loop with this variable, of at most 2^30 steps; which the compiler can not tell.

    Addresses made with it are not moved out of the loop, where they would take registers from
    those who have the fewest.
    """
    return lax.shift_right_logical(loop, jnp.int32(30))
