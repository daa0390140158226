"""``jaxgnn info``: lists usable implementations, and reasons why others are not."""

from __future__ import annotations

import importlib
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import get_args

import jax

from jaxgnn import _ffi
from jaxgnn._version import __version__
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.registry import BY_NAME, OPS
from pallas_kernels.chip import Chip

_PACKAGES = ("jax", "jaxlib", "flax", "jraph", "numpy", "scipy", "optax", "orbax-checkpoint")


def kernels() -> list[dispatch.Kernel]:
    """Every kernel of every op, from the op's own module; some have more than one table."""
    found = [
        table
        for op in OPS
        for table in vars(importlib.import_module(op.module)).values()
        if isinstance(table, dispatch.Kernel)
    ]
    return list({id(table): table for table in found}.values())


def tables() -> dict[str, dispatch.Kernel]:
    """Tables by name, with the implementations of all kernels of that name.

    An op that runs its plain formula for ``"xla"``, and is split into other parts for the other
    implementations, has a table for each.
    """
    merged: dict[str, dict[dispatch.Name, dispatch.Implementation]] = {}
    for kernel in kernels():
        merged.setdefault(kernel.name, {}).update(kernel.implementations)
    return {name: dispatch.Kernel(name, entries) for name, entries in merged.items()}


def report() -> str:
    """Versions, devices, and for each op the usable implementations on each platform."""
    lines = [f"jaxgnn {__version__}, Python {platform.python_version()}"]
    lines.append(", ".join(f"{name} {_version(name)}" for name in _PACKAGES))
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
    print(report())
