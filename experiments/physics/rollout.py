"""Rollouts of a trained network on new runs, beside the simulator."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from flax import nnx

from experiments._runs import shown
from experiments.physics.config import RolloutConfig, TrainConfig, check_particles
from experiments.physics.data import Runs, World, on_device, simulate
from experiments.physics.errors import trivial_errors
from experiments.physics.setup import network_errors, predicted, start
from experiments.physics.simulator import Simulator
from experiments.physics.tables import errors_table
from jaxgnn import datasets
from jaxgnn._errors import bad_input
from jaxgnn.datasets import ParticleMotion
from jaxgnn.training import load_model


@dataclass(frozen=True)
class Trained:
    """A trained network.

    Attributes:
      config: the options that it was trained with.
      model: the network at its best step.
      motion: the runs that it was trained on.
    """

    config: TrainConfig
    model: Simulator
    motion: ParticleMotion


def load(command: str, folder: Path, system: str | None = None) -> Trained:
    """Loads the best network of a run.

    Args:
      command: the command, which messages begin with.
      folder: the folder of the run.
      system: the system that the run should be of; None for any.

    Raises:
      ValueError: if the folder is not that of a run of ``train``, it is of another system, or it
        has no checkpoint.
    """
    config = _config_of(command, folder)
    if system not in (None, config.system):
        raise bad_input(command, "--system", f"{config.system}, that of {folder}", system)
    motion = simulate(config).train
    model = load_model(folder, Simulator(config, motion, nnx.Rngs(0)), which="best")
    return Trained(config, model, motion)


def _config_of(command: str, folder: Path) -> TrainConfig:
    """The options of a run, from its ``config.json``."""
    expected = "the folder of a run, which experiments.physics train writes"
    try:
        saved = json.loads((folder / "config.json").read_text())
    except json.JSONDecodeError as error:
        raise bad_input(command, "--run", expected, f"{folder} ({error})") from error
    names = {field.name for field in fields(TrainConfig)} - {"run", "report"}
    if not isinstance(saved, dict) or not names <= saved.keys() or "system" not in saved:
        raise bad_input(command, "--run", expected, f"{folder}, another experiment's")
    return TrainConfig(**{name: saved[name] for name in names} | {"devices": 1})


def new_runs(command: str, options: RolloutConfig, trained: Trained) -> ParticleMotion:
    """Simulates runs that training has not seen."""
    count = trained.config.particles if options.particles is None else options.particles
    check_particles(command, trained.config.system, count)
    return datasets.particles(
        trained.config.system,
        runs=options.runs,
        frames=options.frames + start(trained.config.history),
        num_particles=count,
        seed=options.seed,
    )


def roll_out(command: str, trained: Trained, world: World, runs: Runs, frames: int) -> np.ndarray:
    """The frames that a network predicts for some runs, [runs, frames, particles, 2].

    Raises:
      ValueError: if a particle has more neighbours than there is space for.
    """
    rolled, missing = predicted(trained.model, world, runs, frames, trained.config.history)
    if missing:
        expected = f"such that no particle has more than {world.capacity} neighbours"
        raise bad_input(
            command, "the predicted positions", expected, "more; roll out fewer --frames"
        )
    return rolled


def run(options: RolloutConfig) -> None:
    """Prints the errors of rollouts beside methods without a network, and stores the positions.

    Raises:
      ValueError: if an option or the run is invalid.
    """
    options.check("rollout")
    trained = load("rollout", options.run, options.system)
    motion = new_runs("rollout", options, trained)
    first, world, runs = start(trained.config.history), World.of(motion), on_device(motion)
    history, frames = trained.config.history, options.frames
    rolled = roll_out("rollout", trained, world, runs, frames)
    found = trivial_errors(trained.motion, motion, frames, first)
    network = network_errors(trained.model, world, motion, runs, frames, history)
    found[trained.config.label()] = network
    title = f"Rollouts of {motion.num_runs} new runs of {motion.num_particles} {motion.name}"
    print(errors_table(title, [found]).text())
    energies = _energies(motion, rolled, first)
    print(f"energy at the start {energies[0]:.2f}, at the end {energies[1]:.2f}, ", end="")
    print(f"of the network {energies[2]:.2f} (mean of the runs)")
    path = options.run / "rollout.npz"
    np.savez(path, predicted=rolled, simulated=motion.positions[:, first:])
    print(f"positions: {shown(path.absolute())}")


def _energies(motion: ParticleMotion, rolled: np.ndarray, first: int) -> tuple[float, ...]:
    """Mean energies: at the start, and at the end in the simulator and of the network."""
    simulated = datasets.particle_energy(motion)
    frames = np.concatenate([motion.positions[:, :first], rolled], axis=1)
    predicted = datasets.particle_energy(motion, frames)
    return tuple(float(np.mean(e)) for e in (simulated[:, 0], simulated[:, -1], predicted[:, -1]))
