"""ZINC in the pickles of its benchmark: a list of molecules, made of tensors, for each part."""

from pathlib import Path
from typing import Any

import numpy as np

from jaxgnn.datasets.formats.file_errors import bad_file, naming, require_file
from jaxgnn.datasets.formats.pickle_parts import StoredArray
from jaxgnn.datasets.formats.safe_pickle import read_number_bytes
from jaxgnn.datasets.formats.torch_file import tensor_parts
from jaxgnn.datasets.records.graphs_dataset import GraphsDataset

_MOST_KINDS = 1000
_ATOMS, _BONDS, _LABEL = "atom_type", "bond_type", "logP_SA_cycle_normalized"


def read_molecules(path: Path) -> list[Any]:
    """Reads a list of molecules, without converting them.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file is not a pickle of a list, or refers to code; the message names it.
    """
    require_file(path, "a list of molecules")
    molecules = read_number_bytes(path, path.read_bytes(), parts=tensor_parts())
    if not isinstance(molecules, list):
        raise bad_file(path, f"expected a list of molecules, got a {type(molecules).__name__}")
    if not molecules:
        raise bad_file(path, "expected at least one molecule, got an empty list")
    return molecules


def graphs_of(path: Path, molecules: list[Any], numbers: np.ndarray) -> GraphsDataset:
    """The graphs of some of the molecules of a file, with kinds of atoms and of bonds.

    Args:
      path: the file.
      molecules: dicts with ``atom_type`` [atoms] and ``bond_type`` [atoms, atoms], whole numbers,
        zero for no bond, and the number to predict.
      numbers: positions of the molecules to convert, in order.

    Raises:
      ValueError: a molecule is invalid; the message names the file and the molecule.
    """
    made = [_graph(path, number, molecules[number]) for number in numbers.tolist()]
    atoms, ends, bonds, labels = zip(*made, strict=True)
    senders, receivers = np.concatenate(ends, axis=1).astype(np.int32)
    return GraphsDataset(
        name="zinc",
        senders=senders,
        receivers=receivers,
        num_nodes_of_each=np.array([kinds.size for kinds in atoms], np.int32),
        num_edges_of_each=np.array([kinds.size for kinds in bonds], np.int32),
        labels=np.array(labels, np.float32)[:, None],
        num_classes=1,
        node_features=np.concatenate(atoms).astype(np.float32)[:, None],
        edge_features=np.concatenate(bonds).astype(np.float32)[:, None],
    )


def _graph(
    path: Path, number: int, molecule: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Any]:
    """Kinds of atoms [atoms], ends [2, bonds] and kinds [bonds] of bonds, and the number."""
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
        if values.size != 1 or values.dtype.kind not in "iuf" or not np.isfinite(values).all():
            raise bad_file(path, f"molecule {number}: expected {_LABEL} as one finite number")
        ends = np.stack(np.nonzero(bonds))
        return atoms, ends, bonds[ends[0], ends[1]], values[0]


def _kinds(path: Path, number: int, molecule: dict[Any, Any], key: str) -> np.ndarray:
    """An array of kinds, non-negative whole numbers."""
    stored = molecule.get(key)
    kinds = stored.value if isinstance(stored, StoredArray) else np.zeros(0)
    if kinds.dtype.kind not in "iu":
        raise bad_file(path, f"molecule {number}: expected {key} as a tensor of integers")
    if kinds.size and not (kinds.min() >= 0 and kinds.max() < _MOST_KINDS):
        expected = f"{key} in 0..{_MOST_KINDS - 1}"
        raise bad_file(path, f"molecule {number}: expected {expected}, got {_outside(kinds)}")
    return kinds


def _outside(kinds: np.ndarray) -> int:
    return int(kinds.min()) if kinds.min() < 0 else int(kinds.max())
