"""Potentials as calculators of ASE: values, dynamics, searches for edges, and bad input."""

import copy
import pickle
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import models, nn, ops
from jaxgnn.graph import GraphBatch
from jaxgnn.interop import _ase, ase_calculator
from jaxgnn.interop._moving_atoms import MovingAtoms, Placed, bucket

MODEL = models.SchNet(
    2, 4, cutoff=3.0, num_interactions=1, num_gaussians=8, species_scale=0.1, rngs=nnx.Rngs(0)
)
CELL = np.array([[4.0, 0.3, 0.0], [0.2, 4.2, 0.0], [0.0, 0.5, 3.9]])


@pytest.fixture
def ase():
    """ASE, or a skip."""
    return pytest.importorskip("ase", reason="reason: ase is not installed")


def _crystal(ase, **options):
    rng = np.random.default_rng(0)
    places = np.array([[0.1, 0.1, 0.1], [0.6, 0.6, 0.5], [0.1, 0.6, 0.6], [0.6, 0.1, 0.9]])
    positions = places @ CELL + rng.uniform(-0.05, 0.05, (4, 3))
    given = {"cell": CELL, "pbc": True} | options
    return ase.Atoms(["Si", "C", "Si", "C"], positions, **given)


def test_energy_forces_and_stress_are_those_of_the_model(ase):
    atoms = _crystal(ase)
    atoms.calc = ase_calculator(MODEL, [6, "Si"])
    species = [1, 0, 1, 0]
    sample = models.atomic_sample(atoms.positions, species, 3.0, cell=CELL)
    expected = models.energy_forces_stress(MODEL, GraphBatch.from_graphs([sample]), stress=True)
    np.testing.assert_allclose(atoms.get_potential_energy(), expected.energy[0], rtol=1e-5)
    np.testing.assert_allclose(atoms.get_forces(), expected.forces, atol=1e-5)
    stress = np.asarray(expected.stress[0])
    np.testing.assert_allclose(atoms.get_stress(voigt=False), stress, atol=1e-6)


def _drift(name, atoms):
    """Float64 moves of atoms that change no energy: of all alike, or of each by whole cells."""
    turns = np.random.default_rng(3).integers(-4000, 4000, (len(atoms), 3))
    turns = np.where(atoms.pbc, turns, 0)
    together = np.array([13_000.0, -70_000.0, 4_000.0])
    return {"together": together, "apart": turns @ CELL, "both": together + turns @ CELL}[name]


@pytest.mark.parametrize("name", ["together", "apart", "both"])
@pytest.mark.parametrize("pbc", [True, (True, False, True), False])
def test_forces_do_not_depend_on_how_far_atoms_have_drifted(name, pbc, ase):
    atoms = _crystal(ase, pbc=pbc)
    atoms.calc = calculator = ase_calculator(MODEL, ["C", "Si"], skin=0.4)
    expected = atoms.get_potential_energy(), atoms.get_forces()
    atoms.positions += _drift(name, atoms)
    np.testing.assert_allclose(atoms.get_potential_energy(), expected[0], rtol=1e-5)
    np.testing.assert_allclose(atoms.get_forces(), expected[1], atol=2e-6)
    # With the same edges, atoms that move and a cell that changes.
    atoms.positions[0] += 0.01
    atoms.set_cell(CELL * 1.001, scale_atoms=True)
    searches, forces = calculator.num_searches, atoms.get_forces()
    if pbc is True:  # a strain moves atoms far along open directions
        assert calculator.num_searches == searches
    fresh = ase_calculator(MODEL, ["C", "Si"], skin=0.0).get_forces(atoms)
    np.testing.assert_allclose(forces, fresh, atol=2e-6)


