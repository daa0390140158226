"""Potentials as energy functions of jax-md: values, forces and a short run of dynamics."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import models
from jaxgnn.graph import GraphBatch
from jaxgnn.interop import jax_md_energy

pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64:UserWarning")

BOX, CUTOFF = 6.2, 2.9
SPECIES = np.arange(27) % 2
MODEL = models.SchNet(
    2, 4, cutoff=CUTOFF, num_interactions=1, num_gaussians=8, species_scale=0.1, rngs=nnx.Rngs(0)
)


def _positions():
    grid = np.stack(np.meshgrid(*[np.arange(3)] * 3), -1).reshape(-1, 3) * 2.0
    return (grid + np.random.default_rng(0).uniform(-0.1, 0.1, grid.shape)).astype(np.float32)


@pytest.fixture
def jax_md():
    """The package jax-md, or a skip; it relies on JAX's promotion of dtypes."""
    with jax.numpy_dtype_promotion("standard"):
        yield pytest.importorskip("jax_md", reason="reason: jax-md is not installed")


@pytest.mark.costly(1)
@pytest.mark.parametrize("kind", ["Dense", "Sparse"])
def test_energy_and_forces_are_those_of_a_batch(jax_md, kind):
    positions = _positions()
    sample = models.atomic_sample(positions, SPECIES, CUTOFF, cell=np.eye(3) * BOX)
    expected = models.energy_forces_stress(MODEL, GraphBatch.from_graphs([sample]))
    displacement, _ = jax_md.space.periodic(BOX)
    lists = jax_md.partition.neighbor_list(
        displacement,
        BOX,
        r_cutoff=CUTOFF,
        dr_threshold=0.1,
        disable_cell_list=True,
        format=getattr(jax_md.partition, kind),
    )
    neighbor = lists.allocate(positions)
    energy = jax_md_energy(MODEL, displacement, SPECIES)
    value, slope = jax.jit(jax.value_and_grad(energy))(positions, neighbor=neighbor)
    np.testing.assert_allclose(value, expected.energy[0], rtol=1e-5)
    np.testing.assert_allclose(-slope, expected.forces, atol=1e-5)


def test_a_run_of_dynamics_conserves_energy_with_one_program(jax_md):
    positions, traces = _positions(), []
    displacement, shift = jax_md.space.periodic(BOX)
    lists = jax_md.partition.neighbor_list(
        displacement,
        BOX,
        r_cutoff=CUTOFF,
        dr_threshold=0.4,
        disable_cell_list=True,
        format=jax_md.partition.Sparse,
    )
    neighbor = lists.allocate(positions)
    energy = jax_md_energy(MODEL, displacement, SPECIES)
    start, step = jax_md.simulate.nve(energy, shift, dt=0.01)
    state = start(jax.random.key(0), positions, kT=0.05, neighbor=neighbor)

    @jax.jit
    def run(state, neighbor):
        traces.append(1)

        def advance(both, _):
            state, neighbor = both
            neighbor = neighbor.update(state.position)
            state = step(state, neighbor=neighbor)
            kinetic = jnp.sum(state.momentum**2 / (2 * state.mass))
            return (state, neighbor), kinetic + energy(state.position, neighbor=neighbor)

        return jax.lax.scan(advance, (state, neighbor), length=20)

    energies = []
    for _ in range(3):
        (state, neighbor), of_steps = run(state, neighbor)
        energies.append(np.asarray(of_steps))
    assert not neighbor.did_buffer_overflow and len(traces) == 1
    moves = jax.vmap(displacement)(state.position, positions)
    assert np.ptp(energies) < 1e-3 and np.abs(moves).max() > 0.05


def test_bad_input_is_named():
    def apart(a, b):
        return a - b

    energy = jax_md_energy(MODEL, apart, SPECIES)
    half = types.SimpleNamespace(format=types.SimpleNamespace(name="OrderedSparse"), idx=None)
    for call, message in (
        (lambda: jax_md_energy(apart, apart, SPECIES), "model must be a potential of jaxgnn"),
        (lambda: jax_md_energy(MODEL, apart, [0.5]), "species must be integers"),
        (lambda: jax_md_energy(MODEL, apart, [0, 2]), r"species\[1\] must be a row .* below 2"),
        (lambda: jax_md_energy(MODEL, apart, [-1]), r"species\[0\] must be a row of the model"),
        (lambda: energy(jnp.zeros((3, 3)), half), r"positions must be of shape \[27, 3\]"),
        (lambda: energy(jnp.zeros((27, 3)), half), "neighbor must be .*, got OrderedSparse"),
        (lambda: energy(jnp.zeros((27, 3)), None), "neighbor must be .*, got NoneType"),
    ):
        with pytest.raises(ValueError, match=f"^interop.jax_md_energy: {message}"):
            call()
