"""Data sets of graphs of the Open Graph Benchmark: molecules, proteins and syntax trees."""

from __future__ import annotations

from collections import Counter
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.datasets.formats.file_errors import bad_file, require_folder
from jaxgnn.datasets.formats.files import (
    csv_path,
    is_finite_float32,
    read_csv,
    read_text,
    real_number,
    require_below,
    require_cells,
)
from jaxgnn.datasets.readers.ogb_tables import (
    read_column,
    read_features,
    read_parts,
    read_sizes_and_ends,
    require_rows,
)
from jaxgnn.datasets.records.graphs_dataset import GraphsDataset

# Number of tasks of each set; a set of numbers to predict has tasks too.
_TASKS = {
    "ogbg-molhiv": 1,
    "ogbg-molpcba": 128,
    "ogbg-molbace": 1,
    "ogbg-molbbbp": 1,
    "ogbg-molclintox": 2,
    "ogbg-molmuv": 17,
    "ogbg-molsider": 27,
    "ogbg-moltox21": 12,
    "ogbg-moltoxcast": 617,
    "ogbg-molesol": 1,
    "ogbg-molfreesolv": 1,
    "ogbg-mollipo": 1,
}
_OF_NUMBERS = ("ogbg-molesol", "ogbg-molfreesolv", "ogbg-mollipo")
_PROTEINS = "ogbg-ppa"
_CLASSES = 37  # groups of species of ogbg-ppa

OGB_GRAPHS = (*_TASKS, _PROTEINS)
"""Names of the sets that ``read_ogb_graphs`` reads."""

# Categories of the nine features of an atom, and of the three of a bond.
_ATOM = (119, 5, 12, 12, 10, 6, 6, 2, 2)
_BOND = (5, 6, 2)
# Tables of the nodes of ogbg-code2, with the number of their columns.
_CODE = {"node-feat": 2, "node_depth": 1, "node_is_attributed": 1, "node_dfs_order": 1}
_OTHER, _END = "<other>", "<end>"


def read_ogb_graphs(path: str | PathLike[str], name: str) -> GraphsDataset:
    """Reads a set of graphs, such as ogbg-molhiv or ogbg-ppa, as unpacked from OGB's archive.

    For molecules, the features of atoms and bonds are categories, described by ``node_categories``
    and ``edge_categories``. Files list one direction of each bond; the other one follows it. Labels
    are float32 [graphs, tasks]: zeros and ones, or numbers (molesol, molfreesolv, mollipo), NaN
    if a task was not measured. The split is OGB's, by the scaffolds of molecules.

    The graphs of ogbg-ppa are neighbourhoods of proteins: nodes have no features, the seven
    features of an edge are quantities, and the label is one of 37 classes, int32 [graphs]. The
    split is by species.

    Args:
      path: folder with ``raw/`` and ``split/scaffold/``, or ``split/species/`` for ogbg-ppa. Files
        may be .csv.gz or .csv.
      name: ogbg-ppa, ogbg-molhiv, ogbg-molpcba, ogbg-molbace, ogbg-molbbbp, ogbg-molclintox,
        ogbg-molmuv, ogbg-molsider, ogbg-moltox21, ogbg-moltoxcast, ogbg-molesol, ogbg-molfreesolv
        or ogbg-mollipo.

    Returns:
      The data set, with its split.
    """
    if name not in OGB_GRAPHS:
        raise bad_input("datasets.read_ogb_graphs", "name", f"one of {', '.join(OGB_GRAPHS)}", name)
    folder = Path(path)
    raw = folder / "raw"
    require_folder(raw, f"the csv files of {name}")
    nodes, edges, ends = read_sizes_and_ends(raw)
    labels_file, edges_file = raw / "graph-label.csv.gz", raw / "edge-feat.csv.gz"
    fields: dict[str, Any] = {}
    if name == _PROTEINS:
        edge_features = read_features(edges_file, ends.shape[1], "edge")
        labels = read_column(labels_file, "its class", nodes.size)
        require_below(labels_file, labels, _CLASSES, "a class")
        split, classes = "species", _CLASSES
    else:
        nodes_file, count = raw / "node-feat.csv.gz", int(nodes.sum())
        fields["node_features"] = _categories(nodes_file, count, "node", _ATOM)
        edge_features = _categories(edges_file, ends.shape[1], "edge", _BOND)
        fields |= {"node_categories": _ATOM, "edge_categories": _BOND}
        labels = _labels_with_gaps(labels_file, nodes.size, is_binary=name not in _OF_NUMBERS)
        split, classes = "scaffold", _TASKS[name]
        if labels.shape[1] != classes:
            expected = f"{classes} columns, the tasks of {name}"
            raise bad_file(csv_path(labels_file), f"expected {expected}, got {labels.shape[1]}")
    # Each edge is followed by its reverse.
    senders, receivers = np.stack([ends, ends[::-1]], axis=2).reshape(2, -1)
    return GraphsDataset(
        name=name,
        senders=senders,
        receivers=receivers,
        num_nodes_of_each=nodes.astype(np.int32),
        num_edges_of_each=(2 * edges).astype(np.int32),
        labels=labels,
        num_classes=classes,
        edge_features=np.repeat(edge_features, 2, axis=0),
        **fields,
        **read_parts(folder / "split" / split, nodes.size, "graphs"),
    )


