"""Matrices in pickles and .npz files, sparse or dense, which are validated first."""

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from jaxgnn.datasets.formats.file_errors import bad_file, naming, require_room
from jaxgnn.datasets.formats.files import to_float32, to_int32
from jaxgnn.datasets.formats.npy import npz_names, read_npz
from jaxgnn.datasets.formats.pickle_parts import StoredArray, StoredCSR, StoredSet
from jaxgnn.datasets.formats.safe_pickle import read_numbers

_ADJACENCY = "a sparse adjacency matrix (csr or coo) as scipy.sparse.save_npz writes it"
_KINDS_OF_NUMBERS = {bool, int, float, *"biuf"}
_LAST_ID = np.iinfo(np.int32).max


def read_adjacency(path: Path) -> tuple[np.ndarray, np.ndarray, int]:
    """Reads the pattern of a square sparse matrix of scipy; the stored values are ignored.

    The format of a matrix without ``format``, as in older files, is inferred from its arrays: csr
    if there is ``indptr``, coo if there is ``row``.

    Returns:
      The row and the column of each stored entry, [edges] int32, and the number of rows.
    """
    names = npz_names(path, _ADJACENCY)
    layout = _layout(path, names)
    keys = ("indptr", "indices", "shape") if layout == "csr" else ("row", "col", "shape")
    arrays = read_npz(path, keys, _ADJACENCY)
    with naming(path, "a sparse matrix"):
        num_nodes = square_size(path, arrays["shape"])
        if layout == "csr":
            senders = rows_of_entries(path, arrays["indptr"], num_nodes, arrays["indices"].size)
            receivers = arrays["indices"]
        else:
            senders, receivers = arrays["row"], arrays["col"]
        if senders.shape != receivers.shape or senders.ndim != 1:
            raise bad_file(path, f"{senders.size} row indices, but {receivers.size} columns")
        return to_int32(senders, path, "rows"), to_int32(receivers, path, "columns"), num_nodes


def _layout(path: Path, names: frozenset[str]) -> str:
    layout = "csr" if "indptr" in names else "coo"
    if "format" in names:
        stored = read_npz(path, ("format",), _ADJACENCY)["format"]
        if stored.shape != () or stored.dtype.kind not in "SU":
            raise bad_file(path, "expected a csr or coo matrix, got a format that is no text")
        layout = stored.astype("U").item()
    if layout not in ("csr", "coo"):
        raise bad_file(path, f"expected a csr or coo matrix, got {layout[:80]!r}")
    return layout


def square_size(path: Path, shape: np.ndarray, matrix: str = "") -> int:
    """Returns the number of rows of a square matrix; ``matrix`` begins the message of an error."""
    if shape.shape != (2,) or shape[0] != shape[1]:
        raise bad_file(path, f"{matrix}expected a square matrix, got shape {shape.tolist()[:5]}")
    size = int(to_int32(shape, path, "its shape")[0])
    if size < 0:
        raise bad_file(path, f"{matrix}expected a square matrix, got shape {shape.tolist()}")
    return size


def rows_of_entries(
    path: Path, indptr: np.ndarray, rows: int, entries: int, matrix: str = ""
) -> np.ndarray:
    """Returns the row of each entry, int32 [entries], from row offsets [rows + 1]."""
    if indptr.shape != (rows + 1,):
        raise bad_file(path, f"{matrix}expected {rows + 1} row offsets, got {indptr.shape}")
    if indptr.dtype.kind not in "iu":
        raise bad_file(path, f"{matrix}expected row offsets as integers, got dtype {indptr.dtype}")
    if not _rise(indptr, entries):
        raise bad_file(path, f"{matrix}row offsets do not rise from 0 to {entries}, the entries")
    counts = np.diff(indptr.astype(np.int64, copy=False))
    return np.repeat(np.arange(rows, dtype=np.int32), counts)


def _rise(indptr: np.ndarray, entries: int) -> bool:
    """Returns whether row offsets rise from zero to the number of entries."""
    # Compared, not subtracted: differences of unsigned numbers are never negative.
    return indptr[0] == 0 and indptr[-1] == entries and not (indptr[1:] < indptr[:-1]).any()


def read_matrix(path: Path, what: str) -> np.ndarray:
    """Reads a matrix from a pickle, sparse or dense or a list of rows: float32 [rows, columns].

    Args:
      path: the file.
      what: content of the matrix, such as "features".
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
    """Returns a list of rows, each a list or an array of numbers."""
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
        with np.errstate(over="ignore"):  # Validation reports inf.
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
    if not _rise(indptr, len(data)):
        raise bad_file(path, f"not a csr_matrix: row offsets do not rise from 0 to {len(data)}")
    if ((indices < 0) | (indices >= columns)).any():
        raise bad_file(path, f"not a csr_matrix: a column is not in [0, {columns})")
    require_room(path, rows * columns * np.dtype(np.float32).itemsize, "its dense matrix")
    wide = data.astype(np.float64)  # Repeated entries are added up.
    arrays = (wide, indices.astype(np.int64), indptr.astype(np.int64))
    matrix = scipy.sparse.csr_array(arrays, shape=(rows, columns))
    matrix.sum_duplicates()
    with np.errstate(over="ignore"):
        return matrix.astype(np.float32).toarray()


def length_of(stored: Any) -> int:
    """Returns the number of entries of a list, a set or an array; none for anything else."""
    if isinstance(stored, StoredArray):
        return stored.value.shape[0] if stored.value.ndim else 0
    members = stored.members if isinstance(stored, StoredSet) else stored
    return len(members) if isinstance(members, list | tuple) else 0
