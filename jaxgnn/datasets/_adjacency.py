"""Sparse matrices as scipy saves them -> edge lists."""

from pathlib import Path

import numpy as np

from jaxgnn.datasets._files import npz_names, read_npz, to_int32

_CONTENTS = "a sparse adjacency matrix (csr or coo) as scipy.sparse.save_npz writes it"


def read_adjacency(path: Path) -> tuple[np.ndarray, np.ndarray, int]:
    """Reads the pattern of a square sparse matrix; the stored values are not looked at.

    A matrix without `format`, as older files have it, is known by its arrays: `indptr` makes it
    csr, `row` makes it coo.

    Returns:
        senders: [edges] int32, the row of each stored entry.
        receivers: [edges] int32, its column.
        num_nodes: rows, which equal the columns.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no such matrix.
    """
    names = npz_names(path, _CONTENTS)
    layout = _layout(path, names)
    keys = ("indptr", "indices", "shape") if layout == "csr" else ("row", "col", "shape")
    arrays = read_npz(path, keys, _CONTENTS)
    num_nodes = _square(path, arrays["shape"])
    if layout == "csr":
        senders = _expand(path, arrays["indptr"], num_nodes, arrays["indices"].size)
        receivers = arrays["indices"]
    else:
        senders, receivers = arrays["row"], arrays["col"]
    if senders.shape != receivers.shape:
        raise ValueError(f"{path}: {senders.size} row indices, but {receivers.size} columns")
    return to_int32(senders, path, "rows"), to_int32(receivers, path, "columns"), num_nodes


def _layout(path: Path, names: frozenset[str]) -> str:
    layout = "csr" if "indptr" in names else "coo"
    if "format" in names:
        stored = read_npz(path, ("format",), _CONTENTS)["format"].item()
        layout = stored.decode() if isinstance(stored, bytes) else str(stored)
    if layout not in ("csr", "coo"):
        raise ValueError(f"{path}: expected a csr or coo matrix, got {layout!r}")
    return layout


def _square(path: Path, shape: np.ndarray) -> int:
    if shape.shape != (2,) or shape[0] != shape[1]:
        raise ValueError(f"{path}: expected a square matrix, got shape {shape.tolist()}")
    return int(shape[0])


def _expand(path: Path, indptr: np.ndarray, num_nodes: int, entries: int) -> np.ndarray:
    """Row offsets [nodes + 1] -> the row of each entry [entries]."""
    if indptr.shape != (num_nodes + 1,):
        raise ValueError(f"{path}: expected {num_nodes + 1} row offsets, got {indptr.shape}")
    counts = np.diff(indptr)
    if indptr[0] != 0 or indptr[-1] != entries or (counts < 0).any():
        raise ValueError(f"{path}: row offsets do not rise from 0 to {entries}, the entries")
    return np.repeat(np.arange(num_nodes, dtype=np.int32), counts)
