"""Sets of nodes and of graphs of the Open Graph Benchmark, from their folders of csv tables."""

from __future__ import annotations

from collections import Counter
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.datasets.formats.file_errors import bad_file, is_there, require_folder
from jaxgnn.datasets.formats.files import (
    csv_path,
    is_finite_float32,
    read_csv,
    read_text,
    real_number,
    require_below,
    require_cells,
    to_int32,
)
from jaxgnn.datasets.readers.ogb_folder import (
    GraphTables,
    OgbFolder,
    ogb_names,
    open_ogb,
    read_column,
    read_count,
    read_ends,
    read_features,
    read_graphs,
    read_numbers_of_types,
    read_one_graph,
    read_parts,
    read_table_of_text,
    require_rows,
)
from jaxgnn.datasets.records.graphs_dataset import GraphsDataset
from jaxgnn.datasets.records.node_dataset import NodeDataset, distinct_edges
from jaxgnn.datasets.records.relations_dataset import Relation, RelationsDataset

OGB_GRAPHS = ogb_names("read_ogb_graphs")
"""Names of the sets that ``read_ogb_graphs`` reads."""

# Name of the file that numbers the nodes of each type.
_TYPES = "num-node-dict"
# Tables of the nodes of ogbg-code2, with the number of their columns.
_CODE = {"node-feat": 2, "node_depth": 1, "node_is_attributed": 1, "node_dfs_order": 1}
_OTHER, _END = "<other>", "<end>"


def read_ogb(
    path: str | PathLike[str],
    name: str,
    *,
    undirected: bool = True,
    edge_reduction: Literal["sum", "mean"] = "sum",
) -> NodeDataset:
    """Reads ogbn-products, ogbn-proteins or ogbn-arxiv as unpacked from OGB's archive.

    products and proteins list one direction of each edge; the other is always added. Repeated edges
    are kept, so that the edge count is OGB's. ogbn-proteins has only features of edges: a node gets
    the reduction over its incident edges. Its species are not read.

    Args:
      path: folder with ``raw/`` and ``split/``. Files may be .csv.gz or .csv.
      name: one of the three names above.
      undirected: for the citations of ogbn-arxiv, whether to add the reverse of each edge and
        then drop repeats, as is usual in training; False keeps OGB's directed graph. The other two
        are always undirected.
      edge_reduction: for ogbn-proteins, "sum" as in MaxK-GNN and on OGB's leaderboards, or
        "mean". A node without edges gets zeros.

    Returns:
      The data set; the number of classes is the largest label plus one.
    """
    if name not in ogb_names("read_ogb"):
        names = sorted(ogb_names("read_ogb"))
        raise ValueError(f"read_ogb: name: expected one of {names}, got {name!r}")
    if edge_reduction not in ("sum", "mean"):
        raise ValueError(
            f"read_ogb: edge_reduction: expected 'sum' or 'mean', got {edge_reduction!r}"
        )
    _, recipe, raw, split = open_ogb("read_ogb", path, name)
    num_nodes, edges = read_one_graph(raw)
    parts = read_parts(split, num_nodes, "nodes")
    labels_file = raw / "node-label.csv.gz"
    labels = _labels_of_nodes(labels_file, recipe.tasks, num_nodes)
    kind = recipe.features_of
    rows = edges.shape[1] if kind == "edge" else num_nodes
    features_file = raw / f"{kind}-feat.csv.gz"
    features = read_csv(features_file, np.float32, f"a line for each {kind}: its features")
    require_rows(features_file, features.shape[0], rows, f"num-{kind}-list")
    if kind == "edge":
        features = _incident_edges(features, edges, num_nodes, edge_reduction)
    if recipe.one_direction:
        edges = np.concatenate([edges, edges[::-1]], axis=1)
    elif undirected:
        edges = distinct_edges(edges, num_nodes, both_directions=True)
    dataset = NodeDataset(
        name=name,
        senders=edges[0],
        receivers=edges[1],
        features=features,
        labels=labels,
        num_classes=recipe.tasks or int(labels.max(initial=-1)) + 1,
        **parts,
    )
    dataset.validate({"features": csv_path(features_file), "labels": csv_path(labels_file)})
    return dataset


