"""NVRTC, NVIDIA's compiler of CUDA sources at run time.

It comes with a GPU install of JAX, as the package ``nvidia-cuda-nvrtc``, so users need no nvcc. A
compilation needs no GPU.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
from pathlib import Path

from jaxgnn._ffi import _kernel_cache

# Newest first; the packages for CUDA 13 share a folder.
_FILES = (
    "cu13/lib/libnvrtc.so.13",
    "cuda_nvrtc/lib/libnvrtc.so.13",
    "cuda_nvrtc/lib/libnvrtc.so.12",
)
_TO_INSTALL = "pip install nvidia-cuda-nvrtc, which jax[cuda13] has too"
_OPTIONS = ("--std=c++17",)
_LONGEST_LOG = 2000


class CompilationError(Exception):
    """NVRTC refuses a source; the message has the first lines of its log."""


def nvrtc_path() -> str | None:
    """The path of NVRTC's library, or its name where the system's loader knows it; None if none."""
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    for file in _FILES:
        for folder in folders:
            if (Path(folder) / file).exists():
                return os.fspath(Path(folder) / file)
    for file in _FILES:
        name = Path(file).name
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name
    return None


def problem() -> str | None:
    """The reason why nothing can be compiled here; None if NVRTC can be used."""
    path = nvrtc_path()
    if path is None:
        return f"needs NVIDIA's runtime compiler libnvrtc, which was not found; {_TO_INSTALL}"
    try:
        _library(path)
    except (OSError, AttributeError) as error:  # It does not load, or has not all functions.
        return f"needs {path}, but: {error}; {_TO_INSTALL}"
    return None


def compiled(text: str, capability: int) -> bytes:
    """A CUDA source compiled for a compute capability, from the cache on disk if it is there.

    Args:
      text: the source.
      capability: ten times the compute capability, such as 90.

    Returns:
      A cubin; for a GPU that is newer than NVRTC, PTX of the newest GPU that it knows, which the
      driver compiles.

    Raises:
      CompilationError: if NVRTC is missing or refuses the source.
    """
    reason, path = problem(), nvrtc_path()
    if reason is not None or path is None:
        raise CompilationError(reason)
    library = _library(path)
    newest = max(_architectures(library))
    is_known = capability <= newest
    architecture = f"sm_{capability}" if is_known else f"compute_{newest}"
    name = _kernel_cache.key(_version(path), architecture, *_OPTIONS, text)
    binary = _kernel_cache.read(name)
    if binary is None:
        binary = _compile(library, text, architecture, "CUBIN" if is_known else "PTX")
        _kernel_cache.write(name, binary)
    return binary


@functools.cache
def _library(path: str) -> ctypes.CDLL:
    # NVRTC opens a second library by its name alone, which the loader knows after this.
    version = Path(path).name.rpartition(".")[2]
    for builtins in Path(path).parent.glob(f"libnvrtc-builtins.so.{version}*"):
        ctypes.CDLL(os.fspath(builtins))
    library = ctypes.CDLL(path)
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    library.nvrtcGetCUBIN, library.nvrtcGetSupportedArchs  # noqa: B018  # Older ones lack them.
    return library


@functools.cache
def _version(path: str) -> str:
    """NVRTC's version, and the size of its file, which tells releases of a version apart."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _library(path).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    size = Path(path).stat().st_size if Path(path).exists() else 0
    return f"nvrtc {major.value}.{minor.value} of {size} bytes"


def _architectures(library: ctypes.CDLL) -> list[int]:
    count = ctypes.c_int()
    library.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    numbers = (ctypes.c_int * count.value)()
    library.nvrtcGetSupportedArchs(numbers)
    return list(numbers)


def _compile(library: ctypes.CDLL, text: str, architecture: str, kind: str) -> bytes:
    program = ctypes.c_void_p()
    source = text.encode()
    _check(
        library,
        library.nvrtcCreateProgram(ctypes.byref(program), source, b"jaxgnn.cu", 0, None, None),
    )
    options = [option.encode() for option in (f"--gpu-architecture={architecture}", *_OPTIONS)]
    try:
        arguments = (ctypes.c_char_p * len(options))(*options)
        status = library.nvrtcCompileProgram(program, len(options), arguments)
        if status != 0:
            log = _output(library, program, "ProgramLog").decode(errors="replace").strip("\0\n ")
            message = library.nvrtcGetErrorString(status).decode()
            raise CompilationError(f"{message} for {architecture}: {log[:_LONGEST_LOG]}")
        return _output(library, program, kind)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _output(library: ctypes.CDLL, program: ctypes.c_void_p, kind: str) -> bytes:
    """Returns one output of a program: ``"ProgramLog"``, ``"CUBIN"`` or ``"PTX"``."""
    size = ctypes.c_size_t()
    _check(library, getattr(library, f"nvrtcGet{kind}Size")(program, ctypes.byref(size)))
    output = ctypes.create_string_buffer(size.value)
    _check(library, getattr(library, f"nvrtcGet{kind}")(program, output))
    return output.raw


def _check(library: ctypes.CDLL, status: int) -> None:
    if status != 0:
        raise CompilationError(library.nvrtcGetErrorString(status).decode())
