"""ZINC, molecules whose constrained solubility is predicted, from either format of its files."""

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from jaxgnn.datasets.formats.file_errors import (
    bad_file,
    is_there,
    naming,
    require_file,
    require_folder,
)
from jaxgnn.datasets.formats.files import is_finite_float32, read_lines, whole_number
from jaxgnn.datasets.formats.pickle_parts import StoredArray
from jaxgnn.datasets.formats.safe_pickle import read_number_bytes
from jaxgnn.datasets.formats.torch_file import tensor_parts
from jaxgnn.datasets.readers.tu import plain_numbers, read_folder
from jaxgnn.datasets.records.graphs_dataset import GraphsDataset

_PARTS = {"train": "train", "validation": "val", "test": "test"}
_MOST_KINDS = 1000
_ATOMS, _BONDS, _LABEL = "atom_type", "bond_type", "logP_SA_cycle_normalized"


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
    """
    folder = Path(path)
    require_folder(folder, "train.pickle, val.pickle and test.pickle, or ZINC_train and so on")
    is_pickled = is_there(folder / "train.pickle") or not (folder / "ZINC_train").is_dir()
    read = _read_pickle if is_pickled else _read_folder
    parts = {part: read(folder, file, subset=subset) for part, file in _PARTS.items()}
    graphs = [graph for part in parts.values() for graph in part]
    ends = np.cumsum([0, *map(len, parts.values())])

    def joined(name: str) -> np.ndarray:
        return np.concatenate([graph[name] for graph in graphs])

    atoms, bonds = joined("nodes"), joined("edges")
    split: dict[str, Any] = {
        part: np.arange(*ends[place : place + 2], dtype=np.int32)
        for place, part in enumerate(parts)
    }
    return GraphsDataset(
        name="zinc",
        senders=joined("senders"),
        receivers=joined("receivers"),
        num_nodes_of_each=np.array([len(graph["nodes"]) for graph in graphs], np.int32),
        num_edges_of_each=np.array([len(graph["edges"]) for graph in graphs], np.int32),
        labels=np.array([graph["globals"] for graph in graphs], np.float32),
        num_classes=1,
        node_features=atoms,
        edge_features=bonds,
        node_categories=(int(atoms.max(initial=0)) + 1,),
        edge_categories=(int(bonds.max(initial=0)) + 1,),
        **split,
    )


def _numbers(folder: Path, file: str, count: int, *, subset: bool) -> list[int]:
    """Returns numbers of the molecules to read: all, or those of an index, separated by commas."""
    if not subset:
        return list(range(count))
    path = folder / f"{file}.index"
    text = b",".join(read_lines(path, "numbers of molecules")).decode("utf-8", "replace")
    with naming(path, "numbers separated by commas"):
        numbers = np.array([whole_number(cell.strip()) for cell in text.split(",")], np.int64)
    good = (numbers >= 0) & (numbers < count)
    if not good.all():
        raise bad_file(path, f"expected numbers in [0, {count}), got {numbers[np.argmin(good)]}")
    return numbers.tolist()


def _read_folder(folder: Path, file: str, *, subset: bool) -> list[dict[str, Any]]:
    """Returns the graphs of a part from a folder of the TU collection."""
    path = folder / f"ZINC_{file}"
    data = read_folder(path, plain_numbers)
    for name, features in (("node", data.node_features), ("edge", data.edge_features)):
        if features is None or features.shape[1] != 1:
            message = f"expected a file *_{name}_labels.txt of one column, and no other"
            raise bad_file(path, message)
    if data.class_names is not None or data.labels.shape[1] != 1:
        raise bad_file(path, "expected a file *_graph_attributes.txt of one column")
    return [data[number] for number in _numbers(folder, file, len(data), subset=subset)]


def _read_pickle(folder: Path, file: str, *, subset: bool) -> list[dict[str, Any]]:
    """Returns the graphs of a part from the pickle of the benchmark, a list of molecules."""
    path = folder / f"{file}.pickle"
    require_file(path, "a list of molecules")
    molecules = read_number_bytes(path, path.read_bytes(), parts=tensor_parts())
    if not isinstance(molecules, list):
        raise bad_file(path, f"expected a list of molecules, got a {type(molecules).__name__}")
    if not molecules:
        raise bad_file(path, "expected at least one molecule, got an empty list")
    numbers = _numbers(folder, file, len(molecules), subset=subset)
    return [_graph(path, number, molecules[number]) for number in numbers]


def _graph(path: Path, number: int, molecule: Any) -> dict[str, Any]:
    """The graph of a molecule, a dict of tensors: kinds of atoms and of bonds, zero for no bond."""
    with naming(path, f"molecule {number}"):
        if not isinstance(molecule, dict):
            raise bad_file(path, f"molecule {number}: expected a dict of tensors, got another")
        atoms, bonds = (_kinds(path, number, molecule, key) for key in (_ATOMS, _BONDS))
        if atoms.ndim != 1 or bonds.shape != (atoms.size, atoms.size):
            got = f"{atoms.shape} and {bonds.shape}"
            expected = f"{_ATOMS} [atoms] and {_BONDS} [atoms, atoms]"
            raise bad_file(path, f"molecule {number}: expected {expected}, got {got}")
        label = molecule.get(_LABEL)
        values = label.value.ravel() if isinstance(label, StoredArray) else np.array([label])
        if values.size != 1 or values.dtype.kind not in "iuf" or not is_finite_float32(values):
            raise bad_file(path, f"molecule {number}: expected {_LABEL} as one finite number")
        senders, receivers = np.nonzero(bonds)
        return {
            "senders": senders.astype(np.int32),
            "receivers": receivers.astype(np.int32),
            "nodes": atoms.astype(np.float32)[:, None],
            "edges": bonds[senders, receivers].astype(np.float32)[:, None],
            "globals": values.astype(np.float32),
        }


def _kinds(path: Path, number: int, molecule: dict[Any, Any], key: str) -> np.ndarray:
    """Returns an array of kinds, non-negative whole numbers."""
    stored = molecule.get(key)
    kinds = stored.value if isinstance(stored, StoredArray) else np.zeros(0)
    if kinds.dtype.kind not in "iu":
        raise bad_file(path, f"molecule {number}: expected {key} as a tensor of integers")
    good = (kinds >= 0) & (kinds < _MOST_KINDS)
    if not good.all():
        expected, got = f"{key} in 0..{_MOST_KINDS - 1}", kinds.flat[int(np.argmin(good))]
        raise bad_file(path, f"molecule {number}: expected {expected}, got {got}")
    return kinds
