"""Potentials: their formulas, symmetries, derivatives, batches, padding and bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import models
from jaxgnn.graph import GraphBatch
from jaxgnn.models import atomic_sample, energy_forces_stress
from tests.models._potentials import POTENTIALS, SCALE, SHIFT, wide
from tests.models._structures import (
    CELL,
    CUTOFF,
    assert_slopes,
    moved,
    structure,
    with_spoiled_padding,
)

SAMPLES = [structure(5, 0), structure(8, 1, cell=None), structure(1, 2, cell=None)]
SHAPE = (24, 600, 5)
BATCH = GraphBatch.from_graphs(SAMPLES, pad_to=SHAPE)
each_potential = pytest.mark.parametrize("name", POTENTIALS)


def _in_float64(*samples):
    """A model and a batch in float64, under ``jax.enable_x64``."""
    batch = GraphBatch.from_graphs(samples, pad_to=(24, 600, len(samples) + 1))
    return batch, {"param_dtype": jnp.float64}


@each_potential
def test_energies_are_those_of_the_formula(name):
    case = POTENTIALS[name]
    model = case.make()
    found = model(BATCH)
    of_all = wide(model)
    for place, sample in enumerate(SAMPLES):
        species = sample.nodes["species"]
        r, cell = (
            np.asarray(x, float) for x in (sample.nodes["positions"], sample.globals["cell"])
        )
        vectors = r[sample.senders] + sample.edges["images"] @ cell - r[sample.receivers]
        of_atoms = case.formula(of_all, species, sample.senders, sample.receivers, vectors)
        expected = np.sum(np.array(SCALE)[species] * of_atoms + np.array(SHIFT)[species])
        np.testing.assert_allclose(found[place], expected, rtol=1e-5)
    assert not found[len(SAMPLES) :].any()


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
        found = energy_forces_stress(model, batch, stress=True)
        np.testing.assert_allclose(found.energy[2:4], found.energy[:2], rtol=1e-12)
        forces = np.asarray(found.forces)
        np.testing.assert_allclose(forces[13:26], forces[:13] @ turn.T, atol=1e-10)
        stress = np.asarray(found.stress)
        np.testing.assert_allclose(stress[2:4], turn @ stress[:2] @ turn.T, atol=1e-10)
        assert np.abs(forces[:26]).max() > 1e-2 and np.abs(stress[:4]).max() > 1e-3


@each_potential
def test_a_batch_has_the_values_of_its_structures_alone_and_no_padding_reaches_them(name):
    model = POTENTIALS[name].make()
    compute = jax.jit(lambda batch: energy_forces_stress(model, batch, stress=True))
    found = compute(with_spoiled_padding(BATCH))
    start = 0
    for place, sample in enumerate(SAMPLES):
        # Of the same shape, so that nothing is compiled again.
        alone = compute(GraphBatch.from_graphs([sample], pad_to=SHAPE))
        end = start + sample.num_nodes
        np.testing.assert_allclose(found.energy[place], alone.energy[0], rtol=1e-5)
        forces = alone.forces[: sample.num_nodes]
        np.testing.assert_allclose(found.forces[start:end], forces, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.stress[place], alone.stress[0], rtol=1e-4, atol=1e-5)
        start = end
    assert compute._cache_size() == 1
    for values, count in zip(found, (3, start, 3), strict=True):
        assert np.isfinite(values).all() and not values[count:].any()
    assert not found.forces[start - 1].any()  # of a lone atom
