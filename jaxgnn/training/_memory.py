"""Peak memory of a process, on the host and on its devices."""

import resource
import sys
from collections.abc import Mapping
from typing import Any

import jax

HOST, DEVICE = "peak_host_bytes", "peak_device_bytes"


def peak_memory() -> dict[str, int | None]:
    """The peak of this process so far, in bytes.

    Returns:
      ``peak_host_bytes``: the largest resident set, including everything besides training.
      ``peak_device_bytes``: the peak allocation on one device; None if the devices do not report
      it, such as CPUs.
    """
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    counted = [device.memory_stats() or {} for device in jax.local_devices()]
    peaks = [stats["peak_bytes_in_use"] for stats in counted if "peak_bytes_in_use" in stats]
    return {
        # Linux counts in KiB, macOS in bytes.
        HOST: resident if sys.platform == "darwin" else 1024 * resident,
        DEVICE: max(peaks, default=None),
    }


def largest(before: Mapping[str, Any], now: Mapping[str, int | None]) -> dict[str, int | None]:
    """The larger of each pair of peaks, of which either may be unknown."""
    pairs = {name: (before.get(name), value) for name, value in now.items()}
    return {
        name: max((value for value in pair if isinstance(value, int)), default=None)
        for name, pair in pairs.items()
    }
