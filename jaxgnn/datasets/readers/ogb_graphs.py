"""Data sets of graphs of the Open Graph Benchmark, molecules and proteins, from their folders."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.datasets.formats.file_errors import bad_file, require_folder
from jaxgnn.datasets.formats.files import csv_path, read_csv
from jaxgnn.datasets.readers.ogb_tables import (
    in_both_directions,
    read_features,
    read_labels_with_gaps,
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
_PROTEINS = "ogbg-ppa"
_CLASSES = 37  # groups of species of ogbg-ppa

OGB_GRAPHS = (*_TASKS, _PROTEINS)
"""Names of the sets that ``read_ogb_graphs`` reads."""

# Categories of the nine features of an atom, and of the three of a bond.
_ATOM = (119, 5, 12, 12, 10, 6, 6, 2, 2)
_BOND = (5, 6, 2)


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

    Raises:
      FileNotFoundError: a folder or file is missing.
      ValueError: an unknown name, or an invalid file; the message names the file and the line.
    """
    if name not in OGB_GRAPHS:
        raise bad_input("datasets.read_ogb_graphs", "name", f"one of {', '.join(OGB_GRAPHS)}", name)
    raw = Path(path) / "raw"
    require_folder(raw, f"the csv files of {name}")
    if name == _PROTEINS:
        return _read_proteins(Path(path))
    atoms, bonds, ends = read_sizes_and_ends(raw)
    node_features = _categories(raw / "node-feat.csv.gz", int(atoms.sum()), "num-node-list", _ATOM)
    bond_features = _categories(raw / "edge-feat.csv.gz", int(bonds.sum()), "num-edge-list", _BOND)
    labels = read_labels_with_gaps(raw / "graph-label.csv.gz", atoms.size, "num-node-list")
    if labels.shape[1] != _TASKS[name]:
        expected = f"{_TASKS[name]} columns, the tasks of {name}"
        raise bad_file(
            csv_path(raw / "graph-label.csv.gz"), f"expected {expected}, got {labels.shape[1]}"
        )
    senders, receivers, edge_features = in_both_directions(ends, bond_features)
    return GraphsDataset(
        name=name,
        senders=senders,
        receivers=receivers,
        num_nodes_of_each=atoms.astype(np.int32),
        num_edges_of_each=(2 * bonds).astype(np.int32),
        labels=labels,
        num_classes=labels.shape[1],
        node_features=node_features,
        edge_features=edge_features,
        node_categories=_ATOM,
        edge_categories=_BOND,
        **read_parts(Path(path) / "split" / "scaffold", atoms.size, "graphs"),
    )


def _read_proteins(folder: Path) -> GraphsDataset:
    """The neighbourhoods of proteins of ogbg-ppa."""
    raw = folder / "raw"
    nodes, edges, ends = read_sizes_and_ends(raw)
    features = read_features(raw / "edge-feat.csv.gz", int(edges.sum()), "num-edge-list")
    if features is None:
        path = raw / "edge-feat.csv.gz"
        raise FileNotFoundError(f"no file {path}: expected a line for each edge: its features")
    path = raw / "graph-label.csv.gz"
    labels = read_csv(path, np.int32, "a line for each graph: its class", columns=1)[:, 0]
    require_rows(path, labels.size, nodes.size, "num-node-list")
    good = (labels >= 0) & (labels < _CLASSES)
    if not good.all():
        line = int(np.argmin(good))
        message = f"line {line + 1}: expected a class in [0, {_CLASSES}), got {labels[line]}"
        raise bad_file(csv_path(path), message)
    senders, receivers, edge_features = in_both_directions(ends, features)
    return GraphsDataset(
        name=_PROTEINS,
        senders=senders,
        receivers=receivers,
        num_nodes_of_each=nodes.astype(np.int32),
        num_edges_of_each=(2 * edges).astype(np.int32),
        labels=labels,
        num_classes=_CLASSES,
        edge_features=edge_features,
        **read_parts(folder / "split" / "species", nodes.size, "graphs"),
    )


def _categories(path: Path, rows: int, counted_in: str, sizes: tuple[int, ...]) -> np.ndarray:
    """Reads whole numbers below the sizes of their columns, float32 [rows, columns]."""
    features = read_features(path, rows, counted_in)
    if features is None:
        raise FileNotFoundError(f"no file {path}: expected a line for each: its categories")
    if features.shape[1] != len(sizes):
        message = f"line 1: expected {len(sizes)} columns, got {features.shape[1]}"
        raise bad_file(csv_path(path), message)
    good = (features >= 0) & (features < np.array(sizes)) & (features == np.floor(features))
    if not good.all():
        line, column = divmod(int(np.argmin(good)), features.shape[1])
        where = f"line {line + 1}, column {column + 1}"
        expected = f"a whole number in [0, {sizes[column]})"
        got = features[line, column]
        raise bad_file(csv_path(path), f"{where}: expected {expected}, got {got}")
    return features