def _incident_edges(
    features: np.ndarray, edges: np.ndarray, num_nodes: int, reduction: str
) -> np.ndarray:
    """Returns sums or means over the edges of each node, [nodes, d]; both ends have an edge."""
    senders, receivers = edges
    sums = np.empty((num_nodes, features.shape[1]))
    for column, values in enumerate(features.T):
        sums[:, column] = np.bincount(receivers, values, num_nodes)
        sums[:, column] += np.bincount(senders, values, num_nodes)
    if reduction == "mean":
        degree = np.bincount(receivers, minlength=num_nodes)
        degree += np.bincount(senders, minlength=num_nodes)
        sums /= np.maximum(degree, 1)[:, None]
    return sums.astype(np.float32)


def _labels_of_nodes(path: Path, tasks: int | None, num_nodes: int) -> np.ndarray:
    """Reads the class of each node, int32 [nodes], or its labels, float32 [nodes, tasks]."""
    # Read as floats, because OGB marks unlabelled nodes by nan.
    table = read_csv(path, np.float64, "a line a node: its label or labels", columns=tasks or 1)
    require_rows(path, table.shape[0], num_nodes, "num-node-list")
    largest = table.max(axis=1)  # It is nan where one of them is.
    require_cells(path, largest, ~np.isnan(largest), "a label for every node")
    labels = to_int32(table, csv_path(path), "labels")
    return labels.astype(np.float32) if tasks else labels[:, 0]


def read_ogb_mag(path: str | PathLike[str]) -> RelationsDataset:
    """Reads ogbn-mag as unpacked from OGB's archive: nodes of four types, and four relations.

    Edges keep the one direction of the files: authors write papers, and not the reverse.

    Args:
      path: folder with ``raw/`` and ``split/time/``. Files may be .csv.gz or .csv. Types come from
        ``num-node-dict``, relations from ``triplet-type-list``; the edges of a relation are in
        ``relations/author___writes___paper/edge.csv.gz``, the features of a type in
        ``node-feat/paper/node-feat.csv.gz``, and labels in ``node-label/paper/node-label.csv.gz``.

    Returns:
      The data set, with labels and split of the one type that ``nodetype-has-label`` names.
    """
    _, _, raw, split = open_ogb("read_ogb_mag", path, "ogbn-mag")
    num_nodes = read_numbers_of_types(raw / "num-node-dict.csv.gz")
    target = _labelled_type(raw / "nodetype-has-label.csv.gz", num_nodes)
    relations = _relations(raw / "triplet-type-list.csv.gz", num_nodes)
    features, years = {}, {}
    for kind, count in num_nodes.items():
        folder_of_kind = raw / "node-feat" / kind
        file = folder_of_kind / "node-feat.csv.gz"
        if is_there(csv_path(file)):
            features[kind] = read_features(file, count, "node", counted_in=_TYPES)
        file = folder_of_kind / "node_year.csv.gz"
        if is_there(csv_path(file)):
            years[kind] = read_column(file, "the year of a node", count, _TYPES)
    labels_file = raw / "node-label" / target / "node-label.csv.gz"
    labels = read_column(labels_file, "the class of a node", num_nodes[target], _TYPES)
    require_cells(labels_file, labels, labels >= 0, "classes from 0 on")
    return RelationsDataset(
        name="ogbn-mag",
        num_nodes=num_nodes,
        edges={relation: _edges_of_relation(raw, relation, num_nodes) for relation in relations},
        features=features,
        target=target,
        labels=labels,
        num_classes=int(labels.max(initial=-1)) + 1,
        years=years,
        **read_parts(split / target, num_nodes[target], f"{target}s"),
    )


