"""The features of a user's own graph, from a table of text or an .npy file."""

from pathlib import Path

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.datasets.formats.file_errors import bad_file
from jaxgnn.datasets.formats.files import real_number, to_float32
from jaxgnn.datasets.formats.graph_text import TextTable, read_table, text_suffix
from jaxgnn.datasets.formats.npy import map_npy, read_npy
from jaxgnn.datasets.readers.own_coordinates import coordinate_features, has_coordinates
from jaxgnn.datasets.readers.own_nodes import NODE_COLUMNS, Nodes, check_blank

# One-hot features of more nodes would take more than 256 MiB.
_MOST_ONE_HOT = 8192
_LARGEST = float(np.finfo(np.float32).max)


def read_features(path: Path | None, nodes: Nodes, *, mapped: bool | None = False) -> np.ndarray:
    """Features of the nodes, [nodes, features] float32; one-hot ones without a file.

    Args:
      path: their file, or None.
      nodes: the nodes.
      mapped: whether they are memory-mapped; None if the file allows it.

    Raises:
      ValueError: the file is invalid, or cannot be mapped as requested.
    """
    on_disk = None if mapped is False else _mapped(path, nodes)
    if on_disk is not None:
        return on_disk
    if mapped:
        expected = "a file features.npy of numbers [nodes, features] in C order, to be mapped"
        raise bad_input("datasets.read_graph", "features", expected, path)
    if path is None:
        if nodes.count > _MOST_ONE_HOT:
            raise bad_file(
                nodes.source.parent,
                f"expected a file features.*: only graphs of up to {_MOST_ONE_HOT} nodes get a "
                f"feature for each node without one, and this one has {nodes.count}",
            )
        return np.eye(nodes.count, dtype=np.float32)
    if text_suffix(path) == ".npy":
        values = to_float32(read_npy(path, "the features of each node"), path, "features")
        _check_count(path, len(values), nodes)
        return values
    table = read_table(path, "the features of a node", _heads_features)
    if has_coordinates(table.header):
        return coordinate_features(table, nodes)
    named = bool(table.header) and table.header[0] in NODE_COLUMNS
    check_blank(table, "a number")
    _check_count(path, len(table.rows), nodes)
    features = np.empty((nodes.count, table.columns - named), np.float32)
    order = nodes_of_rows(table, nodes) if named else range(nodes.count)
    for row, node in enumerate(order):
        features[node] = [_finite(table, row, column) for column in range(named, table.columns)]
    return features


def _mapped(path: Path | None, nodes: Nodes) -> np.ndarray | None:
    """The memory-mapped features; None if the file cannot be mapped."""
    if path is None or text_suffix(path) != ".npy":
        return None
    values = map_npy(path, "the features of each node")
    if values.ndim != 2 or not values.flags.c_contiguous:
        return None
    _check_count(path, len(values), nodes)
    return values


def _heads_features(first: list[str], rest: list[list[str]]) -> bool:
    """Whether the first row of features names columns: it has no number."""
    return not any(_is_real(cell) for cell in first)


def nodes_of_rows(table: TextTable, nodes: Nodes) -> list[int]:
    """The node of each row, each node once."""
    order = [nodes.find(table, row, 0) for row in range(len(table.rows))]
    seen: set[int] = set()
    for row, node in enumerate(order):
        if node in seen:
            raise table.fault(row, 0, "each node once")
        seen.add(node)
    return order


def _finite(table: TextTable, row: int, column: int) -> float:
    """The number in a cell; it must be finite in float32."""
    try:
        value = real_number(table.rows[row][column])
    except ValueError:
        value = np.nan
    if not abs(value) <= _LARGEST:
        raise table.fault(row, column, "a finite number")
    return value


def _check_count(path: Path, rows: int, nodes: Nodes) -> None:
    if rows != nodes.count:
        expected = f"features of the {nodes.count} nodes of {nodes.source.name}"
        raise bad_file(path, f"expected {expected}, got {rows} rows")


def _is_real(cell: str) -> bool:
    try:
        real_number(cell)
    except ValueError:
        return False
    return True
