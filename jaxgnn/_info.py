"""``jaxgnn info``: what runs here, and why the rest does not."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import jax

from jaxgnn import _ffi
from jaxgnn._version import __version__
from jaxgnn.ops import _dispatch as dispatch


def kernels() -> list[dispatch.Kernel]:
    """Every kernel of every op."""
    import sys

    modules = (sys.modules[f"jaxgnn.ops.{name}"] for name in _OPS)
    return [
        v for module in modules for v in vars(module).values() if isinstance(v, dispatch.Kernel)
    ]


_OPS = (
    "maxk",
    "spmm",
    "maxk_spmm",
    "segment_softmax",
    "mhc_pre",
    "sinkhorn",
    "mhc_post",
    "mhc_post_pre",
    "mhc_layer",
    "mhc_head",
    "fused_linear",
    "fused_mlp",
    "edge_mlp_aggregate",
    "hypergraph_conv",
)
# Ops whose kernels are those of others.
_ELSEWHERE = {"hypergraph_conv": "that of spmm"}
_PACKAGES = ("jax", "jaxlib", "flax", "jraph", "numpy", "scipy", "optax", "orbax-checkpoint")


def report() -> str:
    """Versions, devices, and for each op which implementations are usable on each platform."""
    lines = [f"jaxgnn {__version__}, Python {platform.python_version()}"]
    lines.append(", ".join(f"{name} {_version(name)}" for name in _PACKAGES))
    for device in jax.devices():
        lines.append(f"device {device.id}: {device.platform}, {device.device_kind}")
    for name in ("cpu", "cuda"):
        path = _ffi.library_path(name)
        lines.append(f"compiled kernels for {name}: {'none' if path is None else path}")
    here = dispatch.current_platform()
    lines.append(f"implementations on {here}:")
    seen = set()
    for kernel in kernels():
        if kernel.name not in seen:
            seen.add(kernel.name)
            lines.extend(_describe(kernel, here))
    return "\n".join(lines)


def _describe(kernel: dispatch.Kernel, here: dispatch.Platform) -> list[str]:
    lines = []
    for name in ("xla", "pallas", "ffi"):
        if name not in kernel.implementations:
            reason = _ELSEWHERE.get(kernel.name, "not in this release")
        else:
            reason = kernel.unavailable(name, here)
        lines.append(f"  {kernel.name:29} {name:7} {'usable' if reason is None else reason}")
    return lines


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    print(report())
