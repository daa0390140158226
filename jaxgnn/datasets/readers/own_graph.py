"""A user's own graph from plain files: edges, labels, and optionally features and parts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.datasets.formats.file_errors import bad_file, is_there, require_file
from jaxgnn.datasets.formats.graph_text import read_table, text_suffix
from jaxgnn.datasets.formats.npy import read_npy
from jaxgnn.datasets.readers.own_edges import read_edges
from jaxgnn.datasets.readers.own_tables import (
    NODE_COLUMNS,
    Headers,
    Nodes,
    nodes_of_rows,
    number_classes,
    read_features,
    read_labels,
)
from jaxgnn.datasets.readers.planetoid import planetoid_prefix, read_planetoid
from jaxgnn.datasets.records.node_dataset import SPLITS, NodeDataset
from jaxgnn.datasets.records.splits import stratified_split

_FRACTIONS = (0.6, 0.2, 0.2)
_SUFFIXES = (".csv", ".tsv", ".txt", ".npy")
_TABLES = ("edges", "labels", "features", *SPLITS)

File = str | PathLike[str]


def read_graph(
    path: File,
    *,
    labels: File | None = None,
    features: File | None = None,
    splits: File | Mapping[str, File] | None = None,
    directed: bool = False,
    seed: int = 0,
    labelled: bool = True,
    map_features: bool | None = False,
    header: bool | Mapping[str, bool | None] | None = None,
    edge_columns: Sequence[str] | None = None,
) -> NodeDataset:
    """Reads a user's own graph from tables of text or ``.npy`` files, or a folder of Planetoid.

    Text is separated by commas, tabs, semicolons or (in files that are not named .csv or .tsv)
    blanks. It may be compressed (.gz), and may have a header, quoted cells, empty lines and
    comments after # or %.

    - Edges: a row for each edge, with two nodes, and perhaps numbers behind them; or an ``.npy``
      array of integers ``[2, edges]`` or ``[edges, 2]``. A column named ``weight`` has
      ``edge_weights``, the other columns ``edge_features``. Without a header a single third column
      is the weight, and of more all are features.
    - Labels: a row for each node, with its label, so that row i belongs to node i; or a row for
      each node, with its name and its label, in any order. Or an ``.npy`` array ``[nodes]``. Labels
      are words or whole numbers; -1 or an empty cell marks an unknown label. This file defines the
      nodes.
    - Features: a row of numbers for each node, in the order of the labels; or, if a header names
      the first column ``node``, in any order. Or, below the header ``node_id,feature_id,value``, a
      row for each nonzero number. Or an ``.npy`` array ``[nodes, features]``. Without features each
      node has its own one-hot feature.
    - Parts: ``train``, ``validation`` and ``test``, each with a node on each row, or an ``.npy``
      array of node ids. The default is 60, 20 and 20 % of the known labels of each class, at
      random.

    A folder with PyTorch Geometric's layout of Planetoid, ``Cora/raw/ind.cora.*`` or the files
    themselves, is read by ``read_planetoid``, with its published parts.

    A header is recognised by the names of its columns, or because it has words above numbers. What
    is inferred without known names is said in a warning, with the option that says otherwise.

    Nodes whose names are exactly the numbers from 0 on have these as ids. Others have ids in the
    order of the labels, and ``node_names`` maps ids to names.

    Args:
      path: a folder with files ``edges.*`` and ``labels.*`` (or ``target.*``, the name in the sets
        of karateclub), and optionally ``features.*``,
        ``train.*``, ``validation.*`` and ``test.*``; or the file of the edges, with the others
        beside it.
      labels: the file of the labels, if it is elsewhere.
      features: the file of the features, if it is elsewhere.
      splits: the folder with the files of the parts, or a file for each part, if elsewhere.
      directed: whether an edge only leads from its first node to its second; if not, it leads in
        both directions. Repeated edges count once.
      seed: seed of the random parts.
      labelled: whether labels are read. If not, as for predictions, the file of the labels only
        defines the nodes, all labels are -1, and there are no classes and no parts.
      map_features: whether the features are memory-mapped, so that a process that needs only some
        rows copies only these: ``dataset.features[nodes]``, in the dtype of the file. It requires a
        file ``features.npy`` in C order. The numbers are then not checked to be finite, because
        this would read them all. None maps them if the file allows it.
      header: whether the first row of each table of text names its columns; or a dictionary with
        this for some of ``edges``, ``labels``, ``features``, ``train``, ``validation`` and
        ``test``. None infers it.
      edge_columns: names of the columns of the edges to read besides the nodes; in a table without
        header a name for each of them. ``()`` for none, None for all.

    Returns:
      The data set, named after the folder, or after the file if that is not called ``edges``.
      Classes are in numerical or alphabetical order; ``class_names`` has their names if these are
      not 0, 1, and so on.

    Raises:
      ValueError: the file, the line and the fault: a node that the labels do not have, another
        number of columns or nodes, a feature that is not a finite number, an edge that is repeated
        with other numbers, fewer than two classes, a part that is empty or overlaps another, or
        features that cannot be mapped.

    Warns:
      UserWarning: names the file, what was inferred, and the option that says otherwise.
    """
    headers = Headers(header, _TABLES)
    if planetoid_prefix(Path(path)) is not None:
        options = {"labels": labels, "features": features, "splits": splits, "header": header}
        options |= {
            "edge_columns": edge_columns,
            "directed": directed,
            "map_features": map_features,
        }
        return _read_planetoid(Path(path), options, labelled=labelled)
    files = _find_files(Path(path), labels, features, splits)
    nodes, named_labels = read_labels(files["labels"], headers)
    classes, label_ids = (), np.full(nodes.count, -1, np.int32)
    if labelled:
        classes, label_ids = number_classes(files["labels"], named_labels)
    of_edges = {"directed": directed, "headers": headers, "edge_columns": edge_columns}
    edges = read_edges(files["edges"], nodes, **of_edges)
    parts: dict[str, Any] = {part: np.zeros(0, np.int32) for part in SPLITS}
    if labelled and "train" in files:
        parts = {part: _read_part(part, files[part], nodes, headers) for part in SPLITS}
        for part in SPLITS:
            _check_part(files, part, parts, nodes, label_ids)
    elif labelled:
        parts = _random_parts(files["labels"], label_ids, seed)
    dataset = NodeDataset(
        name=_graph_name(Path(path)),
        senders=edges.ends[0],
        receivers=edges.ends[1],
        features=read_features(files.get("features"), nodes, headers, mapped=map_features),
        labels=label_ids,
        num_classes=len(classes),
        class_names=None if classes == tuple(map(str, range(len(classes)))) else classes,
        node_names=nodes.names,
        edge_weights=edges.weights,
        edge_features=edges.features,
        edge_feature_names=edges.names,
        **parts,
    )
    if labelled:
        dataset.validate(files)
    return dataset


def _read_planetoid(path: Path, options: Mapping[str, Any], *, labelled: bool) -> NodeDataset:
    """Reads Planetoid's files; raises ValueError for an option that they have no use for."""
    for name, value in options.items():
        if value is not None and value is not False:
            expected = f"its default for the files of Planetoid in {path}"
            raise bad_input("datasets.read_graph", name, expected, repr(value))
    dataset = read_planetoid(path)
    if labelled:
        return dataset
    none: dict[str, Any] = {part: np.zeros(0, np.int32) for part in SPLITS}
    return replace(dataset, labels=np.full_like(dataset.labels, -1), num_classes=0, **none)