def _labelled_type(path: Path, num_nodes: dict[str, int]) -> str:
    """Reads the one type whose nodes have labels."""
    contents = "a line of types, and a line of True and False"
    rows = read_table_of_text(path, contents)
    named = dict(zip(*rows, strict=False)) if len(rows) == 2 else {}
    labelled = [kind for kind, has in named.items() if has == "True"]
    if len(labelled) != 1 or labelled[0] not in num_nodes:
        expected = f"{contents}, with labels of one of {', '.join(num_nodes)}"
        raise bad_file(csv_path(path), f"expected {expected}, got {rows!s:.200}")
    return labelled[0]


def _relations(path: Path, num_nodes: dict[str, int]) -> list[Relation]:
    """Reads the relations, in the order of the file."""
    relations: list[Relation] = []
    rows = read_table_of_text(path, "a line a relation: senders, name, receivers")
    for line, row in enumerate(rows, start=1):
        fits = len(row) == 3 and row[0] in num_nodes and row[2] in num_nodes
        if not fits or not row[1].replace("_", "").isalnum():
            expected = f"type, name, type, with types of {', '.join(num_nodes)}"
            raise bad_file(csv_path(path), f"line {line}: expected {expected}, got {row!s:.200}")
        relation = row[0], row[1], row[2]
        if relation in relations:
            raise bad_file(csv_path(path), f"line {line}: expected each relation once, got {row}")
        relations.append(relation)
    return relations


def _edges_of_relation(raw: Path, relation: Relation, num_nodes: dict[str, int]) -> np.ndarray:
    """Reads senders and receivers of a relation, int32 [2, edges]."""
    folder = raw / "relations" / "___".join(relation)
    require_folder(folder, "edge.csv.gz and num-edge-list.csv.gz")
    count = read_count(folder / "num-edge-list.csv.gz", "edges", _TYPES)
    limits = num_nodes[relation[0]], num_nodes[relation[2]]
    return read_ends(folder / "edge.csv.gz", count, limits)


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
    folder = open_ogb("read_ogb_graphs", path, name)
    recipe, raw = folder.recipe, folder.raw
    tables = read_graphs(raw)
    num_edges = tables.ends.shape[1]
    labels_file, edges_file = raw / "graph-label.csv.gz", raw / "edge-feat.csv.gz"
    fields: dict[str, Any] = {}
    if recipe.node_categories:
        file, count = raw / "node-feat.csv.gz", int(tables.nodes.sum())
        fields["node_features"] = _categories(file, count, "node", recipe.node_categories)
    if recipe.edge_categories:
        edge_features = _categories(edges_file, num_edges, "edge", recipe.edge_categories)
    else:
        edge_features = read_features(edges_file, num_edges, "edge")
    if recipe.labels == "class":
        labels = read_column(labels_file, "its class", tables.nodes.size)
        require_below(labels_file, labels, recipe.tasks, "a class")
    else:
        labels = _labels_with_gaps(
            labels_file, tables.nodes.size, is_binary=recipe.labels == "binary"
        )
        if labels.shape[1] != recipe.tasks:
            expected = f"{recipe.tasks} columns, the tasks of {name}"
            raise bad_file(csv_path(labels_file), f"expected {expected}, got {labels.shape[1]}")
    return _graphs_dataset(
        folder,
        tables,
        labels=labels,
        num_classes=recipe.tasks,
        edge_features=np.repeat(edge_features, 2, axis=0),
        node_categories=recipe.node_categories,
        edge_categories=recipe.edge_categories,
        **fields,
        **read_parts(folder.split, tables.nodes.size, "graphs"),
    )


