"""Rows at random places of a mapped file, read by threads that wait for the disk together."""

from __future__ import annotations

import functools
import itertools
import mmap
import os
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np

# A disk serves that many requests in little more time than one. Threads that wait use no core.
_THREADS = 32
# Fewer rows than that are read by the caller.
_LEAST_ROWS = 64


def take_at_once(array: np.ndarray, ids: np.ndarray, out: np.ndarray) -> None:
    """Copies rows of a mapped array to ``out``, by threads; ids out of range are clipped."""
    parts = min(_THREADS, len(ids) // _LEAST_ROWS)
    if parts < 2:
        np.take(array, ids, axis=0, out=out, mode="clip")
        return
    cuts = np.linspace(0, len(ids), parts + 1).astype(int).tolist()

    def take(begin: int, end: int) -> None:
        np.take(array, ids[begin:end], axis=0, out=out[begin:end], mode="clip")

    readers = _readers(os.getpid())
    reads = [readers.submit(take, *cut) for cut in itertools.pairwise(cuts)]
    try:
        for read in reads:
            read.result()  # raises what the thread raised
    finally:
        for read in reads:
            read.cancel()
        wait(reads)  # after an interrupt too, nothing may write to a buffer of the caller


def advise_random(array: np.ndarray) -> None:
    """Has the system read the pages of a mapped array that are asked for, and none around them."""
    mapping = array
    while isinstance(mapping, np.ndarray):
        mapping = mapping.base
    if isinstance(mapping, mmap.mmap) and hasattr(mmap, "MADV_RANDOM"):
        mapping.madvise(mmap.MADV_RANDOM)


@functools.cache
def _readers(process: int) -> ThreadPoolExecutor:
    """Threads of a process, which all stores share; those of one batch suffice for the disk.

    A fork of the process has none of its threads, and needs others.
    """
    del process
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="jaxgnn-reads")
