"""CUDA sources that Python generates and NVRTC compiles when they are first used.

NVRTC comes with a GPU install of JAX, as the package ``nvidia-cuda-nvrtc``, so users need no nvcc.
A program is a source with its kernels. Its name says how to make it, so that an exported program of
XLA, which has the name alone, runs in a process that has traced nothing.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import threading
from collections.abc import Callable
from pathlib import Path

import jax

from jaxgnn._ffi import _library
from jaxgnn._ffi._tensor_product_frame import Source
from pallas_kernels.chip import Chip

# Newest first; the packages for CUDA 13 share a folder.
_FILES = (
    "cu13/lib/libnvrtc.so.13",
    "cuda_nvrtc/lib/libnvrtc.so.13",
    "cuda_nvrtc/lib/libnvrtc.so.12",
)
_TO_INSTALL = "pip install nvidia-cuda-nvrtc, which jax[cuda13] has too"
_LONGEST_KEPT = 256

Maker = Callable[[str], Source]
"""Makes the source of a program from its name, without the family."""


def nvrtc_path() -> str | None:
    """The path of NVRTC's library, or its name where the system's loader knows it; None if none."""
    found = importlib.util.find_spec("nvidia")
    folders = [] if found is None else list(found.submodule_search_locations or [])
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


def problem(library: ctypes.CDLL) -> str | None:
    """Lets the library open NVRTC; the reason why no kernel can be compiled here, None if they can.

    Args:
      library: the loaded library ``nvrtc``.
    """
    path = nvrtc_path()
    if path is None:
        return f"needs NVIDIA's runtime compiler libnvrtc, which was not found; {_TO_INSTALL}"
    _load_builtins(Path(path))
    library.jaxgnn_nvrtc_setup.argtypes = ctypes.c_char_p, type(_PROVIDE)
    library.jaxgnn_nvrtc_setup.restype = ctypes.c_char_p
    found = library.jaxgnn_nvrtc_setup(path.encode(), _PROVIDE)
    return None if found is None else f"needs {path}, but: {found.decode()}; {_TO_INSTALL}"


def _load_builtins(path: Path) -> None:
    """Loads the library that NVRTC opens by its name alone, which the loader knows afterwards."""
    version = path.name.rpartition(".")[2]
    for builtins in path.parent.glob(f"libnvrtc-builtins.so.{version}*"):
        ctypes.CDLL(os.fspath(builtins))


@functools.cache
def _functions() -> ctypes.CDLL:
    reason, library = _library.why_missing("nvrtc"), _library.load("nvrtc")
    assert library is not None, reason  # ops ask before
    integers = ctypes.POINTER(ctypes.c_int32)
    library.jaxgnn_nvrtc_add.argtypes = ctypes.c_char_p, ctypes.c_char_p, integers, ctypes.c_int
    library.jaxgnn_nvrtc_add.restype = None
    library.jaxgnn_nvrtc_compile.argtypes = ctypes.c_char_p, ctypes.c_int
    library.jaxgnn_nvrtc_compile.restype = ctypes.c_char_p
    return library


_makers: dict[str, Maker] = {}


def register(family: str, make: Maker) -> None:
    """Sets what makes the sources of programs whose names begin with ``family`` and a colon."""
    _makers[family] = make


@functools.lru_cache(maxsize=_LONGEST_KEPT)
def add(name: str) -> Source:
    """Adds the program of this name, and begins to compile it where there is a GPU.

    Meanwhile XLA compiles the program that is being traced. Its first run waits for the kernels.
    """
    made = _add(name)
    if jax.default_backend() == "gpu":
        capability = int(Chip.current().capability.replace(".", "") or 0)
        # A problem is reported by the kernel's first run, which compiles again.
        threading.Thread(target=compile_for, args=(name, capability)).start()
    return made


def _add(name: str) -> Source:
    made = _makers[name.partition(":")[0]](name.partition(":")[2])
    flat = [number for launch in made.launches for number in launch]
    launches = (ctypes.c_int32 * len(flat))(*flat)
    _functions().jaxgnn_nvrtc_add(name.encode(), made.text.encode(), launches, len(made.launches))
    return made


def compile_for(name: str, capability: int) -> str | None:
    """Compiles an added program for a compute capability, such as 90; returns a problem or None."""
    found = _functions().jaxgnn_nvrtc_compile(name.encode(), capability)
    return None if found is None else found.decode()


@ctypes.CFUNCTYPE(None, ctypes.c_char_p)
def _PROVIDE(name: bytes) -> None:
    """Adds a program that the library does not have; ignores a family that nobody registered."""
    if name.decode().partition(":")[0] in _makers:
        _add(name.decode())
