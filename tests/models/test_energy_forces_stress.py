"""Samples of atoms, and energies, forces and stresses of any potential, by a pair potential."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import models
from jaxgnn.graph import GraphBatch
from jaxgnn.models import _potential, atomic_sample, energy_forces_stress, interatomic
from jaxgnn.models.atomic_geometry import Structures
from tests.models._structures import (
    CELL,
    CUTOFF,
    assert_slopes,
    moved,
    pair_energies,
    spoil_padding,
    structure,
)

SAMPLES = [structure(5, 0), structure(8, 1), structure(1, 2), structure(4, 3, cell=None)]
BATCH = GraphBatch.from_graphs(SAMPLES, pad_to="power_of_two")


def test_forces_and_stress_are_differences_of_energies():
    with jax.enable_x64(True):
        samples = [structure(5, 0, dtype=np.float64), structure(8, 1, dtype=np.float64, cell=None)]
        assert_slopes(pair_energies, GraphBatch.from_graphs(samples, pad_to="power_of_two"))


def test_vectors_are_those_of_the_images():
    sample = structure(3, 4)
    batch = GraphBatch.from_graphs([sample])
    edges = models.atomic_edges(batch)
    r, images = sample.nodes["positions"].astype(float), sample.edges["images"]
    expected = r[sample.senders] + images @ CELL - r[sample.receivers]
    np.testing.assert_allclose(edges.vectors, expected, atol=1e-5)
    np.testing.assert_allclose(edges.distances, np.linalg.norm(expected, axis=1), rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(edges.directions(), axis=1), 1, rtol=1e-5)
    assert np.abs(images).max() >= 1


def test_a_batch_has_the_values_of_its_structures_alone_and_no_padding_reaches_them():
    actual = energy_forces_stress(pair_energies, spoil_padding(BATCH), stress=True)
    start = 0
    for place, sample in enumerate(SAMPLES):
        alone = energy_forces_stress(pair_energies, GraphBatch.from_graphs([sample]), stress=True)
        end = start + sample.num_nodes
        np.testing.assert_allclose(actual.energy[place], alone.energy[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(actual.forces[start:end], alone.forces, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(actual.stress[place], alone.stress[0], rtol=1e-5, atol=1e-5)
        start = end
    for values, count in zip(actual, (len(SAMPLES), start, len(SAMPLES)), strict=True):
        assert np.isfinite(values).all() and not values[count:].any()


def test_what_potentials_read_of_a_batch_has_nothing_of_its_padding():
    spoiled = spoil_padding(BATCH)
    actual = Structures.from_batch("test", spoiled)
    nodes, edges = BATCH.node_mask.sum(), BATCH.edge_mask().sum()
    for values in (actual.positions[nodes:], actual.species[nodes:], actual.images[edges:]):
        assert len(values) and not values.any()
    np.testing.assert_array_equal(actual.cells[-1], np.eye(3))
    for values in models.atomic_edges(spoiled):
        assert np.isfinite(values).all() and not values[edges:].any()


def test_stress_is_symmetric_and_the_forces_of_a_structure_add_up_to_zero():
    actual = energy_forces_stress(pair_energies, BATCH, stress=True)
    np.testing.assert_array_equal(actual.stress, actual.stress.swapaxes(1, 2))
    total = np.zeros((BATCH.num_graphs, 3))
    np.add.at(total, BATCH.graph_ids, np.asarray(actual.forces))
    np.testing.assert_allclose(total, 0, atol=1e-5)
    assert energy_forces_stress(pair_energies, BATCH).stress is None


def test_a_bucket_of_shapes_is_traced_once():
    traces = []

    def counted(batch):
        traces.append(batch.num_graphs)
        return pair_energies(batch)

    for seed in range(3):
        samples = [structure(3 + seed, seed), structure(8 - seed, seed)]
        energy_forces_stress(counted, GraphBatch.from_graphs(samples, pad_to=(16, 1024, 4)))
    assert traces == [4]


def test_a_loss_of_forces_has_a_gradient_to_the_parameters():
    class Scaled(nnx.Module):
        def __init__(self):
            self.factor = nnx.Param(jnp.float32(2.0))

        def __call__(self, batch):
            return self.factor[...] * pair_energies(batch)

    def loss(model):
        return jnp.sum(energy_forces_stress(model, BATCH).forces ** 2)

    plain = energy_forces_stress(pair_energies, BATCH).forces
    slope = nnx.grad(loss)(Scaled())
    np.testing.assert_allclose(slope.factor[...], 4 * jnp.sum(plain**2), rtol=1e-5)


def test_atoms_at_one_place_have_no_direction_and_finite_forces():
    positions = np.array([[0.0, 0, 0], [0, 0, 0], [1, 0, 0]], np.float32)
    batch = GraphBatch.from_graphs([atomic_sample(positions, [0, 0, 0], CUTOFF)])
    edges = models.atomic_edges(batch)
    assert (np.asarray(edges.distances) == 0).sum() == 2
    assert not np.asarray(edges.directions())[np.asarray(edges.distances) == 0].any()

    def squared_forces(positions):
        return jnp.sum(energy_forces_stress(pair_energies, moved(batch, positions)).forces ** 2)

    value, slope = jax.jit(jax.value_and_grad(squared_forces))(positions)
    assert value > 0 and np.isfinite(slope).all()


def test_a_position_that_is_not_finite_spoils_its_own_structure_only():
    bad = BATCH.nodes["positions"].copy()
    bad[6] = np.nan  # in the second structure
    actual = jax.jit(lambda batch: energy_forces_stress(pair_energies, batch))(moved(BATCH, bad))
    expected = energy_forces_stress(pair_energies, BATCH)
    assert np.isnan(actual.energy[1])
    others = BATCH.graph_ids != 1
    np.testing.assert_allclose(actual.energy[2:], expected.energy[2:], rtol=1e-6)
    np.testing.assert_allclose(actual.forces[others], expected.forces[others], rtol=1e-6)


def test_an_empty_cell_has_an_error_or_a_stress_of_nan():
    empty = BATCH.globals["cell"].copy()
    empty[0, 2] = 0
    batch = moved(BATCH, BATCH.nodes["positions"], empty)
    with pytest.raises(ValueError, match=r"batch.globals\['cell'\]\[0\] must be .* volume 0"):
        energy_forces_stress(pair_energies, batch, stress=True)
    of_batch = jax.jit(lambda batch: energy_forces_stress(pair_energies, batch, stress=True))
    stress = of_batch(batch).stress
    assert np.isnan(stress[0]).all() and np.isfinite(stress[1:]).all()


def test_targets_are_in_the_sample_and_integers_are_floats():
    sample = structure(2, 0, energy=3, forces=np.ones((2, 3), int), stress=np.eye(3))
    assert sample.globals["energy"].dtype == sample.nodes["forces"].dtype == np.float32
    assert sample.globals["radius"] == CUTOFF and sample.globals["stress"].shape == (3, 3)
    slab = structure(2, 0, cell=np.diag([3.0, 3.0, 0.0]), periodic=(True, True, False))
    assert not slab.edges["images"][:, 2].any()


@pytest.mark.parametrize("periodic", [True, (True, False, True), False])
def test_samples_far_from_the_origin_have_the_energies_of_near_ones(periodic):
    near = np.array(structure(8, 1).nodes["positions"], np.float64)
    species, flags = np.arange(8) % 2, np.broadcast_to(periodic, 3)
    turns = np.where(flags, np.random.default_rng(4).integers(-9000, 9000, (8, 3)), 0)
    arguments = {"cell": CELL, "periodic": periodic}
    expected = None
    far = np.array([13_000, -70_000, 4_000])
    for positions in (near, near + far, near + 500 + turns @ CELL):
        sample = atomic_sample(positions, species, CUTOFF, **arguments)
        assert sample.nodes["positions"].dtype == np.float32
        batch = GraphBatch.from_graphs([sample])
        actual = energy_forces_stress(pair_energies, batch, stress=True)
        if expected is None:
            np.testing.assert_array_equal(sample.nodes["positions"], near.astype(np.float32))
            expected = actual
        for one, value in zip(actual, expected, strict=True):
            np.testing.assert_allclose(one, value, rtol=2e-5, atol=2e-5)


def test_an_atom_that_left_in_an_open_direction_leaves_the_others_at_the_origin():
    positions = np.concatenate([np.zeros((1, 3)), np.eye(3), [[0, 0, 1e6]]])
    sample = atomic_sample(positions, np.zeros(5, int), CUTOFF)
    np.testing.assert_array_equal(sample.nodes["positions"], positions)
    inside = atomic_sample(positions[:4] + 5.0, np.zeros(4, int), CUTOFF, cell=5 * np.eye(3))
    np.testing.assert_array_equal(inside.nodes["positions"], positions[:4] + 5)  # as it was given


def test_float64_positions_of_a_batch_are_subtracted_before_they_are_rounded():
    positions = np.asarray(BATCH.nodes["positions"], np.float64)
    far = moved(BATCH, positions + 13_000.0 * np.asarray(BATCH.graph_ids)[:, None])
    expected, actual = models.atomic_edges(BATCH), models.atomic_edges(far)
    np.testing.assert_allclose(actual.vectors, expected.vectors, atol=1e-6)
    model = models.SchNet(2, 4, cutoff=CUTOFF, num_interactions=1, rngs=nnx.Rngs(0))
    for call in (model, lambda batch: energy_forces_stress(model, batch).forces):
        np.testing.assert_allclose(call(far), call(BATCH), atol=1e-5)


def test_a_batch_is_checked_once_and_its_module_is_split_once(monkeypatch):
    calls = []

    def count(place, name):
        function = getattr(place, name)

        def counting(*arguments):
            calls.append(name)
            return function(*arguments)

        monkeypatch.setattr(place, name, counting)

    model = models.SchNet(2, 4, cutoff=CUTOFF, num_interactions=1, rngs=nnx.Rngs(0))
    for place in (interatomic, _potential):
        count(place, "check_structures")
    for name in ("split", "merge"):
        count(nnx, name)
    energy_forces_stress(model, GraphBatch.from_graphs([structure(3, 9)], pad_to=(4, 300, 2)))
    assert calls == ["check_structures", "split", "merge"]


def test_a_potential_that_adds_to_its_call_is_called():
    class Shifted(models.SchNet):
        def __call__(self, batch):
            return super().__call__(batch) + pair_energies(batch)

    plain, shifted = (
        kind(2, 4, cutoff=CUTOFF, num_interactions=1, rngs=nnx.Rngs(0))
        for kind in (models.SchNet, Shifted)
    )
    actual, expected = (energy_forces_stress(m, BATCH).forces for m in (shifted, plain))
    pairs = energy_forces_stress(pair_energies, BATCH).forces
    np.testing.assert_allclose(actual, expected + pairs, atol=1e-5)


POSITIONS = np.array([[0, 0, 0], [1, 1, 1]], np.float32)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"positions": np.zeros((0, 3))}, "positions must be .* at least one atom"),
        ({"positions": np.zeros((2, 2))}, r"positions must be of shape \[atoms, 3\]"),
        ({"positions": POSITIONS * [[1], [np.nan]]}, r"positions\[1\]\[0\] must be finite"),
        ({"positions": np.zeros((2, 3), int)}, "positions must be of a floating dtype"),
        ({"species": [0]}, r"species must be integers \[2\]"),
        ({"species": [0.0, 1.0]}, r"species must be integers \[2\]"),
        ({"species": [0, -1]}, r"species\[1\] must be .* from 0, got -1"),
        ({"r": 0.0}, "r must be a positive number, got 0.0"),
        ({"r": np.nan}, "r must be a positive number"),
        ({"r": 1e4, "cell": np.eye(3)}, "r must be"),
        ({"cell": np.zeros((3, 3))}, "cell must be .* an empty cell"),
        ({"cell": np.ones((3, 3))}, "cell must be .* an empty cell"),
        ({"cell": np.full((3, 3), np.inf)}, r"cell\[0\]\[0\] must be finite"),
        ({"cell": np.ones(3)}, r"cell must be of shape \[3, 3\]"),
        ({"periodic": True}, r"cell must be .* where axes are periodic, got None"),
        ({"cell": np.eye(3), "periodic": (True, False)}, "periodic must be"),
        ({"forces": np.zeros((3, 3))}, r"forces must be of shape \[2, 3\]"),
        ({"energy": np.nan}, "energy must be finite"),
        ({"stress": np.zeros(6)}, r"stress must be of shape \[3, 3\]"),
    ],
)
def test_bad_structures_are_named(changes, message):
    arguments = {"positions": POSITIONS, "species": [0, 1], "r": CUTOFF} | changes
    with pytest.raises(ValueError, match=message):
        atomic_sample(**arguments)


@pytest.mark.parametrize(
    "model, batch, message",
    [
        (3, BATCH, "model must be a potential, got int"),
        (pair_energies, SAMPLES[0], "batch must be a GraphBatch of samples"),
        (lambda batch: jnp.zeros(3), BATCH, r"model must be a function from a batch to energies"),
        (
            pair_energies,
            moved(BATCH, BATCH.nodes["positions"][:, :2]),
            r"batch.nodes\['positions'\] must be floating \[32, 3\], got float32\[32, 2\]",
        ),
        (
            pair_energies,
            GraphBatch.from_graphs([GraphBatch.from_graphs([SAMPLES[0]]).graph]),
            r"batch.nodes\['positions'\] must be in the batch; make its samples by",
        ),
    ],
)
def test_bad_batches_and_models_are_named(model, batch, message):
    with pytest.raises(ValueError, match=rf"^models.energy_forces_stress: {message}"):
        energy_forces_stress(model, batch)
