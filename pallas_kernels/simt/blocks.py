"""How many blocks and warps a kernel of SIMT code has, and what lanes know of each other."""

from __future__ import annotations

from pallas_kernels import simt
from pallas_kernels.simt.values import Value
from pallas_kernels.simt.warp import Warp

# The grid does not depend on the device at hand, so that lowering needs none: enough blocks for the
# multiprocessors of an H200, each of which has room for up to 32.
MOST_BLOCKS = 132 * 32


def striding_blocks(tasks: int, tasks_per_block: int) -> int:
    """Blocks that keep the device busy while each strides over its share of the tasks."""
    return max(1, min(-(-tasks // tasks_per_block), MOST_BLOCKS))


def lanes_before(warp: Warp) -> Value:
    """Bits of the lanes before each lane."""
    return (warp.constant("u32", 1) << warp.lane.bits("u32")) - 1


def warps_with_rows(row_bytes: int, most: int) -> int:
    """Warps of a block that have shared memory for a row of their own each."""
    return max(1, min(simt.most_shared_bytes() // row_bytes, most))
