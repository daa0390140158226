"""Flickr, Yelp, and other data sets in GraphSAINT's four files."""

import re
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from jaxgnn.datasets.formats.file_errors import bad_file, naming, require_folder
from jaxgnn.datasets.formats.files import numbers_to_int32, read_json, to_float32
from jaxgnn.datasets.formats.matrices import read_adjacency
from jaxgnn.datasets.formats.npy import read_npy
from jaxgnn.datasets.records.node_dataset import NodeDataset

_FILES = {
    "graph": "adj_full.npz",
    "features": "feats.npy",
    "labels": "class_map.json",
    "splits": "role.json",
}
# Written as JSON integers are, so that no node has two keys.
_NODE_ID = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
_ROLES = {"train": "tr", "validation": "va", "test": "te"}


def read_graphsaint(
    path: str | PathLike[str], name: str, *, standardize: bool = False
) -> NodeDataset:
    """Reads a data set in GraphSAINT's format.

    Args:
      path: folder with ``adj_full.npz`` (a sparse matrix), ``feats.npy``, ``class_map.json`` (node
        id -> class id, or -> a list of zeros and ones) and ``role.json`` (node ids under the
        keys tr, va, te).
      name: name of the data set, such as "flickr" or "yelp".
      standardize: whether to scale each feature to mean 0 and deviation 1 over the training
        nodes, as GraphSAINT's own code does. The default keeps the stored features, as DGL does;
        the published MaxK-GNN accuracies are based on DGL's loaders.

    Returns:
      The data set; the number of classes is the largest label plus one.

    Raises:
      FileNotFoundError: the folder or a file is missing.
      ValueError: a file is invalid; the message names it.
    """
    folder = Path(path)
    require_folder(folder, ", ".join(_FILES.values()))
    paths = {part: folder / file for part, file in _FILES.items()}
    senders, receivers, num_nodes = read_adjacency(paths["graph"])
    features = to_float32(
        read_npy(paths["features"], "a [nodes, features] array"), paths["features"], "features"
    )
    if features.shape[0] != num_nodes:
        raise bad_file(
            paths["features"],
            f"expected {num_nodes} rows, as many as {paths['graph']} has nodes, "
            f"got {features.shape[0]}",
        )
    labels = _labels(paths["labels"], num_nodes)
    splits = _splits(paths["splits"])
    dataset = NodeDataset(
        name=name,
        senders=senders,
        receivers=receivers,
        features=features,
        labels=labels,
        num_classes=labels.shape[1] if labels.ndim == 2 else int(labels.max(initial=-1)) + 1,
        **splits,
    )
    graph_files = dict.fromkeys(("senders", "receivers"), paths["graph"])
    dataset.validate({**paths, **graph_files, **dict.fromkeys(splits, paths["splits"])})
    if standardize:
        _standardize(features, dataset.train)
    return dataset


def _labels(path: Path, num_nodes: int) -> np.ndarray:
    """Returns [nodes] int32, or [nodes, tasks] float32 if the file has a list for each node."""
    class_map = read_json(path, "a JSON object: node id -> class")
    with naming(path, "labels"):
        ids = np.array([_node_id(key, num_nodes, path) for key in class_map], np.int64)
        # Ids differ, so too few of them mean that a node is missing; there may be many more nodes.
        if len(ids) != num_nodes:
            labelled = set(ids.tolist())
            first = next(node for node in range(num_nodes) if node not in labelled)
            raise bad_file(path, f"no label for node {first}")
        values = _rectangular(path, class_map)
        labels = np.empty_like(values)
        labels[ids] = values
        return labels.astype(np.float32) if labels.ndim == 2 else labels


def _node_id(key: str, num_nodes: int, path: Path) -> int:
    if _NODE_ID.fullmatch(key) is None or int(key) >= num_nodes:
        expected = f"node ids in [0, {num_nodes})"
        raise bad_file(path, f"expected {expected}, got a label for {key[:80]!r}")
    return int(key)


def _rectangular(path: Path, class_map: dict[str, Any]) -> np.ndarray:
    """Values of the map as one integer array, in the map's order."""
    lists = {key: value for key, value in class_map.items() if isinstance(value, list)}
    if not lists:
        return numbers_to_int32(list(class_map.values()), path, "labels")
    tasks = len(next(iter(lists.values())))
    for key in class_map:
        if key not in lists or len(lists[key]) != tasks:
            got = f"{len(lists[key])} labels" if key in lists else "a single label"
            raise bad_file(
                path,
                f"expected labels of one shape, ({tasks},) as the first list has, got {got} for "
                f"node {key}",
            )
    if not tasks:
        raise bad_file(path, "expected at least one label in the list of each node, got none")
    flat = [label for labels in lists.values() for label in labels]
    return numbers_to_int32(flat, path, "labels").reshape(-1, tasks)


def _splits(path: Path) -> dict[str, Any]:
    roles = read_json(path, "a JSON object: tr, va, te -> node ids")
    splits: dict[str, Any] = {}
    with naming(path, "node ids"):
        for split, role in _ROLES.items():
            ids = roles.get(role)
            if not isinstance(ids, list):
                raise bad_file(path, f"expected a list of node ids under {role!r}")
            if any(isinstance(node, list) for node in ids):
                expected = f"expected plain node ids under {role!r}, for a 1-d int32 array"
                raise bad_file(path, f"{expected}, got a list among them")
            what = f"node ids under {role!r}"
            splits[split] = np.sort(numbers_to_int32(ids, path, what))
    return splits


def _standardize(features: np.ndarray, train: np.ndarray) -> None:
    """Rescales in place; a feature that is constant over the training nodes is only centred."""
    seen = features[train].astype(np.float64)
    deviation = seen.std(axis=0)
    deviation[deviation == 0] = 1
    features -= seen.mean(axis=0).astype(np.float32)
    features /= deviation.astype(np.float32)
