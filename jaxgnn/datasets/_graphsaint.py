"""Flickr and Yelp, and whatever else is stored in GraphSAINT's four files."""

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from jaxgnn.datasets._adjacency import read_adjacency
from jaxgnn.datasets._files import read_json, read_npy, require_folder, to_float32, to_int32
from jaxgnn.datasets._node_dataset import NodeDataset

_FILES = {
    "graph": "adj_full.npz",
    "features": "feats.npy",
    "labels": "class_map.json",
    "splits": "role.json",
}
_ROLES = {"train": "tr", "validation": "va", "test": "te"}


def read_graphsaint(
    path: str | PathLike[str], name: str, *, standardize: bool = False
) -> NodeDataset:
    """Reads a data set in GraphSAINT's format.

    Args:
        path: folder with `adj_full.npz` (a sparse matrix), `feats.npy`, `class_map.json` (node
            id -> class id, or -> a list of zeros and ones) and `role.json` (node ids under the
            keys tr, va, te).
        name: what to call the data set, such as "flickr" or "yelp".
        standardize: whether to bring each feature to mean 0 and deviation 1 over the training
            nodes, as GraphSAINT's own code does. The default leaves the stored features alone,
            as DGL does, on whose loaders the published MaxK-GNN accuracies rest.

    Returns:
        The data set; classes are counted as the largest label plus one.

    Raises:
        FileNotFoundError: the folder or a file is missing.
        ValueError: a file is not what it should be; the message names it.
    """
    folder = Path(path)
    require_folder(folder, ", ".join(_FILES.values()))
    paths = {part: folder / file for part, file in _FILES.items()}
    senders, receivers, num_nodes = read_adjacency(paths["graph"])
    features = to_float32(
        read_npy(paths["features"], "a [nodes, features] array"), paths["features"], "features"
    )
    if features.shape[0] != num_nodes:
        raise ValueError(
            f"{paths['features']}: expected {num_nodes} rows, as many as {paths['graph']} has "
            f"nodes, got {features.shape[0]}"
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
    """Returns [nodes] int32 or, where the file has a list a node, [nodes, tasks] float32."""
    class_map = read_json(path, "a JSON object: node id -> class")
    ids = np.array([_node_id(key, num_nodes, path) for key in class_map], np.int64)
    labelled = np.zeros(num_nodes, bool)
    labelled[ids] = True
    if not labelled.all():
        raise ValueError(f"{path}: no label for node {int(np.argmin(labelled))}")
    values = _rectangular(path, class_map)
    labels = np.empty_like(values)
    labels[ids] = values
    return labels.astype(np.float32) if labels.ndim == 2 else labels


def _node_id(key: str, num_nodes: int, path: Path) -> int:
    if not key.isdecimal() or int(key) >= num_nodes:
        raise ValueError(f"{path}: expected node ids in [0, {num_nodes}), got a label for {key!r}")
    return int(key)


def _rectangular(path: Path, class_map: dict[str, Any]) -> np.ndarray:
    """Values of the map as one integer array, in the map's order."""
    shapes = {key: np.shape(value) for key, value in class_map.items() if isinstance(value, list)}
    expected = next(iter(shapes.values()), ())
    for key in class_map:
        if shapes.get(key, ()) != expected:
            raise ValueError(
                f"{path}: expected labels of one shape, {expected} as the first list has, "
                f"got {class_map[key]!r} for node {key}"
            )
    return to_int32(np.array(list(class_map.values())), path, "labels")


def _splits(path: Path) -> dict[str, np.ndarray]:
    roles = read_json(path, "a JSON object: tr, va, te -> node ids")
    splits = {}
    for split, role in _ROLES.items():
        if not isinstance(roles.get(role), list):
            raise ValueError(f"{path}: expected a list of node ids under {role!r}")
        try:
            ids = np.array(roles[role], dtype=None if roles[role] else np.int32)
        except ValueError as error:  # lists of different lengths within the list
            raise ValueError(f"{path}: expected plain node ids under {role!r}") from error
        splits[split] = np.sort(to_int32(ids, path, f"node ids under {role!r}"))
    return splits


def _standardize(features: np.ndarray, train: np.ndarray) -> None:
    """Rescales in place; a feature that is constant over the training nodes is only centred."""
    seen = features[train].astype(np.float64)
    deviation = seen.std(axis=0)
    deviation[deviation == 0] = 1
    features -= seen.mean(axis=0).astype(np.float32)
    features /= deviation.astype(np.float32)
