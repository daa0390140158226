"""ZINC, molecules whose constrained solubility is predicted, from either format of its files."""

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from jaxgnn.datasets.formats.file_errors import bad_file, naming, require_folder
from jaxgnn.datasets.formats.files import read_lines, whole_number
from jaxgnn.datasets.readers.tu import as_they_are, read_folder
from jaxgnn.datasets.readers.zinc_pickles import graphs_of, read_molecules
from jaxgnn.datasets.records.graphs_dataset import GraphsDataset

_PARTS = {"train": "train", "validation": "val", "test": "test"}


def read_zinc(path: str | PathLike[str], *, subset: bool = False) -> GraphsDataset:
    """Reads ZINC from the files of its benchmark, or from three folders of the TU collection.

    220,011 molecules are for training, 24,445 for validation and 5,000 for the test. Features are
    the kinds of atoms and bonds, described by ``node_categories`` and ``edge_categories``. Labels
    are a number for each molecule, its constrained solubility, float32 [graphs, 1].

    Pickles are read without torch and without executing any code that they refer to.

    Args:
      path: a folder with ``train.pickle``, ``val.pickle`` and ``test.pickle`` from the benchmark's
        (https://arxiv.org/abs/2003.00982) molecules.zip: lists of dicts of the tensors
        ``atom_type``, ``bond_type`` and ``logP_SA_cycle_normalized``. Or one with the
        folders ZINC_train, ZINC_val and ZINC_test, each in the format of ``read_tu``.
      subset: whether to read only the 12,000 molecules of the benchmark's tables, whose numbers
        are in ``train.index``, ``val.index`` and ``test.index`` of the folder, separated by
        commas.

    Returns:
      The data set, with its split.

    Raises:
      FileNotFoundError: a folder or a file is missing.
      ValueError: a file is invalid, or refers to code; the message names it.
    """
    folder = Path(path)
    require_folder(folder, "train.pickle, val.pickle and test.pickle, or ZINC_train and so on")
    is_pickled = (folder / "train.pickle").is_file() or not (folder / "ZINC_train").is_dir()
    read = _read_pickle if is_pickled else _read_folder
    parts = {part: read(folder, file, subset=subset) for part, file in _PARTS.items()}
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


def _read_pickle(folder: Path, file: str, *, subset: bool) -> GraphsDataset:
    """Reads a part from the pickle of the benchmark."""
    path = folder / f"{file}.pickle"
    molecules = read_molecules(path)
    numbers = np.arange(len(molecules))
    if subset:
        numbers = _numbers(folder / f"{file}.index", len(molecules))
    return graphs_of(path, molecules, numbers)


def _read_folder(folder: Path, file: str, *, subset: bool) -> GraphsDataset:
    """Reads a part from a folder of the TU collection."""
    path = folder / f"ZINC_{file}"
    data = read_folder(path, as_they_are)
    _check(path, data)
    return _chosen(data, _numbers(folder / f"{file}.index", len(data))) if subset else data


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
    """Raises unless each graph has a number, and each atom and bond a kind."""
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
    """The data set restricted to some of the graphs."""
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
