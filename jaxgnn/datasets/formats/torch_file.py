"""Reads numpy arrays saved by torch, and tensors in pickles, without torch or running code.

A file of ``torch.save`` contains a pickle: a zip archive with the member ``data.pkl``, or in files
of torch up to 1.5 with three pickles before it: a number that identifies the format, its version,
and a description of the writing machine.

A pickled tensor is a view, of an offset, sizes and strides, into a storage. A storage is a list of
numbers, as in torch up to 0.4, or the bytes of a separate file in the format of torch 1.5. In that
file, pickles of the storage by its kind, key and length, and of the keys, follow those three. Then
come the length as an int64, and the numbers.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxgnn._arrays.npy_format import array_of, array_size, plain_dtype, read_exactly
from jaxgnn.datasets.formats.file_errors import bad_file, naming, require_file, require_room
from jaxgnn.datasets.formats.npy import opened_archive
from jaxgnn.datasets.formats.pickle_parts import PARTS, Budget, Part, StoredArray
from jaxgnn.datasets.formats.safe_pickle import read_number_bytes, run_pickle

_ZIP = b"PK\3\4"
# Pickles of a number and of the version 1001.
_MAGIC = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."
_DTYPES = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "|i1",
    "ByteStorage": "|u1",
    "BoolStorage": "|b1",
}
_LENGTH = 8  # Bytes of the int64 before the numbers.
_SIZE = 200  # Bytes of an array object and its owner.
_MOST_DESCRIBED = 1 << 16  # Bytes of the objects that describe a storage.


def read_torch_numbers(path: Path, contents: str) -> Any:
    """Reads numbers, text, containers and numpy arrays that ``torch.save`` has written.

    Tensors are not read: they are stored separately, and no data set of OGB has them.
    """
    require_file(path, contents)
    data = path.read_bytes()
    if data.startswith(_MAGIC):
        return read_number_bytes(path, data[len(_MAGIC) :], skipped=1)
    if not data.startswith(_ZIP):
        raise bad_file(path, f"it starts with {data[:8]!r}, as no file of torch does")
    return read_number_bytes(path, _member(path))


def _member(path: Path) -> bytes:
    """Returns the bytes of the pickle in an archive."""
    with naming(path, "an archive of torch"), opened_archive(path) as archive:
        members = [i for i in archive.infolist() if i.filename.rpartition("/")[2] == "data.pkl"]
        if len(members) != 1:
            raise ValueError(f"expected one member data.pkl, got {len(members)}")
        require_room(path, members[0].file_size, "its member data.pkl")
        with archive.open(members[0]) as stream:
            pickled = bytes(read_exactly(stream, members[0].file_size))
            if stream.read(1):  # reading to the end compares the checksum of the member
                raise ValueError("its member data.pkl is longer than it says")
        return pickled


class _Storage(NamedTuple):
    """The numbers of a storage, a 1-d array."""

    numbers: np.ndarray


class _Description(NamedTuple):
    """Description of a storage in a pickle, before its numbers."""

    dtype: np.dtype
    key: str
    length: int


class _StorageFiles:
    """Reads storages that are separate files, with a common header."""

    def __init__(self):
        self._beginning: bytes | None = None

    def __call__(self, arguments: tuple[Any, ...], budget: Budget) -> _Storage:
        """Reads the storage in the bytes of a file."""
        (data,) = arguments
        if type(data) is not bytes:
            raise ValueError(f"expected the bytes of a storage, got a {type(data).__name__}")
        if self._beginning is None or not data.startswith(self._beginning):
            self._beginning = data[: _end_of_machine(data)]
        described, start = run_pickle(
            data, len(self._beginning), _KINDS, persistent=_described, most=_MOST_DESCRIBED
        )
        if type(described) is not _Description:
            raise ValueError(f"expected one storage, got a {type(described).__name__}")
        keys, start = run_pickle(data, start, {}, most=_MOST_DESCRIBED)
        if keys != [described.key]:
            raise ValueError(f"expected the storage {described.key[:80]!r} alone")
        if data[start : start + _LENGTH] != described.length.to_bytes(_LENGTH, "little"):
            raise ValueError(f"expected a storage of {described.length} numbers")
        budget.spend(len(data) + _SIZE)
        numbers, shape = data[start + _LENGTH :], (described.length,)
        return _Storage(array_of(numbers, described.dtype, shape, columns_first=False))


def _end_of_machine(data: bytes) -> int:
    """End of the pickle that describes the writing machine, which must have our byte order."""
    if not data.startswith(_MAGIC):
        raise ValueError(f"a storage starts with {data[:8]!r}, as no file of torch does")
    machine, end = run_pickle(data, len(_MAGIC), {}, most=_MOST_DESCRIBED)
    if not isinstance(machine, dict) or machine.get("little_endian") is not True:
        raise ValueError("expected a storage of a machine whose numbers begin with the low byte")
    return end


def _described(pid: Any) -> _Description:
    """Parses the id of a storage: its kind, its key, its device, its length, and no view."""
    if type(pid) is not tuple or len(pid) != 6 or pid[0] != "storage" or pid[5] is not None:
        raise ValueError("expected the id of a whole storage, of six entries")
    _, kind, key, _, length, _ = pid
    named = type(kind) is Part and kind.name in _DTYPES
    if not named or type(key) is not str or type(length) is not int or not 0 <= length < 1 << 60:
        raise ValueError("expected the kind, the key and the length of a storage")
    return _Description(plain_dtype(_DTYPES[kind.name]), key, length)


def _listed(name: str, arguments: tuple[Any, ...], budget: Budget) -> _Storage:
    """Creates a storage from a list of numbers."""
    (numbers,) = arguments
    kinds = {bool} if name == "BoolStorage" else {int, float}
    if type(numbers) is not list or not set(map(type, numbers)) <= kinds:
        raise ValueError("expected a storage of a list of numbers")
    dtype = plain_dtype(_DTYPES[name])
    if dtype.kind in "iu" and not set(map(type, numbers)) <= {int}:
        raise ValueError(f"expected a {name} of integers")
    budget.spend(_SIZE + len(numbers) * dtype.itemsize)
    return _Storage(np.array(numbers, dtype))  # Raises for integers that do not fit.


def _tensor(arguments: tuple[Any, ...], budget: Budget) -> StoredArray:
    """The array of a tensor, from its storage, offset, sizes and strides, without gradients."""
    storage, offset, shape, strides, *_ = arguments
    if type(storage) is not _Storage:
        raise ValueError(f"expected a tensor of a storage, got one of a {type(storage).__name__}")
    numbers, size = storage.numbers, array_size(storage.numbers.dtype, shape)
    whole = (offset, *strides) if type(strides) is tuple else (None,)
    good = all(type(number) is int and number >= 0 for number in whole)
    if not good or len(strides) != len(shape):
        raise ValueError("expected a tensor with an offset, and a stride for each axis")
    budget.spend(_SIZE + size)
    if not size:
        return StoredArray(np.zeros(shape, numbers.dtype))
    last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    if last >= numbers.size or size > numbers.nbytes:
        raise ValueError(f"expected a tensor within its storage of {numbers.size} numbers")
    steps = [
        0 if n == 1 else step * numbers.itemsize for n, step in zip(shape, strides, strict=True)
    ]
    view = np.lib.stride_tricks.as_strided(numbers[offset:], shape, steps, writeable=False)
    return StoredArray(np.ascontiguousarray(view).reshape(shape))


def _no_hooks(arguments: tuple[Any, ...], budget: Budget) -> dict[Any, Any]:
    """Returns an empty ordered dict, as the hooks of a tensor."""
    if arguments not in ((), ([],)):
        raise ValueError("expected an empty OrderedDict")
    budget.spend(_SIZE)
    return {}


_KINDS = {("torch", name): Part(name, partial(_listed, name)) for name in _DTYPES}


def tensor_parts() -> Mapping[tuple[str, str], Part]:
    """The supported names in a pickle of numbers, arrays and tensors; a new table for each file."""
    return {
        **PARTS,
        **_KINDS,
        ("torch.storage", "_load_from_bytes"): Part("_load_from_bytes", _StorageFiles()),
        ("torch._utils", "_rebuild_tensor"): Part("_rebuild_tensor", _tensor),
        ("torch._utils", "_rebuild_tensor_v2"): Part("_rebuild_tensor_v2", _tensor),
        ("collections", "OrderedDict"): Part("OrderedDict", _no_hooks),
    }
