"""Finds the compiled libraries and registers their targets with XLA, on first use.

There are two libraries, one for each platform, and both need only a C++ compiler: ``cpu`` has the
kernels of a CPU; ``cuda`` launches CUDA kernels, which are compiled on first use.

Registering a broken target would stop a whole JAX backend from starting, so nothing is registered
at import, and a library that can not be loaded is reported as a reason, not as an exception.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import pkgutil
import warnings
from pathlib import Path

import jax

_XLA_PLATFORM = {"cpu": "cpu", "cuda": "CUDA"}
_TO_INSTALL = "reinstall jaxgnn with a C++ compiler and without JAXGNN_PURE_PYTHON"


def library_path(platform: str) -> Path | None:
    """The path of the library for ``platform``, or None if it was not built."""
    import jaxgnn._ffi

    # An editable install keeps compiled files apart from the sources: the package has two folders.
    for folder in jaxgnn._ffi.__path__:
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
    if platform == "cpu":
        return None
    from jaxgnn._ffi import _nvrtc, _programs

    _programs.connect(library)
    return _nvrtc.problem()


def why_not_open(platform: str) -> str:
    """The reason why ``open_library`` returns None for ``platform``."""
    reason = "can not be loaded" if library_path(platform) else "was not built"
    library = f"the compiled library libjaxgnn_{platform}.so"
    return f"needs {library}, which {reason}; {_TO_INSTALL}"
