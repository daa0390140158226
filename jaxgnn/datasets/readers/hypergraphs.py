"""Hypergraphs, from HyperGCN's pickles and from lines of text as in Cornell's collection."""

from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from jaxgnn.datasets.formats.file_errors import (
    bad_file,
    is_there,
    naming,
    require_folder,
    require_room,
)
from jaxgnn.datasets.formats.files import (
    numbers_to_int32,
    read_lines,
    real_number,
    to_int32,
    whole_number,
)
from jaxgnn.datasets.formats.matrices import length_of, read_matrix
from jaxgnn.datasets.formats.pickle_parts import StoredArray, StoredSet
from jaxgnn.datasets.formats.safe_pickle import read_numbers
from jaxgnn.datasets.records.node_dataset import HypergraphDataset
from jaxgnn.datasets.records.splits import generator_of, stratified_split

_FRACTIONS = (0.5, 0.25, 0.25)
_PICKLES = ("hypergraph.pickle", "features.pickle", "labels.pickle")
_TEXTS = "hyperedges*.txt, node-labels*.txt, and maybe node-features*.txt"
_LARGEST_LABEL = np.iinfo(np.int64).max


def read_hypergcn(
    path: str | PathLike[str], name: str | None = None, *, split: int | None = None, seed: int = 0
) -> HypergraphDataset:
    """Reads a hypergraph of papers in HyperGCN's published format.

    Pickles are read without executing any code that they refer to.

    Args:
      path: folder with ``hypergraph.pickle`` (name -> node ids), ``features.pickle`` (a sparse or
        dense matrix, a row a node), ``labels.pickle`` (a class a node), and for published splits
        ``splits/1.pickle`` and so on (train, test -> node ids).
      name: name of the data set; the folder's name if None.
      split: number of a published split, which has no validation nodes; None for a random one,
        50 / 25 / 25 % of each class for training, validation and test, as in AllSet.
      seed: seed of the random split.

    Returns:
      The data set; classes are the different labels, in ascending order.
    """
    folder = Path(path)
    require_folder(folder, ", ".join(_PICKLES))
    paths = {file.removesuffix(".pickle"): folder / file for file in _PICKLES}
    features = read_matrix(paths["features"], "features")
    stored = read_numbers(paths["labels"], "a list of labels, one for each node")
    with naming(paths["labels"], "labels"):
        different, ids = np.unique(
            _integers(paths["labels"], "labels", stored), return_inverse=True
        )
    labels = ids.astype(np.int32)
    if len(labels) != len(features):
        expected = f"{len(features)} labels, one for each row of {paths['features']}"
        raise bad_file(paths["labels"], f"expected {expected}, got {len(labels)}")
    node_ids, hyperedge_ids, count = _incidences(paths["hypergraph"])
    parts, split_file = stratified_split(labels, _FRACTIONS, seed), paths["labels"]
    if split is not None:
        split_file = folder / "splits" / f"{split}.pickle"
        parts = _published_split(split_file)
    dataset = HypergraphDataset(
        name=folder.name if name is None else name,
        node_ids=node_ids,
        hyperedge_ids=hyperedge_ids,
        num_hyperedges=count,
        features=features,
        labels=labels,
        num_classes=len(different),
        **parts,
    )
    incidence_files = dict.fromkeys(("node_ids", "hyperedge_ids"), paths["hypergraph"])
    dataset.validate({**paths, **incidence_files, **dict.fromkeys(parts, split_file)})
    return dataset


def _incidences(path: Path) -> tuple[np.ndarray, np.ndarray, int]:
    """Nodes and hyperedges [incidences] int32 in the file's order, and the number of hyperedges."""
    expected = "a dict of hyperedges: name -> node ids"
    hyperedges = read_numbers(path, expected)
    with naming(path, expected):
        if not isinstance(hyperedges, dict):
            raise bad_file(path, f"expected {expected}, got a {type(hyperedges).__name__}")
        most = sum(map(length_of, hyperedges.values()))
        # A pickle may refer to the same list many times.
        require_room(path, 2 * most * np.dtype(np.int32).itemsize, "its hyperedges")
        nodes, sizes = np.empty(most, np.int32), np.zeros(len(hyperedges), np.int64)
        end = 0
        for number, (name, members) in enumerate(hyperedges.items()):
            ids = _integers(path, f"node ids of hyperedge {str(name)[:80]!r}", members)
            nodes[end : end + len(ids)] = ids
            sizes[number] = len(ids)
            end += len(ids)
        hyperedge_ids = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        return nodes[:end], hyperedge_ids, len(sizes)


def _published_split(path: Path) -> dict[str, np.ndarray]:
    expected = "a dict of node ids: train, test"
    stored = read_numbers(path, expected)
    with naming(path, expected):
        if not isinstance(stored, dict) or not {"train", "test"} <= stored.keys():
            raise bad_file(path, f"expected {expected}")
        parts = {
            key: np.sort(_integers(path, f"node ids of {key}", stored[key]))
            for key in ("train", "test")
        }
        return {**parts, "validation": np.zeros(0, np.int32)}


def _integers(path: Path, what: str, stored: Any) -> np.ndarray:
    """Returns a list, set or array of integers as [n] int32; a set in ascending order."""
    if isinstance(stored, StoredArray):
        if stored.value.ndim != 1:
            got = f"shape {stored.value.shape}"
            raise bad_file(path, f"expected {what} as plain integers, got {got}")
        return to_int32(stored.value, path, what)
    if isinstance(stored, StoredSet):
        return np.unique(numbers_to_int32(stored.members, path, what))
    if not isinstance(stored, list | tuple):
        raise bad_file(path, f"expected {what} as a list, got a {type(stored).__name__}")
    return numbers_to_int32(stored, path, what)


