"""A user's own graph, from plain files: edges, labels, and if there are any features and parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.datasets._file_errors import bad_file, require_file
from jaxgnn.datasets._files import to_float32, to_int32
from jaxgnn.datasets._graph_text import TextTable, read_table, text_suffix
from jaxgnn.datasets._node_dataset import SPLITS, NodeDataset
from jaxgnn.datasets._npy import read_npy
from jaxgnn.datasets._number_text import real_number, whole_number
from jaxgnn.datasets._splits import stratified_split

_FRACTIONS = (0.6, 0.2, 0.2)
_SUFFIXES = (".csv", ".tsv", ".txt", ".npy")
_UNKNOWN = ("", "-1")
# Names of a column that say what it holds.
_NODE_COLUMNS = ("node", "node_id", "id", "name")
_LABEL_COLUMNS = ("label", "labels", "class", "y", "target", "subject", "category", "group")
_ENDS = ("source", "target", "src", "dst", "from", "to", "sender", "receiver", "senders")
_ENDS += ("receivers", "node1", "node2", "u", "v", "citing", "cited")
# One-hot features of more nodes would take more than 256 MiB.
_MOST_ONE_HOT = 8192
_LARGEST_ID = np.iinfo(np.int64).max
_LARGEST = float(np.finfo(np.float32).max)

File = str | PathLike[str]


def read_graph(
    path: File,
    *,
    labels: File | None = None,
    features: File | None = None,
    splits: File | Mapping[str, File] | None = None,
    directed: bool = False,
    seed: int = 0,
) -> NodeDataset:
    """Reads a graph of one's own from tables of text or ``.npy`` files.

    Text is separated by commas, tabs, semicolons or (in files that are not named .csv or .tsv)
    blanks, may be compressed (.gz), and may have a header, quoted cells, empty lines and comments
    behind # or %.

    - Edges: a row an edge, two nodes; or an ``.npy`` array of integers ``[2, edges]`` or
      ``[edges, 2]``.
    - Labels: a row a node, its label, so that row i is of node i; or a row a node, its name and its
      label, in any order. Or an ``.npy`` array ``[nodes]``. Labels are words or whole numbers; -1
      or an empty cell where a label is not known. This file says which nodes there are.
    - Features: a row a node, its numbers, in the order of the labels; or, if a header calls the
      first column ``node``, in any order. Or an ``.npy`` array ``[nodes, features]``. Without
      features each node has a feature of its own, one-hot.
    - Parts: ``train``, ``validation`` and ``test``, each a node a row, or an ``.npy`` array of
      node ids. Without them 60, 20 and 20 % of the known labels of each class, at random.

    Nodes whose names are exactly the numbers from 0 on have these as ids. Others have ids in the
    order of the labels, and ``node_names`` tells which is which.

    Args:
      path: a folder with files ``edges.*`` and ``labels.*``, and if there are any ``features.*``,
        ``train.*``, ``validation.*`` and ``test.*``; or the file of the edges, beside which the
        others may lie.
      labels: the file of the labels, if it is elsewhere.
      features: the file of the features, if it is elsewhere.
      splits: the folder with the files of the parts, or a file for each part, if elsewhere.
      directed: whether an edge only leads from its first node to its second; if not, it leads in
        both directions. Edges that stand there more than once count once.
      seed: seed of the random parts.

    Returns:
      The data set, called like the folder, or like the file if that is not called ``edges``.
      Classes are in the order of their numbers, or of the alphabet; ``class_names`` has their
      names if these are not 0, 1, and so on.

    Raises:
      FileNotFoundError: a file is missing.
      ValueError: the file, the line and what is wrong with it: a node that the labels do not have,
        another number of columns or nodes, a feature that is no finite number, fewer than two
        classes, a part that is empty or overlaps another.
    """
    files = _find(Path(path), labels, features, splits)
    nodes, named_labels = _read_labels(files["labels"])
    classes, label_ids = _classes(files["labels"], named_labels)
    senders, receivers = _read_edges(files["edges"], nodes, directed=directed)
    if "train" in files:
        parts: dict[str, Any] = {part: _read_part(files[part], nodes) for part in SPLITS}
        for part in SPLITS:
            _check_part(files, part, parts, nodes, label_ids)
    else:
        parts = _random_parts(files["labels"], label_ids, seed)
    dataset = NodeDataset(
        name=_name(Path(path)),
        senders=senders,
        receivers=receivers,
        features=_read_features(files.get("features"), files["labels"], nodes),
        labels=label_ids,
        num_classes=len(classes),
        class_names=None if classes == tuple(map(str, range(len(classes)))) else classes,
        node_names=nodes.names,
        **parts,
    )
    dataset.validate(files)
    return dataset


@dataclass(frozen=True)
class _Nodes:
    """Which nodes there are.

    Attributes:
      source: the file that says so.
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
        """The id of the node that a cell names; ValueError if there is no such node."""
        cell = table.rows[row][column]
        try:
            name = whole_number(cell) if self.numbered else cell
        except ValueError:
            raise table.fault(row, column, "a node id, which is a whole number") from None
        node = self.ids.get(name, -1) if self.ids else int(name)
        if not 0 <= node < self.count:
            raise table.fault(row, column, self.expected())
        return node

    def expected(self) -> str:
        """What a node has to be, in words."""
        if self.ids:
            return f"one of the {self.count} nodes of {self.source.name}"
        return f"a node id in [0, {self.count}), the nodes of {self.source.name}"

    def name(self, node: int) -> object:
        """What the files call a node."""
        return node if self.names is None else self.names[node]


