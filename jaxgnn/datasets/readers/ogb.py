"""Node-classification sets of the Open Graph Benchmark, from their raw csv folders."""

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jaxgnn.datasets.formats.file_errors import bad_file, require_folder
from jaxgnn.datasets.formats.files import csv_path, read_csv, to_int32
from jaxgnn.datasets.readers.ogb_tables import SPLIT_FILES, read_ends, require_rows
from jaxgnn.datasets.records.node_dataset import NodeDataset


@dataclass(frozen=True)
class _Recipe:
    """Facts about a data set that its folder does not contain.

    Attributes:
      split: name of the folder of the official split.
      symmetric: whether the files list only one direction of each edge, and the other is added.
      tasks: number of binary tasks, or None for a single class per node.
      edge_features: whether nodes have no features and get those of their edges.
    """

    split: str
    symmetric: bool = True
    tasks: int | None = None
    edge_features: bool = False


_RECIPES = {
    "ogbn-products": _Recipe(split="sales_ranking"),
    "ogbn-proteins": _Recipe(split="species", tasks=112, edge_features=True),
    "ogbn-arxiv": _Recipe(split="time", symmetric=False),
}


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

    Raises:
      FileNotFoundError: a folder or file is missing.
      ValueError: an unknown name or reduction, or an invalid file; the message names the file and,
        for an invalid cell, its line.
    """
    if name not in _RECIPES:
        raise ValueError(f"read_ogb: name: expected one of {sorted(_RECIPES)}, got {name!r}")
    if edge_reduction not in ("sum", "mean"):
        raise ValueError(
            f"read_ogb: edge_reduction: expected 'sum' or 'mean', got {edge_reduction!r}"
        )
    recipe, folder = _RECIPES[name], Path(path)
    raw, split = folder / "raw", folder / "split" / recipe.split
    require_folder(raw, f"the csv files of {name}")
    require_folder(split, "train, valid and test .csv.gz")

    num_nodes = _read_count(raw / "num-node-list.csv.gz", "nodes")
    senders, receivers = _read_edges(raw, num_nodes)
    labels = _read_labels(raw / "node-label.csv.gz", recipe.tasks, num_nodes)
    features = _read_features(raw, recipe, senders, receivers, num_nodes, edge_reduction)
    if recipe.symmetric:
        senders, receivers = _both_directions(senders, receivers)
    elif undirected:
        senders, receivers = _without_repeats(*_both_directions(senders, receivers), num_nodes)
    split_paths = {field: split / f"{file}.csv.gz" for field, file in SPLIT_FILES.items()}
    splits: dict[str, Any] = {field: _read_split(file) for field, file in split_paths.items()}
    dataset = NodeDataset(
        name=name,
        senders=senders,
        receivers=receivers,
        features=features,
        labels=labels,
        num_classes=recipe.tasks or int(labels.max(initial=-1)) + 1,
        **splits,
    )
    feature_file = "edge-feat.csv.gz" if recipe.edge_features else "node-feat.csv.gz"
    files = {"features": raw / feature_file, "labels": raw / "node-label.csv.gz", **split_paths}
    dataset.validate({field: csv_path(file) for field, file in files.items()})
    return dataset


def _read_count(path: Path, what: str) -> int:
    counts = read_csv(path, np.int64, f"one line: the number of {what}", columns=1)
    if counts.shape[0] != 1 or counts[0, 0] < 0:
        raise bad_file(
            csv_path(path),
            f"expected the number of {what} of one graph, got {counts.ravel().tolist()[:5]}",
        )
    return int(counts[0, 0])


def _read_edges(raw: Path, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    path, nodes = raw / "edge.csv.gz", np.array([num_nodes])
    senders, receivers = read_ends(path, (nodes, nodes))
    expected = _read_count(raw / "num-edge-list.csv.gz", "edges")
    require_rows(path, senders.size, expected, "num-edge-list")
    return senders, receivers


def _read_features(
    raw: Path,
    recipe: _Recipe,
    senders: np.ndarray,
    receivers: np.ndarray,
    num_nodes: int,
    reduction: str,
) -> np.ndarray:
    if not recipe.edge_features:
        path = raw / "node-feat.csv.gz"
        features = read_csv(path, np.float32, "a line a node: its features")
        require_rows(path, features.shape[0], num_nodes, "num-node-list")
        return features
    path = raw / "edge-feat.csv.gz"
    features = read_csv(path, np.float32, "a line an edge: its features")
    require_rows(path, features.shape[0], senders.size, "num-edge-list")
    return _incident_edges(features, senders, receivers, num_nodes, reduction)


def _incident_edges(
    features: np.ndarray,
    senders: np.ndarray,
    receivers: np.ndarray,
    num_nodes: int,
    reduction: str,
) -> np.ndarray:
    """Sum or mean over the edges of each node; each edge counts at both of its ends.

    ``features`` is [edges, d] for edges listed in one direction; returns [nodes, d] float32,
    accumulated in float64.
    """
    sums = np.empty((num_nodes, features.shape[1]))
    for column, values in enumerate(features.T):
        sums[:, column] = np.bincount(receivers, values, num_nodes)
        sums[:, column] += np.bincount(senders, values, num_nodes)
    if reduction == "mean":
        degree = np.bincount(receivers, minlength=num_nodes)
        degree += np.bincount(senders, minlength=num_nodes)
        sums /= np.maximum(degree, 1)[:, None]
    return sums.astype(np.float32)


def _read_labels(path: Path, tasks: int | None, num_nodes: int) -> np.ndarray:
    # Read as floats, because OGB marks unlabelled nodes by nan.
    table = read_csv(path, np.float64, "a line a node: its label or labels", columns=tasks or 1)
    require_rows(path, table.shape[0], num_nodes, "num-node-list")
    missing = np.isnan(table).any(axis=1)
    if missing.any():
        line = int(np.argmax(missing)) + 1
        raise bad_file(
            csv_path(path),
            f"line {line}: expected a label for every node, got nan; "
            f"{int(missing.sum())} nodes have none",
        )
    labels = to_int32(table, csv_path(path), "labels")
    return labels.astype(np.float32) if tasks else labels[:, 0]


def _read_split(path: Path) -> np.ndarray:
    return np.sort(read_csv(path, np.int32, "a line a node: its id", columns=1)[:, 0])


def _both_directions(senders: np.ndarray, receivers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([senders, receivers]), np.concatenate([receivers, senders])


def _without_repeats(
    senders: np.ndarray, receivers: np.ndarray, num_nodes: int
) -> tuple[np.ndarray, np.ndarray]:
    pairs = np.unique(senders.astype(np.int64) * num_nodes + receivers)
    return (pairs // num_nodes).astype(np.int32), (pairs % num_nodes).astype(np.int32)
