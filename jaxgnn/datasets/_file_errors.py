"""What readers say about files that are not what they should be, and how much a file may become."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

# What a small file may become in memory, whatever its size, and by how much a large one may grow.
# Compressed and sparse files do: labels of ogbn-proteins twentyfold, words of papers hundredfold.
SLACK = 32 << 20
GROWTH = 200

_LONGEST_QUOTE = 500


class BadFileError(ValueError):
    """A complaint that names its file already."""


def bad_file(path: Path, message: str) -> BadFileError:
    """Makes the error about a file: its name, and what is wrong with it."""
    return BadFileError(f"{path}: {message}")


@contextmanager
def naming(path: Path, kind: str) -> Generator[None]:
    """Turns whatever reading may raise into one ValueError that starts with the file.

    Args:
        path: the file.
        kind: what it should be, such as "an .npz archive".
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
    """Raises FileNotFoundError unless `path` is a folder; `contents` says what it should hold."""
    if not path.is_dir():
        raise FileNotFoundError(f"no folder {path}: expected a folder with {contents}")


def require_file(path: Path, contents: str) -> None:
    """Raises FileNotFoundError unless `path` is a file; `contents` says what it should hold."""
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}: expected {contents}")


def most_bytes(path: Path) -> int:
    """How many bytes the file may become, unpacked: enough for data, too few for a bomb."""
    return SLACK + GROWTH * path.stat().st_size


def require_room(path: Path, size: int, what: str) -> None:
    """Raises unless `what`, of `size` bytes, is no more than a file of this size may become."""
    if size > most_bytes(path):
        raise bad_file(
            path,
            f"{what} would take {size} bytes, more than {SLACK >> 20} MiB and {GROWTH} times the "
            "file; write it without compression if that is what it should be",
        )