def read_hyperedge_text(
    path: str | PathLike[str],
    name: str | None = None,
    *,
    first_id: int = 1,
    feature_noise: float | None = None,
    seed: int = 0,
) -> HypergraphDataset:
    """Reads a hypergraph from lines of text.

    Args:
      path: folder with ``hyperedges*.txt`` (a line for each hyperedge: its node ids),
        ``node-labels*.txt`` (a line for each node: its class, a whole number), and optionally
        ``node-features*.txt`` (a line for each node: numbers). Numbers are separated by commas or
        blanks.
      name: name of the data set; the folder's name if None.
      first_id: id of the first node: 1 in the published files, or 0.
      feature_noise: without features, build them from the one-hot label and normal noise of this
        deviation, as the published comparisons on these data sets do. The features then contain
        the label, in the test nodes too.
      seed: seed of the noise, and of the split: 50 / 25 / 25 % of each class for training,
        validation and test.

    Returns:
      The data set; classes are the different labels, in ascending order.
    """
    folder = Path(path)
    require_folder(folder, _TEXTS)
    labels_file = _only(folder, "node-labels")
    different, ids = np.unique(_labels(labels_file), return_inverse=True)
    classes = ids.astype(np.int32)
    members = _hyperedges(_only(folder, "hyperedges"), first_id, len(classes))
    features_file = _only(folder, "node-features")
    if is_there(features_file):
        features = _features(features_file, len(classes))
    elif feature_noise is not None:
        require_room(labels_file, 4 * classes.size * different.size, "one-hot labels")
        rng = generator_of("datasets.read_hyperedge_text", seed)
        noise = feature_noise * rng.standard_normal((classes.size, different.size), np.float32)
        features = np.eye(different.size, dtype=np.float32)[classes] + noise
    else:
        raise FileNotFoundError(
            f"no file {features_file}: expected a line of features for each node; or ask for "
            "features made of the labels, with feature_noise"
        )
    sizes = [len(nodes) for nodes in members]
    dataset = HypergraphDataset(
        name=folder.name if name is None else name,
        node_ids=np.array([node for nodes in members for node in nodes], np.int32),
        hyperedge_ids=np.repeat(np.arange(len(sizes), dtype=np.int32), sizes),
        num_hyperedges=len(sizes),
        features=features,
        labels=classes,
        num_classes=different.size,
        **stratified_split(classes, _FRACTIONS, seed),
    )
    dataset.validate({"features": features_file, "labels": labels_file})
    return dataset


def _only(folder: Path, stem: str) -> Path:
    """Returns the only file of a kind; if there is none, its default path."""
    files = sorted(folder.glob(f"{stem}*.txt"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise bad_file(folder, f"expected one file {stem}*.txt, got {names}")
    return files[0] if files else folder / f"{stem}.txt"


def _rows(
    path: Path, contents: str, parse: Callable[[str], Any], expected: str
) -> Iterator[tuple[int, list[Any]]]:
    """Yields the number of each line, and the numbers in it."""
    for number, line in enumerate(read_lines(path, contents), start=1):
        row = []
        for cell in line.replace(b",", b" ").split():
            text = cell.decode("utf-8", "replace")
            try:
                row.append(parse(text))
            except ValueError:
                message = f"line {number}: expected {expected}, got {text[:80]!r}"
                raise bad_file(path, message) from None
        yield number, row


def _hyperedges(path: Path, first_id: int, nodes: int) -> list[list[int]]:
    """The nodes of each hyperedge, counted from zero; an empty line is an empty hyperedge."""
    members, last = [], first_id + nodes - 1
    contents = "a line of node ids for each hyperedge"
    for number, ids in _rows(path, contents, whole_number, "node ids"):
        for node in ids:
            if not first_id <= node <= last:
                expected = f"node ids in [{first_id}, {last}], as many as there are labels"
                raise bad_file(path, f"line {number}: expected {expected}, got {str(node)[:80]}")
        members.append([node - first_id for node in ids])
    return members


def _labels(path: Path) -> np.ndarray:
    """[nodes] int64, as stored in the file."""
    labels, expected = [], "a label as a whole number"
    for number, row in _rows(path, "a line with the class of each node", whole_number, expected):
        if len(row) != 1:
            raise bad_file(path, f"line {number}: expected one label, got {len(row)}")
        if not -_LARGEST_LABEL <= row[0] <= _LARGEST_LABEL:
            expected = f"a label of at most {_LARGEST_LABEL}"
            raise bad_file(path, f"line {number}: expected {expected}, got {str(row[0])[:80]}")
        labels += row
    return np.array(labels, np.int64)


def _features(path: Path, nodes: int) -> np.ndarray:
    """Reads the features of nodes from a file, as an array [nodes, features] of float32."""
    rows: list[list[float]] = []
    contents, expected = "a line of features for each node", "numbers: expected a number"
    for number, row in _rows(path, contents, real_number, expected):
        rows.append(row)
        if len(row) != len(rows[0]):
            expected = f"{len(rows[0])} features, as in line 1"
            raise bad_file(path, f"line {number}: expected {expected}, got {len(row)}")
    if len(rows) != nodes:
        raise bad_file(path, f"expected {nodes} lines, one for each label, got {len(rows)}")
    with np.errstate(over="ignore"):  # Validation reports inf.
        return np.array(rows, np.float32)
