"""Numbers of blocks and warps of a SIMT kernel, and the mask of preceding lanes."""

from __future__ import annotations

from pallas_kernels.chip import Chip
from pallas_kernels.simt.values import Value
from pallas_kernels.simt.warp import Warp

BLOCKS_PER_MULTIPROCESSOR = 32  # as many as can be resident at once


def striding_blocks(tasks: int, tasks_per_block: int) -> int:
    """Returns how many blocks fill the device when each strides over its share of the tasks."""
    most = BLOCKS_PER_MULTIPROCESSOR * Chip.current().multiprocessors
    return max(1, min(-(-tasks // tasks_per_block), most))


def lanes_before(warp: Warp) -> Value:
    """Returns a u32 with the bits of all lanes of a lower number than each lane's."""
    return (warp.constant("u32", 1) << warp.lane.bits("u32")) - 1


def warps_with_rows(chip: Chip, row_bytes: int, most: int) -> int:
    """Returns how many warps of a block can each have a row of their own in shared memory."""
    return max(1, min(chip.shared_bytes // row_bytes, most))
