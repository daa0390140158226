"""Errors about invalid files, and limits on the memory that a file may unpack to."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from jaxgnn._errors import BadFileError as BadFileError
from jaxgnn._errors import require_regular_file

# Unpacked size that is allowed for a small file, and the allowed growth of a large one. Compressed
# and sparse files grow: labels of ogbn-proteins twentyfold, words of papers hundredfold.
SLACK = 32 << 20
GROWTH = 200

_LONGEST_QUOTE = 500


def bad_file(path: Path, message: str) -> BadFileError:
    """Creates the error about a file: its name, and the fault."""
    return BadFileError(f"{path}: {message}")


@contextmanager
def naming(path: Path, kind: str) -> Generator[None]:
    """Converts any error of reading into a ValueError whose message starts with the file.

    Args:
      path: the file.
      kind: expected kind of file, such as "an .npz archive".
    """
    try:
        yield
    except (BadFileError, FileNotFoundError):
        raise
    except Exception as error:
        plain = isinstance(error, ValueError | OSError) and str(error)
        text = str(error) if plain else repr(error)
        quote = text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + "..."
        raise bad_file(path, f"cannot be read as {kind}: {quote}") from error


def require_folder(path: Path, contents: str) -> None:
    """Raises FileNotFoundError unless ``path`` is a folder; ``contents`` describes its content."""
    if not path.is_dir():
        raise FileNotFoundError(f"no folder {path}: expected a folder with {contents}")


def require_file(path: Path, contents: str) -> None:
    """Raises unless ``path`` is a regular file; ``contents`` describes its content.

    All readers of data sets open files behind it.

    Raises:
      FileNotFoundError: there is no such file.
      BadFileError: it is a pipe, a device or a socket.
    """
    require_regular_file(path, contents)


def is_there(path: Path) -> bool:
    """Returns whether something has the name of an optional file, even a broken link."""
    return os.path.lexists(path)


def most_bytes(path: Path) -> int:
    """Maximum size of the unpacked file, in bytes: enough for data, too little for a zip bomb."""
    return SLACK + GROWTH * path.stat().st_size


def require_room(path: Path, size: int, what: str) -> None:
    """Raises if ``what``, of ``size`` bytes, exceeds the limit for a file of this size."""
    if size > most_bytes(path):
        raise bad_file(
            path,
            f"{what} would take {size} bytes, more than {SLACK >> 20} MiB and {GROWTH} times the "
            "file; write it without compression if that is what it should be",
        )
