"""CUDA programs: sources with kernels, compiled when they are first used, for the GPU at hand.

The name of a program says how to write its source, so that an exported program of XLA, which has
the name alone, runs in a process that has traced nothing.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections import defaultdict
from collections.abc import Callable

import jax

from jaxgnn._ffi import _library, _nvrtc
from pallas_kernels.chip import Chip

_LONGEST_KEPT = 1024

Writer = Callable[[str], str]
"""Writes the source of a program from its name, without the family."""

_writers: dict[str, Writer] = {}
_compiling: defaultdict[tuple[str, int], threading.Lock] = defaultdict(threading.Lock)
_added: set[tuple[str, int]] = set()


def register(family: str, write: Writer) -> None:
    """Sets what writes the sources of programs whose names begin with ``family`` and a colon."""
    _writers[family] = write


def source(name: str) -> str:
    """The source of a program.

    Raises:
      KeyError: if no writer was registered for its family.
    """
    family, _, description = name.partition(":")
    return _writers[family](description)


@functools.lru_cache(maxsize=_LONGEST_KEPT)
def prepare(name: str) -> None:
    """Begins to compile a program, where there is a GPU.

    Meanwhile XLA compiles the program that is being traced. Its first run waits for the kernels.
    """
    if jax.default_backend() == "gpu":
        capability = int(Chip.current().capability.replace(".", "") or 0)
        threading.Thread(target=_add, args=(name, capability)).start()


def _add(name: str, capability: int) -> None:
    """Compiles a program and hands it to the library that launches kernels, once."""
    with _compiling[name, capability]:
        if (name, capability) in _added:
            return
        binary, problem = b"", ""
        try:
            binary = _nvrtc.compiled(source(name), capability)
        except (_nvrtc.CompilationError, ValueError, OSError) as error:
            problem = str(error) or repr(error)
        _functions().jaxgnn_cuda_add(
            name.encode(), capability, binary, len(binary), problem.encode()
        )
        if not problem:
            _added.add((name, capability))


@functools.cache
def _functions() -> ctypes.CDLL:
    library = _library.load("cuda")
    assert library is not None, _library.why_missing("cuda")  # Ops ask before.
    text = ctypes.c_char_p
    library.jaxgnn_cuda_add.argtypes = text, ctypes.c_int, text, ctypes.c_int64, text
    library.jaxgnn_cuda_add.restype = None
    return library


@ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_int)
def _PROVIDE(name: bytes, capability: int) -> None:
    """Adds a program that the library does not have; ignores a family that nobody registered."""
    if name.decode().partition(":")[0] in _writers:
        _add(name.decode(), capability)


def connect(library: ctypes.CDLL) -> None:
    """Lets the library that launches kernels ask for programs that it does not have."""
    library.jaxgnn_cuda_setup.argtypes = (type(_PROVIDE),)
    library.jaxgnn_cuda_setup.restype = None
    library.jaxgnn_cuda_setup(_PROVIDE)
