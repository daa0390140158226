"""Parts of a run: its loss, optimiser, length and scores."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from experiments._seeds import streams
from experiments.physics.config import TrainConfig
from experiments.physics.data import Runs, World, on_device
from experiments.physics.errors import Errors, errors_of
from experiments.physics.simulator import Simulator
from jaxgnn.datasets import ParticleMotion
from jaxgnn.models import random_walk_noise
from jaxgnn.training import LoopConfig, jit_apply


@dataclass(frozen=True)
class Loss:
    """Mean squared error of accelerations, at frames that are drawn in each step.

    The positions that the network reads have the noise of a random walk. The acceleration that it
    should predict leads from the noisy velocity to the true one, so that it learns to correct its
    own errors.

    Attributes:
      world: which particles interact.
      history: number of velocities that the network reads.
      noise: standard deviation of the noise of the last velocity, as a fraction of velocities.
      examples: number of frames drawn on each device.
    """

    world: World
    history: int
    noise: float
    examples: int

    def __call__(self, model: Simulator, runs: Runs, rngs: nnx.Rngs):
        positions, length = runs.positions, self.history + 2
        which, when, walk = jax.random.split(rngs.examples(), 3)
        chosen = jax.random.randint(which, (self.examples,), 0, positions.shape[0])
        starts = jax.random.randint(when, (self.examples,), 0, positions.shape[1] - length + 1)
        frames = positions[chosen[:, None], starts[:, None] + jnp.arange(length)]
        window, following = frames[:, :-1], frames[:, -1]
        scale = self.noise * model.velocity_scale[...]
        noise = random_walk_noise(walk, window, 1.0) * scale
        window = window + noise
        # The noise of the last position is part of the next one; only velocities are corrected.
        wanted = following + noise[:, -1] - 2 * window[:, -1] + window[:, -2]
        bodies = jax.tree.map(lambda rows: rows[chosen], runs.bodies)
        found, _ = model(self.world, window, bodies)
        return jnp.mean(jnp.square(found - wanted / model.acceleration_scale[...])), {}


class Scores:
    """Errors of a network on the runs of validation and test.

    Args:
      world: which particles interact.
      parts: the runs, by the name of the part.
      horizon: number of frames of a rollout.
      history: number of velocities that the network reads.
    """

    def __init__(self, world: World, parts: dict[str, ParticleMotion], horizon: int, history: int):
        self._world, self._horizon, self._history = world, horizon, history
        self._parts = {name: (motion, on_device(motion)) for name, motion in parts.items()}

    def errors(self, model: Simulator, name: str) -> Errors:
        """The errors on a part."""
        motion, runs = self._parts[name]
        return network_errors(model, self._world, motion, runs, self._horizon, self._history)

    def __call__(self, model: Simulator) -> dict[str, float]:
        return {
            f"{part} {name}": value
            for part in self._parts
            for name, value in self.errors(model, part).scores().items()
        }


def network_errors(
    model: Simulator, world: World, motion: ParticleMotion, runs: Runs, horizon: int, history: int
) -> Errors:
    """One-step errors of a network at all frames, and those of a rollout from the first frames.

    If neighbours are missing in the rollout, as they may be early in training, its errors are NaN.
    """
    frames, missing = predicted(model, world, runs, horizon, history)
    frames = np.full_like(frames, np.nan) if missing else frames
    single = np.asarray(_one_step(model, world, runs, history=history))
    return errors_of(motion, single, frames, start(history))


def predicted(
    model: Simulator, world: World, runs: Runs, frames: int, history: int
) -> tuple[np.ndarray, bool]:
    """A rollout [runs, frames, particles, 2] after ``start(history)`` frames of each run.

    Also whether a particle had more neighbours than there is space for.
    """
    first = start(history)
    window = runs.positions[:, first - history - 1 : first]
    found, missing = _roll_out(model, world, window, runs.bodies, frames=frames)
    return np.asarray(found), bool(missing)


def start(history: int) -> int:
    """Number of frames before a rollout; three at least, which accelerations need."""
    return max(history + 1, 3)


def _rolled(model: Simulator, world: World, window, bodies, *, frames: int):
    return model.roll_out(world, window, bodies, frames)


_roll_out = jit_apply(_rolled)


def _each_frame(model: Simulator, world: World, runs: Runs, *, history: int) -> jax.Array:
    """The predicted position of every frame after ``start(history)``, one frame at a time."""
    positions, first = runs.positions, start(history)
    times = jnp.arange(first, positions.shape[1])
    frames = times[:, None] + jnp.arange(-history - 1, 0)

    def at(window_frames: jax.Array) -> jax.Array:
        window = positions[:, window_frames]
        change = model(world, window, runs.bodies)[0] * model.acceleration_scale[...]
        return 2 * window[:, -1] - window[:, -2] + change

    return jnp.moveaxis(jax.lax.map(at, frames), 0, 1)


_one_step = jit_apply(_each_frame)


def optimizer_of(config: TrainConfig) -> optax.GradientTransformation:
    """Adam, whose learning rate falls to zero along a cosine."""
    return optax.adam(optax.cosine_decay_schedule(config.learning_rate, config.steps))


def loop_of(config: TrainConfig) -> LoopConfig:
    """Length of the training, and the intervals of evaluations and saves."""
    return LoopConfig(
        steps=config.steps,
        eval_every=config.eval_every,
        checkpoint_every=config.checkpoint_every,
        seed=streams(config.seed).training,
        select="validation rollout",
        select_mode="min",
        examples_per_step=config.batch_size,
        examples="frames",
    )


def loss_of(config: TrainConfig, world: World) -> Loss:
    """The loss of the options, with a device's share of the examples."""
    return Loss(world, config.history, config.noise, config.batch_size // config.devices)