def test_a_calculator_keeps_the_parameters_that_it_was_made_with(ase):
    graphdef, state = nnx.split(MODEL)
    model = nnx.merge(graphdef, jax.tree.map(jnp.copy, state))
    atoms = _crystal(ase)
    atoms.calc = calculator = ase_calculator(model, ["C", "Si"])
    expected = atoms.get_forces()
    for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)):
        leaf.delete()  # as an optimiser does that takes over the memory of its arguments
    nnx.update(model, jax.tree.map(lambda leaf: 0 * leaf, nnx.state(MODEL, nnx.Param)))
    calculator.reset()
    np.testing.assert_array_equal(atoms.get_forces(), expected)
    assert not np.allclose(ase_calculator(model, ["C", "Si"]).get_forces(atoms), expected)
    noisy = _Noisy(MODEL)
    assert ase_calculator(noisy, ["C", "Si"]).get_potential_energy(atoms) == pytest.approx(
        float(atoms.get_potential_energy()), rel=1e-5
    )
    assert not noisy.dropout.deterministic


class _Noisy(nnx.Module):
    """A potential with dropout of all of its energies, in training mode."""

    def __init__(self, model):
        self.cutoff, self.model = model.cutoff, model
        self.dropout = nnx.Dropout(0.9, rngs=nnx.Rngs(0))

    def __call__(self, batch):
        return self.dropout(self.model(batch))


def _repulsion(batch):
    pairs = jax.nn.relu(3.0 - models.atomic_edges(batch).distances) ** 2
    return nn.pool(ops.aggregate(batch.graph, pairs[:, None], "sum"), batch, "sum")[:, 0]


@pytest.mark.parametrize("model", [MODEL, _repulsion], ids=["module", "function"])
def test_a_calculator_that_was_pickled_or_copied_has_the_same_energies(model, ase):
    atoms = _crystal(ase)
    atoms.calc = calculator = ase_calculator(model, ["C", "Si"], cutoff=3.0)
    expected = atoms.get_potential_energy(), atoms.get_forces(), atoms.get_stress()
    for again in (pickle.loads(pickle.dumps(calculator)), copy.deepcopy(calculator)):
        assert again.results.keys() == calculator.results.keys()
        again.reset()
        other = atoms.copy()
        other.calc = again
        found = other.get_potential_energy(), other.get_forces(), other.get_stress()
        for one, value in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, value)
        assert again.num_searches == 1
    whole = pickle.loads(pickle.dumps(atoms))
    np.testing.assert_array_equal(whole.get_forces(), expected[1])


def test_a_calculator_that_can_not_be_pickled_says_why(ase):
    calculator = ase_calculator(lambda batch: _repulsion(batch), ["C", "Si"], cutoff=3.0)
    with pytest.raises(
        pickle.PicklingError, match=r"^interop.ase_calculator: model must be .*<lam"
    ):
        pickle.dumps(calculator)
    assert np.isfinite(calculator.get_potential_energy(_crystal(ase)))


def test_dynamics_conserve_energy_with_one_program_and_few_searches(ase):
    from ase import units
    from ase.md.verlet import VelocityVerlet

    atoms = _crystal(ase)
    atoms.calc = calculator = ase_calculator(MODEL, ["C", "Si"], skin=0.4)
    atoms.set_momenta(np.random.default_rng(1).normal(size=(4, 3)) * 2)
    energies = []
    dynamics = VelocityVerlet(atoms, timestep=1.0 * units.fs)
    dynamics.attach(lambda: energies.append(atoms.get_total_energy()))
    dynamics.run(60)
    assert np.ptp(energies) < 0.02 * atoms.get_kinetic_energy()
    assert calculator.num_traces == 1
    assert 2 <= calculator.num_searches < 30


def test_a_strained_cell_keeps_edges_within_the_skin_and_then_finds_new_ones(ase):
    atoms = _crystal(ase)
    atoms.calc = calculator = ase_calculator(MODEL, ["C", "Si"], skin=0.4)
    atoms.get_potential_energy()
    always = ase_calculator(MODEL, ["C", "Si"], skin=0.0)
    for scale, searches in ((1.02, 1), (1.0, 1), (0.8, 2)):
        atoms.set_cell(CELL * scale, scale_atoms=True)
        atoms.positions[0] += 0.02
        np.testing.assert_allclose(atoms.get_forces(), always.get_forces(atoms), atol=1e-5)
        assert calculator.num_searches == searches
    assert always.num_searches == 3


