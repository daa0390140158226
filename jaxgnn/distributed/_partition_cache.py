"""Partitions on disk: those of large graphs take minutes to compute."""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jaxgnn.graph import CSRGraph

# Version of the methods and of the file. Increase it when the result of a method changes.
_VERSION = 1


def cached_parts(
    folder: Path, graph: CSRGraph, arguments: tuple[Any, ...], make: Callable[[], np.ndarray]
) -> np.ndarray:
    """The part of each row, read from the folder, or computed and written to it.

    A file appears under its name once it is complete, so that processes may share the folder.

    Args:
      folder: where the files are; it is created if it is missing.
      graph: the graph, whose edges count.
      arguments: other arguments that the parts depend on, the number of parts first.
      make: computes the parts.

    Returns:
      int32 [rows].

    Warns:
      UserWarning: if there is a file that cannot be read; it is computed again.
    """
    path = folder / f"partition-{fingerprint(graph, arguments)}.npz"
    if path.exists():
        try:
            return _read(path, graph.num_rows, arguments[0])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            warnings.warn(f"partition: {path} is made anew: {error}", stacklevel=2)
    part_of = make()
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=folder, suffix=".npz")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, part_of=part_of, digest=_digest(part_of))
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)
    return part_of


def fingerprint(graph: CSRGraph, arguments: tuple[Any, ...] = ()) -> str:
    """A hash of the edges of a graph and of some arguments, in 32 hexadecimal digits."""
    indptr = np.asarray(graph.indptr)
    made = hashlib.blake2b(repr((_VERSION, graph.shape, arguments)).encode(), digest_size=16)
    made.update(indptr.astype(np.int64))
    made.update(np.ascontiguousarray(np.asarray(graph.indices)[: indptr[-1]]))
    return made.hexdigest()


def _read(path: Path, rows: int, parts: int) -> np.ndarray:
    with path.open("rb") as opened, np.load(opened) as file:
        part_of, digest = file["part_of"], file["digest"]
    if part_of.dtype != np.int32 or part_of.shape != (rows,):
        raise ValueError(f"it has {part_of.dtype} of shape {part_of.shape}, not int32 of ({rows},)")
    if not np.array_equal(digest, _digest(part_of)) or part_of.min() < 0 or part_of.max() >= parts:
        raise ValueError("its parts are not those that were written")
    return part_of


def _digest(part_of: np.ndarray) -> np.ndarray:
    return np.frombuffer(hashlib.blake2b(part_of, digest_size=16).digest(), np.uint8)
