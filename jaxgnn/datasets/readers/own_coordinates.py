"""Features of nodes in coordinate form: tables with a node, a feature and a value in each row."""

import numpy as np

from jaxgnn.datasets.formats.file_errors import require_room
from jaxgnn.datasets.formats.files import real_number, whole_number
from jaxgnn.datasets.formats.graph_text import TextTable
from jaxgnn.datasets.readers.own_nodes import NODE_COLUMNS, Nodes

_FEATURE_COLUMNS = ("feature_id", "feature")
_VALUE_COLUMNS = ("value",)
_LARGEST = float(np.finfo(np.float32).max)
_MOST_FEATURES = 1 << 24


def has_coordinates(header: tuple[str, ...]) -> bool:
    """Whether the names of the columns are those of a node, a feature and its value."""
    names = (NODE_COLUMNS, _FEATURE_COLUMNS, _VALUE_COLUMNS)
    return len(header) == len(names) and all(
        name in known for name, known in zip(header, names, strict=True)
    )


def coordinate_features(table: TextTable, nodes: Nodes) -> np.ndarray:
    """The features as a matrix, float32 [nodes, features], zero where the table has no row.

    Raises:
      ValueError: the file, line and column of an unknown node, an invalid number of a feature, a
        value that is not finite, or a repeated entry.
    """
    count = len(table.rows)
    rows = np.array([nodes.find(table, row, 0) for row in range(count)])
    columns = np.array([_feature(table, row) for row in range(count)])
    values = np.array([_finite(table, row) for row in range(count)], np.float32)
    width = int(columns.max()) + 1
    require_room(table.path, 4 * nodes.count * width, "its dense matrix")
    cells = rows * width + columns
    order = np.argsort(cells, kind="stable")
    repeated = np.flatnonzero(cells[order][1:] == cells[order][:-1])
    if repeated.size:
        row = int(order[repeated[0] + 1])
        raise table.fault(row, 1, f"each feature of a node once ({table.rows[row][0]} has it)")
    features = np.zeros((nodes.count, width), np.float32)
    features[rows, columns] = values
    return features


def _feature(table: TextTable, row: int) -> int:
    """The number of the feature in a row."""
    try:
        number = whole_number(table.rows[row][1])
    except ValueError:
        number = -1
    if not 0 <= number < _MOST_FEATURES:
        raise table.fault(row, 1, f"the number of a feature in [0, {_MOST_FEATURES})")
    return number


def _finite(table: TextTable, row: int) -> float:
    """The value in a row; it must be finite in float32."""
    try:
        value = real_number(table.rows[row][2])
    except ValueError:
        value = np.nan
    if not abs(value) <= _LARGEST:
        raise table.fault(row, 2, "a finite number")
    return value
