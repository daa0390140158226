"""Nodes, classes and features of a user's own graph, from tables of text or ``.npy`` files."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.datasets.formats.file_errors import bad_file, require_room
from jaxgnn.datasets.formats.files import real_number, to_float32, to_int32, whole_number
from jaxgnn.datasets.formats.graph_text import TextTable, read_table, text_suffix
from jaxgnn.datasets.formats.npy import map_npy, read_npy

# Column names that mark names of nodes.
NODE_COLUMNS = ("node", "node_id", "id", "name")
_LABEL_COLUMNS = ("label", "labels", "class", "y", "target", "subject", "category", "group")
_UNKNOWN = ("", "-1")
_LARGEST_ID = np.iinfo(np.int64).max
# Columns behind the node, where each row has one feature and its value.
_COORDINATES = (("feature_id", "value"), ("feature", "value"))
_LARGEST = float(np.finfo(np.float32).max)
_MOST_FEATURES = 1 << 24
# One-hot features of more nodes would take more than 256 MiB.
_MOST_ONE_HOT = 8192


Heads = Callable[[list[str], list[list[str]]], bool]
"""Whether the first row, given the others, names the columns."""


class Headers:
    """Whether the first rows of files name columns: as the caller says, or as the rows look.

    Args:
      header: True or False for all tables of text, a dictionary by field, or None.
      fields: the fields that have a file.

    Raises:
      ValueError: if ``header`` is neither, or has an unknown field.
    """

    def __init__(self, header: Any, fields: Sequence[str]):
        by_field = dict(header) if isinstance(header, Mapping) else dict.fromkeys(fields, header)
        unknown = [field for field in by_field if field not in fields]
        if unknown or not all(value in (None, True, False) for value in by_field.values()):
            expected = f"True, False, None, or a dictionary of these by {', '.join(fields)}"
            raise bad_input("datasets.read_graph", "header", expected, repr(header))
        self._by_field = by_field

    def is_open(self, field: str) -> bool:
        """Returns whether the caller has not decided if this field has a header."""
        return self._by_field.get(field) is None

    def choose(self, field: str, heads: Heads) -> Heads:
        """Returns the answer of the caller, or ``heads``."""
        answer = self._by_field.get(field)
        return heads if answer is None else lambda first, rest: bool(answer)


def say_inferred(path: Path, what: str, otherwise: str) -> None:
    """Warns of what was inferred from a file, and says which option says otherwise."""
    warnings.warn(f"{path}: read as if {what}; otherwise pass {otherwise}", stacklevel=2)


@dataclass(frozen=True)
class Nodes:
    """Nodes of a user's own graph.

    Attributes:
      source: the file that defines them.
      count: number of nodes.
      names: [nodes] integers or strings in the order of ids; None if a node's id is its name.
      ids: the id of each name; empty if a node's id is its name.
      numbered: whether names are whole numbers.
    """

    source: Path
    count: int
    names: np.ndarray | None
    ids: Mapping[int | str, int]
    numbered: bool

    def find(self, table: TextTable, row: int, column: int) -> int:
        """The id of the node that a cell names; raises ValueError if there is no such node."""
        cell = table.rows[row][column]
        try:
            name = whole_number(cell) if self.numbered else cell
        except ValueError:
            raise table.fault(row, column, "a node id, which is a whole number") from None
        node = self.ids.get(name, -1) if self.ids else int(name)
        if not 0 <= node < self.count:
            raise table.fault(row, column, self.expected())
        return node

    def find_all(self, path: Path, values: np.ndarray, what: str) -> np.ndarray:
        """Returns ids of the nodes named by an array of numbers."""
        if not self.numbered:
            expected = f"a table of text, since {self.source.name} calls nodes by words"
            raise bad_file(path, f"expected {what} as {expected}, got an array")
        values = to_int32(values, path, what)
        if self.ids:
            is_node = np.isin(values, list(self.ids))
        else:
            is_node = (values >= 0) & (values < self.count)
        if not is_node.all():
            position = np.unravel_index(int(np.argmin(is_node)), is_node.shape)
            where = ", ".join(map(str, position))
            raise bad_file(path, f"expected {self.expected()}, got {values[position]} at [{where}]")
        if not self.ids:
            return values
        return np.array([self.ids[value] for value in values.ravel().tolist()]).reshape(
            values.shape
        )

    def expected(self) -> str:
        """Description of valid nodes, for errors."""
        if self.ids:
            return f"one of the {self.count} nodes of {self.source.name}"
        return f"a node id in [0, {self.count}), the nodes of {self.source.name}"

    def name(self, node: int) -> object:
        """Name of a node in the files."""
        return node if self.names is None else self.names[node]


def read_labels(path: Path, headers: Headers) -> tuple[Nodes, list[str]]:
    """Returns the nodes, and the label of each as text."""
    if text_suffix(path) == ".npy":
        values = read_npy(path, "the label of each node")
        if values.ndim != 1 or not values.size:
            raise bad_file(path, f"expected one label for each node, got shape {values.shape}")
        values = to_int32(values, path, "labels") if values.dtype.kind not in "SU" else values
        values = values.astype(np.str_)
        return Nodes(path, values.size, None, {}, True), values.tolist()
    heads = headers.choose("labels", _heads_labels)
    table = read_table(path, "a node and its label, or its label", heads, columns=(1, 2))
    if table.header and headers.is_open("labels") and not _names_labels(list(table.header)):
        say_inferred(path, f"line 1 names the columns {', '.join(table.header)}", "header=False")
    texts = [row[-1] for row in table.rows]
    if table.columns == 1:
        _require_no_blank(table, "a label, or -1 where it is not known")
        return Nodes(path, len(texts), None, {}, True), texts
    nodes = _named_nodes(table)
    if nodes.ids:
        return nodes, texts
    order = np.argsort([int(row[0]) for row in table.rows])
    return nodes, [texts[row] for row in order]


def _heads_labels(first: list[str], rest: list[list[str]]) -> bool:
    """Returns whether the first row of labels names columns."""
    if _names_labels(first):
        return True
    return not is_whole(first[0]) and bool(rest) and all(is_whole(row[0]) for row in rest)


def _names_labels(first: Sequence[str]) -> bool:
    is_node = bool(first[1:]) and first[0].lower() in NODE_COLUMNS
    return first[-1].lower() in _LABEL_COLUMNS or is_node


def _require_no_blank(table: TextTable, expected: str) -> None:
    """Raises if an empty line may represent a node with a missing label or feature."""
    if table.columns == 1 and table.blank is not None:
        raise bad_file(table.path, f"line {table.blank}: expected {expected}, got an empty line")


def _named_nodes(table: TextTable) -> Nodes:
    """Returns nodes by the names in the first column."""
    numbered = all(is_whole(row[0]) and abs(int(row[0])) <= _LARGEST_ID for row in table.rows)
    ids: dict[int | str, int] = {}
    for row, cells in enumerate(table.rows):
        name = int(cells[0]) if numbered else cells[0]
        if name in ids:
            first = table.numbers[ids[name]]
            raise table.fault(row, 0, f"each node once (this one is in line {first})")
        if name == "":
            raise table.fault(row, 0, "the name of a node")
        ids[name] = row
    count = len(ids)
    if numbered and ids.keys() == set(range(count)):
        return Nodes(table.path, count, None, {}, True)
    return Nodes(table.path, count, np.array(list(ids)), ids, numbered)


def number_classes(path: Path, texts: Sequence[str]) -> tuple[tuple[str, ...], np.ndarray]:
    """Names of the classes, and the class of each node, -1 if it is unknown."""
    names = sorted({text for text in texts if text not in _UNKNOWN})
    if all(is_whole(name) for name in names):
        names.sort(key=int)
    if len(names) < 2:
        got = f"only the class {names[0][:80]!r}" if names else "no label at all"
        raise bad_file(path, f"expected labels of at least two classes, got {got}")
    ids = {name: number for number, name in enumerate(names)}
    return tuple(names), np.array([ids.get(text, -1) for text in texts], np.int32)


def read_features(
    path: Path | None, nodes: Nodes, headers: Headers, *, mapped: bool | None = False
) -> np.ndarray:
    """Returns features of the nodes, [nodes, features] float32; one-hot ones without a file.

    Args:
      path: their file, or None.
      nodes: the nodes.
      headers: whether the first row names the columns.
      mapped: whether they are memory-mapped; None if the file allows it.
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
        _require_count(path, len(values), nodes)
        return values
    heads = headers.choose("features", _heads_features)
    table = read_table(path, "the features of a node", heads)
    named = bool(table.header) and table.header[0] in NODE_COLUMNS
    if named and table.header[1:] in _COORDINATES:
        return _coordinate_features(table, nodes)
    _require_no_blank(table, "a number")
    _require_count(path, len(table.rows), nodes)
    features = np.empty((nodes.count, table.columns - named), np.float32)
    order = nodes_of_rows(table, nodes) if named else range(nodes.count)
    for row, node in enumerate(order):
        features[node] = [
            finite_number(table, row, column) for column in range(named, table.columns)
        ]
    return features


