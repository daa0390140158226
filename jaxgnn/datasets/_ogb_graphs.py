"""Data sets of molecules of the Open Graph Benchmark, from their raw csv folders."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.datasets._file_errors import bad_file, require_folder
from jaxgnn.datasets._files import csv_path
from jaxgnn.datasets._graphs_dataset import GraphsDataset
from jaxgnn.datasets._ogb_tables import (
    read_counts,
    read_ends,
    read_features,
    read_labels_with_gaps,
    read_parts,
    require_rows,
)

# Number of tasks of each set; one of numbers has a task too.
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
OGB_GRAPHS = tuple(_TASKS)
"""Names of the sets that ``read_ogb_graphs`` reads."""

# Categories of the nine features of an atom, and of the three of a bond.
_ATOM = (119, 5, 12, 12, 10, 6, 6, 2, 2)
_BOND = (5, 6, 2)


def read_ogb_graphs(path: str | PathLike[str], name: str) -> GraphsDataset:
    """Reads a set of molecules, such as ogbg-molhiv, as unpacked from OGB's archive.

    The features of atoms and bonds are categories, as ``node_categories`` and ``edge_categories``
    say. Files list one direction of each bond; the other one follows it. Labels are float32
    [graphs, tasks]: zeros and ones, or numbers (molesol, molfreesolv, mollipo), NaN where a task
    was not measured. The split is OGB's, by the scaffolds of molecules.

    Args:
      path: folder with ``raw/`` and ``split/scaffold/``. Files may be .csv.gz or .csv.
      name: ogbg-molhiv, ogbg-molpcba, ogbg-molbace, ogbg-molbbbp, ogbg-molclintox, ogbg-molmuv,
        ogbg-molsider, ogbg-moltox21, ogbg-moltoxcast, ogbg-molesol, ogbg-molfreesolv or
        ogbg-mollipo.

    Returns:
      The data set, with its split.

    Raises:
      FileNotFoundError: a folder or file is missing.
      ValueError: unknown name, or a file that is not what it should be; the message names the file
        and the line.
    """
    if name not in _TASKS:
        raise bad_input("datasets.read_ogb_graphs", "name", f"one of {', '.join(_TASKS)}", name)
    raw = Path(path) / "raw"
    require_folder(raw, f"the csv files of {name}")
    atoms, bonds = (read_counts(raw / f"num-{what}-list.csv.gz", f"{what}s") for what in _WHAT)
    require_rows(raw / "num-edge-list.csv.gz", bonds.size, atoms.size, "num-node-list")
    ends = read_ends(raw / "edge.csv.gz", (np.repeat(atoms, bonds),) * 2)
    node_features = _categories(raw / "node-feat.csv.gz", int(atoms.sum()), "num-node-list", _ATOM)
    bond_features = _categories(raw / "edge-feat.csv.gz", int(bonds.sum()), "num-edge-list", _BOND)
    labels = read_labels_with_gaps(raw / "graph-label.csv.gz", atoms.size, "num-node-list")
    if labels.shape[1] != _TASKS[name]:
        expected = f"{_TASKS[name]} columns, the tasks of {name}"
        raise bad_file(
            csv_path(raw / "graph-label.csv.gz"), f"expected {expected}, got {labels.shape[1]}"
        )
    senders, receivers = np.stack([ends, ends[::-1]], axis=2).reshape(2, -1)
    return GraphsDataset(
        name=name,
        senders=senders,
        receivers=receivers,
        num_nodes_of_each=atoms.astype(np.int32),
        num_edges_of_each=(2 * bonds).astype(np.int32),
        labels=labels,
        num_classes=labels.shape[1],
        node_features=node_features,
        edge_features=np.repeat(bond_features, 2, axis=0),
        node_categories=_ATOM,
        edge_categories=_BOND,
        **read_parts(Path(path) / "split" / "scaffold", atoms.size, "graphs"),
    )


_WHAT = ("node", "edge")


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
