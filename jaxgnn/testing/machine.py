"""Detects other processes that use the machine during a measurement."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

# Clock ticks of a processor are 10 ms, so shorter readings are not reliable.
_LEAST_SECONDS = 0.1
# Limit as a part of the cores; the error from ticks in the shortest reading is smaller.
_BUSY = 0.2
_GPU_QUERY = ("--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader")


@dataclass(frozen=True)
class CpuReading:
    """Processor times up to a moment, in seconds."""

    wall_s: float
    """Wall-clock time."""
    own_s: float
    """CPU time of this process."""
    all_s: float | None
    """CPU time of all processes on the cores of this one; None if it can not be read."""
    cores: int
    """Number of cores that this process may use."""


def read_cpu() -> CpuReading:
    """Reads the processors now; other processes are counted on Linux only."""
    if hasattr(os, "sched_getaffinity"):
        cores: Collection[int] = os.sched_getaffinity(0)
    else:
        cores = range(os.cpu_count() or 1)
    try:
        stat = Path("/proc/stat").read_text(encoding="utf-8")
        all_s = busy_ticks(stat, cores) / os.sysconf("SC_CLK_TCK")
    except OSError:
        all_s = None
    return CpuReading(time.perf_counter(), time.process_time(), all_s, len(cores))


def busy_ticks(stat: str, cores: Collection[int]) -> int:
    """Clock ticks in which ``cores`` were not idle, from the text of Linux's ``/proc/stat``."""
    lines = (line.split() for line in stat.splitlines())
    of_cores = {f"cpu{core}" for core in cores}
    # user, nice, system, idle, waiting for a disk, two kinds of interrupts, taken by other guests;
    # what follows is part of user.
    ticks = [[int(text) for text in words[1:9]] for words in lines if words[:1][0] in of_cores]
    return sum(sum(one) - one[3] - one[4] for one in ticks)


def share_of_others(before: CpuReading, after: CpuReading) -> float | None:
    """The part of this process's cores, from 0 to 1, that others used between two readings.

    It is None where it is not known, or the time between is too short.
    """
    wall = after.wall_s - before.wall_s
    if before.all_s is None or after.all_s is None or wall < _LEAST_SECONDS:
        return None
    others = after.all_s - before.all_s - (after.own_s - before.own_s)
    return min(1.0, max(0.0, others / (wall * after.cores)))


def busy_warning(shares: Iterable[float | None]) -> str | None:
    """Returns one line for the reader of a table if others used the machine while it was measured.

    It is None if they used at most a fifth of the cores in all measurements, whose
    ``share_of_others`` are given.
    """
    measured = [share for share in shares if share is not None]
    busy = [share for share in measured if share > _BUSY]
    if not busy:
        return None
    return (
        f"warning: the machine was busy: in {len(busy)} of {len(measured)} measurements other "
        f"processes used more than {_BUSY:.0%} of the cores, {max(busy):.0%} at most; times are "
        f"too long and ratios uncertain"
    )


def gpu_warning() -> str | None:
    """One line if other processes compute on the GPU of this one, as ``nvidia-smi`` lists them.

    It is None if there are none, or if it is unknown: without ``nvidia-smi``, or in a container
    that does not show it this process.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    listed = subprocess.run([program, *_GPU_QUERY], capture_output=True, text=True, timeout=60)
    others = other_gpu_processes(listed.stdout, os.getpid()) if listed.returncode == 0 else 0
    if not others:
        return None
    return f"warning: {others} other processes compute on this GPU; times are too long"


def other_gpu_processes(listed: str, process_id: int) -> int:
    """Counts other processes on the GPUs of process ``process_id``; 0 if it has none.

    The lines of ``listed`` are a GPU's name, a comma, and the number of a process on it.
    """
    pairs = {tuple(line.split(", ")) for line in listed.splitlines() if ", " in line}
    gpus = {gpu for gpu, process in pairs if process.strip() == str(process_id)}
    return len({process for gpu, process in pairs if gpu in gpus} - {str(process_id)})
