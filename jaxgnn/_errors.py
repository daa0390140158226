"""Common format of errors about a user's input, and about files that a user names."""

from __future__ import annotations

import os
import stat


def bad_input(where: str, argument: str, expected: str, got: object) -> ValueError:
    """Creates a ValueError that names the op, the argument, the expected and the actual value.

    Args:
      where: the public function or class, for example ``"spmm"``.
      argument: the invalid argument.
      expected: description of valid values.
      got: the actual value.
    """
    return ValueError(f"{where}: {argument} must be {expected}, got {got}")


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
    except (OSError, ValueError):  # a path through a file, a loop of links, a null character
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
