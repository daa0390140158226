"""ogbg-code2, from OGB's folder: syntax trees of Python functions, labelled by their names."""

from __future__ import annotations

from collections import Counter
from os import PathLike
from pathlib import Path

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.datasets.formats.file_errors import bad_file, require_folder
from jaxgnn.datasets.formats.files import csv_path, read_csv, read_text
from jaxgnn.datasets.readers.ogb_tables import read_parts, read_sizes_and_ends, require_rows
from jaxgnn.datasets.records.graphs_dataset import GraphsDataset

OTHER, END = "<other>", "<end>"
# The tables of nodes, with the number of their columns.
_TABLES = {"node-feat": 2, "node_depth": 1, "node_is_attributed": 1, "node_dfs_order": 1}


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
      FileNotFoundError: a folder or file is missing.
      ValueError: an option is below one, or a file is invalid; the message names the file and the
        line.
    """
    for name, value in (("vocabulary", vocabulary), ("words", words)):
        if value < 1:
            raise bad_input("datasets.read_ogb_code", name, "at least 1", value)
    folder = Path(path)
    raw = folder / "raw"
    require_folder(raw, "the csv files of ogbg-code2")
    nodes, edges, (parents, children) = read_sizes_and_ends(raw)
    columns = [
        _whole(raw / f"{file}.csv.gz", width, int(nodes.sum())) for file, width in _TABLES.items()
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


def _whole(path: Path, columns: int, rows: int) -> np.ndarray:
    """A table of non-negative whole numbers, float32 [rows, columns]."""
    table = read_csv(path, np.int64, "a line for each node", columns=columns)
    require_rows(path, table.shape[0], rows, "num-node-list")
    good = ((table >= 0) & (table < 1 << 24)).all(axis=1)  # exact in float32
    if not good.all():
        line = int(np.argmin(good))
        message = (
            f"line {line + 1}: expected whole numbers in [0, 2^24), got {table[line].tolist()}"
        )
        raise bad_file(csv_path(path), message)
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
    return (*order[:size], OTHER, END)


def _numbers(names: list[list[str]], known: tuple[str, ...], words: int) -> np.ndarray:
    """The numbers of the first words of each name, int32 [graphs, words]."""
    number = {word: at for at, word in enumerate(known[:-2])}
    other, end = len(known) - 2, len(known) - 1
    labels = np.full((len(names), words), end, np.int32)
    for row, name in zip(labels, names, strict=True):
        row[: len(name)] = [number.get(word, other) for word in name[:words]]
    return labels
