"""Hyperedges as lines of text, in the format of Cornell's collection of hypergraphs."""

from os import PathLike
from pathlib import Path

import numpy as np

from jaxgnn.datasets.formats.file_errors import bad_file, require_folder
from jaxgnn.datasets.formats.files import read_lines, real_number, whole_number
from jaxgnn.datasets.records.hypergraph_dataset import HypergraphDataset
from jaxgnn.datasets.records.splits import generator_of, stratified_split

_FRACTIONS = (0.5, 0.25, 0.25)
_LARGEST_LABEL = np.iinfo(np.int64).max
_CONTENTS = "hyperedges*.txt, node-labels*.txt, and maybe node-features*.txt"


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

    Raises:
      FileNotFoundError: the folder or a file is missing.
      ValueError: a line is invalid; the message names file and line.
    """
    folder = Path(path)
    require_folder(folder, _CONTENTS)
    labels_file = _only(folder, "node-labels")
    labels = _labels(labels_file)
    different, ids = np.unique(labels, return_inverse=True)
    classes = ids.astype(np.int32)
    hyperedges_file = _only(folder, "hyperedges")
    members = _hyperedges(hyperedges_file, first_id, len(labels))
    features, features_file = _features(folder, classes, len(different), feature_noise, seed)
    sizes = [len(nodes) for nodes in members]
    dataset = HypergraphDataset(
        name=folder.name if name is None else name,
        node_ids=np.array([node for nodes in members for node in nodes], np.int32),
        hyperedge_ids=np.repeat(np.arange(len(sizes), dtype=np.int32), sizes),
        num_hyperedges=len(sizes),
        features=features,
        labels=classes,
        num_classes=len(different),
        **stratified_split(classes, _FRACTIONS, seed),
    )
    dataset.validate({"features": features_file, "labels": labels_file})
    return dataset


def _only(folder: Path, stem: str) -> Path:
    """The only file of a kind; if there is none, its default path."""
    found = sorted(folder.glob(f"{stem}*.txt"))
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise bad_file(folder, f"expected one file {stem}*.txt, got {names}")
    return found[0] if found else folder / f"{stem}.txt"


def _cells(line: bytes) -> list[bytes]:
    return line.replace(b",", b" ").split()


def _integer(path: Path, number: int, cell: bytes, what: str) -> int:
    text = cell.decode("utf-8", "replace")
    try:
        return whole_number(text)
    except ValueError:
        raise bad_file(path, f"line {number}: expected {what}, got {text[:80]!r}") from None


def _hyperedges(path: Path, first_id: int, nodes: int) -> list[list[int]]:
    """The nodes of each hyperedge, counted from zero; an empty line is an empty hyperedge."""
    members, last = [], first_id + nodes - 1
    for number, line in enumerate(read_lines(path, "a line of node ids for each hyperedge"), 1):
        ids = [_integer(path, number, cell, "node ids") for cell in _cells(line)]
        for node in ids:
            if not first_id <= node <= last:
                expected = f"node ids in [{first_id}, {last}], as many as there are labels"
                raise bad_file(path, f"line {number}: expected {expected}, got {str(node)[:80]}")
        members.append([node - first_id for node in ids])
    return members


def _labels(path: Path) -> np.ndarray:
    """[nodes] int64, as stored in the file."""
    labels = []
    for number, line in enumerate(read_lines(path, "a line with the class of each node"), 1):
        cells = _cells(line)
        if len(cells) != 1:
            raise bad_file(path, f"line {number}: expected one label, got {len(cells)}")
        label = _integer(path, number, cells[0], "a label as a whole number")
        if not -_LARGEST_LABEL <= label <= _LARGEST_LABEL:
            expected = f"a label of at most {_LARGEST_LABEL}"
            raise bad_file(path, f"line {number}: expected {expected}, got {str(label)[:80]}")
        labels.append(label)
    return np.array(labels, np.int64)


def _features(
    folder: Path, labels: np.ndarray, classes: int, noise: float | None, seed: int
) -> tuple[np.ndarray, Path]:
    """[nodes, features] float32, from the file or built from the labels; and the file."""
    path = _only(folder, "node-features")
    if path.is_file():
        return _table(path, len(labels)), path
    if noise is None:
        raise FileNotFoundError(
            f"no file {path}: expected a line of features for each node; or ask for features made "
            "of the labels, with feature_noise"
        )
    rng = generator_of("datasets.read_hyperedge_text", seed)
    return np.eye(classes, dtype=np.float32)[labels] + noise * rng.standard_normal(
        (len(labels), classes), np.float32
    ), path


def _table(path: Path, nodes: int) -> np.ndarray:
    rows: list[list[float]] = []
    for number, line in enumerate(read_lines(path, "a line of features for each node"), 1):
        try:
            rows.append([real_number(cell.decode("utf-8", "replace")) for cell in _cells(line)])
        except ValueError as error:
            raise bad_file(path, f"line {number}: expected numbers: {error}") from None
        if len(rows[-1]) != len(rows[0]):
            expected = f"{len(rows[0])} features, as in line 1"
            raise bad_file(path, f"line {number}: expected {expected}, got {len(rows[-1])}")
    if len(rows) != nodes:
        raise bad_file(path, f"expected {nodes} lines, one for each label, got {len(rows)}")
    with np.errstate(over="ignore"):  # values out of range become inf, which validation reports
        return np.array(rows, np.float32)
