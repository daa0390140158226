"""Matrices in pickles, sparse or dense, which are validated first."""

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from jaxgnn.datasets.formats.file_errors import bad_file, naming, require_room
from jaxgnn.datasets.formats.files import to_float32
from jaxgnn.datasets.formats.pickle_parts import StoredArray, StoredCSR, StoredSet
from jaxgnn.datasets.formats.safe_pickle import read_numbers

_KINDS_OF_NUMBERS = {bool, int, float, *"biuf"}
_LAST_ID = np.iinfo(np.int32).max


def read_matrix(path: Path, what: str) -> np.ndarray:
    """Reads a matrix from a pickle, sparse or dense or a list of rows: float32 [rows, columns].

    Args:
      path: the file.
      what: content of the matrix, such as "features".

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file, and its fault.
    """
    stored = read_numbers(path, f"a matrix of {what}, a row for each node")
    with naming(path, what):
        if isinstance(stored, StoredCSR):
            return csr_to_dense(path, stored.fields)
        if isinstance(stored, StoredArray):
            return to_float32(stored.value, path, what)
        if not isinstance(stored, list | tuple):
            got = type(stored).__name__
            raise bad_file(path, f"expected {what} as a 2-d array of numbers, got a {got}")
        return _rows(path, stored)


def _rows(path: Path, rows: list[Any] | tuple[Any, ...]) -> np.ndarray:
    """A list of rows, each a list or an array of numbers."""
    if not all(isinstance(row, list | tuple | StoredArray) for row in rows):
        raise bad_file(path, "expected features as a 2-d array of numbers, got a list of others")
    widths = set(map(length_of, rows))
    if len(widths) > 1:
        got = " and ".join(map(str, sorted(widths)[:2]))
        raise bad_file(path, f"expected features as a matrix, got rows of {got}")
    width = widths.pop() if widths else 0
    require_room(path, len(rows) * width * np.dtype(np.float32).itemsize, "its features")
    features = np.empty((len(rows), width), np.float32)
    for number, row in enumerate(rows):
        values = row.value if isinstance(row, StoredArray) else row
        kinds = {values.dtype.kind} if isinstance(values, np.ndarray) else set(map(type, values))
        if not kinds <= _KINDS_OF_NUMBERS:
            raise bad_file(path, f"expected features as numbers, got others in row {number}")
        with np.errstate(over="ignore"):  # values out of range become inf, which validation reports
            features[number] = np.asarray(values, None if isinstance(values, np.ndarray) else float)
    return features


def csr_to_dense(path: Path, fields: dict[str, Any]) -> np.ndarray:
    """Converts a sparse matrix to a float32 array, after validating it.

    Args:
      path: its file.
      fields: ``_shape``, a pair of sizes, and ``data``, ``indices`` and ``indptr`` as arrays.
    """
    shape, parts = fields.get("_shape"), []
    for name in ("data", "indices", "indptr"):
        part = fields.get(name)
        if not isinstance(part, StoredArray) or part.value.ndim != 1:
            raise bad_file(path, f"not a csr_matrix as scipy stores it: {name} is no 1-d array")
        parts.append(part.value)
    data, indices, indptr = parts
    is_shape = type(shape) is tuple and len(shape) == 2
    if not is_shape or not all(type(n) is int and 0 <= n <= _LAST_ID for n in shape):
        raise bad_file(path, "not a csr_matrix as scipy stores it: expected a shape of two sizes")
    rows, columns = shape
    if data.dtype.kind not in "iufb" or not {indices.dtype.kind, indptr.dtype.kind} <= set("iu"):
        kinds = f"{data.dtype}, {indices.dtype} and {indptr.dtype}"
        raise bad_file(path, f"not a csr_matrix of numbers as scipy stores it, but of {kinds}")
    if len(indptr) != rows + 1 or len(data) != len(indices):
        sizes = f"{len(data)} values at {len(indices)} columns, and {len(indptr)} row offsets"
        raise bad_file(path, f"not a csr_matrix of {rows} rows: {sizes}")
    if indptr[0] != 0 or indptr[-1] != len(data) or (indptr[1:] < indptr[:-1]).any():
        raise bad_file(path, f"not a csr_matrix: row offsets do not rise from 0 to {len(data)}")
    if ((indices < 0) | (indices >= columns)).any():
        raise bad_file(path, f"not a csr_matrix: a column is not in [0, {columns})")
    require_room(path, rows * columns * np.dtype(np.float32).itemsize, "its dense matrix")
    wide = data.astype(np.float64)  # so that repeated entries are added in float64
    own = (wide, indices.astype(np.int64), indptr.astype(np.int64))
    matrix = scipy.sparse.csr_array(own, shape=(rows, columns))
    matrix.sum_duplicates()
    with np.errstate(over="ignore"):
        return matrix.astype(np.float32).toarray()


def length_of(stored: Any) -> int:
    """Number of entries of a list, a set or an array; none for anything else."""
    if isinstance(stored, StoredArray):
        return stored.value.shape[0] if stored.value.ndim else 0
    members = stored.members if isinstance(stored, StoredSet) else stored
    return len(members) if isinstance(members, list | tuple) else 0
