"""Simulated particles: their laws, their conserved quantities, and bad input."""

import numpy as np
import pytest

from jaxgnn import datasets


@pytest.fixture(scope="module", params=["springs", "charges"])
def motion(request):
    return datasets.particles(request.param, runs=3, frames=40, num_particles=12, seed=2)


def test_equal_seeds_give_equal_runs_and_others_differ(motion):
    again = datasets.particles(motion.name, runs=3, frames=40, num_particles=12, seed=2)
    other = datasets.particles(motion.name, runs=3, frames=40, num_particles=12, seed=3)
    np.testing.assert_array_equal(again.positions, motion.positions)
    assert not np.array_equal(other.positions, motion.positions)
    assert motion.positions.dtype == np.float32 and motion.positions.shape == (3, 40, 12, 2)
    assert (motion.num_runs, motion.num_frames, motion.num_particles) == (3, 40, 12)


def test_nothing_pushes_the_centre_of_mass(motion):
    weights = motion.masses / motion.masses.sum(axis=1, keepdims=True)
    centres = np.einsum("rn,rtnd->rtd", weights, motion.positions.astype(np.float64))
    np.testing.assert_allclose(centres, np.broadcast_to(centres[:, :1], centres.shape), atol=1e-5)


def test_energy_is_conserved_without_friction_and_falls_with_it(motion):
    energy = datasets.particle_energy(motion)
    assert energy.shape == (3, 38)
    if motion.name == "charges":
        # Velocities are differences of frames, which are off by a few percent.
        assert (np.ptp(energy, axis=1) < 0.1 * energy.mean(axis=1)).all()
    else:
        assert (energy[:, -1] < 0.8 * energy[:, 0]).all() and (energy > 0).all()


def _springs(motion, x):
    """Forces in the order of the particles, spring by spring."""
    forces = np.zeros(x.shape)
    for s, r, length, stiffness in zip(
        motion.senders, motion.receivers, motion.lengths[0], motion.stiffness[0], strict=True
    ):
        apart = x[s] - x[r]
        distance = np.linalg.norm(apart)
        forces[r] += stiffness * (distance - length) * apart / distance
    return forces


def _charges(motion, x):
    """Forces by differences of the energy of all pairs of nearest images."""

    def energy(x):
        apart = x[:, None] - x[None]
        apart -= motion.box * np.round(apart / motion.box)
        closeness = np.maximum(1 - np.sum(apart**2, axis=-1) / motion.reach**2, 0) ** 3
        pairs = 1.5 * np.outer(motion.charges[0], motion.charges[0]) * closeness
        return np.sum(np.triu(pairs, 1))

    forces, step = np.zeros(x.shape), 1e-6
    for place in np.ndindex(*x.shape):
        moved = np.zeros(x.shape)
        moved[place] = step
        forces[place] = (energy(x - moved) - energy(x + moved)) / (2 * step)
    return forces


def test_accelerations_are_those_of_the_documented_forces(motion):
    x = motion.positions[0].astype(np.float64)
    at = 15
    velocity = (x[at + 1] - x[at - 1]) / (2 * motion.interval)
    acceleration = (x[at + 1] - 2 * x[at] + x[at - 1]) / motion.interval**2
    law, friction = (_springs, 0.1) if motion.name == "springs" else (_charges, 0.0)
    expected = law(motion, x[at]) / motion.masses[0][:, None] - friction * velocity
    # Differences of frames are off by the next term of a series, and by rounding of positions.
    scale = np.abs(expected).max()
    np.testing.assert_allclose(acceleration, expected, atol=0.04 * scale)


def test_springs_are_listed_in_both_directions_with_equal_properties():
    motion = datasets.particles("springs", runs=2, frames=3, num_particles=9)
    place = {pair: i for i, pair in enumerate(zip(motion.senders, motion.receivers, strict=True))}
    back = [place[r, s] for s, r in place]
    for properties in (motion.lengths, motion.stiffness):
        np.testing.assert_array_equal(properties[:, back], properties)
    assert (motion.senders != motion.receivers).all()
    assert set(motion.receivers) == set(range(9))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"system": "planets"}, "system must be 'springs' or 'charges', got 'planets'"),
        ({"frames": 2}, "frames must be an int of at least 3, got 2"),
        ({"runs": 0}, "runs must be an int of at least 1, got 0"),
        ({"system": "charges", "num_particles": 8}, "num_particles must be an int of at least 9"),
        ({"runs": 1.5}, "runs must be an int of at least 1, got 1.5"),
    ],
)
def test_bad_input_is_named(options, message):
    with pytest.raises(ValueError, match=rf"^datasets.particles: {message}"):
        datasets.particles(**options)


def test_energy_wants_positions_of_the_same_particles():
    motion = datasets.particles(runs=2, frames=4)
    with pytest.raises(ValueError, match=r"^datasets.particle_energy: positions must be of shape"):
        datasets.particle_energy(motion, motion.positions[:1])
    with pytest.raises(ValueError, match="of at least 3 frames"):
        datasets.particle_energy(motion, motion.positions[:, :2])
