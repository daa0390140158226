"""Files of nequix: energies, forces and stresses against nequix's own, and files that are refused.

The files in ``tests/interop/data`` and what nequix computes with them were written by
``python -m tests.interop.nequix_files``, which needs nequix. Their weights are random.
"""

import io
import json
import re

import jax
import numpy as np
import pytest
from flax import nnx

import jaxgnn
from jaxgnn import models
from jaxgnn.graph import GraphBatch
from jaxgnn.interop import ase_calculator, from_nequix
from tests.interop.nequix_files import EXPECTED, FOLDER, options

KNOWN = json.loads(EXPECTED.read_text())
PLAIN = FOLDER / "nequix_plain.nqx"
MODEL, _ = from_nequix(PLAIN)
NUMBERS = {"H": 1, "C": 6, "O": 8}


def _batch(elements, r):
    rows = {NUMBERS[symbol]: row for row, symbol in enumerate(elements)}
    samples = [
        models.atomic_sample(
            np.array(one["positions"], np.float32),
            [rows[number] for number in one["numbers"]],
            r,
            cell=one["cell"],
        )
        for one in KNOWN["structures"]
    ]
    return GraphBatch.from_graphs(samples)


def _assert_near(found, expected):
    """Equal up to 1e-5 of the largest number."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.costly(3)
@pytest.mark.parametrize("name", ["plain", "norm", "species", "scalars"])
def test_energies_forces_and_stresses_are_those_of_nequix(name):
    model, elements = from_nequix(FOLDER / f"nequix_{name}.nqx")
    assert elements == ("H", "C", "O") and model.cutoff == options(name)["cutoff"]
    found = models.energy_forces_stress(model, _batch(elements, model.cutoff), stress=True)
    expected = KNOWN["found"][name]
    np.testing.assert_allclose(found.energy, [one["energy"] for one in expected], rtol=1e-5)
    _assert_near(found.forces[:4], expected[0]["forces"])
    _assert_near(found.forces[4:], expected[1]["forces"])
    _assert_near(found.stress[0], expected[0]["stress"])


def test_the_calculator_of_ase_takes_the_model_and_its_elements():
    ase = pytest.importorskip("ase", reason="reason: ase is not installed")
    model, elements = from_nequix(FOLDER / "nequix_scalars.nqx")
    _, water = KNOWN["structures"]
    atoms = ase.Atoms(water["numbers"], water["positions"])
    atoms.calc = ase_calculator(model, elements)
    _assert_near(atoms.get_forces(), KNOWN["found"]["scalars"][1]["forces"])


def test_the_model_is_stored_and_restored_like_any_other(tmp_path):
    model, _ = from_nequix(FOLDER / "nequix_species.nqx")
    jaxgnn.save_model(tmp_path / "model.npz", model)
    again = jaxgnn.load_model(tmp_path / "model.npz")
    assert again.made_with == model.made_with
    left, right = (jax.tree.leaves(nnx.state(one)) for one in (model, again))
    for found, expected in zip(left, right, strict=True):
        np.testing.assert_array_equal(found, expected)


# -- Files that are refused ----------------------------------------------------------------------


def _with(**changes):
    """The plain file with other options; those that are None are left out."""
    given = {k: v for k, v in (options("plain") | changes).items() if v is not None}
    return json.dumps(given).encode() + b"\n" + WEIGHTS


def _array(values):
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


WEIGHTS = PLAIN.read_bytes().partition(b"\n")[2]
ENERGIES = _array(np.zeros(3, np.float32))
AFTER_ENERGIES = WEIGHTS[len(ENERGIES) :]
REFUSED = {
    "no options": (b"", "whose first line has its options: Expecting value"),
    "a list of options": (b"[1]\n" + WEIGHTS, "whose first line has its options: it is a list"),
    "weights alone": (WEIGHTS, "whose first line has its options"),
    "an option is missing": (_with(lmax=None), "the option lmax must be in its first line"),
    "no species": (_with(atomic_numbers=[]), "the option atomic_numbers must be different atomic"),
    "a species twice": (_with(atomic_numbers=[1, 1, 8]), "must be different atomic numbers, got"),
    "no such element": (_with(atomic_numbers=[1, 8, 0]), "must be different atomic numbers, got"),
    "a cutoff of zero": (_with(cutoff=0), "the option cutoff must be a finite number above 0"),
    "a broken power": (_with(radial_polynomial_p=2.5), "must be a whole number from 2 to"),
    "too many layers": (_with(n_layers=10**9), "n_layers must be a whole number from 1 to 1000"),
    "a number for a flag": (_with(layer_norm=1), "layer_norm must be True or False, got 1"),
    "a shift by species": (
        _with(shift=[0.0, 1.0, 2.0]),
        "the option shift must be a finite number",
    ),
    "irreps of no text": (_with(hidden_irreps=4), "the option hidden_irreps must be text, got 4"),
    "irreps in no notation": (_with(hidden_irreps="4x0f"), "hidden_irreps must be irreps such as"),
    "irreps out of reach": (_with(hidden_irreps="4x0e+2x1e"), "must be 0e and others of 0e+1o"),
    "irreps unsorted": (_with(hidden_irreps="2x1o+4x0e"), "for lmax 1, in this order, got 2x1o"),
    "no scalars": (_with(hidden_irreps="2x1o"), "must be 0e and others of 0e+1o"),
    "weights for each species": (
        _with(index_weights=True),
        "layers[0].skip, 0e: expected floats [3, 3, 6], got float32[3, 6]",
    ),
    "another number of layers": (
        _with(n_layers=2),
        "layers[1].radial_mlp.layers[1].weights: expected floats [4, 6], got float32[4, 12]",
    ),
    "enormous sizes": (
        _with(hidden_irreps="900000000x0e+2x1o"),
        "layers[0].linear_2, 0e: expected floats [3, 900000002], got float32[3, 6]",
    ),
    "truncated": (_with()[:-9], "readout, 0e: it ends after"),
    "truncated between arrays": (
        _with()[: -len(_array(np.zeros((4, 1), "f4")))],
        "readout, 0e: it",
    ),
    "more arrays": (_with() + ENERGIES, "readout: expected no arrays behind it, got [3]"),
    "integers": (
        _with()[: -len(WEIGHTS)] + _array(np.zeros(3, np.int32)) + AFTER_ENERGIES,
        "atom_energies: expected floats [3], got int32[3]",
    ),
    "objects": (
        _with()[: -len(WEIGHTS)] + _array(np.array([None] * 3)) + AFTER_ENERGIES,
        "atom_energies: expected a dtype of plain numbers",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_is_no_model_of_nequix_is_refused_by_name(name, tmp_path):
    data, message = REFUSED[name]
    path = tmp_path / "bad.nqx"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=re.escape(str(path)) + ".*" + re.escape(message)):
        from_nequix(path)


def test_numbers_or_a_line_feed_behind_the_weights_are_ignored(tmp_path):
    for number, end in enumerate((b"\n", _array(np.float64(0.25)) + _array(np.int64(3)))):
        path = tmp_path / f"{number}.nqx"
        path.write_bytes(_with() + end)
        found = jax.tree.leaves(nnx.state(from_nequix(path)[0]))
        for one, other in zip(found, jax.tree.leaves(nnx.state(MODEL)), strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_file_that_is_missing_is_named():
    with pytest.raises(FileNotFoundError, match=r"no file missing.nqx: expected a model of nequix"):
        from_nequix("missing.nqx")
