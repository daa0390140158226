"""Reddit in DGL's two files, and Flickr, Yelp and others in GraphSAINT's four files."""

import re
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from jaxgnn.datasets.formats.file_errors import bad_file, naming, require_folder
from jaxgnn.datasets.formats.files import numbers_to_int32, read_json, to_float32, to_int32
from jaxgnn.datasets.formats.matrices import read_adjacency
from jaxgnn.datasets.formats.npy import read_npy, read_npz
from jaxgnn.datasets.records.node_dataset import NodeDataset

_DATA, _GRAPH = "reddit_data.npz", "reddit_graph.npz"
_NODE_TYPES = {"train": 1, "validation": 2, "test": 3}
_FILES = {
    "graph": "adj_full.npz",
    "features": "feats.npy",
    "labels": "class_map.json",
    "splits": "role.json",
}
# Written as JSON integers are, so that no node has two keys.
_NODE_ID = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
_ROLES = {"train": "tr", "validation": "va", "test": "te"}


def read_reddit(path: str | PathLike[str]) -> NodeDataset:
    """Reads the Reddit posts graph: 232,965 nodes, 114,615,892 edges, 41 communities.

    Features are used as stored. The graph is symmetric as published, so nothing is added.

    Args:
      path: folder with ``reddit_data.npz`` (arrays feature, label and node_types, where 1, 2, 3
        mean training, validation, test) and ``reddit_graph.npz`` (a sparse matrix).

    Returns:
      The data set; the number of classes is the largest label plus one.
    """
    folder = Path(path)
    require_folder(folder, f"{_DATA} and {_GRAPH}")
    data_path, graph_path = folder / _DATA, folder / _GRAPH
    arrays = read_npz(
        data_path, ("feature", "label", "node_types"), "arrays feature, label and node_types"
    )
    senders, receivers, num_nodes = read_adjacency(graph_path)
    for key, array in arrays.items():
        if array.shape[:1] != (num_nodes,):
            expected = f"{num_nodes} rows of {key}, as many as {graph_path} has nodes"
            raise bad_file(data_path, f"expected {expected}, got shape {array.shape}")
    labels = to_int32(arrays["label"], data_path, "labels")
    splits = _splits_of_types(arrays["node_types"], data_path)
    dataset = NodeDataset(
        name="reddit",
        senders=senders,
        receivers=receivers,
        features=to_float32(arrays["feature"], data_path, "features"),
        labels=labels,
        num_classes=int(labels.max(initial=-1)) + 1,
        **splits,
    )
    from_data = dict.fromkeys(("features", "labels", *splits), data_path)
    dataset.validate({**from_data, "senders": graph_path, "receivers": graph_path})
    return dataset


def _splits_of_types(node_types: np.ndarray, path: Path) -> dict[str, Any]:
    with naming(path, "node_types"):
        if node_types.ndim != 1 or node_types.dtype.kind not in "iuf":
            got = f"{node_types.ndim}-d {node_types.dtype}"
            raise bad_file(path, f"expected node_types as a 1-d array of numbers, got {got}")
        good = np.isin(node_types, list(_NODE_TYPES.values()))
        if not good.all():
            first = int(np.argmin(good))
            got = f"{node_types[first]} at [{first}]"
            raise bad_file(path, f"expected node_types 1, 2 or 3, got {got}")
        return {
            split: np.flatnonzero(node_types == code).astype(np.int32)
            for split, code in _NODE_TYPES.items()
        }


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
    """
    folder = Path(path)
    require_folder(folder, ", ".join(_FILES.values()))
    paths = {part: folder / file for part, file in _FILES.items()}
    senders, receivers, num_nodes = read_adjacency(paths["graph"])
    features = to_float32(
        read_npy(paths["features"], "a [nodes, features] array"), paths["features"], "features"
    )
    if features.shape[0] != num_nodes:
        expected = f"{num_nodes} rows, as many as {paths['graph']} has nodes"
        raise bad_file(paths["features"], f"expected {expected}, got {features.shape[0]}")
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
            expected = f"labels of one shape, ({tasks},) as the first list has"
            raise bad_file(path, f"expected {expected}, got {got} for node {key}")
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
            splits[split] = np.sort(numbers_to_int32(ids, path, f"node ids under {role!r}"))
    return splits


def _standardize(features: np.ndarray, train: np.ndarray) -> None:
    """Rescales in place; a feature that is constant over the training nodes is only centred."""
    seen = features[train].astype(np.float64)
    deviation = seen.std(axis=0)
    deviation[deviation == 0] = 1
    features -= seen.mean(axis=0).astype(np.float32)
    features /= deviation.astype(np.float32)
