"""Data sets of the Open Graph Benchmark: a table of what is known of each, and their folders."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.datasets.formats.file_errors import bad_file, require_folder
from jaxgnn.datasets.formats.files import (
    csv_path,
    existing_csv,
    read_csv,
    read_text,
    require_below,
    require_cells,
)


@dataclass(frozen=True)
class Recipe:
    """Facts about a data set that its folder does not contain.

    Attributes:
      reader: name of the public function that reads it.
      split: name of the folder of the official split.
      one_direction: whether the files list only one direction of each edge, and the other is added.
      labels: kind of the labels; "binary" and "numbers" have a column for each task.
      tasks: number of tasks or classes; None where it is read from the files.
      node_categories: number of categories of each feature of a node; None where features are no
        categories.
      edge_categories: the same of edges.
      features_of: "edge" where the features of a node are those of its edges.
      candidates: whether negatives are candidates for the receiver of each pair.
      binary: whether the folder has arrays in .npz files and one file of the split, which also has
        negative training pairs; the training pairs are then the edges of the graph.
      typed: whether nodes have types.
    """

    reader: str
    split: str
    one_direction: bool = False
    labels: Literal["class", "binary", "numbers"] = "class"
    tasks: int | None = None
    node_categories: tuple[int, ...] | None = None
    edge_categories: tuple[int, ...] | None = None
    features_of: Literal["node", "edge"] = "node"
    candidates: bool = False
    binary: bool = False
    typed: bool = False


def _molecules(tasks: int, labels: Literal["binary", "numbers"] = "binary") -> Recipe:
    """Returns the recipe of a set of molecules, all of which have the same features."""
    return Recipe(
        "read_ogb_graphs",
        "scaffold",
        one_direction=True,
        labels=labels,
        tasks=tasks,
        node_categories=(119, 5, 12, 12, 10, 6, 6, 2, 2),
        edge_categories=(5, 6, 2),
    )


RECIPES = {
    "ogbn-products": Recipe("read_ogb", "sales_ranking", one_direction=True),
    "ogbn-proteins": Recipe(
        "read_ogb", "species", one_direction=True, labels="binary", tasks=112, features_of="edge"
    ),
    "ogbn-arxiv": Recipe("read_ogb", "time"),
    "ogbn-mag": Recipe("read_ogb_mag", "time", typed=True),
    "ogbg-molhiv": _molecules(1),
    "ogbg-molpcba": _molecules(128),
    "ogbg-molbace": _molecules(1),
    "ogbg-molbbbp": _molecules(1),
    "ogbg-molclintox": _molecules(2),
    "ogbg-molmuv": _molecules(17),
    "ogbg-molsider": _molecules(27),
    "ogbg-moltox21": _molecules(12),
    "ogbg-moltoxcast": _molecules(617),
    "ogbg-molesol": _molecules(1, "numbers"),
    "ogbg-molfreesolv": _molecules(1, "numbers"),
    "ogbg-mollipo": _molecules(1, "numbers"),
    "ogbg-ppa": Recipe("read_ogb_graphs", "species", one_direction=True, tasks=37),
    "ogbg-code2": Recipe("read_ogb_code", "project"),
    "ogbl-ppa": Recipe("read_ogb_links", "throughput", one_direction=True),
    "ogbl-collab": Recipe("read_ogb_links", "time", one_direction=True),
    "ogbl-ddi": Recipe("read_ogb_links", "target", one_direction=True),
    "ogbl-citation2": Recipe("read_ogb_links", "time", candidates=True),
    "ogbl-vessel": Recipe("read_ogb_links", "random", one_direction=True, binary=True),
    "ogbl-wikikg2": Recipe("read_ogb_triples", "time"),
    "ogbl-biokg": Recipe("read_ogb_triples", "random", typed=True),
}
"""All data sets of OGB that can be read, by name."""

SPLIT_FILES = {"train": "train", "validation": "valid", "test": "test"}
"""OGB's name for the file of each part."""

_MOST_IDS = np.iinfo(np.int32).max


class OgbFolder(NamedTuple):
    """The folder of a data set.

    Attributes:
      name: name of the data set.
      recipe: its row of the table.
      raw: the folder of the tables.
      split: the folder of the split.
    """

    name: str
    recipe: Recipe
    raw: Path
    split: Path


def open_ogb(reader: str, path: str | PathLike[str], name: str) -> OgbFolder:
    """Returns the folder of a data set, and raises if the name or the folder is wrong.

    Args:
      reader: name of the public function that is called.
      path: the user's folder, with ``raw/`` and ``split/``.
      name: the user's name of the data set.
    """
    names = ogb_names(reader)
    if name not in names:
        raise bad_input(f"datasets.{reader}", "name", f"one of {', '.join(names)}", name)
    recipe, folder = RECIPES[name], Path(path)
    require_folder(folder / "raw", f"the {'arrays' if recipe.binary else 'csv files'} of {name}")
    return OgbFolder(name, recipe, folder / "raw", folder / "split" / recipe.split)


