"""Programs of GPU kernels: written once by Python, compiled in the background, kept on disk.

JAX writes the text of a Mosaic GPU kernel in Python, which takes up to two seconds a kernel, and
again for each layer of a network. XLA compiles the kernels of a program one after the other, and
begins when Python has written the last one. Here the lowered program of a kernel is exported once:

- Calls of equal kernels share it.
- A thread compiles it while Python writes the next one. Mosaic GPU keeps compiled kernels for the
  whole process, so the program around them finds them.
- Where JAX has a folder for its persistent cache, it is also kept there. Another process then reads
  it, and Python writes no kernel.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import re
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
from jax.extend.core import jaxpr_as_fun

import pallas_kernels
from jaxgnn import _ffi
from pallas_kernels.chip import Chip

_FOLDER = "jaxgnn-kernels"
_MOST_KEPT = 512
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

_kept: dict[str, jax.export.Exported] = {}
_lock = threading.Lock()


def are_used(jaxpr: Any) -> bool:
    """Whether a program of kernels is exported: on a GPU, without constants, on no mesh.

    ``JAXGNN_KERNEL_PROGRAMS=0`` in the environment turns it off.
    """
    if os.environ.get("JAXGNN_KERNEL_PROGRAMS") == "0" or jax.default_backend() != "gpu":
        return False
    if jaxpr.consts:
        return False
    return not any(aval.mat.varying or not aval.sharding.mesh.empty for aval in jaxpr.in_avals)


def program_of(jaxpr: Any, identity: str | None) -> jax.export.Exported:
    """The lowered program, from this process, the disk, or written now, and then compiled.

    Args:
      jaxpr: a closed jaxpr without constants, whose kernels are for a GPU.
      identity: the function and the static arguments that it was traced from; None if they have no
        name. A program without identity is kept nowhere.
    """
    if identity is None:
        program = _export(jaxpr)
        _compile_in_background(program)
        return program
    key = _key(jaxpr, identity)
    with _lock:
        program = _kept.get(key)
    if program is None:
        program = _read(key, jaxpr)
        if program is None:
            program = _export(jaxpr)
            _write(key, program)
        with _lock:
            while len(_kept) >= _MOST_KEPT:
                _kept.pop(next(iter(_kept)))
            _kept[key] = program
        _compile_in_background(program)
    return program


def identity_of(function: Callable[..., Any], *static: Any) -> str | None:
    """A text that is equal for equal functions and static values, or None.

    None for a function that is made for a call, such as a closure, and for values whose text is the
    address of an object.
    """
    parts = [repr(static)]
    while isinstance(function, functools.partial):
        parts.append(repr((function.args, sorted(function.keywords.items()))))
        function = function.func
    function = getattr(function, "__wrapped__", function)
    name = getattr(function, "__qualname__", "<")
    if "<" in name or getattr(function, "__closure__", None):
        return None
    text = "\n".join((function.__module__, name, *parts))
    return None if _ADDRESS.search(text) else text


def _key(jaxpr: Any, identity: str) -> str:
    """The hash of all that a lowered program depends on."""
    # Functions that write instructions are in a jaxpr by their addresses; ``identity`` names them.
    program = _ADDRESS.sub("", str(jaxpr))
    return hashlib.sha256("\n".join((_versions(), identity, program)).encode()).hexdigest()


@functools.cache
def _versions() -> str:
    """The versions of JAX, the sources of the kernels, and the GPU that tiles are chosen for."""
    digest = hashlib.sha256()
    ours = Path(__file__).parents[2]
    for folder in (ours, *map(Path, pallas_kernels.__path__)):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    dumps = sorted(item for item in os.environ.items() if item[0].startswith("MOSAIC_GPU"))
    versions = jax.__version__, jaxlib.__version__, Chip.current(), dumps
    return f"{versions!r} {digest.hexdigest()}"


def _export(jaxpr: Any) -> jax.export.Exported:
    # The same versions call the program, which JAX does not promise of others.
    targets = "mosaic_gpu_v2", "mosaic_gpu", *_ffi.targets()
    checks = [jax.export.DisabledSafetyCheck.custom_call(name) for name in targets]

    def kernels(*arrays):
        return jaxpr_as_fun(jaxpr)(*arrays)

    return _export_named(kernels, jaxpr, checks)


def _export_named(kernels: Callable[..., Any], jaxpr: Any, checks: Any = ()) -> jax.export.Exported:
    """Exports a function of the arrays of ``jaxpr``; its name becomes part of programs."""
    function = jax.jit(kernels, keep_unused=True)
    specs = _specs(jaxpr.in_avals)
    return jax.export.export(function, platforms=["cuda"], disabled_checks=checks)(*specs)


def _specs(avals: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]


# -- compilation -----------------------------------------------------------------------------------


@functools.cache
def _threads() -> concurrent.futures.Executor:
    # Threads wait for the compiler, which needs no Python.
    return concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1, "jaxgnn-compile")


def _compile_in_background(program: jax.export.Exported) -> None:
    _threads().submit(_compile, program)


def _compile(program: jax.export.Exported) -> None:
    """Compiles the kernels for the process. The program around them raises the same errors."""
    lowered = jax.jit(program.call).lower(*_specs(program.in_avals))
    # The products of matrices around kernels are tuned by the program that runs them.
    lowered.compile({"xla_gpu_autotune_level": 0})


# -- the disk --------------------------------------------------------------------------------------


def _path(key: str) -> Path | None:
    folder = jax.config.jax_compilation_cache_dir
    is_local = folder and "://" not in folder and jax.config.jax_enable_compilation_cache
    return Path(folder) / _FOLDER / key if is_local else None


def _write(key: str, program: jax.export.Exported) -> None:
    """Writes a program to the disk, whole or not at all; a disk that refuses it is no error."""
    path = _path(key)
    if path is None or program.ordered_effects or program.uses_global_constants:
        return
    head = json.dumps({"convention": program.calling_convention_version}).encode()
    body = head + b"\n" + bytes(program.mlir_module_serialized)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            file = Path(folder, key)
            file.write_bytes(hashlib.sha256(body).digest() + body)
            file.replace(path)


def _read(key: str, jaxpr: Any) -> jax.export.Exported | None:
    """The program of this key from the disk; None if there is none, or it is damaged."""
    path = _path(key)
    try:
        data = b"" if path is None else path.read_bytes()
    except OSError:
        return None
    digest, body = data[:32], data[32:]
    if not body or hashlib.sha256(body).digest() != digest:
        return None
    head, _, module = body.partition(b"\n")
    convention = json.loads(head)["convention"]

    def kernels(*_):
        return [jnp.zeros(aval.shape, aval.dtype) for aval in jaxpr.out_avals]

    # JAX fills in the other fields for a program that takes and returns arrays of the same shapes.
    fields = {"mlir_module_serialized": module, "calling_convention_version": convention}
    return dataclasses.replace(_export_named(kernels, jaxpr), **fields)