def _mapped(path: Path | None, nodes: Nodes) -> np.ndarray | None:
    """Returns the memory-mapped features; None if the file cannot be mapped."""
    if path is None or text_suffix(path) != ".npy":
        return None
    values = map_npy(path, "the features of each node")
    if values.ndim != 2 or not values.flags.c_contiguous:
        return None
    _require_count(path, len(values), nodes)
    return values


def nodes_of_rows(table: TextTable, nodes: Nodes) -> list[int]:
    """Returns the node of each row, each node once."""
    order = [nodes.find(table, row, 0) for row in range(len(table.rows))]
    seen: set[int] = set()
    for row, node in enumerate(order):
        if node in seen:
            raise table.fault(row, 0, "each node once")
        seen.add(node)
    return order


def _coordinate_features(table: TextTable, nodes: Nodes) -> np.ndarray:
    """Features from rows of a node, a feature and a value; zero where the table has no row."""
    count = len(table.rows)
    rows = np.array([nodes.find(table, row, 0) for row in range(count)])
    columns = np.array([_feature(table, row) for row in range(count)])
    values = np.array([finite_number(table, row, 2) for row in range(count)], np.float32)
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
    """Returns the number of the feature in a row."""
    try:
        number = whole_number(table.rows[row][1])
    except ValueError:
        number = -1
    if not 0 <= number < _MOST_FEATURES:
        raise table.fault(row, 1, f"the number of a feature in [0, {_MOST_FEATURES})")
    return number


def finite_number(
    table: TextTable, row: int, column: int, expected: str = "a finite number"
) -> float:
    """Returns the number in a cell; it must be finite in float32."""
    try:
        value = real_number(table.rows[row][column])
    except ValueError:
        value = np.nan
    if not abs(value) <= _LARGEST:
        raise table.fault(row, column, expected)
    return value


def _require_count(path: Path, rows: int, nodes: Nodes) -> None:
    if rows != nodes.count:
        expected = f"features of the {nodes.count} nodes of {nodes.source.name}"
        raise bad_file(path, f"expected {expected}, got {rows} rows")


def is_whole(cell: str) -> bool:
    """Returns whether a cell is a whole number."""
    return _parses(whole_number, cell)


def is_number(cell: str) -> bool:
    """Returns whether a cell is a number."""
    return _parses(real_number, cell)


def _heads_features(first: list[str], rest: list[list[str]]) -> bool:
    """Returns whether the first row of features names columns: it has no number."""
    return not any(map(is_number, first))


def _parses(parse: Callable[[str], object], cell: str) -> bool:
    try:
        parse(cell)
    except ValueError:
        return False
    return True
