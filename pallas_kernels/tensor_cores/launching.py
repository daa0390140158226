"""Launches Pallas kernels of warpgroups, and names the axes of their grids."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.simt.module_names import name_module_of_body

# Axes of the grid. The prefix keeps them apart from the axes of a user's mesh.
BLOCK, PART, WARPGROUP = "jaxgnn.block", "jaxgnn.part", "jaxgnn.warpgroup"
RANK = "jaxgnn.rank"  # number of a block in its cluster


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
    """Returns a Pallas kernel of ``body``, with the axes ``BLOCK``, ``PART`` and ``WARPGROUP``.

    Without ``barriers``, Pallas adds no barriers of its own, and the warps of a warpgroup
    synchronise only where ``body`` asks for it. With a ``cluster`` of several blocks there is the
    axis ``RANK`` as well, and the grid counts clusters.
    """

    def kernel(*references, **scratch_references):
        name_module_of_body(name)
        # Indices have 32 bits, even if the program enables 64 bits.
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
        # The hardware's exponential, whose error is a few units in the last place of float32.
        compiler_params=plgpu.CompilerParams(
            approx_math=True, reduction_scratch_bytes=0, unsafe_no_auto_barriers=not barriers
        ),
    )


def opaque_zero(loop) -> jax.Array:
    """Returns a zero that the compiler does not recognise, from the counter of a loop.

    The loop may have at most 2^30 steps. The compiler does not move addresses that are computed
    with this zero out of the loop, where each would occupy a register.
    """
    return lax.shift_right_logical(loop, jnp.int32(30))
