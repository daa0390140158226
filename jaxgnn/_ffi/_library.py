"""Finds the compiled libraries and registers their targets with XLA, on first use.

There are three libraries: ``cpu``; ``cuda``, which nvcc compiles; and ``nvrtc``, which compiles
generated CUDA sources on first use and itself needs only a C++ compiler. In the functions below,
``platform`` is the name of a library.

Registering a broken target would stop a whole JAX backend from starting, so nothing is registered
at import, and a library that can not be loaded is reported as a reason, not as an exception.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import os
import pkgutil
import warnings
from pathlib import Path

import jax

_XLA_PLATFORM = {"cpu": "cpu", "cuda": "CUDA", "nvrtc": "CUDA"}
_TO_INSTALL = {
    "cpu": "reinstall jaxgnn with a C++ compiler and without JAXGNN_PURE_PYTHON",
    "cuda": "install jaxgnn-cuda13, or reinstall jaxgnn with nvcc and JAXGNN_CUDA=1",
    "nvrtc": "reinstall jaxgnn with a C++ compiler and without JAXGNN_PURE_PYTHON",
}


def library_path(platform: str) -> Path | None:
    """The path of the library for ``platform``, or None if it was not built."""
    import jaxgnn._ffi

    # An editable install keeps compiled files apart from the sources: the package has two folders.
    folders = list(jaxgnn._ffi.__path__)
    if platform == "cuda":
        apart = importlib.util.find_spec("jaxgnn_cuda13")
        folders += (apart.submodule_search_locations or []) if apart is not None else []
    for folder in folders:
        candidate = Path(folder) / f"libjaxgnn_{platform}.so"
        if candidate.exists():
            return candidate
    return None


def open_library(platform: str) -> ctypes.CDLL | None:
    """Loads the library for ``platform`` without JAX; None if it is missing or broken."""
    path = library_path(platform)
    if path is None:
        return None
    try:
        return ctypes.CDLL(os.fspath(path))
    except OSError as error:
        warnings.warn(f"jaxgnn: can not load {path.name}: {error}", stacklevel=2)
        return None


@functools.cache
def targets() -> dict[str, tuple[str, ...]]:
    """The libraries that have a symbol of the name of an XLA target, for each target.

    They are the ``TARGETS`` of the modules of this package.
    """
    import jaxgnn._ffi

    found: dict[str, tuple[str, ...]] = {}
    for _, name, _ in pkgutil.iter_modules(jaxgnn._ffi.__path__):
        if not name.startswith("lib"):  # the libraries themselves
            module = importlib.import_module(f"jaxgnn._ffi.{name}")
            found |= getattr(module, "TARGETS", {})
    return found


@functools.cache
def load(platform: str) -> ctypes.CDLL | None:
    """Loads and registers the library for ``platform``; returns None if it can not be used."""
    library = open_library(platform)
    if library is None:
        return None
    jax.devices("cpu")  # a registration before the backends exist would be queued, unchecked
    for target, platforms in targets().items():
        if platform in platforms:
            symbol = getattr(library, target)
            jax.ffi.register_ffi_target(
                target, jax.ffi.pycapsule(symbol), platform=_XLA_PLATFORM[platform]
            )
    return library


@functools.cache
def why_missing(platform: str) -> str | None:
    """The reason why the compiled kernels of ``platform`` can not be used; None if they can."""
    library = load(platform)
    if library is None:
        return why_not_open(platform)
    if platform == "nvrtc":
        from jaxgnn._ffi import _nvrtc

        return _nvrtc.problem(library)
    return _cuda_problem(library) if platform == "cuda" else None


def why_not_open(platform: str) -> str:
    """The reason why ``open_library`` returns None for ``platform``."""
    reason = "can not be loaded" if library_path(platform) else "was not built"
    library = f"the compiled library libjaxgnn_{platform}.so"
    return f"needs {library}, which {reason}; {_TO_INSTALL[platform]}"


def _cuda_problem(library: ctypes.CDLL) -> str | None:
    """The reason why the CUDA library does not run on this GPU; None if it runs or without GPU."""
    if jax.default_backend() != "gpu":
        return None
    library.jaxgnn_cuda_problem.restype = ctypes.c_char_p
    problem = library.jaxgnn_cuda_problem()
    if problem is None:
        return None
    return (
        f"needs a GPU and a driver that libjaxgnn_cuda.so was compiled for, got: {problem.decode()}"
    )
