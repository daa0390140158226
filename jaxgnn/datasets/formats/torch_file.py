"""Reads files of numpy arrays saved by torch, without torch and without running code."""

from pathlib import Path
from typing import Any

from jaxgnn.datasets.formats.file_errors import bad_file, naming, require_file, require_room
from jaxgnn.datasets.formats.npy import opened_archive, read_exactly
from jaxgnn.datasets.formats.safe_pickle import read_number_bytes
from jaxgnn.datasets.formats.torch_tensors import MAGIC

_ZIP = b"PK\3\4"


def read_torch_numbers(path: Path, contents: str) -> Any:
    """Reads numbers, text, containers and numpy arrays that ``torch.save`` has written.

    Such a file contains a pickle: a zip archive with the member ``data.pkl``, or in files of torch
    up to 1.5 with three pickles before it. Tensors are not read: they are stored separately, and no
    data set of OGB has them.

    Args:
      path: the file.
      contents: expected content, for the message if it is missing.

    Returns:
      The object, as ``read_numbers`` returns it.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file is not a file of torch, or refers to anything else; the message names it.
    """
    require_file(path, contents)
    data = path.read_bytes()
    if data.startswith(MAGIC):
        # The two are followed by a description of the writing machine, which is skipped.
        return read_number_bytes(path, data[len(MAGIC) :], skipped=1)
    if not data.startswith(_ZIP):
        raise bad_file(path, f"it starts with {data[:8]!r}, as no file of torch does")
    return read_number_bytes(path, _member(path))


def _member(path: Path) -> bytes:
    """The bytes of the pickle in an archive."""
    with naming(path, "an archive of torch"), opened_archive(path) as archive:
        found = [i for i in archive.infolist() if i.filename.rpartition("/")[2] == "data.pkl"]
        if len(found) != 1:
            raise ValueError(f"expected one member data.pkl, got {len(found)}")
        require_room(path, found[0].file_size, "its member data.pkl")
        with archive.open(found[0]) as stream:
            pickled = bytes(read_exactly(stream, found[0].file_size))
            if stream.read(1):  # reading to the end compares the checksum of the member
                raise ValueError("its member data.pkl is longer than it says")
        return pickled