def ogb_names(reader: str) -> tuple[str, ...]:
    """Returns the names of the data sets that a public function reads."""
    return tuple(name for name, recipe in RECIPES.items() if recipe.reader == reader)


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
    edges = _read_edges(path, rows)
    require_below(path, edges, limits, "node ids")
    return np.ascontiguousarray(edges.T)


def _read_edges(path: Path, rows: int) -> np.ndarray:
    """Reads the two nodes of each edge, int32 [edges, 2], and does not check them."""
    edges = read_csv(path, np.int32, "a line an edge: two node ids", columns=2)
    require_rows(path, edges.shape[0], rows, "num-edge-list")
    return edges


class GraphTables(NamedTuple):
    """Sizes and edges of all graphs of a folder.

    Attributes:
      nodes: number of nodes of each graph, int64 [graphs].
      edges: number of edges of each graph, int64 [graphs].
      ends: senders and receivers, counted from 0 in their graph, int32 [2, edges].
    """

    nodes: np.ndarray
    edges: np.ndarray
    ends: np.ndarray


def read_one_graph(raw: Path) -> tuple[int, np.ndarray]:
    """Reads the number of nodes of a folder's one graph, and its edges, int32 [2, edges]."""
    num_nodes = read_count(raw / "num-node-list.csv.gz", "nodes")
    num_edges = read_count(raw / "num-edge-list.csv.gz", "edges")
    return num_nodes, read_ends(raw / "edge.csv.gz", num_edges, num_nodes)


def read_graphs(raw: Path) -> GraphTables:
    """Reads the sizes and the edges of all graphs of a folder."""
    nodes_file, edges_file = raw / "num-node-list.csv.gz", raw / "num-edge-list.csv.gz"
    nodes, edges = read_counts(nodes_file, "nodes"), read_counts(edges_file, "edges")
    require_rows(edges_file, edges.size, nodes.size, "num-node-list")
    if nodes.sum() > _MOST_IDS:
        expected = f"at most {_MOST_IDS} nodes of all graphs together"
        raise bad_file(csv_path(nodes_file), f"expected {expected}, got {nodes.sum()}")
    path = raw / "edge.csv.gz"
    ends = _read_edges(path, int(edges.sum()))  # It confirms the numbers before they are repeated.
    require_below(path, ends, np.repeat(nodes, edges)[:, None], "node ids")
    return GraphTables(nodes, edges, np.ascontiguousarray(ends.T))


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
    # Sorted ids of the parts before; an array of ``count`` might be huge, as no table confirms it.
    taken = np.zeros(0, np.int32)
    for name, file in SPLIT_FILES.items():
        path = folder / f"{file}.csv.gz"
        ids = read_csv(path, np.int32, f"a line for each of the {what}: its id", columns=1)
        ids = np.sort(ids[:, 0])
        bad = (ids < 0) | (ids >= count)
        if bad.any():
            expected = f"numbers of {what} in [0, {count})"
            raise bad_file(csv_path(path), f"expected {expected}, got {ids[int(np.argmax(bad))]}")
        repeated = np.isin(ids, taken) | (np.diff(ids, prepend=-1) == 0)
        if repeated.any():
            got = f"{ids[int(np.argmax(repeated))]} again"
            raise bad_file(csv_path(path), f"expected each of the {what} in one part, got {got}")
        taken = np.concatenate([taken, ids])
        parts[name] = ids
    return parts


def read_table_of_text(path: Path, contents: str) -> list[list[str]]:
    """Reads the cells of a small table of text."""
    text = read_text(existing_csv(path, contents), contents).decode("utf-8", "replace")
    return [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]


def read_numbers_of_types(path: Path) -> dict[str, int]:
    """Reads the number of nodes of each type."""
    contents = "a line of types, and a line of their numbers of nodes"
    rows = read_table_of_text(path, contents)
    file = csv_path(path)
    if len(rows) != 2 or len(rows[0]) != len(rows[1]) or len(set(rows[0])) < len(rows[0]):
        raise bad_file(file, f"expected {contents}, got {len(rows)} lines: {rows[:2]!s:.200}")
    for kind in rows[0]:
        if not kind.replace("_", "").isalnum():  # A type is the name of a folder.
            raise bad_file(file, f"line 1: expected names of types, got {kind[:80]!r}")
    for cell in rows[1]:
        if not (cell.isascii() and cell.isdigit() and len(cell) < 10):
            raise bad_file(file, f"line 2: expected numbers of nodes, got {cell[:80]!r}")
    return dict(zip(rows[0], map(int, rows[1]), strict=True))
