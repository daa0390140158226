"""Small files, replaced atomically, and read with errors that name the broken file."""

import json
import os
import re
from pathlib import Path
from typing import Any


def printable(text: str) -> str:
    r"""Writes what UTF-8 can not encode as escapes, such as ``\xff``.

    Python holds bytes of a command line or a file's name that are no UTF-8 as lone surrogates.
    """
    escaped = re.sub("[\udc80-\udcff]", lambda byte: f"\\x{ord(byte[0]) - 0xDC00:02x}", text)
    return escaped.encode("utf-8", "backslashreplace").decode("utf-8")


def write_text(path: Path, text: str) -> None:
    """Replaces the file at ``path`` by ``text`` in UTF-8, if ``printable``, in one step."""
    write_bytes(path, printable(text).encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Replaces the file at ``path`` by ``data``, in one step."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_json(path: Path, value: Any) -> None:
    """Replaces the file at ``path`` by ``value`` as indented JSON, in one step."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def parse_json[T](text: str, where: str, kind: type[T], what: str) -> T:
    """Parses ``text`` as JSON.

    Args:
      text: The JSON text.
      where: The file, and the line if it has several values, for the error.
      kind: The type that the value must have.
      what: Description of the expected type, for the error.

    Raises:
      ValueError: The text is not JSON, or its value is of another type.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits
        raise ValueError(f"{where}: not JSON: {_start(text)}") from error
    if not isinstance(value, kind):
        raise ValueError(f"{where}: expected {what}, got {_start(text)}")
    return value


def read_json[T](path: Path, kind: type[T], what: str) -> T:
    """Reads the JSON file at ``path``; raises ValueError unless its value is of type ``kind``."""
    return parse_json(path.read_text(encoding="utf-8", errors="replace"), str(path), kind, what)


def _start(text: str) -> str:
    return repr(text[:80]) if text.strip() else "an empty file"