def _find_files(
    path: Path, labels: File | None, features: File | None, splits: File | Mapping[str, File] | None
) -> dict[str, Path]:
    """Returns the file of each field; ``features`` and all three parts are optional."""
    if not path.exists():
        raise FileNotFoundError(f"no folder or file {path}: expected a graph, as read_graph says")
    folder = path if path.is_dir() else path.parent
    named: dict[str, File | None] = {"labels": labels, "features": features}
    if isinstance(splits, Mapping):
        if sorted(splits) != sorted(SPLITS):
            expected = f"a file for each of {', '.join(SPLITS)}"
            raise bad_input("datasets.read_graph", "splits", expected, sorted(splits))
        named |= splits
    parts_folder = folder if splits is None or isinstance(splits, Mapping) else Path(splits)
    files = {"edges": _only_file(path, "edges") if path.is_dir() else path}
    for field in ("labels", "features", *SPLITS):
        file = named.get(field)
        where = parts_folder if field in SPLITS else folder
        file = Path(file) if file else _only_file(where, field)
        if field == "labels" and file is None:
            file = _only_file(folder, "target")
        if file is not None:
            files[field] = file
    parts = [part for part in SPLITS if part in files]
    needed = ["edges", "labels", *(SPLITS if parts or splits is not None else ())]
    for field in needed:
        file = files.get(field)
        if file is None:
            where = parts_folder if field in SPLITS else folder
            beside = f", as there is one {parts[0]}.*" if field in SPLITS and parts else ""
            raise FileNotFoundError(
                f"no file {where / field}.* ({', '.join(_SUFFIXES)}): expected one{beside}"
            )
        require_file(file, f"the {field} of a graph")
    return {field: file for field, file in files.items() if file is not None}


def _only_file(folder: Path, field: str) -> Path | None:
    """Returns the only file in a folder with the name of a field."""
    names = [f"{field}{suffix}{gz}" for suffix in _SUFFIXES for gz in ("", ".gz")]
    files = [folder / name for name in names if is_there(folder / name)]
    if len(files) > 1:
        raise bad_file(folder, f"expected one file of {field}, got {' and '.join(map(str, files))}")
    return files[0] if files else None


def _graph_name(path: Path) -> str:
    path = path.resolve()
    stem = path.name.partition(".")[0]
    return path.name if path.is_dir() else path.parent.name if stem == "edges" else stem


def _read_part(part: str, path: Path, nodes: Nodes, headers: Headers) -> np.ndarray:
    """Sorted ids of the nodes of a part."""
    if text_suffix(path) == ".npy":
        values = read_npy(path, "node ids")
        if values.ndim != 1 or not values.size:
            raise bad_file(path, f"expected at least one node id, got shape {values.shape}")
        return np.sort(nodes.find_all(path, values, "node ids")).astype(np.int32)
    table = read_table(path, "a node", headers.choose(part, _heads_part), columns=(1,))
    return np.sort(nodes_of_rows(table, nodes)).astype(np.int32)


def _heads_part(first: list[str], rest: list[list[str]]) -> bool:
    return first[0].lower() in NODE_COLUMNS


def _check_part(
    files: Mapping[str, Path],
    part: str,
    parts: Mapping[str, np.ndarray],
    nodes: Nodes,
    labels: np.ndarray,
) -> None:
    """Raises unless the nodes of a part have labels and are in no previous part."""
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
    """60, 20 and 20 % of the labelled nodes of each class."""
    labelled = np.flatnonzero(labels >= 0)
    parts = stratified_split(labels[labelled], _FRACTIONS, seed)
    empty = [part for part in SPLITS if not parts[part].size]
    if empty:
        expected = "labels for some nodes of each part, at least five of a class"
        raise bad_file(path, f"expected {expected}, got none for {empty[0]}; give files of parts")
    return {part: labelled[ids].astype(np.int32) for part, ids in parts.items()}
