"""How many blocks and warps a kernel of SIMT code has, and what lanes know of each other."""

from __future__ import annotations

from pallas_kernels.chip import Chip
from pallas_kernels.simt.values import Value
from pallas_kernels.simt.warp import Warp

BLOCKS_PER_MULTIPROCESSOR = 32  # that a multiprocessor has room for


def striding_blocks(tasks: int, tasks_per_block: int) -> int:
    """Blocks that keep the device busy while each strides over its share of the tasks."""
    most = BLOCKS_PER_MULTIPROCESSOR * Chip.current().multiprocessors
    return max(1, min(-(-tasks // tasks_per_block), most))


def lanes_before(warp: Warp) -> Value:
    """Bits of the lanes before each lane."""
    return (warp.constant("u32", 1) << warp.lane.bits("u32")) - 1


def warps_with_rows(chip: Chip, row_bytes: int, most: int) -> int:
    """Warps of a block that have shared memory for a row of their own each."""
    return max(1, min(chip.shared_bytes // row_bytes, most))
