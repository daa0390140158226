"""Tables of OGB's raw folders, shared by its sets of nodes, links and graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from jaxgnn.datasets.formats.file_errors import bad_file, require_folder
from jaxgnn.datasets.formats.files import csv_path, read_csv, read_text, real_number

SPLIT_FILES = {"train": "train", "validation": "valid", "test": "test"}
"""OGB's name for the file of each part."""


def read_counts(path: Path, what: str) -> np.ndarray:
    """Reads a non-negative number on each line: int64 [lines]."""
    counts = read_csv(path, np.int64, f"a line for each: its number of {what}", columns=1)[:, 0]
    if (counts < 0).any():
        line = int(np.argmax(counts < 0))
        raise bad_file(
            csv_path(path), f"line {line + 1}: expected a number of {what}, got {counts[line]}"
        )
    return counts


def read_ends(path: Path, limits: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Reads the two nodes of each edge, int32 [2, edges].

    Args:
      path: the file, a line an edge.
      limits: number of valid nodes for the first and for the second end of each edge, each [edges]
        or a single number in an array of one.

    Raises:
      ValueError: the file, line and column of an invalid node.
    """
    edges = read_csv(path, np.int32, "a line an edge: two node ids", columns=2)
    for limit in limits:
        if limit.size != 1:
            require_rows(path, edges.shape[0], limit.size, "num-edge-list")
    for column, limit in enumerate(limits):
        limit = np.broadcast_to(limit, edges.shape[:1])
        good = (edges[:, column] >= 0) & (edges[:, column] < limit)
        if not good.all():
            line = int(np.argmin(good))
            raise bad_file(
                csv_path(path),
                f"line {line + 1}, column {column + 1}: expected node ids in [0, {limit[line]}), "
                f"got {edges[line, column]}",
            )
    return np.ascontiguousarray(edges.T)


def require_rows(path: Path, rows: int, expected: int, counted_in: str) -> None:
    """Raises unless a table has the number of rows that another file gives."""
    if rows != expected:
        raise bad_file(
            csv_path(path), f"expected {expected} lines, as {counted_in} says, got {rows}"
        )


def read_features(path: Path, rows: int, counted_in: str) -> np.ndarray | None:
    """Reads finite features, float32 [rows, features]; None if there is no such file."""
    if not csv_path(path).is_file():
        return None
    features = read_csv(path, np.float32, "a line for each: its features")
    require_rows(path, features.shape[0], rows, counted_in)
    finite = np.isfinite(features)
    if not finite.all():
        line, column = divmod(int(np.argmin(finite)), features.shape[1])
        where = f"line {line + 1}, column {column + 1}"
        got = features[line, column]
        raise bad_file(csv_path(path), f"{where}: expected a finite number, got {got}")
    return features


def read_labels_with_gaps(path: Path, rows: int, counted_in: str) -> np.ndarray:
    """Reads labels, some of them missing: empty cells or ``nan``; float32 [rows, tasks]."""
    found = csv_path(path)
    lines = read_text(found, "a line for each: its labels").decode("utf-8", "replace").splitlines()
    require_rows(path, len(lines), rows, counted_in)
    width = lines[0].count(",") + 1 if lines else 0
    labels = np.empty((len(lines), width), np.float32)
    known: dict[str, float] = {}  # caches cells: most of the millions are zeros, ones or empty
    for row, line in enumerate(lines):
        cells = line.split(",")
        if len(cells) != width:
            message = f"line {row + 1}: expected {width} columns, got {len(cells)}"
            raise bad_file(found, message)
        for column, cell in enumerate(cells):
            if cell in known:
                continue
            try:
                known[cell] = _label(cell.strip())
            except ValueError as error:
                where = f"line {row + 1}, column {column + 1}"
                raise bad_file(found, f"{where}: {error}, got {cell[:80]!r}") from None
        labels[row] = [known[cell] for cell in cells]
    return labels


def _label(cell: str) -> float:
    """The number in a cell, NaN if empty; raises ValueError with the expected content."""
    try:
        value = real_number(cell) if cell else np.nan
    except ValueError:
        raise ValueError("expected a number, or nothing where there is none") from None
    if np.isinf(value):
        raise ValueError("expected a finite number")
    return value


def read_parts(folder: Path, count: int, what: str) -> dict[str, Any]:
    """Reads the three disjoint parts of a split, sorted int32 ids.

    Args:
      folder: the folder of the split.
      count: number of items that are split.
      what: their name, such as "graphs".
    """
    require_folder(folder, "train, valid and test .csv.gz")
    parts: dict[str, np.ndarray] = {}
    owner = np.zeros(count, bool)
    for name, file in SPLIT_FILES.items():
        path = folder / f"{file}.csv.gz"
        ids = read_csv(path, np.int32, f"a line for each of the {what}: its number", columns=1)
        ids = np.sort(ids[:, 0])
        bad = (ids < 0) | (ids >= count)
        if bad.any():
            expected = f"numbers of {what} in [0, {count})"
            raise bad_file(csv_path(path), f"expected {expected}, got {ids[int(np.argmax(bad))]}")
        repeated = owner[ids] | (np.diff(ids, prepend=-1) == 0)
        if repeated.any():
            got = f"{ids[int(np.argmax(repeated))]} again"
            raise bad_file(csv_path(path), f"expected each of the {what} in one part, got {got}")
        owner[ids] = True
        parts[name] = ids
    return parts


def read_sizes_and_ends(raw: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reads nodes and edges of each graph, int64 [graphs] each, and the edges, int32 [2, edges].

    The ends of an edge are counted from 0 in its graph.
    """
    nodes, edges = (read_counts(raw / f"num-{what}-list.csv.gz", f"{what}s") for what in _WHAT)
    require_rows(raw / "num-edge-list.csv.gz", edges.size, nodes.size, "num-node-list")
    return nodes, edges, read_ends(raw / "edge.csv.gz", (np.repeat(nodes, edges),) * 2)


_WHAT = ("node", "edge")


def in_both_directions(
    ends: np.ndarray, features: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Senders, receivers and features of edges, where each edge is followed by its reverse."""
    senders, receivers = np.stack([ends, ends[::-1]], axis=2).reshape(2, -1)
    return senders, receivers, np.repeat(features, 2, axis=0)


def read_table_of_text(path: Path, contents: str) -> list[list[str]]:
    """The cells of a small table of text."""
    found = csv_path(path)
    if not found.is_file():
        raise FileNotFoundError(f"no file {path} (nor {found.name}): expected {contents}")
    text = read_text(found, contents).decode("utf-8", "replace")
    return [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]


def read_numbers_of_types(path: Path) -> dict[str, int]:
    """The number of nodes of each type."""
    contents = "a line of types, and a line of their numbers of nodes"
    rows = read_table_of_text(path, contents)
    found = csv_path(path)
    if len(rows) != 2 or len(rows[0]) != len(rows[1]) or len(set(rows[0])) < len(rows[0]):
        raise bad_file(found, f"expected {contents}, got {len(rows)} lines: {rows[:2]!s:.200}")
    for kind in rows[0]:
        if not kind.replace("_", "").isalnum():  # it is used as the name of a folder
            raise bad_file(found, f"line 1: expected names of types, got {kind[:80]!r}")
    for cell in rows[1]:
        if not (cell.isascii() and cell.isdigit() and len(cell) < 10):
            raise bad_file(found, f"line 2: expected numbers of nodes, got {cell[:80]!r}")
    return dict(zip(rows[0], map(int, rows[1]), strict=True))
