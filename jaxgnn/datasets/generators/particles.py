"""Simulated particles: balls joined by springs, and charges in a periodic box."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.datasets.records.particle_motion import ParticleMotion

ParticleSystem = Literal["springs", "charges"]
"""Systems that ``particles`` simulates."""

# Springs: each ball is joined to its nearest ones at rest, and friction slows it down.
_NEAREST = 3
_FRICTION = 0.1
# Charges: strength of a pair, and the distance at which it vanishes.
_STRENGTH = 1.5
_REACH = 1.0
# Time between two frames.
_INTERVAL = 0.1
# Steps of the simulation between two frames.
_SUBSTEPS = 10


def particles(
    system: ParticleSystem = "springs",
    *,
    runs: int = 64,
    frames: int = 100,
    num_particles: int = 16,
    seed: int = 0,
) -> ParticleMotion:
    """Simulates particles in two dimensions and records their positions.

    In ``"springs"``, balls of different masses are joined to their nearest neighbours by springs of
    different stiffness, and slowed down by friction::

        m_i a_i = Σ_j k_ij (|x_j - x_i| - L_ij) (x_j - x_i) / |x_j - x_i| - 0.1 m_i v_i

    All runs have the same springs; masses, stiffness, lengths and the initial state differ. In
    ``"charges"``, particles of unit mass and charges between 0.5 and 1, half of them negative, move
    in a periodic box with on average one particle per unit of area. Their energy is::

        U = 1.5 Σ_{i<j} q_i q_j (1 - d_ij²)³    for distances d_ij < 1, and zero beyond

    Equal charges repel each other and opposite ones attract each other, without a singularity. It
    is conserved. Both are integrated by the leapfrog method in float64 with ten steps per frame.

    Args:
      system: ``"springs"`` or ``"charges"``.
      runs: number of independent runs.
      frames: number of recorded frames of each run, at least 3. The interval is 0.1.
      num_particles: number of particles, at least 4 springs, and 9 charges.
      seed: seed of all random numbers; equal seeds give equal data.

    Raises:
      ValueError: if the system is unknown, or a number is too small.

    Example:
      >>> from jaxgnn import datasets
      >>> datasets.particles("charges", runs=2, frames=5).positions.shape
      (2, 5, 16, 2)
    """
    if system not in get_args(ParticleSystem):
        expected = " or ".join(map(repr, get_args(ParticleSystem)))
        raise bad_input("datasets.particles", "system", expected, repr(system))
    # The side of the box has to be at least twice the reach.
    lowest = {"runs": 1, "frames": 3, "num_particles": 4 if system == "springs" else 9}
    for name, number in {"runs": runs, "frames": frames, "num_particles": num_particles}.items():
        is_count = isinstance(number, int | np.integer) and not isinstance(number, bool)
        if not is_count or number < lowest[name]:
            expected = f"an int of at least {lowest[name]}"
            raise bad_input("datasets.particles", name, expected, repr(number))
    rng = np.random.default_rng(seed)
    start, fields = _STARTS[system](rng, runs, num_particles)
    laws = _laws(fields)
    positions = _simulate(laws, start, frames)
    arrays: dict[str, Any] = {
        name: value.astype(np.float32) if getattr(value, "dtype", None) == np.float64 else value
        for name, value in {"positions": positions, **fields}.items()
    }
    return ParticleMotion(name=system, interval=_INTERVAL, **arrays)


def particle_energy(motion: ParticleMotion, positions: np.ndarray | None = None) -> np.ndarray:
    """Kinetic plus potential energy of each run, at all frames but the first and the last.

    Velocities are differences of the frames before and after.

    Args:
      motion: the system, with its masses, charges and springs.
      positions: other positions of the same particles, [runs, frames, particles, 2], such as those
        that a network predicts; None for those of ``motion``.

    Returns:
      [runs, frames - 2] float64.

    Raises:
      ValueError: if there are fewer than three frames, or positions are of other particles.

    Example:
      >>> from jaxgnn import datasets
      >>> energy = datasets.particle_energy(datasets.particles("springs", runs=5))
      >>> bool((energy[:, -1] < energy[:, 0]).all())
      True
    """
    x = np.asarray(motion.positions if positions is None else positions, np.float64)
    runs, _, count, dimensions = motion.positions.shape
    fits = x.ndim == 4 and (x.shape[0], *x.shape[2:]) == (runs, count, dimensions)
    if not fits or x.shape[1] < 3:
        expected = f"of shape [{runs}, frames, {count}, {dimensions}], of at least 3 frames"
        raise bad_input("datasets.particle_energy", "positions", expected, f"shape {x.shape}")
    velocities = (x[:, 2:] - x[:, :-2]) / (2 * motion.interval)
    masses = np.asarray(motion.masses, np.float64)[:, None]
    kinetic = 0.5 * np.sum(masses * np.sum(velocities**2, axis=-1), axis=-1)
    fields = {name: getattr(motion, name) for name in _FIELDS}
    laws = _laws({name: value for name, value in fields.items() if value is not None})
    potential = np.stack([laws.potential(x[:, t]) for t in range(1, x.shape[1] - 1)], axis=1)
    return kinetic + potential


# -- laws --------------------------------------------------------------------------------------

_FIELDS = "masses", "charges", "senders", "receivers", "lengths", "stiffness", "reach", "box"


@dataclass(frozen=True)
class _Laws:
    """A system's forces and its energy, both functions of positions [runs, particles, 2].

    Attributes:
      forces: forces without friction, [runs, particles, 2].
      potential: potential energy, [runs].
      masses: [runs, particles, 1].
      friction: deceleration per velocity.
    """

    forces: Callable[[np.ndarray], np.ndarray]
    potential: Callable[[np.ndarray], np.ndarray]
    masses: np.ndarray
    friction: float


def _laws(fields: dict[str, Any]) -> _Laws:
    """Returns the laws of a system with springs, or of one with charges."""
    masses = np.asarray(fields["masses"], np.float64)[..., None]
    if "senders" in fields:
        return _Laws(*_spring_laws(fields), masses, _FRICTION)
    return _Laws(*_charge_laws(fields), masses, 0.0)


def _spring_laws(fields: dict[str, Any]) -> tuple[Callable, Callable]:
    senders, receivers = fields["senders"], fields["receivers"]
    lengths, stiffness = (np.asarray(fields[name], float) for name in ("lengths", "stiffness"))
    count = fields["masses"].shape[1]
    into = (receivers == np.arange(count)[:, None]).astype(float)  # [particles, springs]

    def apart(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        differences = x[:, senders] - x[:, receivers]
        return differences, np.sqrt(np.sum(differences**2, axis=-1))

    def forces(x: np.ndarray) -> np.ndarray:
        differences, distances = apart(x)
        pulls = stiffness * (1 - lengths / np.maximum(distances, 1e-9))
        return into @ (pulls[..., None] * differences)

    def potential(x: np.ndarray) -> np.ndarray:
        stretched = apart(x)[1] - lengths
        return 0.25 * np.sum(stiffness * stretched**2, axis=-1)  # Each spring is listed twice.

    return forces, potential


def _charge_laws(fields: dict[str, Any]) -> tuple[Callable, Callable]:
    charges, box, reach = np.asarray(fields["charges"], float), fields["box"], fields["reach"]
    products = _STRENGTH * charges[:, :, None] * charges[:, None, :]
    products[:, *np.diag_indices(charges.shape[1])] = 0

    def apart(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        differences = x[:, :, None] - x[:, None, :]  # Vectors from the second to the first.
        differences -= box * np.round(differences / box)
        closeness = 1 - np.sum(differences**2, axis=-1) / reach**2
        return differences, np.maximum(closeness, 0)

    def forces(x: np.ndarray) -> np.ndarray:
        differences, closeness = apart(x)
        pushes = 6 / reach**2 * products * closeness**2
        return np.einsum("rij,rijd->rid", pushes, differences)

    def potential(x: np.ndarray) -> np.ndarray:
        return 0.5 * np.sum(products * apart(x)[1] ** 3, axis=(1, 2))

    return forces, potential


def _simulate(laws: _Laws, start: tuple[np.ndarray, np.ndarray], frames: int) -> np.ndarray:
    """Returns positions of the frames, [runs, frames, particles, 2], by the leapfrog method."""
    x, v = start
    step = _INTERVAL / _SUBSTEPS
    decay = math.exp(-laws.friction * step)
    recorded = [x]
    v = v + 0.5 * step * laws.forces(x) / laws.masses
    for _ in range(frames - 1):
        for _ in range(_SUBSTEPS):
            x = x + step * v
            v = decay * v + step * laws.forces(x) / laws.masses
        recorded.append(x)
    return np.stack(recorded, axis=1)


# -- initial states ----------------------------------------------------------------------------

type _Start = tuple[tuple[np.ndarray, np.ndarray], dict[str, Any]]


def _start_springs(rng: np.random.Generator, runs: int, count: int) -> _Start:
    """Balls near their places at rest, which move."""
    rest = _spread_out(rng, count)
    senders, receivers = _nearest(rest)
    shape = (runs, len(senders))
    # Both directions of a spring have one length and one stiffness.
    ends = np.sort(np.stack([senders, receivers]), axis=0)
    _, spring = np.unique(ends[0] * count + ends[1], return_inverse=True)
    scales = rng.uniform(0.8, 1.2, shape)[:, spring]
    lengths = scales * np.linalg.norm(rest[senders] - rest[receivers], axis=1)
    stiffness = 4 * rng.uniform(0.5, 1.5, shape)[:, spring]
    masses = rng.uniform(0.5, 1.5, (runs, count))
    x = rest + 0.2 * rng.normal(size=(runs, count, 2))
    return (x, _velocities(rng, masses)), {
        "masses": masses,
        "charges": np.zeros((runs, count)),
        "senders": senders,
        "receivers": receivers,
        "lengths": lengths,
        "stiffness": stiffness,
    }


def _start_charges(rng: np.random.Generator, runs: int, count: int) -> _Start:
    """Charges spread out in the box, in an order of their own in each run."""
    side = math.sqrt(count)
    places = np.stack([_spread_out(rng, count) for _ in range(runs)])
    signs = np.where(np.arange(count) % 2, 1.0, -1.0)
    charges = rng.permuted(np.tile(signs, (runs, 1)), axis=1)
    charges = charges * rng.uniform(0.5, 1.0, (runs, count))
    masses = np.ones((runs, count))
    fields = {"masses": masses, "charges": charges, "reach": _REACH, "box": side}
    return (places, _velocities(rng, masses)), fields


_STARTS: dict[str, Callable[[np.random.Generator, int, int], _Start]] = {
    "springs": _start_springs,
    "charges": _start_charges,
}


def _velocities(rng: np.random.Generator, masses: np.ndarray) -> np.ndarray:
    """Random velocities without a common motion, [runs, particles, 2]."""
    v = 0.5 * rng.normal(size=(*masses.shape, 2))
    weights = masses[..., None] / masses.sum(axis=1)[:, None, None]
    return v - np.sum(weights * v, axis=1, keepdims=True)


def _spread_out(rng: np.random.Generator, count: int) -> np.ndarray:
    """Points [count, 2] near those of a square grid with a distance of one."""
    columns = math.ceil(math.sqrt(count))
    grid = np.stack(np.divmod(np.arange(count), columns), axis=1).astype(float)
    return grid + rng.uniform(-0.25, 0.25, grid.shape)


def _nearest(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both directions of the pairs in which one point is among the other's nearest, sorted."""
    count = len(points)
    distances = np.linalg.norm(points[:, None] - points[None], axis=-1)
    np.fill_diagonal(distances, np.inf)
    joined = np.zeros((count, count), bool)
    nearest = np.argsort(distances, axis=1, kind="stable")[:, :_NEAREST]
    joined[np.repeat(np.arange(count), nearest.shape[1]), nearest.ravel()] = True
    receivers, senders = np.nonzero(joined | joined.T)
    return senders.astype(np.int32), receivers.astype(np.int32)
