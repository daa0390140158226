"""Common format of errors about a user's input, and about files that a user names."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from typing import Any

# Longest text of a value in an error; the rest of it is left out.
_MAX_TEXT = 400


def bad_input(where: str, argument: str, expected: str, got: object) -> ValueError:
    """Creates a ValueError that names the op, the argument, the expected and the actual value.

    Args:
      where: the public function or class, for example ``"spmm"``.
      argument: the invalid argument.
      expected: description of valid values.
      got: the actual value. Of an array with axes the message has dtype and shape alone, and of
        what is long the beginning, in one line.
    """
    return ValueError(f"{where}: {argument} must be {expected}, got {_shown(got)}")


def is_choice(value: object, choices: Collection[str | None]) -> bool:
    """Returns whether a value is one of some names, or None if that is among them.

    An array or a list is none of them, where ``value in choices`` would compare each element.
    """
    return (value is None or isinstance(value, str)) and value in choices


def _shown(value: Any) -> str:
    if getattr(value, "shape", ()) and hasattr(value, "dtype"):
        return f"an array of {value.dtype} and shape {tuple(value.shape)}"
    text = str(value)
    shown = text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT]
    shown = " ".join(shown.split()) if "\n" in shown else shown
    return shown if len(text) <= _MAX_TEXT else f"{shown} ... ({len(text):,} characters)"


class BadFileError(ValueError):
    """An error whose message already names the file."""


def require_regular_file(path: str | os.PathLike[str], contents: str) -> None:
    """Raises unless ``path`` is a regular file or a link to one, without opening it.

    A pipe or a terminal can block its reader forever, and a device may never end.

    Args:
      path: the file.
      contents: its expected content, such as "a model of nequix".

    Raises:
      FileNotFoundError: there is nothing at ``path``, or a folder.
      BadFileError: there is a pipe, a device or a socket; the message names it.
    """
    try:
        mode = os.stat(path).st_mode
    except PermissionError:
        raise
    except (OSError, ValueError):  # A file as a folder, a loop of links, a null character.
        mode = 0
    name = os.fspath(path)
    if mode == 0 or stat.S_ISDIR(mode):
        raise FileNotFoundError(f"no file {name}: expected {contents}")
    if not stat.S_ISREG(mode):
        got = _KINDS.get(stat.S_IFMT(mode), "another kind of file")
        raise BadFileError(f"{name}: expected a regular file ({contents}), got {got}")


_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
