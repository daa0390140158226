"""Runs the CUDA kernels of programs on a CPU: compiled as C++, a fiber for each lane.

``emulated_warp.h`` is the GPU, and ``call_many`` takes the place of the calls of ``jaxgnn_launch``.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn._ffi import _programs

HERE = Path(__file__).parent
_SHARED_MEMORY = re.compile(r"^extern __shared__.*$", re.MULTILINE)
_FIELDS = 8  # The fields of a launch behind the name of its kernel.

LAUNCHED: list[str] = []
"""Names of the kernels that were launched."""


def build(folder: Path, name: str, sources: Mapping[str, tuple[str, Iterable[str]]]) -> ctypes.CDLL:
    """Compiles sources into one library.

    Args:
      folder: folder of the library.
      name: name of its file.
      sources: text and names of kernels; kernel ``k`` of source ``s`` is the function ``s_k``.
    """
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("reason: needs a C++ compiler to emulate a GPU")
    text = ['#include "emulated_warp.h"']
    for key, (cuda, kernels) in sources.items():
        cuda = _SHARED_MEMORY.sub("", cuda).replace('extern "C"', "static")
        text.append(f"namespace {key} {{\n{cuda}\n}}")
        text += [
            f'extern "C" void {key}_{kernel}(const int64_t* words, const Launch& launch, '
            f"int64_t rows) {{ Run<{key}::{kernel}>(words, launch, rows); }}"
            for kernel in kernels
        ]
    file = folder / f"{name}.cc"
    file.write_text("\n".join(text))
    library = file.with_suffix(".so")
    command = [compiler, "-std=c++17", "-O0", "-w", "-fPIC", "-shared", f"-I{HERE}"]
    subprocess.run([*command, str(file), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


@functools.cache
def library_of(folder: Path, program: str, kernels: str) -> tuple[ctypes.CDLL, str]:
    """The library of a program, and the beginning of the names of its functions."""
    name = f"program_{hashlib.sha256(program.encode()).hexdigest()[:12]}_{len(kernels)}"
    sources = {name: (_programs.source(program), dict.fromkeys(kernels.split(",")))}
    return build(folder, name, sources), name


def call_many(find, target, results, *operands, vmap_method, **attributes):
    """Emulates a call of ``jaxgnn_launch``, also under ``vmap``.

    Args:
      find: returns the library of a program and the beginning of names in it, for the program and
        its kernels.
      target: name of the target.
      results: shape and dtype of each result.
      *operands: arrays, or None.
      vmap_method: how ``vmap`` passes operands.
      **attributes: those of the target.
    """
    assert target == "jaxgnn_launch"
    structs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in results]
    arrays = [jnp.zeros(0, jnp.float32) if a is None else a for a in operands]
    own_rank = len(structs[0].shape)

    def run(*arrays):
        arrays = [np.ascontiguousarray(a) for a in arrays]
        # Axes that vmap added.
        added = max(a.ndim - k.ndim for a, k in zip(arrays, kinds, strict=True))
        sizes = np.broadcast_shapes(*(a.shape[:added] for a in arrays))
        outputs = [_poisoned((*sizes, *s.shape), s.dtype) for s in structs]
        _launch(find, arrays, outputs, sizes, own_rank, attributes)
        return outputs

    kinds = [jax.typeof(a) for a in arrays]
    return jax.pure_callback(run, structs, *arrays, vmap_method=vmap_method)


def _poisoned(shape, dtype):
    return np.frombuffer(bytearray(b"\xff" * int(np.prod(shape)) * dtype.itemsize), dtype).reshape(
        shape
    )


def _launch(find, arrays, outputs, sizes, rank, attributes):
    """The launches for each member of the axes of ``vmap``, or by row for all at once."""
    library, prefix = find(attributes["program"], attributes["kernels"])
    names = attributes["kernels"].split(",")
    fields = np.reshape(np.array(attributes["launches"], np.int64), (len(names), _FIELDS))
    assert rank == attributes["rank"] or attributes["by_row"]
    if outputs[0].size == 0:
        return
    by_row = bool(attributes["by_row"])
    rows = outputs[0].size // outputs[0].shape[-1]
    for member in [()] if by_row else np.ndindex(sizes):
        items = [
            a if by_row else a[tuple(0 if a.shape[i] == 1 else m for i, m in enumerate(member))]
            for a in (*arrays, *outputs)
        ]
        pointers = [a.ctypes.data if a.size else 0 for a in items]
        words = np.array([*pointers, *([rows] if by_row else []), *attributes["numbers"]], np.int64)
        LAUNCHED.extend(names)
        for name, launch in zip(names, fields, strict=True):
            function = library[f"{prefix}_{name}"]
            function(
                ctypes.c_void_p(words.ctypes.data),
                ctypes.c_void_p(launch.ctypes.data),
                ctypes.c_int64(rows),
            )
