"""Converts sparse matrices saved by scipy to edge lists."""

from pathlib import Path

import numpy as np

from jaxgnn.datasets.formats.file_errors import bad_file, naming
from jaxgnn.datasets.formats.files import to_int32
from jaxgnn.datasets.formats.npy import npz_names, read_npz

_CONTENTS = "a sparse adjacency matrix (csr or coo) as scipy.sparse.save_npz writes it"


def read_adjacency(path: Path) -> tuple[np.ndarray, np.ndarray, int]:
    """Reads the pattern of a square sparse matrix; the stored values are ignored.

    The format of a matrix without ``format``, as in older files, is inferred from its arrays: csr
    if there is ``indptr``, coo if there is ``row``.

    Returns:
      senders: [edges] int32, the row of each stored entry.
      receivers: [edges] int32, its column.
      num_nodes: number of rows, which equals the number of columns.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file is not such a matrix.
    """
    names = npz_names(path, _CONTENTS)
    layout = _layout(path, names)
    keys = ("indptr", "indices", "shape") if layout == "csr" else ("row", "col", "shape")
    arrays = read_npz(path, keys, _CONTENTS)
    with naming(path, "a sparse matrix"):
        num_nodes = _square(path, arrays["shape"])
        if layout == "csr":
            senders = _expand(path, arrays["indptr"], num_nodes, arrays["indices"].size)
            receivers = arrays["indices"]
        else:
            senders, receivers = arrays["row"], arrays["col"]
        if senders.shape != receivers.shape or senders.ndim != 1:
            raise bad_file(path, f"{senders.size} row indices, but {receivers.size} columns")
        return to_int32(senders, path, "rows"), to_int32(receivers, path, "columns"), num_nodes


def _layout(path: Path, names: frozenset[str]) -> str:
    layout = "csr" if "indptr" in names else "coo"
    if "format" in names:
        stored = read_npz(path, ("format",), _CONTENTS)["format"]
        if stored.shape != () or stored.dtype.kind not in "SU":
            raise bad_file(path, "expected a csr or coo matrix, got a format that is no text")
        layout = stored.astype("U").item()
    if layout not in ("csr", "coo"):
        raise bad_file(path, f"expected a csr or coo matrix, got {layout[:80]!r}")
    return layout


def _square(path: Path, shape: np.ndarray) -> int:
    if shape.shape != (2,) or shape[0] != shape[1]:
        raise bad_file(path, f"expected a square matrix, got shape {shape.tolist()[:5]}")
    size = int(to_int32(shape, path, "its shape")[0])
    if size < 0:
        raise bad_file(path, f"expected a square matrix, got shape {shape.tolist()}")
    return size


def _expand(path: Path, indptr: np.ndarray, num_nodes: int, entries: int) -> np.ndarray:
    """Row offsets [nodes + 1] -> the row of each entry [entries]."""
    if indptr.shape != (num_nodes + 1,):
        raise bad_file(path, f"expected {num_nodes + 1} row offsets, got {indptr.shape}")
    if indptr.dtype.kind not in "iu":
        raise bad_file(path, f"expected row offsets as integers, got dtype {indptr.dtype}")
    # Compared, not subtracted: differences of unsigned numbers are never negative.
    if indptr[0] != 0 or indptr[-1] != entries or (indptr[1:] < indptr[:-1]).any():
        raise bad_file(path, f"row offsets do not rise from 0 to {entries}, the entries")
    counts = np.diff(indptr.astype(np.int64, copy=False))
    return np.repeat(np.arange(num_nodes, dtype=np.int32), counts)