# ---- where the files are


def _find(
    path: Path, labels: File | None, features: File | None, splits: File | Mapping[str, File] | None
) -> dict[str, Path]:
    """The file of each field; ``features``, and all three parts, may be missing."""
    if not path.exists():
        raise FileNotFoundError(f"no folder or file {path}: expected a graph, as read_graph says")
    folder = path if path.is_dir() else path.parent
    given: dict[str, File | None] = {"labels": labels, "features": features}
    if isinstance(splits, Mapping):
        if sorted(splits) != sorted(SPLITS):
            expected = f"a file for each of {', '.join(SPLITS)}"
            raise bad_input("datasets.read_graph", "splits", expected, sorted(splits))
        given |= splits
    parts_folder = folder if splits is None or isinstance(splits, Mapping) else Path(splits)
    found = {"edges": _beside(path, "edges") if path.is_dir() else path}
    for field in ("labels", "features", *SPLITS):
        own = given.get(field)
        file = Path(own) if own else _beside(parts_folder if field in SPLITS else folder, field)
        if file is not None:
            found[field] = file
    parts = [part for part in SPLITS if part in found]
    needed = ["edges", "labels", *(SPLITS if parts or splits is not None else ())]
    for field in needed:
        file = found.get(field)
        if file is None:
            where = parts_folder if field in SPLITS else folder
            beside = f", as there is one {parts[0]}.*" if field in SPLITS and parts else ""
            raise FileNotFoundError(
                f"no file {where / field}.* ({', '.join(_SUFFIXES)}): expected one{beside}"
            )
        require_file(file, f"the {field} of a graph")
    return {field: file for field, file in found.items() if file is not None}


def _beside(folder: Path, field: str) -> Path | None:
    """The one file in a folder with the name of a field."""
    names = [f"{field}{suffix}{gz}" for suffix in _SUFFIXES for gz in ("", ".gz")]
    found = [folder / name for name in names if (folder / name).is_file()]
    if len(found) > 1:
        raise bad_file(folder, f"expected one file of {field}, got {' and '.join(map(str, found))}")
    return found[0] if found else None


def _name(path: Path) -> str:
    path = path.resolve()
    stem = path.name.partition(".")[0]
    return path.name if path.is_dir() else path.parent.name if stem == "edges" else stem


# ---- labels and nodes


def _read_labels(path: Path) -> tuple[_Nodes, list[str]]:
    """The nodes, and the label of each as text."""
    if text_suffix(path) == ".npy":
        values = read_npy(path, "the label of each node")
        if values.ndim != 1 or not values.size:
            raise bad_file(path, f"expected one label for each node, got shape {values.shape}")
        values = to_int32(values, path, "labels") if values.dtype.kind not in "SU" else values
        values = values.astype(np.str_)
        return _Nodes(path, values.size, None, {}, True), values.tolist()
    table = read_table(path, "a node and its label, or its label", _heads_labels, columns=(1, 2))
    texts = [row[-1] for row in table.rows]
    if table.columns == 1:
        _check_blank(table, "a label, or -1 where it is not known")
        return _Nodes(path, len(texts), None, {}, True), texts
    nodes = _named_nodes(table)
    if nodes.ids:
        return nodes, texts
    order = np.argsort([int(row[0]) for row in table.rows])
    return nodes, [texts[row] for row in order]


