"""Nodes and classes of a user's own graph, from the file of its labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxgnn.datasets.formats.file_errors import bad_file
from jaxgnn.datasets.formats.files import to_int32, whole_number
from jaxgnn.datasets.formats.graph_text import TextTable, read_table, text_suffix
from jaxgnn.datasets.formats.npy import read_npy

# Column names that mark names of nodes.
NODE_COLUMNS = ("node", "node_id", "id", "name")
_LABEL_COLUMNS = ("label", "labels", "class", "y", "target", "subject", "category", "group")
_UNKNOWN = ("", "-1")
_LARGEST_ID = np.iinfo(np.int64).max


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
        """Ids of the nodes named by an array of numbers."""
        if not self.numbered:
            expected = f"a table of text, since {self.source.name} calls nodes by words"
            raise bad_file(path, f"expected {what} as {expected}, got an array")
        values = to_int32(values, path, what)
        if self.ids:
            known = np.isin(values, list(self.ids))
        else:
            known = (values >= 0) & (values < self.count)
        if not known.all():
            position = np.unravel_index(int(np.argmin(known)), known.shape)
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


def read_labels(path: Path) -> tuple[Nodes, list[str]]:
    """The nodes, and the label of each as text."""
    if text_suffix(path) == ".npy":
        values = read_npy(path, "the label of each node")
        if values.ndim != 1 or not values.size:
            raise bad_file(path, f"expected one label for each node, got shape {values.shape}")
        values = to_int32(values, path, "labels") if values.dtype.kind not in "SU" else values
        values = values.astype(np.str_)
        return Nodes(path, values.size, None, {}, True), values.tolist()
    table = read_table(path, "a node and its label, or its label", _heads_labels, columns=(1, 2))
    texts = [row[-1] for row in table.rows]
    if table.columns == 1:
        check_blank(table, "a label, or -1 where it is not known")
        return Nodes(path, len(texts), None, {}, True), texts
    nodes = _named_nodes(table)
    if nodes.ids:
        return nodes, texts
    order = np.argsort([int(row[0]) for row in table.rows])
    return nodes, [texts[row] for row in order]


def _heads_labels(first: list[str], rest: list[list[str]]) -> bool:
    """Whether the first row of labels names columns."""
    if first[-1].lower() in _LABEL_COLUMNS or (first[1:] and first[0].lower() in NODE_COLUMNS):
        return True
    return not is_whole(first[0]) and bool(rest) and all(is_whole(row[0]) for row in rest)


def check_blank(table: TextTable, expected: str) -> None:
    """Raises if an empty line may represent a node with a missing label or feature."""
    if table.columns == 1 and table.blank is not None:
        raise bad_file(table.path, f"line {table.blank}: expected {expected}, got an empty line")


def _named_nodes(table: TextTable) -> Nodes:
    """Nodes by the names in the first column."""
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


def is_whole(cell: str) -> bool:
    try:
        whole_number(cell)
    except ValueError:
        return False
    return True
