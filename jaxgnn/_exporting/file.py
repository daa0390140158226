"""The file of an exported function: a zip archive of a program and its description in JSON.

Nothing in it is code of Python, and nothing is unpickled. The program is StableHLO in its portable
form, which later versions of JAX read. A hash of both is compared before either is read: MLIR may
crash, or not end, on a damaged program. It is no signature; whoever changes a file can renew it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import struct
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import jax
import jax.export

from jaxgnn import _ffi
from jaxgnn._errors import require_regular_file
from jaxgnn._version import __version__

_DESCRIPTION, _PROGRAM, _HASH = "description.json", "program.stablehlo", "sha256"
_FORMAT = 2  # format 1 had no hash
_MOST_DESCRIPTION = 1 << 24


_GPU_KERNELS = "mosaic_gpu"  # the custom calls of Pallas kernels begin with it
_CALL = re.compile(r'custom_call @(?:([\w.$]+)|"([^"]*)")')
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
_MAIN = re.compile(r"^ *func\.func public @main\((.*)$", re.MULTILINE)
_ARGUMENT = re.compile(r"%arg\d+: ([^ ]+)( \{[^}]*\})?")
_RESULT = re.compile(r"tensor<[^ ]+>")
# The first is at the argument that JAX adds for several platforms, the second at the module.
_PLATFORM, _SYMBOLS = "jax.global_constant", "jax.uses_shape_polymorphism = true"


@dataclass(frozen=True)
class Description:
    """Description of the program in a file, and of the versions that wrote it."""

    platforms: list  # "cpu" and "cuda"
    kernels: list  # names of the custom calls of this library's kernels
    arguments: Any  # structure of the arguments (``trees``)
    result: Any  # structure of the result
    inputs: list  # shape, such as "nodes, 8", and dtype of each array among the arguments
    outputs: list  # shape and dtype of each array of the result
    kept: list  # Numbers of the inputs that the program reads.
    has_symbols: bool  # whether the program depends on symbolic sizes or on the platform
    calling_convention: int  # JAX numbers its calling conventions.
    metadata: dict  # The caller's entries.
    format: int = _FORMAT
    jaxgnn: str = __version__
    jax: str = jax.__version__


def packed(description: Description, program: bytes) -> bytes:
    """Returns the bytes of a file."""
    text = json.dumps(asdict(description), allow_nan=False).encode()
    members = {_DESCRIPTION: text, _PROGRAM: program, _HASH: content_hash(text, program)}
    file = io.BytesIO()
    # Members are not compressed, so a reader knows their sizes from the size of the file.
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def content_hash(description: bytes, program: bytes) -> bytes:
    """The SHA-256 of a description and a program, in hexadecimal digits."""
    content = hashlib.sha256(struct.pack("<Q", len(description)))
    content.update(description)
    content.update(program)
    return content.hexdigest().encode()


def unpacked(source: str | os.PathLike[str] | bytes) -> tuple[str, Description, bytes]:
    """Reads a file or its bytes: the name of the source for errors, the description, the program.

    Raises:
      FileNotFoundError: There is no such file.
      ValueError: It is not such a file, is truncated, or of an unsupported version.
    """
    is_bytes = isinstance(source, bytes | bytearray)
    name = f"{len(source)} bytes" if is_bytes else os.fspath(source)
    if not is_bytes:
        require_regular_file(source, "a file of jaxgnn.export")
    content = bytes(source) if is_bytes else Path(source).read_bytes()
    expected = f"load_exported: {name} must be a whole file that jaxgnn.export has made, got"
    try:
        texts = _members(content)
        entries = json.loads(texts[_DESCRIPTION])
    except _UNREADABLE as error:
        raise ValueError(f"{expected} {error}") from error
    file_format = entries.get("format") if isinstance(entries, dict) else None
    if type(file_format) is not int:
        raise ValueError(f"load_exported: {name} must have a description with its format")
    if file_format != _FORMAT:
        advice = "; export the function again" if file_format < _FORMAT else ""
        raise ValueError(
            f"{versions_of(name, entries)}: expected format {_FORMAT}, got {file_format}{advice}"
        )
    if texts.get(_HASH) != content_hash(texts[_DESCRIPTION], texts[_PROGRAM]):
        raise ValueError(f"{expected} content that its hash does not fit")
    return name, _description(name, entries), texts[_PROGRAM]


# What zipfile and json raise of bytes that are anything.
_UNREADABLE = (
    *(zipfile.BadZipFile, struct.error, LookupError, ValueError, ArithmeticError),
    *(RuntimeError, EOFError, OSError),
)


def _members(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = archive.namelist()
        members = {name: _member(archive, name) for name in (_DESCRIPTION, _PROGRAM)}
        if _HASH in names:  # A later format may have others.
            members[_HASH] = _member(archive, _HASH)
        return members


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"a compressed {name}")
    if name == _DESCRIPTION and info.file_size > _MOST_DESCRIPTION:
        raise ValueError(f"a {name} of {info.file_size} bytes")
    return archive.read(info)  # verifies the checksum


def _description(name: str, entries: dict[str, Any]) -> Description:
    _check_versions(name, entries)
    try:
        description = Description(**entries)
    except TypeError as error:
        raise ValueError(f"load_exported: {name} has another description: {error}") from None
    for entry, kind in get_type_hints(Description).items():
        value = getattr(description, entry)
        if kind is not Any and type(value) is not kind:
            raise ValueError(
                f"load_exported: {name} must have {kind.__name__} as {entry}, got {value!r:.80}"
            )
    return description


def versions_of(name: str, entries: dict[str, Any]) -> str:
    """Text with the versions that wrote the file and that read it."""
    writer = f"jaxgnn {str(entries.get('jaxgnn'))[:80]} and jax {str(entries.get('jax'))[:80]}"
    reader = f"jaxgnn {__version__} and jax {jax.__version__}"
    return f"load_exported: {name} was written by {writer}, and this is {reader}"


def _check_versions(name: str, entries: dict[str, Any]) -> None:
    """Raises ValueError unless this version of the library, and of JAX, supports a file."""
    versions = versions_of(name, entries)
    # What a kernel takes may change with each release; a program of plain JAX has none.
    if entries.get("kernels") and entries.get("jaxgnn") != __version__:
        raise ValueError(
            f"{versions}: its kernels need the version that wrote it; export it again, or under "
            'jaxgnn.default_implementation("xla"), which needs no kernels'
        )
    lowest = jax.export.minimum_supported_calling_convention_version
    highest = jax.export.maximum_supported_calling_convention_version
    convention = entries.get("calling_convention")
    if type(convention) is not int or not lowest <= convention <= highest:
        raise ValueError(
            f"{versions}: expected a calling convention from {lowest} to {highest}, "
            f"got {convention!r:.80}"
        )


class Program(NamedTuple):
    """Facts about a program."""

    calls: frozenset[str]  # names of the functions outside of the program that it calls
    has_platform: bool  # whether JAX passes the platform to it
    has_symbols: bool  # whether it depends on symbolic sizes or on the platform
    inputs: tuple[str, ...]  # type of each array that it reads, such as "tensor<?x8xf32>"
    outputs: tuple[str, ...]  # type of each array that it returns

    @property
    def kernels(self) -> list[str]:
        """Names of the custom calls of this library's kernels."""
        return sorted(n for n in self.calls if n in _ffi.targets() or n.startswith(_GPU_KERNELS))


def read_program(exported: jax.export.Exported) -> Program:
    """Reads the program of an exported function from its text; it may raise errors of MLIR."""
    text = exported.mlir_module()
    main = _MAIN.search(text)
    if main is None:
        raise ValueError("it has no function main")
    # Text in quotes may look like types.
    parameters, *returned = _TEXT.sub('""', main[1]).split(") -> ")
    arguments = _ARGUMENT.findall(parameters)
    inputs = tuple(
        kind.rstrip(",") for kind, attributes in arguments if _PLATFORM not in attributes
    )
    return Program(
        calls=frozenset(plain or quoted for plain, quoted in _CALL.findall(text)),
        has_platform=len(inputs) < len(arguments),
        has_symbols=_SYMBOLS in text[: main.start()],
        inputs=inputs,
        outputs=tuple(_RESULT.findall("".join(returned))),
    )
