"""Reddit in the form of DGL's publication of GraphSAGE's data."""

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from jaxgnn.datasets.formats.file_errors import bad_file, naming, require_folder
from jaxgnn.datasets.formats.files import to_float32, to_int32
from jaxgnn.datasets.formats.matrices import read_adjacency
from jaxgnn.datasets.formats.npy import read_npz
from jaxgnn.datasets.records.node_dataset import NodeDataset

_DATA, _GRAPH = "reddit_data.npz", "reddit_graph.npz"
_NODE_TYPES = {"train": 1, "validation": 2, "test": 3}


def read_reddit(path: str | PathLike[str]) -> NodeDataset:
    """Reads the Reddit posts graph: 232,965 nodes, 114,615,892 edges, 41 communities.

    Features are used as stored. The graph is symmetric as published, so nothing is added.

    Args:
      path: folder with ``reddit_data.npz`` (arrays feature, label and node_types, where 1, 2, 3
        mean training, validation, test) and ``reddit_graph.npz`` (a sparse matrix).

    Returns:
      The data set; the number of classes is the largest label plus one.

    Raises:
      FileNotFoundError: the folder or a file is missing.
      ValueError: a file is invalid; the message names it.
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
            raise bad_file(
                data_path,
                f"expected {num_nodes} rows of {key}, as many as {graph_path} has nodes, "
                f"got shape {array.shape}",
            )
    labels = to_int32(arrays["label"], data_path, "labels")
    splits = _splits(arrays["node_types"], data_path)
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


def _splits(node_types: np.ndarray, path: Path) -> dict[str, Any]:
    with naming(path, "node_types"):
        if node_types.ndim != 1 or node_types.dtype.kind not in "iuf":
            got = f"{node_types.ndim}-d {node_types.dtype}"
            raise bad_file(path, f"expected node_types as a 1-d array of numbers, got {got}")
        good = np.isin(node_types, list(_NODE_TYPES.values()))
        if not good.all():
            first = int(np.argmin(good))
            raise bad_file(
                path, f"expected node_types 1, 2 or 3, got {node_types[first]} at [{first}]"
            )
        return {
            split: np.flatnonzero(node_types == code).astype(np.int32)
            for split, code in _NODE_TYPES.items()
        }
