"""Small files of nequix with random weights, and the energies that nequix computes with them.

``python -m tests.interop.nequix_files`` writes them again, to ``tests/interop/data``; it needs
nequix 0.4.5, which the tests do not.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxgnn import models

FOLDER = Path(__file__).parent / "data"
EXPECTED = FOLDER / "nequix.json"
"""Structures, and for each file their energies, forces and stresses."""

_SIZES = {"cutoff": 4.0, "radial_basis_size": 3, "radial_mlp_size": 4, "mlp_init_scale": 4.0}
_NUMBERS = {"shift": 0.25, "scale": 0.75, "avg_n_neighbors": 12.5}
# Each option has all of its values in one case or another.
CASES: dict[str, dict[str, Any]] = {
    "plain": {
        "atomic_numbers": [1, 8, 6],
        "hidden_irreps": "4x0e + 2x1o",
        "lmax": 1,
        "n_layers": 3,
        "radial_mlp_layers": 1,
        "radial_polynomial_p": 2.0,
        "index_weights": False,
        "layer_norm": False,
    },
    "norm": {
        "atomic_numbers": [1, 6, 8],
        "hidden_irreps": "4x0e + 3x1o + 2x2e",
        "lmax": 2,
        "n_layers": 2,
        "radial_mlp_layers": 2,
        "radial_polynomial_p": 6.0,
        "index_weights": False,
        "layer_norm": True,
    },
    "species": {
        "atomic_numbers": [1, 6, 8],
        "hidden_irreps": "3x0e + 2x2e",
        "lmax": 3,
        "n_layers": 2,
        "radial_mlp_layers": 0,
        "radial_polynomial_p": 5,
        "index_weights": True,
        "layer_norm": True,
    },
    "scalars": {
        "atomic_numbers": [1, 6, 8],
        "hidden_irreps": "2x0e",
        "lmax": 0,
        "n_layers": 1,
        "radial_mlp_layers": 1,
        "radial_polynomial_p": 6.0,
        "index_weights": True,
        "layer_norm": False,
    },
}


def options(name: str) -> dict[str, Any]:
    """The first line of a file."""
    return {**_SIZES, **_NUMBERS, **CASES[name], "optimizer": "adamw", "batch_size": 16}


def _structures() -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    cell = np.diag([3.1, 3.4, 3.2]) + rng.normal(scale=0.2, size=(3, 3))
    places = np.array([[0.0, 0, 0], [0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5]])
    crystal = places @ cell + rng.normal(scale=0.3, size=(4, 3))
    water = np.array([[0.0, 0, 0.12], [0, 0.76, -0.48], [0, -0.76, -0.48]])
    return [
        {"numbers": [6, 8, 1, 6], "positions": crystal.round(4).tolist(), "cell": cell.tolist()},
        {"numbers": [8, 1, 1], "positions": water.tolist(), "cell": None},
    ]


def _randomised(model: Any, seed: int) -> Any:
    """The model with other weights, since some are one or zero at first."""
    rng = np.random.default_rng(seed)

    def randomise(path: Any, leaf: Any) -> Any:
        name = jax.tree_util.keystr(path)
        scale = 3.0 if "layer_norm" in name else 1.0
        scale = leaf.shape[0] ** -0.5 if "radial_mlp" in name else scale
        return jax.numpy.asarray(rng.normal(scale=scale, size=leaf.shape), leaf.dtype)

    equinox = importlib.import_module("equinox")
    arrays, rest = equinox.partition(model, equinox.is_array)
    return equinox.combine(jax.tree_util.tree_map_with_path(randomise, arrays), rest)


def _graph(structure: dict[str, Any], elements: list[int], cutoff: float) -> Any:
    """The structure for nequix, and a graph of padding, which it takes the last one for."""
    jraph = importlib.import_module("jraph")
    species = [elements.index(number) for number in structure["numbers"]]
    positions, cell = np.array(structure["positions"]), structure["cell"]
    sample = models.atomic_sample(positions, species, cutoff, cell=cell)
    graph = jraph.GraphsTuple(
        nodes={"species": np.array(species), "positions": positions.astype(np.float32)},
        edges={"shifts": np.asarray(sample.edges["images"], np.float32)},
        senders=np.asarray(sample.senders),
        receivers=np.asarray(sample.receivers),
        globals={"cell": None if cell is None else np.array([cell], np.float32)},
        n_node=np.array([len(species)]),
        n_edge=np.array([sample.num_edges]),
    )
    padded = jraph.pad_with_graphs(graph, len(species) + 1, sample.num_edges + 1, 2)
    return jax.tree.map(jax.numpy.asarray, padded)


def _write() -> None:
    nequix = importlib.import_module("nequix.model")
    FOLDER.mkdir(exist_ok=True)
    structures, found = _structures(), {}
    for seed, name in enumerate(CASES):
        given = options(name)
        named = {k: v for k, v in given.items() if k not in ("optimizer", "batch_size")}
        elements = sorted(named.pop("atomic_numbers"))
        model = nequix.Nequix(jax.random.key(0), n_species=len(elements), **named)
        model = _randomised(model, seed)
        nequix.save_model(FOLDER / f"nequix_{name}.nqx", model, given)
        again, _ = nequix.load_model(FOLDER / f"nequix_{name}.nqx")
        found[name] = []
        for structure in structures:
            energy, forces, stress = again(_graph(structure, elements, given["cutoff"]))
            forces = forces[: len(structure["numbers"])]
            full = None if stress is None else stress[0].tolist()
            values = {"energy": float(energy[0]), "forces": forces.tolist(), "stress": full}
            found[name].append(values)
    EXPECTED.write_text(json.dumps({"structures": structures, "found": found}) + "\n")


if __name__ == "__main__":
    _write()
