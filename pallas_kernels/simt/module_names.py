"""Names of the modules of Mosaic GPU, which are part of the keys of compilation caches.

Mosaic GPU names the files to which a kernel can be dumped by the name of the kernel and by the
number of kernels that the process has lowered before. This name is stored in the module, and so it
enters the hash that identifies a compiled kernel. Without a name of our own, two programs of one
process would not share a kernel. JAX's persistent compilation cache would only find a program in a
process that has lowered the same number of kernels before it.
"""

from __future__ import annotations

import os

from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir

_ATTRIBUTE = "mosaic_gpu.dump_basename"


def name_module(name: str) -> None:
    """Sets the name of the module in which instructions are recorded to ``name`` alone.

    Kernels of one name would overwrite each other's dumps, so the name is not set while the
    environment requests dumps of kernels.
    """
    if any(variable.startswith("MOSAIC_GPU_DUMP") for variable in os.environ):
        return
    operation = ir.InsertionPoint.current.block.owner.operation
    while (parent := operation.parent) is not None:
        operation = parent.operation
    _rename(operation, name)


def _rename(module: ir.Operation, name: str) -> None:
    module.attributes[_ATTRIBUTE] = ir.StringAttr.get(name)


def name_module_of_body(name: str) -> None:
    """Names the module in the body of a Pallas kernel, before anything is recorded."""
    plgpu.inline_mgpu(arg_types=())(lambda _: name_module(name))()
