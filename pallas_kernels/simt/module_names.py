"""Names of the modules of Mosaic GPU, which are part of what caches of compiled kernels compare.

Mosaic GPU names the files to which a kernel can be dumped after the kernel and after the number of
kernels that the process has lowered before. The name stands in the module, and so in the hash by
which compiled kernels are found again: without a name of our own, two programs of one process would
not share a kernel, and JAX's persistent compilation cache would find a program only in a process
that has lowered as many kernels before it.
"""

from __future__ import annotations

import os

from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir

_ATTRIBUTE = "mosaic_gpu.dump_basename"


def name_module(name: str) -> None:
    """Names the module that instructions are being recorded in by ``name`` alone.

    Kernels of one name would overwrite each other's dumps, so nothing is named while the
    environment asks for dumps of kernels.
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
    """Names the module in the body of a Pallas kernel, where nothing is recorded yet."""
    plgpu.inline_mgpu(arg_types=())(lambda _: name_module(name))()
