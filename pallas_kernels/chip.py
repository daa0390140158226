"""The GPU that kernels are tuned for."""

from __future__ import annotations

# Of an H100 or H200; lowering needs no device. Some of the memory is left for barriers.
MULTIPROCESSORS = 132
SHARED_BYTES = 227 * 1024 - 1024