def _graphs_dataset(folder: OgbFolder, tables: GraphTables, **fields: Any) -> GraphsDataset:
    """Creates the data set; the reverse of each edge follows it where files list one direction."""
    ends, directions = tables.ends, 2 if folder.recipe.one_direction else 1
    senders, receivers = np.stack([ends, ends[::-1]][:directions], axis=2).reshape(2, -1)
    return GraphsDataset(
        name=folder.name,
        senders=senders,
        receivers=receivers,
        num_nodes_of_each=tables.nodes.astype(np.int32),
        num_edges_of_each=(directions * tables.edges).astype(np.int32),
        **fields,
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
    file = csv_path(path)
    lines = read_text(file, "a line for each: its labels").decode("utf-8", "replace").splitlines()
    require_rows(path, len(lines), rows, "num-node-list")
    width = lines[0].count(",") + 1 if lines else 0
    labels = np.empty((len(lines), width), np.float32)
    # Most of the millions of cells are zeros, ones or empty, so that each text is parsed once.
    parsed: dict[str, float] = {}
    for row, line in enumerate(lines):
        cells = line.split(",")
        if len(cells) != width:
            message = f"line {row + 1}: expected {width} columns, got {len(cells)}"
            raise bad_file(file, message)
        for column, cell in enumerate(cells):
            if cell in parsed:
                continue
            try:
                parsed[cell] = _label(cell.strip(), is_binary=is_binary)
            except ValueError as error:
                where = f"line {row + 1}, column {column + 1}"
                raise bad_file(file, f"{where}: {error}, got {cell[:80]!r}") from None
        labels[row] = [parsed[cell] for cell in cells]
    return labels


def _label(cell: str, *, is_binary: bool) -> float:
    """Parses the number in a cell, NaN if empty; raises ValueError with the expected content."""
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
    folder = open_ogb("read_ogb_code", path, "ogbg-code2")
    raw, tables = folder.raw, read_graphs(folder.raw)
    graphs, nodes = tables.nodes.size, int(tables.nodes.sum())
    columns = [
        _whole_numbers(raw / f"{file}.csv.gz", width, nodes) for file, width in _CODE.items()
    ]
    names = _names(raw / "graph-label.csv.gz", graphs)
    parts = read_parts(folder.split, graphs, "graphs")
    common = _vocabulary([names[graph] for graph in parts["train"].tolist()], vocabulary)
    return _graphs_dataset(
        folder,
        tables,
        labels=_numbers(names, common, words),
        num_classes=len(common),
        node_features=np.concatenate(columns, axis=1),
        class_names=common,
        **parts,
    )


def _whole_numbers(path: Path, columns: int, rows: int) -> np.ndarray:
    """Reads a table of non-negative whole numbers, float32 [rows, columns]."""
    table = read_csv(path, np.int64, "a line for each node", columns=columns)
    require_rows(path, table.shape[0], rows, "num-node-list")
    low, high = table.min(axis=1), table.max(axis=1)
    good = (low >= 0) & (high < 1 << 24)  # float32 has them exactly.
    require_cells(path, np.where(low < 0, low, high), good, "whole numbers in [0, 2^24)")
    return table.astype(np.float32)


def _names(path: Path, rows: int) -> list[list[str]]:
    """Reads the words of the name of each function."""
    text = read_text(csv_path(path), "a line for each graph: the words of its name")
    lines = text.decode("utf-8", "replace").splitlines()
    require_rows(path, len(lines), rows, "num-node-list")
    return [line.split() for line in lines]


def _vocabulary(names: list[list[str]], size: int) -> tuple[str, ...]:
    """Returns the most frequent words, and the two marks of other words and of the end."""
    counts = Counter(word for name in names for word in name)
    order = sorted(counts, key=lambda word: (-counts[word], word))
    return (*order[:size], _OTHER, _END)


def _numbers(names: list[list[str]], common: tuple[str, ...], words: int) -> np.ndarray:
    """Returns the numbers of the first words of each name, int32 [graphs, words]."""
    number = {word: at for at, word in enumerate(common[:-2])}
    other, end = len(common) - 2, len(common) - 1
    labels = np.full((len(names), words), end, np.int32)
    for row, name in zip(labels, names, strict=True):
        row[: len(name)] = [number.get(word, other) for word in name[:words]]
    return labels
