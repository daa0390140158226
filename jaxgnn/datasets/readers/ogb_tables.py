"""Tables of OGB's raw folders, shared by its sets of nodes, links and graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from jaxgnn.datasets.formats.file_errors import bad_file, require_folder
from jaxgnn.datasets.formats.files import (
    csv_path,
    existing_csv,
    read_csv,
    read_text,
    require_below,
    require_cells,
)

SPLIT_FILES = {"train": "train", "validation": "valid", "test": "test"}
"""OGB's name for the file of each part."""

_MOST_IDS = np.iinfo(np.int32).max


def require_rows(path: Path, rows: int, expected: int, counted_in: str) -> None:
    """Raises unless a table has the number of rows that another file gives."""
    if rows != expected:
        message = f"expected {expected} lines, as {counted_in} says, got {rows}"
        raise bad_file(csv_path(path), message)


def read_counts(path: Path, what: str) -> np.ndarray:
    """Reads a non-negative number on each line, which int32 can count: int64 [lines]."""
    counts = read_csv(path, np.int64, f"a line for each: its number of {what}", columns=1)[:, 0]
    good = (counts >= 0) & (counts <= _MOST_IDS)
    require_cells(path, counts, good, f"a number of {what} in [0, {_MOST_IDS}]")
    return counts


def read_count(path: Path, what: str, counted_in: str = "the format of one graph") -> int:
    """Reads a file of one non-negative number."""
    counts = read_counts(path, what)
    require_rows(path, counts.size, 1, counted_in)
    return int(counts[0])


def read_ends(path: Path, rows: int, limits: Any) -> np.ndarray:
    """Reads the two nodes of each edge, int32 [2, edges].

    Args:
      path: the file, a line an edge.
      rows: number of edges.
      limits: number of valid nodes for each end of each edge, broadcast to [edges, 2].
    """
    edges = _ends(path, rows)
    require_below(path, edges, limits, "node ids")
    return np.ascontiguousarray(edges.T)


def _ends(path: Path, rows: int) -> np.ndarray:
    """The two nodes of each edge, int32 [edges, 2], before they are checked."""
    edges = read_csv(path, np.int32, "a line an edge: two node ids", columns=2)
    require_rows(path, edges.shape[0], rows, "num-edge-list")
    return edges


def read_sizes_and_ends(raw: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reads nodes and edges of each graph, int64 [graphs] each, and the edges, int32 [2, edges].

    The ends of an edge are counted from 0 in its graph.
    """
    nodes = read_counts(raw / "num-node-list.csv.gz", "nodes")
    edges = read_counts(raw / "num-edge-list.csv.gz", "edges")
    require_rows(raw / "num-edge-list.csv.gz", edges.size, nodes.size, "num-node-list")
    if nodes.sum() > _MOST_IDS:
        expected = f"at most {_MOST_IDS} nodes of all graphs together"
        got = f"{nodes.sum()}"
        raise bad_file(csv_path(raw / "num-node-list.csv.gz"), f"expected {expected}, got {got}")
    path = raw / "edge.csv.gz"
    ends = _ends(
        path, int(edges.sum())
    )  # so that the numbers of edges are true before they are used
    require_below(path, ends, np.repeat(nodes, edges)[:, None], "node ids")
    return nodes, edges, np.ascontiguousarray(ends.T)


def read_features(
    path: Path,
    rows: int,
    of: str,
    *,
    columns: int | None = None,
    counted_in: str | None = None,
) -> np.ndarray:
    """Reads finite features, float32 [rows, features].

    Args:
      path: the file.
      rows: number of nodes or edges.
      of: "node" or "edge".
      columns: number of features; None for any.
      counted_in: name of the file that gives ``rows``; None for the usual one.
    """
    features = read_csv(path, np.float32, f"a line for each {of}: its features", columns)
    require_rows(path, features.shape[0], rows, counted_in or f"num-{of}-list")
    require_cells(path, features, np.isfinite(features), "a finite number")
    return features


def read_column(
    path: Path, contents: str, rows: int, counted_in: str = "num-node-list"
) -> np.ndarray:
    """Reads a whole number on each line, int32 [rows]."""
    values = read_csv(path, np.int32, f"a line for each: {contents}", columns=1)[:, 0]
    require_rows(path, values.size, rows, counted_in)
    return values


def read_parts(folder: Path, count: int, what: str) -> dict[str, Any]:
    """Reads the three disjoint parts of a split, sorted int32 ids.

    Args:
      folder: the folder of the split.
      count: number of items that are split.
      what: their name, such as "graphs".
    """
    require_folder(folder, "train, valid and test .csv.gz")
    parts: dict[str, np.ndarray] = {}
    owned = np.zeros(0, np.int32)  # sorted; no array of ``count``, which no table may confirm
    for name, file in SPLIT_FILES.items():
        path = folder / f"{file}.csv.gz"
        ids = read_csv(path, np.int32, f"a line for each of the {what}: its id", columns=1)
        ids = np.sort(ids[:, 0])
        bad = (ids < 0) | (ids >= count)
        if bad.any():
            expected = f"numbers of {what} in [0, {count})"
            raise bad_file(csv_path(path), f"expected {expected}, got {ids[int(np.argmax(bad))]}")
        repeated = np.isin(ids, owned) | (np.diff(ids, prepend=-1) == 0)
        if repeated.any():
            got = f"{ids[int(np.argmax(repeated))]} again"
            raise bad_file(csv_path(path), f"expected each of the {what} in one part, got {got}")
        owned = np.concatenate([owned, ids])
        parts[name] = ids
    return parts


def read_table_of_text(path: Path, contents: str) -> list[list[str]]:
    """The cells of a small table of text."""
    text = read_text(existing_csv(path, contents), contents).decode("utf-8", "replace")
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
