"""Folders in the format of the TU Dortmund collection of graph data sets."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path

import numpy as np

from jaxgnn.datasets.formats.file_errors import (
    bad_file,
    is_there,
    require_file,
    require_folder,
    require_room,
)
from jaxgnn.datasets.formats.files import read_csv, require_cells
from jaxgnn.datasets.records.graphs_dataset import GraphsDataset

LabelReader = Callable[[Path, str], np.ndarray]
# One-hot features of more categories would be wider than any network.
_MOST_CATEGORIES = 999


def read_tu(path: str | PathLike[str]) -> GraphsDataset:
    """Reads a data set of graphs in the TU format (https://arxiv.org/abs/2007.08663).

    The files of a folder begin with the name of the data set, such as ``MUTAG_A.txt``:

    - ``_A.txt``: a line an edge, two nodes, counted from 1 over all graphs; empty if there are no
      edges. Graphs without directions have both of each edge.
    - ``_graph_indicator.txt``: a line a node, its graph, counted from 1.
    - ``_graph_labels.txt``: a line a graph, its class, a whole number; or
      ``_graph_attributes.txt``: the numbers to predict, which are read where both are there.
    - ``_node_attributes.txt``, ``_node_labels.txt``, ``_edge_attributes.txt``,
      ``_edge_labels.txt``: features, all optional. Attributes come first, then one-hot labels, with
      a column for each value of a column of labels, in ascending order.

    Args:
      path: the folder, which has the files of one data set.

    Returns:
      The data set. Classes are in the order of their numbers, which are ``class_names``. Edges are
      sorted by graph, and otherwise in the order of the file; repeats and self loops are kept.

    Raises:
      ValueError: the file, the line and the fault: a node or a graph out of range, an edge from one
        graph to another, another number of lines than nodes, edges or graphs, or a feature that is
        not a finite number.
    """
    return read_folder(Path(path), one_hot)


def read_folder(folder: Path, read_labels: LabelReader) -> GraphsDataset:
    """Reads a folder, and its labels of nodes and edges by ``one_hot`` or ``plain_numbers``."""
    require_folder(folder, "files like MUTAG_A.txt")
    prefix = _prefix(folder)
    graph_of_node = _graph_of_node(_file(prefix, "graph_indicator"))
    labels_path, labels, class_names = _labels(prefix)
    num_graphs = int(graph_of_node.max(initial=-1)) + 1
    if labels.shape[0] != num_graphs:
        raise bad_file(labels_path, f"expected {num_graphs} lines, a graph each, got {len(labels)}")
    ends = _edges(_file(prefix, "A"), graph_of_node)
    nodes = _features(prefix, "node", graph_of_node.size, read_labels)
    edges = _features(prefix, "edge", ends.shape[1], read_labels)
    # Sorts nodes and edges by graph, otherwise in the order of the files.
    order = np.argsort(graph_of_node, kind="stable")
    counts = np.bincount(graph_of_node, minlength=num_graphs)
    number = np.empty(order.size, np.int64)  # The number of each node in its graph.
    number[order] = np.arange(order.size) - np.repeat(np.cumsum(counts) - counts, counts)
    graph_of_edge = graph_of_node[ends[0]]
    edge_order = np.argsort(graph_of_edge, kind="stable")
    senders, receivers = number[ends[:, edge_order]].astype(np.int32)
    return GraphsDataset(
        name=prefix.name,
        senders=senders,
        receivers=receivers,
        num_nodes_of_each=counts.astype(np.int32),
        num_edges_of_each=np.bincount(graph_of_edge, minlength=num_graphs).astype(np.int32),
        labels=labels,
        num_classes=labels.shape[1] if class_names is None else len(class_names),
        node_features=None if nodes is None else nodes[order],
        edge_features=None if edges is None else edges[edge_order],
        class_names=class_names,
    )


def _prefix(folder: Path) -> Path:
    """Common prefix of the paths of the files."""
    files = sorted(folder.glob("*_A.txt"))
    if len(files) != 1:
        expected = "one file that ends in _A.txt, the edges of one data set"
        raise FileNotFoundError(f"{folder}: expected {expected}, got {len(files)}")
    return folder / files[0].name.removesuffix("_A.txt")


def _file(prefix: Path, part: str) -> Path:
    return prefix.with_name(f"{prefix.name}_{part}.txt")


def _read(path: Path, dtype: type, contents: str, columns: int | None = None) -> np.ndarray:
    require_file(path, contents)
    return read_csv(path, dtype, contents, columns, may_be_empty=True)


def _graph_of_node(path: Path) -> np.ndarray:
    """Returns the graph of each node, counted from 0."""
    graphs = _read(path, np.int32, "a line a node: its graph", columns=1)[:, 0]
    if not graphs.size:
        raise bad_file(path, "expected at least one node, got an empty file")
    good = (graphs >= 1) & (graphs <= graphs.size)
    require_cells(path, graphs, good, f"graphs counted from 1, at most {graphs.size}")
    return graphs - 1


def _edges(path: Path, graph_of_node: np.ndarray) -> np.ndarray:
    """Returns the nodes of each edge, counted from 0 over all graphs, [2, edges]."""
    edges = _read(path, np.int32, "a line an edge: two nodes", columns=2)
    good = (edges >= 1) & (edges <= graph_of_node.size)
    require_cells(path, edges, good, f"nodes from 1 to {graph_of_node.size}")
    ends = edges.T - 1
    apart = graph_of_node[ends[0]] != graph_of_node[ends[1]]
    if apart.any():
        line = int(np.argmax(apart))
        one, other = (graph_of_node[ends[:, line]] + 1).tolist()
        got = f"one from graph {one} to graph {other}"
        raise bad_file(path, f"line {line + 1}: expected edges inside of a graph, got {got}")
    return ends


def _labels(prefix: Path) -> tuple[Path, np.ndarray, tuple[str, ...] | None]:
    """The file of the labels, the labels, and the names of the classes if they are classes."""
    path = _file(prefix, "graph_attributes")
    if is_there(path):
        return path, _finite(path, "a line a graph: the numbers to predict"), None
    path = _file(prefix, "graph_labels")
    values = _read(path, np.int64, "a line a graph: its class", columns=1)[:, 0]
    classes, labels = np.unique(values, return_inverse=True)
    return path, labels.astype(np.int32), tuple(map(str, classes.tolist()))


def _features(prefix: Path, of: str, count: int, read_labels: LabelReader) -> np.ndarray | None:
    """Returns the attributes and labels of nodes or edges, float32 [count, features]; or None."""
    tables = []
    for part, read in (("attributes", _finite), ("labels", read_labels)):
        path = _file(prefix, f"{of}_{part}")
        if is_there(path):
            tables.append(read(path, f"a line for each {of}: its {part}"))
            if tables[-1].shape[0] != count:
                expected = f"{count} lines, one for each {of}"
                raise bad_file(path, f"expected {expected}, got {tables[-1].shape[0]}")
    # Without edges nothing tells how many features they would have.
    return np.concatenate(tables, axis=1) if tables and count else None


def _finite(path: Path, contents: str) -> np.ndarray:
    values = _read(path, np.float32, contents)
    require_cells(path, values, np.isfinite(values), "a finite number")
    return values


def plain_numbers(path: Path, contents: str) -> np.ndarray:
    """Labels as non-negative numbers, float32 [lines, labels]."""
    values = _read(path, np.int32, contents)
    good = (values >= 0) & (values <= _MOST_CATEGORIES)
    require_cells(path, values, good, f"a label in 0..{_MOST_CATEGORIES}")
    return values.astype(np.float32)


def one_hot(path: Path, contents: str) -> np.ndarray:
    """Returns a column of zeros and ones for each value of each column of labels."""
    values = _read(path, np.int64, contents)
    columns = [np.unique(column, return_inverse=True) for column in values.T]
    width = sum(distinct.size for distinct, _ in columns)
    require_room(path, 4 * width * values.shape[0], "one-hot labels")
    hot = [np.arange(distinct.size) == number[:, None] for distinct, number in columns]
    return np.concatenate(hot, axis=1).astype(np.float32)
