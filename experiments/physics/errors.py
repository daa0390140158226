"""Errors of predicted motions, and methods without a network to compare them with.

- ``"constant velocity"``: every particle moves on as between its last two frames.
- ``"constant acceleration"``: its velocity changes as between its last three frames.
- ``"no interaction"``: its acceleration is a linear function of its own velocity, mass and charge,
  by least squares on the training runs: what can be known without neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from jaxgnn import datasets
from jaxgnn.datasets import ParticleMotion

type Accelerations = Callable[[np.ndarray], np.ndarray]
"""Function from the last three frames [..., 3, particles, 2] to accelerations per frame²."""


@dataclass(frozen=True)
class Errors:
    """Errors of one method on some runs.

    Attributes:
      one_step: root mean square error of the next position at every frame, as a fraction of that of
        constant velocity.
      distances: root mean square distance between a particle and the simulator's, by the number of
        frames that were rolled out, [frames].
      energy: root mean square error of the energy at the end of the rollout, as a fraction of the
        kinetic energy at its start.
    """

    one_step: float
    distances: np.ndarray
    energy: float

    def scores(self) -> dict[str, float]:
        """The scores of an evaluation, by name."""
        rolled = float(np.sqrt(np.mean(self.distances**2)))
        return {"one step": self.one_step, "rollout": rolled, "energy": self.energy}


def errors_of(
    motion: ParticleMotion, one_step: np.ndarray, rolled: np.ndarray, start: int
) -> Errors:
    """Errors of predicted positions.

    Args:
      motion: the simulated runs.
      one_step: the position of each frame from ``start`` on, predicted from the frames before it,
        [runs, frames - start, particles, 2].
      rolled: the frames of a rollout that begins after ``start`` frames, [runs, horizon, ...].
      start: number of frames before the rollout.
    """
    positions = motion.positions.astype(np.float64)
    straight = 2 * positions[:, start - 1 : -1] - positions[:, start - 2 : -2]
    true, horizon = positions[:, start:], rolled.shape[1]
    fraction = _distance(one_step - true) / _distance(straight - true)
    apart = rolled - true[:, :horizon]
    distances = np.sqrt(np.mean(np.sum(apart**2, axis=-1), axis=(0, 2)))
    return Errors(float(fraction), distances, _energy_error(motion, rolled, start))


def _distance(apart: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.sum(apart**2, axis=-1))))


def _energy_error(motion: ParticleMotion, rolled: np.ndarray, start: int) -> float:
    """Root mean square error of the energy at the end, as a fraction of the kinetic energy."""
    positions, end = motion.positions, start + rolled.shape[1]
    before = positions[:, max(start - 2, 0) : start]
    both = (np.concatenate([before, found], axis=1) for found in (rolled, positions[:, start:end]))
    found, true = (datasets.particle_energy(motion, frames)[:, -1] for frames in both)
    velocities = np.diff(positions[:, start - 2 : start], axis=1)[:, 0] / motion.interval
    kinetic = 0.5 * np.sum(motion.masses[..., None] * velocities**2, axis=(1, 2))
    return float(np.sqrt(np.mean((found - true) ** 2)) / np.mean(kinetic))


# -- methods without a network -------------------------------------------------------------------


def trivial_errors(
    train: ParticleMotion, motion: ParticleMotion, horizon: int, start: int
) -> dict[str, Errors]:
    """Errors of each method without a network, by its name.

    Args:
      train: the runs to fit by.
      motion: the runs to score with.
      horizon: number of frames of a rollout.
      start: number of frames before it.
    """
    x = motion.positions.astype(np.float64)
    last = np.stack([x[:, start - 3 + k : x.shape[1] - 3 + k] for k in range(3)], axis=2)
    first = np.diff(x[:, start - 3 : start], n=2, axis=1)[:, 0]  # accelerations at the start
    own = _own_accelerations(train, motion)
    methods: dict[str, tuple[Accelerations, Accelerations]] = {
        "constant velocity": (_none, _none),
        "constant acceleration": (_same_again, lambda frames: first),
        "no interaction": (own, own),
    }
    found = {}
    for name, (next_one, later) in methods.items():
        rolled = _roll_out(x[:, start - 3 : start], later, horizon)
        found[name] = errors_of(motion, _next(last, next_one), rolled, start)
    return found


def _next(frames: np.ndarray, accelerations: Accelerations) -> np.ndarray:
    """The frame after some frames [..., 3, particles, 2]."""
    return 2 * frames[..., -1, :, :] - frames[..., -2, :, :] + accelerations(frames)


def _roll_out(frames: np.ndarray, accelerations: Accelerations, horizon: int) -> np.ndarray:
    """The frames after the first three [runs, 3, particles, 2], each from those before."""
    for _ in range(horizon):
        following = _next(frames[:, -3:], accelerations)
        frames = np.concatenate([frames, following[:, None]], axis=1)
    return frames[:, 3:]


def _none(frames: np.ndarray) -> np.ndarray:
    return np.zeros_like(frames[..., -1, :, :])


def _same_again(frames: np.ndarray) -> np.ndarray:
    return np.diff(frames, n=2, axis=-3)[..., 0, :, :]


def _own_accelerations(train: ParticleMotion, motion: ParticleMotion) -> Accelerations:
    """The linear map of velocity, velocity times mass, and velocity times charge that fits best."""
    x = train.positions.astype(np.float64)
    columns = _own_features(np.diff(x, axis=1)[:, :-1], train)
    wanted = np.diff(x, n=2, axis=1)
    weights = np.linalg.lstsq(columns.reshape(-1, 3), wanted.reshape(-1), rcond=None)[0]

    def accelerations(frames: np.ndarray) -> np.ndarray:
        velocities = frames[..., -1, :, :] - frames[..., -2, :, :]
        return _own_features(velocities, motion) @ weights

    return accelerations


def _own_features(velocities: np.ndarray, motion: ParticleMotion) -> np.ndarray:
    """Velocities [runs, ..., particles, 2] alone, times masses and times charges, [..., 3]."""
    shape = (motion.num_runs, *[1] * (velocities.ndim - 3), motion.num_particles, 1)
    kinds = motion.masses.reshape(shape), motion.charges.reshape(shape)
    return np.stack([velocities, *(kind * velocities for kind in kinds)], axis=-1)
