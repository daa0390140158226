"""The citation networks of Planetoid, from its pickles."""

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from jaxgnn.datasets.formats.file_errors import (
    bad_file,
    naming,
    require_file,
    require_folder,
    require_room,
)
from jaxgnn.datasets.formats.files import numbers_to_int32, read_csv
from jaxgnn.datasets.formats.matrices import read_matrix
from jaxgnn.datasets.formats.pickle_parts import StoredArray
from jaxgnn.datasets.formats.safe_pickle import read_numbers
from jaxgnn.datasets.records.node_dataset import NodeDataset, distinct_edges

_PARTS = ("allx", "ally", "tx", "ty", "y", "graph", "test.index")
_VALIDATION = 500
_LISTS = "a dict of lists: node -> its neighbours"


def read_planetoid(path: str | PathLike[str], name: str | None = None) -> NodeDataset:
    """Reads Cora, CiteSeer or PubMed in Planetoid's format (https://arxiv.org/abs/1603.08861).

    Pickles are read without executing any code that they refer to. The files begin with ``ind.``
    and the name: ``ind.cora.allx``, ``.ally``, ``.tx``, ``.ty``, ``.y``, ``.graph`` and
    ``.test.index``; ``.x`` repeats the first rows of ``.allx`` and is not read.

    Nodes are in the order of the files: those of ``allx``, and then the test nodes in the order of
    their numbers. A number missing from the index of the test, of which CiteSeer has 15, is a node
    without features and with the label -1, in no part. Every pair of joined nodes is listed once in
    each direction, and self loops are dropped.

    Args:
      path: folder with the files; or one whose folder ``raw`` has them, such as PyTorch Geometric's
        ``root/Cora``; or with ``name`` the folder ``root`` of several such.
      name: the data set, if the folder has several: ``"cora"``, ``"citeseer"`` or ``"pubmed"``.

    Returns:
      The data set with Planetoid's split: the first nodes, as many as ``y`` has, are for training,
      the next 500 for validation, and those of ``test.index`` for the test.
    """
    prefix = _prefix(Path(path), name)
    files = {part: prefix.with_name(f"{prefix.name}.{part}") for part in _PARTS}
    test = _test_nodes(files["test.index"])
    labelled, classes = _classes(files["ally"])
    training, tested = read_matrix(files["allx"], "features"), read_matrix(files["tx"], "features")
    test_labels, test_classes = _classes(files["ty"])
    train = _classes(files["y"])[0].size
    _require(
        files["allx"], training.shape[0] == labelled.size, f"{labelled.size} rows", training.shape
    )
    _require(files["ty"], test_classes == classes, f"{classes} columns", test_classes)
    expected = f"{test.size} rows, one a line of {files['test.index'].name}"
    _require(files["tx"], tested.shape[0] == test.size, expected, tested.shape)
    _require(files["ty"], test_labels.size == test.size, expected, test_labels.size)
    width = training.shape[1]
    _require(files["tx"], tested.shape[1] == width, f"{width} columns", tested.shape[1])
    first = f"numbers from {labelled.size} on, behind the nodes of {files['allx'].name}"
    _require(files["test.index"], test.min() >= labelled.size, first, test.min())
    expected = f"{_VALIDATION} nodes for the validation"
    got = f"{train} training nodes, and {labelled.size} of {files['ally'].name}"
    _require(files["y"], train + _VALIDATION <= labelled.size, expected, got)
    count = int(test.max()) + 1
    require_room(files["allx"], 4 * count * training.shape[1], "its features and those of the test")
    features = np.zeros((count, training.shape[1]), np.float32)
    labels = np.full(count, -1, np.int32)
    features[: labelled.size], labels[: labelled.size] = training, labelled
    features[test], labels[test] = tested, test_labels
    senders, receivers = _edges(files["graph"], count)
    dataset = NodeDataset(
        name=prefix.name.removeprefix("ind."),
        senders=senders,
        receivers=receivers,
        features=features,
        labels=labels,
        num_classes=classes,
        train=np.arange(train, dtype=np.int32),
        validation=np.arange(train, train + _VALIDATION, dtype=np.int32),
        test=np.sort(test),
    )
    sources = {"features": "allx", "labels": "ally", "senders": "graph", "test": "test.index"}
    dataset.validate({field: files[part] for field, part in sources.items()})
    return dataset