def _heads_labels(first: list[str], rest: list[list[str]]) -> bool:
    """Whether the first row of labels names columns."""
    if first[-1].lower() in _LABEL_COLUMNS or (first[1:] and first[0].lower() in _NODE_COLUMNS):
        return True
    return not _is_whole(first[0]) and bool(rest) and all(_is_whole(row[0]) for row in rest)


def _check_blank(table: TextTable, expected: str) -> None:
    """Raises if an empty line may stand for a node, whose label or feature is missing."""
    if table.columns == 1 and table.blank is not None:
        raise bad_file(table.path, f"line {table.blank}: expected {expected}, got an empty line")


def _named_nodes(table: TextTable) -> _Nodes:
    """Nodes by the names in the first column."""
    numbered = all(_is_whole(row[0]) and abs(int(row[0])) <= _LARGEST_ID for row in table.rows)
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
        return _Nodes(table.path, count, None, {}, True)
    return _Nodes(table.path, count, np.array(list(ids)), ids, numbered)


def _classes(path: Path, texts: Sequence[str]) -> tuple[tuple[str, ...], np.ndarray]:
    """Names of the classes, and the class of each node, -1 where it is not known."""
    names = sorted({text for text in texts if text not in _UNKNOWN})
    if all(_is_whole(name) for name in names):
        names.sort(key=int)
    if len(names) < 2:
        got = f"only the class {names[0][:80]!r}" if names else "no label at all"
        raise bad_file(path, f"expected labels of at least two classes, got {got}")
    ids = {name: number for number, name in enumerate(names)}
    return tuple(names), np.array([ids.get(text, -1) for text in texts], np.int32)


# ---- edges


def _read_edges(path: Path, nodes: _Nodes, *, directed: bool) -> tuple[np.ndarray, np.ndarray]:
    """Senders and receivers, each edge once."""
    if text_suffix(path) == ".npy":
        pairs = _edge_array(path, nodes)
    else:
        table = read_table(path, "the two nodes of an edge", _heads_edges, columns=(2,))
        rows = range(len(table.rows))
        pairs = np.array([[nodes.find(table, row, column) for column in (0, 1)] for row in rows]).T
    if not directed:
        pairs = np.concatenate([pairs, pairs[::-1]], axis=1)
    senders, receivers = np.unique(pairs, axis=1).astype(np.int32)
    return senders, receivers


def _heads_edges(first: list[str], rest: list[list[str]]) -> bool:
    """Whether the first row of edges names columns."""
    if all(cell.lower() in _ENDS for cell in first):
        return True
    are_numbers = bool(rest) and all(_is_whole(cell) for row in rest for cell in row)
    return are_numbers and not any(_is_whole(cell) for cell in first)


def _edge_array(path: Path, nodes: _Nodes) -> np.ndarray:
    """Ids of nodes, [2, edges] int32."""
    values = read_npy(path, "the edges of a graph, [2, edges] or [edges, 2]")
    if values.ndim != 2 or 2 not in values.shape or not values.size:
        raise bad_file(path, f"expected edges as [2, edges] or [edges, 2], got {values.shape}")
    return _found(path, nodes, values if len(values) == 2 else values.T, "the nodes of edges")


def _found(path: Path, nodes: _Nodes, values: np.ndarray, what: str) -> np.ndarray:
    """Ids of the nodes that an array of numbers names."""
    if not nodes.numbered:
        expected = f"a table of text, since {nodes.source.name} calls nodes by words"
        raise bad_file(path, f"expected {what} as {expected}, got an array")
    values = to_int32(values, path, what)
    if nodes.ids:
        known = np.isin(values, list(nodes.ids))
    else:
        known = (values >= 0) & (values < nodes.count)
    if not known.all():
        position = np.unravel_index(int(np.argmin(known)), known.shape)
        where = ", ".join(map(str, position))
        raise bad_file(path, f"expected {nodes.expected()}, got {values[position]} at [{where}]")
    if not nodes.ids:
        return values
    return np.array([nodes.ids[value] for value in values.ravel().tolist()]).reshape(values.shape)


# ---- features