def test_molecules_slabs_and_other_species_need_no_new_calculator(ase):
    calculator = ase_calculator(MODEL, ["C", "Si"])
    plain = calculator.get_forces(_crystal(ase, cell=None, pbc=False))
    slab = calculator.get_forces(_crystal(ase, pbc=(True, True, False)))
    swapped = _crystal(ase)
    swapped.set_chemical_symbols(["C", "Si", "Si", "C"])
    assert not np.allclose(plain, slab) and calculator.get_forces(swapped).shape == (4, 3)
    with pytest.raises(NotImplementedError, match="three periodic directions"):
        calculator.get_stress(_crystal(ase, pbc=False))


def test_bad_input_is_named(ase):
    for options, message in (
        ({"species": "Si"}, "species must be a sequence of symbols"),
        ({"species": ["Xx"]}, r"species\[0\] must be a chemical symbol"),
        ({"species": ["C", "Si", 6]}, r"species\[2\] must be of one row only, got 6"),
        ({"species": ["C", "Si", "O"]}, "species must be at most 2, .*, got 3 of them"),
        ({"cutoff": MODEL.cutoff / 2}, "cutoff must be at least the model's"),
        ({"skin": -1.0}, "skin must be a number of at least 0"),
        ({"model": 3}, "model must be a potential"),
        ({"model": lambda batch: 0.0}, "cutoff must be a positive number"),
    ):
        with pytest.raises(ValueError, match=f"^interop.ase_calculator: {message}"):
            ase_calculator(**({"model": MODEL, "species": ["C", "Si"]} | options))
    with pytest.raises(ValueError, match=r"species must be all species .* none for Si, atom 0"):
        ase_calculator(MODEL, ["C"]).get_potential_energy(_crystal(ase))
    atoms = _crystal(ase)
    atoms.calc = ase_calculator(MODEL, ["C", "Si"])
    atoms.get_potential_energy()
    atoms.positions[2, 1] = np.nan
    with pytest.raises(ValueError, match=r"positions\[2\]\[1\] must be finite"):
        atoms.get_potential_energy()
    with pytest.raises(ValueError, match=r"cell must be .* an empty cell"):
        ase_calculator(MODEL, ["C", "Si"]).get_potential_energy(_crystal(ase, cell=None))


def test_without_ase_an_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ase.calculators.calculator", None)
    _ase._calculator_class.cache_clear()
    with pytest.raises(ImportError, match="needs the package ase: pip install 'jaxgnn\\[ase\\]'"):
        ase_calculator(MODEL, ["C"])


def test_buckets_are_few_and_at_most_an_eighth_too_large():
    sizes = [bucket(count) for count in range(1, 5000)]
    assert all(count <= size <= count * 1.125 for count, size in enumerate(sizes, 1))
    assert len(set(sizes)) < 100


def test_edges_are_found_again_before_one_can_be_missing():
    moving = MovingAtoms(3.0, skin=0.4)

    def searches(shift, stretch=1.0):
        positions = np.array([[0.0, 0, 0], [1 + shift, 1, 1]])
        moving.batch(Placed(positions * stretch, np.zeros(2, int), CELL * stretch, (True,) * 3))
        return moving.num_searches

    assert [searches(0.0), searches(0.19), searches(-0.19), searches(0.21)] == [1, 1, 1, 2]
    # From here a strain of 10% may bring pairs nearer than all of the skin.
    assert [searches(0.21, 1.02), searches(0.21, 1.1), searches(0.21, 1.1)] == [2, 3, 3]


def test_functions_are_potentials_too(ase):
    atoms = _crystal(ase)
    atoms.calc = ase_calculator(_repulsion, ["C", "Si"], cutoff=3.0)
    assert atoms.get_potential_energy() > 0