def planetoid_prefix(folder: Path) -> Path | None:
    """Common prefix of the files of the one data set in a folder; None if it has none."""
    if not folder.is_dir():
        return None
    prefixes = [
        path for inner in (folder, folder / "raw") for path in sorted(inner.glob("ind.*.allx"))
    ]
    return prefixes[0].with_suffix("") if len(prefixes) == 1 else None


def _prefix(folder: Path, name: str | None) -> Path:
    """Common prefix of the paths of the files: the folder, ``ind.`` and the name."""
    require_folder(folder, "files like ind.cora.allx")
    if name is None:
        prefix = planetoid_prefix(folder)
        if prefix is None:
            expected = "the file ind.*.allx of one data set, or its name, here or in raw"
            count = len([*folder.glob("ind.*.allx"), *folder.glob("raw/ind.*.allx")])
            raise FileNotFoundError(f"{folder}: expected {expected}, got {count} files ind.*.allx")
        return prefix
    stem = f"ind.{name.lower()}"
    of_name = [inner / "raw" for inner in folder.iterdir() if inner.name.lower() == name.lower()]
    for inner in (folder, folder / "raw", *of_name):
        if any(inner.glob(f"{stem}.*")):
            return inner / stem
    return folder / stem


def _test_nodes(path: Path) -> np.ndarray:
    """Returns the numbers of the test nodes, in the order of the files' rows."""
    require_file(path, "a test node a line")
    nodes = read_csv(path, np.int32, "a test node a line", columns=1)[:, 0]
    _require(path, np.unique(nodes).size == nodes.size, "every node once", "one of them again")
    _require(path, nodes.min() >= 0, "numbers from 0 on", nodes.min())
    # Missing numbers become nodes.
    require_room(path, 4 * (int(nodes.max()) + 1), "its nodes")
    return nodes


def _classes(path: Path) -> tuple[np.ndarray, int]:
    """Returns the class of each node, -1 if it has none, and the number of classes."""
    hot = read_matrix(path, "labels")
    sums = hot.sum(axis=1)
    good = np.isin(hot, (0, 1)).all(axis=1) & (sums <= 1)
    if not good.all():
        row = int(np.argmin(good))
        raise bad_file(path, f"expected one-hot labels, got {hot[row].tolist()[:8]} in row {row}")
    return np.where(sums == 1, hot.argmax(axis=1), -1).astype(np.int32), hot.shape[1]


def _edges(path: Path, count: int) -> np.ndarray:
    """Every pair of neighbours once in each direction, int32 [2, edges]."""
    stored: Any = read_numbers(path, _LISTS)
    with naming(path, _LISTS):
        _require(path, isinstance(stored, dict), _LISTS, f"a {type(stored).__name__}")
        lists = [v.value.tolist() if isinstance(v, StoredArray) else v for v in stored.values()]
        are_lists = all(isinstance(others, list | tuple) for others in lists)
        _require(path, are_lists, _LISTS, "a value that is no list")
        # A pickle may refer to the same list many times.
        require_room(path, 24 * sum(map(len, lists)), "its edges")
        nodes = numbers_to_int32(list(stored), path, "nodes")
        others = numbers_to_int32([node for one in lists for node in one], path, "neighbours")
        pairs = np.stack([np.repeat(nodes, [len(one) for one in lists]), others])
        good = (pairs >= 0) & (pairs < count)
        bad = pairs.flat[int(np.argmin(good))] if good.size else None
        _require(path, good.all(), f"nodes in [0, {count})", bad)
        pairs = pairs[:, pairs[0] != pairs[1]]
        return distinct_edges(pairs, count, both_directions=True)


def _require(path: Path, good: Any, expected: str, got: Any) -> None:
    """Raises a ValueError that names the file unless its content is valid."""
    if not good:
        raise bad_file(path, f"expected {expected}, got {got}")
