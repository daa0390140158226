"""``jaxgnn info``: five lines on this machine, or all implementations and why some are unusable."""

from __future__ import annotations

import importlib
import platform
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import get_args

import jax

from jaxgnn import _ffi
from jaxgnn._version import __version__
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.registry import BY_NAME, OPS, Op
from pallas_kernels.chip import Chip

_PACKAGES = ("jax", "jaxlib", "flax", "jraph", "numpy", "scipy", "optax", "orbax-checkpoint")
_KERNELS: tuple[dispatch.Name, ...] = ("ffi", "pallas")
_ELSEWHERE = {"cuda": "kernels for NVIDIA GPUs", "cpu": "kernels for CPUs"}
# Where the driver lists the GPUs of this machine, whether or not JAX can use them.
_DRIVER = Path("/proc/driver/nvidia/gpus")


def kernels() -> list[dispatch.Kernel]:
    """Lists all tables of kernels, from the modules of the ops; some ops have several."""
    all_tables = [
        table
        for op in OPS
        for table in vars(importlib.import_module(op.module)).values()
        if isinstance(table, dispatch.Kernel)
    ]
    return list({id(table): table for table in all_tables}.values())


def tables() -> dict[str, dispatch.Kernel]:
    """Tables by name, with the implementations of all kernels of that name.

    An op that runs its plain formula for ``"xla"``, and is split into other parts for the other
    implementations, has a table for each.
    """
    merged: dict[str, dict[dispatch.Name, dispatch.Implementation]] = {}
    for kernel in kernels():
        merged.setdefault(kernel.name, {}).update(kernel.implementations)
    return {name: dispatch.Kernel(name, entries) for name, entries in merged.items()}


def summary() -> str:
    """Five lines: versions, device, ops with kernels, other ops and why, packages to install."""
    here = dispatch.current_platform()
    kernel_tables = tables()
    slow: dict[str | None, list[str]] = {}
    for op in OPS:
        slow.setdefault(_why_slow(op, kernel_tables, here), []).append(op.name)
    fast = slow.pop(None, [])
    packages = ", ".join(f"{name} {_version(name)}" for name in ("jax", "jaxlib", "flax"))
    devices = Counter((device.platform, device.device_kind) for device in jax.devices())
    kinds = ", ".join(f"{number} x {kind} ({name})" for (name, kind), number in devices.items())
    reasons = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in slow.items())
    return "\n".join(
        (
            f"jaxgnn {__version__}, Python {platform.python_version()}, {packages}",
            f"devices: {kinds}",
            f"kernels of jaxgnn run here: {', '.join(fast) or 'none'}",
            f"plain JAX runs here: {reasons or 'nothing'}",
            f"to install: {_to_install(here)}",
        )
    )


def _why_slow(
    op: Op, kernel_tables: dict[str, dispatch.Kernel], here: dispatch.Platform
) -> str | None:
    """Returns the reason why no kernel of an op runs on this platform; None if one does."""
    reasons, elsewhere = [], set()
    for table in kernel_tables.values():
        if table.name.partition(".")[0] not in (op.name, op.native_of):
            continue
        for name in _KERNELS:
            entry = table.implementations.get(name)
            if entry is None:
                continue
            if here not in entry.platforms:
                elsewhere |= set(entry.platforms)
                continue
            reason = table.unavailable(name, here)
            if reason is None:
                return None
            reasons.append(reason)
    if reasons:
        return " and ".join(dict.fromkeys(reasons))
    return ", ".join(_ELSEWHERE[platform] for platform in sorted(elsewhere)) or "no kernels"


def _to_install(here: dispatch.Platform) -> str:
    """The installation that would run kernels for more ops on this machine."""
    wanted = []
    if _ffi.library_path("cpu") is None:
        wanted.append("a C++ compiler, then jaxgnn again without JAXGNN_PURE_PYTHON")
    if here == "cpu" and _DRIVER.is_dir() and any(_DRIVER.iterdir()):
        wanted.append("'jaxgnn[cuda13]', because JAX does not use the GPU of this machine")
    if here == "cuda" and _ffi.library_path("cuda") and _ffi.nvrtc_path() is None:
        wanted.append("nvidia-cuda-nvrtc, which compiles CUDA kernels when they are first used")
    return "; ".join(wanted) or "nothing"


def report() -> str:
    """The summary, then devices, and for each op the usable implementations on each platform."""
    lines = [summary(), "", ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)]
    for device in jax.devices():
        lines.append(f"device {device.id}: {device.platform}, {device.device_kind}")
    chip = Chip.current()
    lines.append(
        f"GPU kernels are made for: {chip.name}, compute capability {chip.capability}, "
        f"{chip.multiprocessors} multiprocessors, "
        f"{chip.block_bytes >> 10} KiB of shared memory a block, "
        f"{chip.cache_bytes >> 20} MiB of second-level cache"
    )
    for name in ("cpu", "cuda"):
        path = _ffi.library_path(name)
        lines.append(f"compiled kernels for {name}: {'none' if path is None else path}")
    lines.append(f"compiler of CUDA kernels: {_ffi.nvrtc_path() or 'none'}")
    lines.append(f"compiled CUDA kernels on disk: {_ffi.cache_summary()}")
    here = dispatch.current_platform()
    lines.append(f"implementations on {here}:")
    for _, kernel in sorted(tables().items()):
        lines.extend(_describe(kernel, here))
    return "\n".join(lines)


def _describe(kernel: dispatch.Kernel, here: dispatch.Platform) -> list[str]:
    lines, op = [], BY_NAME.get(kernel.name)
    for name in get_args(dispatch.Name):
        if name in kernel.implementations:
            reason = kernel.unavailable(name, here)
        elif name == "ffi" and op is not None and op.native_of is not None:
            reason = f"that of {op.native_of}"
        else:
            reason = "not in this release"
        lines.append(f"  {kernel.name:29} {name:7} {'usable' if reason is None else reason}")
    return lines


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    print(summary())
