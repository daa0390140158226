"""The StableHLO of an exported function: its calls, and the types of its arguments and results."""

from __future__ import annotations

import re
from typing import NamedTuple

import jax
import jax.export

from jaxgnn import _ffi

_GPU_KERNELS = "mosaic_gpu"  # the custom calls of Pallas kernels begin with it
_CALL = re.compile(r'custom_call @(?:([\w.$]+)|"([^"]*)")')
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
_MAIN = re.compile(r"^ *func\.func public @main\((.*)$", re.MULTILINE)
_ARGUMENT = re.compile(r"%arg\d+: ([^ ]+)( \{[^}]*\})?")
_RESULT = re.compile(r"tensor<[^ ]+>")
# The first is at the argument that JAX adds for several platforms, the second at the module.
_PLATFORM, _SYMBOLS = "jax.global_constant", "jax.uses_shape_polymorphism = true"


class Program(NamedTuple):
    """Facts about a program.

    Attributes:
      calls: names of the functions outside of the program that it calls.
      has_platform: whether JAX tells it the platform that it runs on.
      has_symbols: whether it depends on symbolic sizes or on the platform.
      inputs: type of each array that it reads, such as ``"tensor<?x8xf32>"``.
      outputs: the same of each array that it returns.
    """

    calls: frozenset[str]
    has_platform: bool
    has_symbols: bool
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def kernels(self) -> list[str]:
        """Names of the custom calls of this library's kernels."""
        return sorted(n for n in self.calls if n in _ffi.TARGETS or n.startswith(_GPU_KERNELS))


def read_program(exported: jax.export.Exported) -> Program:
    """Reads the program of an exported function from its text; MLIR has errors of its own."""
    text = exported.mlir_module()
    main = _MAIN.search(text)
    if main is None:
        raise ValueError("it has no function main")
    # Text in quotes may look like types.
    given, *returned = _TEXT.sub('""', main[1]).split(") -> ")
    arguments = _ARGUMENT.findall(given)
    own = tuple(kind.rstrip(",") for kind, attributes in arguments if _PLATFORM not in attributes)
    return Program(
        calls=frozenset(plain or quoted for plain, quoted in _CALL.findall(text)),
        has_platform=len(own) < len(arguments),
        has_symbols=_SYMBOLS in text[: main.start()],
        inputs=own,
        outputs=tuple(_RESULT.findall("".join(returned))),
    )
