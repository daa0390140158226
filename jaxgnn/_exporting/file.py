"""The file of an exported function: a zip archive of a program and its description in JSON.

It contains no Python code, and nothing is unpickled. The program is StableHLO in its portable
form, which later versions of JAX support.
"""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.export

from jaxgnn._version import __version__

_DESCRIPTION, _PROGRAM = "description.json", "program.stablehlo"
_FORMAT = 1
_MOST_DESCRIPTION = 1 << 24


@dataclass(frozen=True)
class Description:
    """Description of the program in a file.

    Attributes:
      platforms: platforms of the program, ``"cpu"`` and ``"cuda"``.
      kernels: names of the custom calls of this library's kernels in it.
      arguments: structure of the arguments (``trees``).
      result: structure of the result.
      inputs: shape, such as ``"nodes, 8"``, and dtype of each array among the arguments.
      outputs: shape and dtype of each array of the result.
      kept: mask of the inputs that the program reads.
      has_symbols: whether the program depends on symbolic sizes or on the platform.
      calling_convention: version of JAX's calling convention.
      metadata: metadata of the caller.
      format: version of this file's format.
      jaxgnn: version of the library that wrote the file.
      jax: version of JAX that wrote the file.
    """

    platforms: list[str]
    kernels: list[str]
    arguments: Any
    result: Any
    inputs: list[list[str]]
    outputs: list[list[str]]
    kept: list[int]
    has_symbols: bool
    calling_convention: int
    metadata: dict[str, Any] = field(default_factory=dict)
    format: int = _FORMAT
    jaxgnn: str = __version__
    jax: str = jax.__version__


_TYPES = {
    "platforms": list,
    "kernels": list,
    "inputs": list,
    "outputs": list,
    "kept": list,
    "has_symbols": bool,
    "calling_convention": int,
    "metadata": dict,
    "jaxgnn": str,
    "jax": str,
}


def custom_calls(module: str) -> set[str]:
    """Names of the external functions that a program calls, from its text."""
    return set(re.findall(r"custom_call @([\w.$]+)", module))


def packed(description: Description, program: bytes) -> bytes:
    """The bytes of a file."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:  # uncompressed, so that sizes are known
        archive.writestr(_DESCRIPTION, json.dumps(asdict(description), allow_nan=False))
        archive.writestr(_PROGRAM, program)
    return file.getvalue()


def unpacked(source: str | os.PathLike[str] | bytes) -> tuple[str, Description, bytes]:
    """Reads a file or its bytes.

    Returns:
      The name of the source for errors, the description, and the program.

    Raises:
      FileNotFoundError: if there is no such file.
      ValueError: names the source and its fault: not such a file, truncated, or of an unsupported
        version.
    """
    is_bytes = isinstance(source, bytes | bytearray)
    name = f"{len(source)} bytes" if is_bytes else os.fspath(source)
    content = bytes(source) if is_bytes else Path(source).read_bytes()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            texts = {m: _member(archive, m) for m in (_DESCRIPTION, _PROGRAM)}
        entries = json.loads(texts[_DESCRIPTION])
    except (zipfile.BadZipFile, KeyError, ValueError, RecursionError, EOFError, OSError) as error:
        expected = "a whole file that jaxgnn.export has made"
        raise ValueError(f"load_exported: {name} must be {expected}, got {error}") from error
    return name, _description(name, entries), texts[_PROGRAM]


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"a compressed {name}")
    if name == _DESCRIPTION and info.file_size > _MOST_DESCRIPTION:
        raise ValueError(f"a {name} of {info.file_size} bytes")
    return archive.read(info)  # verifies the checksum


def _description(name: str, entries: Any) -> Description:
    if not isinstance(entries, dict) or not isinstance(entries.get("format"), int):
        raise ValueError(f"load_exported: {name} must have a description with its format")
    check_versions(name, entries)
    try:
        description = Description(**entries)
    except TypeError as error:
        raise ValueError(f"load_exported: {name} has another description: {error}") from None
    for entry, kind in _TYPES.items():
        value = getattr(description, entry)
        if not isinstance(value, kind):
            raise ValueError(
                f"load_exported: {name} must have {kind.__name__} as {entry}, got {value!r:.80}"
            )
    return description


def versions_of(name: str, entries: dict[str, Any]) -> str:
    """Text with the versions that wrote the file and that read it."""
    writer = f"jaxgnn {str(entries.get('jaxgnn'))[:80]} and jax {str(entries.get('jax'))[:80]}"
    reader = f"jaxgnn {__version__} and jax {jax.__version__}"
    return f"load_exported: {name} was written by {writer}, and this is {reader}"


def check_versions(name: str, entries: dict[str, Any]) -> None:
    """Checks that this version of the library, and of JAX, supports a file.

    Raises:
      ValueError: with the versions that wrote the file and that read it.
    """
    versions = versions_of(name, entries)
    if entries["format"] != _FORMAT:
        raise ValueError(f"{versions}: expected format {_FORMAT}, got {entries['format']}")
    # The interface of kernels may change with each release; a program of plain JAX has none.
    if entries.get("kernels") and entries.get("jaxgnn") != __version__:
        raise ValueError(
            f"{versions}: its kernels need the version that wrote it; export it again, or under "
            'jaxgnn.default_implementation("xla"), which needs no kernels'
        )
    lowest = jax.export.minimum_supported_calling_convention_version
    highest = jax.export.maximum_supported_calling_convention_version
    convention = entries.get("calling_convention")
    if not isinstance(convention, int) or not lowest <= convention <= highest:
        raise ValueError(
            f"{versions}: expected a calling convention from {lowest} to {highest}, "
            f"got {convention!r:.80}"
        )