def _categories(path: Path, rows: int, of: str, sizes: tuple[int, ...]) -> np.ndarray:
    """Reads whole numbers below the sizes of their columns, float32 [rows, columns]."""
    features = read_features(path, rows, of, columns=len(sizes))
    require_below(path, features, np.array(sizes), "a whole number")
    whole = features == np.floor(features)
    require_cells(path, features, whole, "a whole number in each column")
    return features


def _labels_with_gaps(path: Path, rows: int, *, is_binary: bool) -> np.ndarray:
    """Reads labels, some of them missing: empty cells or ``nan``; float32 [rows, tasks].

    Args:
      path: the file.
      rows: number of graphs.
      is_binary: whether labels are zeros and ones, and not any finite numbers.
    """
    found = csv_path(path)
    lines = read_text(found, "a line for each: its labels").decode("utf-8", "replace").splitlines()
    require_rows(path, len(lines), rows, "num-node-list")
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
                known[cell] = _label(cell.strip(), is_binary=is_binary)
            except ValueError as error:
                where = f"line {row + 1}, column {column + 1}"
                raise bad_file(found, f"{where}: {error}, got {cell[:80]!r}") from None
        labels[row] = [known[cell] for cell in cells]
    return labels


def _label(cell: str, *, is_binary: bool) -> float:
    """The number in a cell, NaN if empty; raises ValueError with the expected content."""
    expected = "0, 1," if is_binary else "a finite number of float32,"
    try:
        value = real_number(cell) if cell else np.nan
    except ValueError:
        value = np.inf
    fits = value in (0, 1) if is_binary else is_finite_float32(value)
    if not fits and not np.isnan(value):
        raise ValueError(f"expected {expected} or nothing where there is no label")
    return value


def read_ogb_code(
    path: str | PathLike[str], *, vocabulary: int = 5000, words: int = 5
) -> GraphsDataset:
    """Reads ogbg-code2 as unpacked from OGB's archive.

    A graph is the syntax tree of a function. Its label is the first words of the function's name,
    int32 [graphs, words]: their numbers in ``class_names``. These are the most frequent words of
    the training, equally frequent ones in alphabetical order, followed by ``<other>``, for all
    other words, and ``<end>``, after the last word of a shorter name.

    Features of a node are its kind, its attribute, its depth in the tree, whether it has an
    attribute in the source, and its position in a depth-first walk, float32 [nodes, 5]; all of them
    are whole numbers. Edges lead from parents to children.

    Args:
      path: folder with ``raw/`` and ``split/project/``. Files may be .csv.gz or .csv.
      vocabulary: largest number of distinct words.
      words: number of words of a label.

    Returns:
      The data set with OGB's split, in which no project is in two parts.

    Raises:
      ValueError: an option is below one.
    """
    for name, value in (("vocabulary", vocabulary), ("words", words)):
        if value < 1:
            raise bad_input("datasets.read_ogb_code", name, "at least 1", value)
    folder = Path(path)
    raw = folder / "raw"
    require_folder(raw, "the csv files of ogbg-code2")
    nodes, edges, (parents, children) = read_sizes_and_ends(raw)
    columns = [
        _whole_numbers(raw / f"{file}.csv.gz", width, int(nodes.sum()))
        for file, width in _CODE.items()
    ]
    names = _names(raw / "graph-label.csv.gz", nodes.size)
    parts = read_parts(folder / "split" / "project", nodes.size, "graphs")
    known = _vocabulary([names[graph] for graph in parts["train"].tolist()], vocabulary)
    return GraphsDataset(
        name="ogbg-code2",
        senders=parents,
        receivers=children,
        num_nodes_of_each=nodes.astype(np.int32),
        num_edges_of_each=edges.astype(np.int32),
        labels=_numbers(names, known, words),
        num_classes=len(known),
        node_features=np.concatenate(columns, axis=1),
        class_names=known,
        **parts,
    )


def _whole_numbers(path: Path, columns: int, rows: int) -> np.ndarray:
    """A table of non-negative whole numbers, float32 [rows, columns]."""
    table = read_csv(path, np.int64, "a line for each node", columns=columns)
    require_rows(path, table.shape[0], rows, "num-node-list")
    low, high = table.min(axis=1), table.max(axis=1)
    good = (low >= 0) & (high < 1 << 24)  # exact in float32
    require_cells(path, np.where(low < 0, low, high), good, "whole numbers in [0, 2^24)")
    return table.astype(np.float32)


def _names(path: Path, rows: int) -> list[list[str]]:
    """The words of the name of each function."""
    text = read_text(csv_path(path), "a line for each graph: the words of its name")
    lines = text.decode("utf-8", "replace").splitlines()
    require_rows(path, len(lines), rows, "num-node-list")
    return [line.split() for line in lines]


def _vocabulary(names: list[list[str]], size: int) -> tuple[str, ...]:
    counts = Counter(word for name in names for word in name)
    order = sorted(counts, key=lambda word: (-counts[word], word))
    return (*order[:size], _OTHER, _END)


def _numbers(names: list[list[str]], known: tuple[str, ...], words: int) -> np.ndarray:
    """The numbers of the first words of each name, int32 [graphs, words]."""
    number = {word: at for at, word in enumerate(known[:-2])}
    other, end = len(known) - 2, len(known) - 1
    labels = np.full((len(names), words), end, np.int32)
    for row, name in zip(labels, names, strict=True):
        row[: len(name)] = [number.get(word, other) for word in name[:words]]
    return labels
