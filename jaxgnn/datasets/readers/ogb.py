"""Node-classification sets of the Open Graph Benchmark, from their raw csv folders."""

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Literal

import numpy as np

from jaxgnn.datasets.formats.file_errors import require_folder
from jaxgnn.datasets.formats.files import csv_path, read_csv, require_cells, to_int32
from jaxgnn.datasets.readers.ogb_tables import read_count, read_ends, read_parts, require_rows
from jaxgnn.datasets.records.node_dataset import NodeDataset, distinct_edges


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
    """
    if name not in _RECIPES:
        raise ValueError(f"read_ogb: name: expected one of {sorted(_RECIPES)}, got {name!r}")
    if edge_reduction not in ("sum", "mean"):
        raise ValueError(
            f"read_ogb: edge_reduction: expected 'sum' or 'mean', got {edge_reduction!r}"
        )
    recipe, folder = _RECIPES[name], Path(path)
    raw = folder / "raw"
    require_folder(raw, f"the csv files of {name}")
    num_nodes = read_count(raw / "num-node-list.csv.gz", "nodes")
    parts = read_parts(folder / "split" / recipe.split, num_nodes, "nodes")
    num_edges = read_count(raw / "num-edge-list.csv.gz", "edges")
    edges = read_ends(raw / "edge.csv.gz", num_edges, num_nodes)
    labels_file = raw / "node-label.csv.gz"
    labels = _read_labels(labels_file, recipe.tasks, num_nodes)
    what, rows = ("edge", num_edges) if recipe.edge_features else ("node", num_nodes)
    features_file = raw / f"{what}-feat.csv.gz"
    features = read_csv(features_file, np.float32, f"a line for each {what}: its features")
    require_rows(features_file, features.shape[0], rows, f"num-{what}-list")
    if recipe.edge_features:
        features = _incident_edges(features, edges, num_nodes, edge_reduction)
    if recipe.symmetric:
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
    """Sum or mean over the edges of each node, [nodes, d]; each edge counts at both of its ends."""
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


def _read_labels(path: Path, tasks: int | None, num_nodes: int) -> np.ndarray:
    # Read as floats, because OGB marks unlabelled nodes by nan.
    table = read_csv(path, np.float64, "a line a node: its label or labels", columns=tasks or 1)
    require_rows(path, table.shape[0], num_nodes, "num-node-list")
    largest = table.max(axis=1)  # nan where one of them is
    require_cells(path, largest, ~np.isnan(largest), "a label for every node")
    labels = to_int32(table, csv_path(path), "labels")
    return labels.astype(np.float32) if tasks else labels[:, 0]
