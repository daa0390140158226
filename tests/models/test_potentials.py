"""Potentials: their formulas, symmetries, derivatives, batches, padding and bad input."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import models
from jaxgnn.graph import GraphBatch
from jaxgnn.models import atomic_sample, energy_forces_stress
from jaxgnn.models.interatomic import InteratomicPotential
from tests.models._potentials import POTENTIALS, SCALE, SHIFT, wide
from tests.models._structures import (
    CELL,
    CUTOFF,
    assert_slopes,
    moved,
    spoil_padding,
    structure,
)

SAMPLES = [structure(5, 0), structure(8, 1, cell=None), structure(1, 2, cell=None)]
SHAPE = (24, 600, 5)
BATCH = GraphBatch.from_graphs(SAMPLES, pad_to=SHAPE)
each_potential = pytest.mark.parametrize("name", POTENTIALS)


@each_potential
def test_energies_are_those_of_the_formula(name):
    case = POTENTIALS[name]
    model = case.make()
    actual = model(BATCH)
    of_all = wide(model)
    for place, sample in enumerate(SAMPLES):
        species = sample.nodes["species"]
        r, cell = (
            np.asarray(x, float) for x in (sample.nodes["positions"], sample.globals["cell"])
        )
        vectors = r[sample.senders] + sample.edges["images"] @ cell - r[sample.receivers]
        of_atoms = case.formula(of_all, species, sample.senders, sample.receivers, vectors)
        nobody = np.zeros(0, int)
        lone = case.formula(of_all, np.arange(2), nobody, nobody, np.zeros((0, 3)))
        of_atoms = of_atoms - lone[species]
        expected = np.sum(np.array(SCALE)[species] * of_atoms + np.array(SHIFT)[species])
        np.testing.assert_allclose(actual[place], expected, rtol=1e-5)
    assert not actual[len(SAMPLES) :].any()


@each_potential
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_shift_of_a_species_is_the_energy_of_a_lone_atom(name, dtype):
    with jax.enable_x64(dtype == "float64"):
        options = {"param_dtype": dtype, "dtype": dtype} if dtype == "float64" else {}
        places = np.array([[0.0, 0, 0], [9, 0, 0], [0, 9, 0]], dtype)
        samples = [atomic_sample(places[:1], [s], CUTOFF) for s in (1, 0)]
        samples += [atomic_sample(places, [0, 1, 1], CUTOFF)]
        samples += [structure(8, 1, cell=None, dtype=np.dtype(dtype))]
        samples += [atomic_sample(places[:1], [1], CUTOFF, cell=9 * np.eye(3))]
        batch = GraphBatch.from_graphs(samples, pad_to=(24, 600, 6))
        model = POTENTIALS[name].make(**options)
        expected = [SHIFT[1], SHIFT[0], SHIFT[0] + 2 * SHIFT[1], SHIFT[1]]
        actual = energy_forces_stress(model, batch)
        close = {"rtol": 2e-6, "atol": 2e-6} if dtype == "float32" else {"rtol": 1e-13}
        np.testing.assert_allclose(np.asarray(actual.energy)[[0, 1, 2, 4]], expected, **close)
        assert not actual.forces[:5].any() and actual.energy.dtype == dtype
        plain = POTENTIALS[name].make(subtract_lone_atoms=False, **options)
        of_plain = energy_forces_stress(plain, batch)
        assert np.abs(of_plain.energy - actual.energy)[:5].min() > 1e-2
        np.testing.assert_allclose(of_plain.forces, actual.forces, rtol=1e-4, atol=1e-5)


@pytest.mark.costly(1)
@each_potential
def test_forces_and_stress_are_differences_and_turn_with_the_structure(name):
    with jax.enable_x64(True):
        rng = np.random.default_rng(1)
        turn = np.linalg.qr(rng.normal(size=(3, 3)))[0] * [1, 1, -1]
        samples = [structure(n, n, dtype=np.float64) for n in (5, 8)]
        positions = [s.nodes["positions"] @ turn.T + rng.normal(size=3) for s in samples]
        samples += [
            atomic_sample(r, s.nodes["species"], CUTOFF, cell=CELL @ turn.T)
            for r, s in zip(positions, samples, strict=True)
        ]
        batch = GraphBatch.from_graphs(samples, pad_to=(32, 1200, 5))
        model = POTENTIALS[name].make(param_dtype=jnp.float64)
        assert_slopes(model, batch)
        actual = energy_forces_stress(model, batch, stress=True)
        np.testing.assert_allclose(actual.energy[2:4], actual.energy[:2], rtol=1e-12)
        forces = np.asarray(actual.forces)
        np.testing.assert_allclose(forces[13:26], forces[:13] @ turn.T, atol=1e-10)
        stress = np.asarray(actual.stress)
        np.testing.assert_allclose(stress[2:4], turn @ stress[:2] @ turn.T, atol=1e-10)
        assert np.abs(forces[:26]).max() > 1e-2 and np.abs(stress[:4]).max() > 1e-3


@pytest.mark.costly(2)
@each_potential
def test_a_batch_has_the_values_of_its_structures_alone_and_no_padding_reaches_them(name):
    model = POTENTIALS[name].make()
    compute = jax.jit(lambda batch: energy_forces_stress(model, batch, stress=True))
    actual = compute(spoil_padding(BATCH))
    start = 0
    for place, sample in enumerate(SAMPLES):
        # Of the same shape, so that nothing is compiled again.
        alone = compute(GraphBatch.from_graphs([sample], pad_to=SHAPE))
        end = start + sample.num_nodes
        np.testing.assert_allclose(actual.energy[place], alone.energy[0], rtol=1e-5)
        forces = alone.forces[: sample.num_nodes]
        np.testing.assert_allclose(actual.forces[start:end], forces, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(actual.stress[place], alone.stress[0], rtol=1e-4, atol=1e-5)
        start = end
    assert compute._cache_size() == 1
    for values, count in zip(actual, (3, start, 3), strict=True):
        assert np.isfinite(values).all() and not values[count:].any()
    assert not actual.forces[start - 1].any()  # A lone atom has no force.


@pytest.mark.costly(1)
@each_potential
def test_the_gradient_of_a_loss_of_forces_is_a_difference(name):
    with jax.enable_x64(True):
        sample = structure(4, 7, dtype=np.float64)
        batch = GraphBatch.from_graphs([sample], pad_to=(8, 200))
        model = POTENTIALS[name].make(param_dtype=jnp.float64, num_interactions=1)
        graphdef, parameters, rest = nnx.split(model, nnx.Param, ...)

        @jax.jit
        @jax.value_and_grad
        def loss(parameters):
            actual = energy_forces_stress(nnx.merge(graphdef, parameters, rest), batch, stress=True)
            return jnp.sum(actual.forces**2) + jnp.sum(actual.stress**2)

        rng = np.random.default_rng(2)
        steps = jax.tree.map(lambda leaf: 1e-5 * rng.normal(size=leaf.shape), parameters)
        ends = [
            loss(jax.tree.map(lambda leaf, step: leaf + sign * step, parameters, steps))[0]  # noqa: B023
            for sign in (1, -1)
        ]
        products = jax.tree.map(lambda a, b: jnp.sum(a * b), loss(parameters)[1], steps)
        slope = sum(jax.tree.leaves(products))
        np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2, rtol=1e-6)


@pytest.mark.costly(1)
@each_potential
def test_atoms_at_one_place_and_lone_atoms_have_finite_forces_and_slopes(name):
    model = POTENTIALS[name].make()
    places = np.array([[0.0, 0, 0], [0, 0, 0], [1, 0, 0], [9, 9, 9]], np.float32)
    batch = GraphBatch.from_graphs([atomic_sample(places, [0, 1, 1, 0], CUTOFF)])

    @jax.jit
    @jax.value_and_grad
    def squared_forces(places):
        return jnp.sum(energy_forces_stress(model, moved(batch, places)).forces ** 2)

    value, slope = squared_forces(places)
    assert value > 0 and np.isfinite(slope).all()


def test_what_does_not_fit_the_tables_or_the_cutoff_is_named_or_nan():
    model = POTENTIALS["SchNet"].make()
    bad_species = BATCH.nodes["species"].copy()
    bad_species[5:7] = 2, -1  # in the second structure
    strange = dataclasses.replace(BATCH, nodes={**BATCH.nodes, "species": bad_species})
    short = {**BATCH.globals, "radius": np.array([5, 2.4, 5, 0, 0], np.float32)}
    near = dataclasses.replace(BATCH, globals=short)
    messages = (
        r"batch.nodes\['species'\]\[5\] must be below num_species, 2, got 2",
        r"the radius r of the edges must be at least the cutoff, 2.5, in .*, got 2.4",
    )
    compute = jax.jit(lambda batch: energy_forces_stress(model, batch))
    expected = compute(BATCH)
    for batch, message in zip((strange, near), messages, strict=True):
        for call in (model, lambda batch: energy_forces_stress(model, batch)):
            with pytest.raises(ValueError, match=f"^SchNet: {message}"):
                call(batch)
        actual = compute(batch)
        assert np.isnan(actual.energy[1]) and np.isnan(actual.forces[5:13]).any()
        others = np.arange(5) != 1
        np.testing.assert_array_equal(actual.energy[others], expected.energy[others])
        np.testing.assert_array_equal(actual.forces[:5], expected.forces[:5])


@pytest.mark.costly(1)
@each_potential
def test_bfloat16_computes_features_in_bfloat16_and_energies_in_float32(name):
    model = POTENTIALS[name].make(dtype=jnp.bfloat16)
    energies = model(BATCH)
    assert energies.dtype == jnp.float32
    expected = POTENTIALS[name].make()(BATCH)
    np.testing.assert_allclose(energies, expected, rtol=0.1, atol=0.1)


def test_a_subclass_without_energies_of_atoms_says_so():
    class Own(InteratomicPotential):
        pass

    with pytest.raises(NotImplementedError, match="Own has no energies of atoms"):
        options = {"species_shift": 0, "species_scale": 1, "subtract_lone_atoms": True}
        Own(2, cutoff=CUTOFF, **options)(BATCH)


@each_potential
def test_energies_of_edges_that_were_found_elsewhere_add_up_to_those_of_the_batch(name):
    model = POTENTIALS[name].make()
    vectors = models.atomic_edges(BATCH).vectors.at[-1].set(np.nan)  # padding
    species = BATCH.nodes["species"]
    of_atoms = np.asarray(model.energies_of_atoms(BATCH.graph, species, vectors))
    assert BATCH.graph.indptr[-1] < BATCH.graph.num_edges
    np.testing.assert_allclose(of_atoms[:5].sum(), model(BATCH)[0], rtol=1e-5)
    np.testing.assert_allclose(of_atoms[5:13].sum(), model(BATCH)[1], rtol=1e-5)
    with pytest.raises(ValueError, match=rf"^{name}: species must be integers \[24\]"):
        model.energies_of_atoms(BATCH.graph, species[1:], vectors)
    with pytest.raises(ValueError, match=rf"^{name}: vectors must be floating \[600, 3\]"):
        model.energies_of_atoms(BATCH.graph, species, vectors[:, :2])
