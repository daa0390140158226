"""Builds jaxgnn/datasets/embedded/mutag.npz from the wheel of grakel; its bytes repeat.

The wheel of grakel 0.1.11 carries MUTAG in the format of the TU collection, in its folder
``grakel/tests/data/MUTAG``. Files of the collection have both directions of each bond; here each
bond is stored once. ::

    pip download --no-deps grakel==0.1.11
    unzip grakel-0.1.11-*.whl 'grakel/tests/data/MUTAG/*'
    python tools/pack_mutag.py grakel/tests/data/MUTAG
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from jaxgnn.datasets import read_tu

OUTPUT = Path(__file__).parent.parent / "jaxgnn" / "datasets" / "embedded" / "mutag.npz"


def main() -> None:
    """Reads the folder, drops one direction of each bond, and writes the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    data = read_tu(parser.parse_args().folder)
    require((data.num_graphs, data.class_names) == (188, ("-1", "1")), "not MUTAG")
    require(data.node_features is not None and data.edge_features is not None, "no labels")
    atoms, bonds = data.node_features.argmax(axis=1), data.edge_features.argmax(axis=1)
    molecule = np.repeat(np.arange(data.num_graphs), data.num_edges_of_each)
    bond = dict(zip(zip(molecule, data.senders, data.receivers, strict=True), bonds, strict=True))
    back = zip(molecule, data.receivers, data.senders, strict=True)
    require(all(bond[at] == kind for at, kind in zip(back, bonds, strict=True)), "one direction")
    require(len(bond) == bonds.size, "a bond stands there twice")
    once = data.senders < data.receivers
    order = np.lexsort([data.receivers[once], data.senders[once], molecule[once]])
    arrays: dict[str, Any] = {
        "atoms_of_molecule": data.num_nodes_of_each,
        "bonds_of_molecule": data.num_edges_of_each // 2,
        "atoms": atoms,
        "one_end": data.senders[once][order],
        "other_end": data.receivers[once][order],
        "bonds": bonds[once][order],
        "classes": data.labels,
    }
    with OUTPUT.open("wb") as file:
        # Without compression, whose bytes differ between libraries.
        np.savez(file, **{name: values.astype(np.uint8) for name, values in arrays.items()})
    print(OUTPUT, hashlib.sha256(OUTPUT.read_bytes()).hexdigest())


def require(condition: bool | np.bool_, complaint: str) -> None:
    """Ends the program with a complaint unless the condition holds."""
    if not condition:
        raise SystemExit(f"pack_mutag: {complaint}")


if __name__ == "__main__":
    main()