def _read_features(path: Path | None, source: Path, nodes: _Nodes) -> np.ndarray:
    """[nodes, features] float32."""
    if path is None:
        if nodes.count > _MOST_ONE_HOT:
            raise bad_file(
                source.parent,
                f"expected a file features.*: only graphs of up to {_MOST_ONE_HOT} nodes get a "
                f"feature for each node without one, and this one has {nodes.count}",
            )
        return np.eye(nodes.count, dtype=np.float32)
    if text_suffix(path) == ".npy":
        values = to_float32(read_npy(path, "the features of each node"), path, "features")
        _check_count(path, len(values), nodes)
        return values
    table = read_table(path, "the features of a node", _heads_features)
    named = bool(table.header) and table.header[0] in _NODE_COLUMNS
    _check_blank(table, "a number")
    _check_count(path, len(table.rows), nodes)
    features = np.empty((nodes.count, table.columns - named), np.float32)
    order = _order(table, nodes) if named else range(nodes.count)
    for row, node in enumerate(order):
        features[node] = [_finite(table, row, column) for column in range(named, table.columns)]
    return features


def _heads_features(first: list[str], rest: list[list[str]]) -> bool:
    """Whether the first row of features names columns: it has no number."""
    return not any(_is_real(cell) for cell in first)


def _order(table: TextTable, nodes: _Nodes) -> list[int]:
    """The node of each row, each node once."""
    order = [nodes.find(table, row, 0) for row in range(len(table.rows))]
    seen: set[int] = set()
    for row, node in enumerate(order):
        if node in seen:
            raise table.fault(row, 0, "each node once")
        seen.add(node)
    return order


def _finite(table: TextTable, row: int, column: int) -> float:
    """The number in a cell, which float32 can hold."""
    try:
        value = real_number(table.rows[row][column])
    except ValueError:
        value = np.nan
    if not abs(value) <= _LARGEST:
        raise table.fault(row, column, "a finite number")
    return value


def _check_count(path: Path, rows: int, nodes: _Nodes) -> None:
    if rows != nodes.count:
        expected = f"features of the {nodes.count} nodes of {nodes.source.name}"
        raise bad_file(path, f"expected {expected}, got {rows} rows")


# ---- parts


def _read_part(path: Path, nodes: _Nodes) -> np.ndarray:
    """Sorted ids of the nodes of a part."""
    if text_suffix(path) == ".npy":
        values = read_npy(path, "node ids")
        if values.ndim != 1 or not values.size:
            raise bad_file(path, f"expected at least one node id, got shape {values.shape}")
        return np.sort(_found(path, nodes, values, "node ids")).astype(np.int32)
    table = read_table(path, "a node", _heads_part, columns=(1,))
    return np.sort(_order(table, nodes)).astype(np.int32)


def _heads_part(first: list[str], rest: list[list[str]]) -> bool:
    return first[0].lower() in _NODE_COLUMNS


def _check_part(
    files: Mapping[str, Path],
    part: str,
    parts: Mapping[str, np.ndarray],
    nodes: _Nodes,
    labels: np.ndarray,
) -> None:
    """Raises unless the nodes of a part have labels and are in no part before it."""
    ids = parts[part]
    for other in SPLITS[: SPLITS.index(part)]:
        shared = np.intersect1d(ids, parts[other])
        if shared.size:
            name = nodes.name(int(shared[0]))
            raise bad_file(files[part], f"node {name} is in {files[other].name} already")
    unknown = ids[labels[ids] < 0]
    if unknown.size:
        name = nodes.name(int(unknown[0]))
        raise bad_file(files[part], f"node {name} has no label in {files['labels'].name}")


def _random_parts(path: Path, labels: np.ndarray, seed: int) -> dict[str, Any]:
    """60, 20 and 20 % of the nodes with a label, of each class."""
    known = np.flatnonzero(labels >= 0)
    parts = stratified_split(labels[known], _FRACTIONS, seed)
    empty = [part for part in SPLITS if not parts[part].size]
    if empty:
        expected = "labels for some nodes of each part, at least five of a class"
        raise bad_file(path, f"expected {expected}, got none for {empty[0]}; give files of parts")
    return {part: known[ids].astype(np.int32) for part, ids in parts.items()}


# ---- cells


def _is_whole(cell: str) -> bool:
    try:
        whole_number(cell)
    except ValueError:
        return False
    return True


def _is_real(cell: str) -> bool:
    try:
        real_number(cell)
    except ValueError:
        return False
    return True
