"""ZINC, molecules whose constrained solubility is predicted, in the files of the TU collection."""

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from jaxgnn.datasets._file_errors import bad_file, naming, require_folder
from jaxgnn.datasets._files import read_lines
from jaxgnn.datasets._graphs_dataset import GraphsDataset
from jaxgnn.datasets._number_text import whole_number
from jaxgnn.datasets._tu import as_they_are, read_folder

_FOLDERS = {"train": "ZINC_train", "validation": "ZINC_val", "test": "ZINC_test"}
_SUBSET_FILES = {"train": "train.index", "validation": "val.index", "test": "test.index"}


def read_zinc(path: str | PathLike[str], *, subset: bool = False) -> GraphsDataset:
    """Reads ZINC from the folders ZINC_train, ZINC_val and ZINC_test of the TU collection.

    220,011 molecules train, 24,445 validate and 5,000 test. Features are the kind of an atom and of
    a bond, as ``node_categories`` and ``edge_categories`` say, and labels a number of each
    molecule, its constrained solubility, float32 [graphs, 1].

    Args:
      path: the folder with the three folders, each in the format of ``read_tu``.
      subset: whether to read only the molecules of the benchmark of 12,000
        (https://arxiv.org/abs/2003.00982), whose numbers are in ``train.index``, ``val.index`` and
        ``test.index`` of the folder, separated by commas.

    Returns:
      The data set, with its split.

    Raises:
      FileNotFoundError: a folder or a file is missing.
      ValueError: a file is not what it should be; the message names it.
    """
    folder = Path(path)
    require_folder(folder, ", ".join(_FOLDERS.values()))
    parts = {part: read_folder(folder / name, as_they_are) for part, name in _FOLDERS.items()}
    for part, data in parts.items():
        _check(folder / _FOLDERS[part], data)
    if subset:
        files = {part: folder / name for part, name in _SUBSET_FILES.items()}
        parts = {p: _chosen(data, _numbers(files[p], len(data))) for p, data in parts.items()}
    sizes = np.cumsum([0, *(len(data) for data in parts.values())])
    arrays: dict[str, Any] = {
        field: np.concatenate([getattr(data, field) for data in parts.values()])
        for field in _FIELDS
    }
    kinds: dict[str, Any] = {
        f"{of}_categories": (int(arrays[f"{of}_features"].max(initial=0)) + 1,)
        for of in ("node", "edge")
    }
    split: dict[str, Any] = {
        part: np.arange(*sizes[place : place + 2], dtype=np.int32)
        for place, part in enumerate(parts)
    }
    return GraphsDataset(name="zinc", num_classes=1, **arrays, **kinds, **split)


_FIELDS = (
    "senders",
    "receivers",
    "num_nodes_of_each",
    "num_edges_of_each",
    "labels",
    "node_features",
    "edge_features",
)


def _check(folder: Path, data: GraphsDataset) -> None:
    """Raises unless a folder has a number of each graph, and a kind of each atom and bond."""
    has_number = data.class_names is None and data.labels.shape[1] == 1
    for name, features in (("node", data.node_features), ("edge", data.edge_features)):
        if features is None or features.shape[1] != 1:
            raise bad_file(
                folder, f"expected a file *_{name}_labels.txt of one column, and no other"
            )
    if not has_number:
        raise bad_file(folder, "expected a file *_graph_attributes.txt of one column")


def _numbers(path: Path, count: int) -> np.ndarray:
    """Numbers of graphs, separated by commas, in any order."""
    cells = (
        b",".join(read_lines(path, "numbers of molecules")).decode("utf-8", "replace").split(",")
    )
    with naming(path, "numbers separated by commas"):
        numbers = np.array([whole_number(cell.strip()) for cell in cells], np.int64)
    good = (numbers >= 0) & (numbers < count)
    if not good.all():
        raise bad_file(path, f"expected numbers in [0, {count}), got {numbers[np.argmin(good)]}")
    return numbers


def _chosen(data: GraphsDataset, graphs: np.ndarray) -> GraphsDataset:
    """The data set of some of the graphs."""
    pieces = [data[graph] for graph in graphs.tolist()]

    def joined(name: str) -> np.ndarray:
        return np.concatenate([piece[name] for piece in pieces])

    return GraphsDataset(
        name=data.name,
        senders=joined("senders"),
        receivers=joined("receivers"),
        num_nodes_of_each=data.num_nodes_of_each[graphs],
        num_edges_of_each=data.num_edges_of_each[graphs],
        labels=data.labels[graphs],
        num_classes=data.num_classes,
        node_features=joined("nodes"),
        edge_features=joined("edges"),
    )
