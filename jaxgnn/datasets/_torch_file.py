"""Files that torch has saved numpy arrays in, read without torch and without running code."""

from pathlib import Path
from typing import Any

from jaxgnn.datasets._file_errors import bad_file, naming, require_file, require_room
from jaxgnn.datasets._npy import opened_archive, read_exactly
from jaxgnn.datasets._safe_pickle import read_number_bytes
from jaxgnn.datasets._torch_tensors import MAGIC

_ZIP = b"PK\3\4"


def read_torch_numbers(path: Path, contents: str) -> Any:
    """Reads numbers, text, containers and numpy arrays that ``torch.save`` has written.

    Such a file is a pickle with something around it: a zip archive, whose member ``data.pkl`` it
    is, or in files of torch up to 1.5 three pickles before it. Tensors are not read: they are
    stored apart, and no data set of OGB has them.

    Args:
      path: the file.
      contents: what it should hold, for the message when it is missing.

    Returns:
      The object, as ``read_numbers`` gives it.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file is none of torch, or refers to anything else; the message names it.
    """
    require_file(path, contents)
    data = path.read_bytes()
    if data.startswith(MAGIC):
        # Behind the two comes what machine wrote the file, which nobody asks for.
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
            if stream.read(1):  # the sum of the member is compared at its end
                raise ValueError("its member data.pkl is longer than it says")
        return pickled
