"""Command-line options of the learnt simulators."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from experiments._options import PAGE_ALONE, BatchDevices, Reporting, check_options, option
from jaxgnn._errors import bad_input

System = Literal["springs", "charges"]
# The fewest particles that the library simulates.
_FEWEST = {"springs": 4, "charges": 9}

# Minimum of each numeric option.
_LOWEST = {
    "runs": 1,
    "frames": 4,
    "horizon": 1,
    "num_steps": 1,
    "num_layers": 1,
    "hidden_features": 1,
    "history": 1,
    "noise": 0,
    "batch_size": 1,
    "steps": 1,
    "learning_rate": 0,
    "eval_every": 0,
    "checkpoint_every": 0,
}


@dataclass(frozen=True)
class TrainConfig(BatchDevices):
    """Options of one training run.

    Attributes:
      system: springs are balls joined by springs, with friction; charges attract and repel each
        other in a periodic box.
      particles: number of particles.
      runs: number of simulated runs to train on; a quarter as many validate, and as many test.
      frames: number of frames of each run.
      horizon: number of frames that are rolled out to validate and to test.
      num_steps: number of interaction networks, one after the other.
      num_layers: number of hidden layers of each perceptron.
      hidden_features: width of the network.
      history: number of earlier velocities that the network reads.
      noise: standard deviation of the noise of velocities in training, as a fraction of theirs.
      batch_size: number of frames in a batch.
      steps: number of training steps.
      learning_rate: learning rate of Adam, which falls to zero along a cosine.
      dtype: dtype of the computation; parameters are float32.
      implementation: implementation of the ops; by default the fastest.
      seed: seed of the random streams of this run; commands have ``--seeds``.
      eval_every: steps between evaluations.
      checkpoint_every: steps between checkpoints; 0 for only the last.
      run: folder of the run; by default named after the options, below runs/physics.
      fresh: discard the run in the folder instead of resuming it.
      progress: show a progress bar.
      report: files to write besides the report.
    """

    system: System = "springs"
    particles: int = 16
    runs: int = 64
    frames: int = 100
    horizon: int = 50
    num_steps: int = 2
    num_layers: int = 1
    hidden_features: int = 64
    history: int = 1
    noise: float = 0.003
    batch_size: int = 32
    steps: int = 5000
    learning_rate: float = 0.002
    dtype: Literal["float32", "bfloat16"] = "float32"
    implementation: Literal["xla", "pallas", "ffi"] | None = None
    seed: tyro.conf.Suppress[int] = 0
    eval_every: int = 500
    checkpoint_every: int = 1000
    run: Path | None = None
    fresh: bool = False
    progress: bool = True
    report: Reporting = PAGE_ALONE

    def check(self) -> None:
        """Raises an error for invalid options, before anything is simulated.

        Raises:
          ValueError: naming the option as it is typed.
        """
        check_options("train", self, _LOWEST)
        check_particles("train", self.system, self.particles)
        self.check_devices("train", self.batch_size)
        if self.runs % self.devices:
            expected = f"divisible by --devices {self.devices}"
            raise bad_input("train", "--runs", expected, self.runs)
        # Accelerations need three frames, whatever the history.
        most = self.frames - max(self.history, 2) - 1
        for name in ("horizon", "history"):
            if getattr(self, name) > max(most, 1):
                expected = f"at most {max(most, 1)} with --frames {self.frames}"
                raise bad_input("train", option(name), expected, getattr(self, name))

    def label(self) -> str:
        """Name of the network in tables and pictures."""
        return f"network, {self.num_steps} step{'s' * (self.num_steps > 1)}"

    def variant_name(self) -> str:
        """Folder name that distinguishes the run from others of the same system."""
        return f"seed{self.seed}"

    def run_folder(self) -> Path:
        """Folder of the run: ``run``, by default a named folder below runs/physics."""
        if self.run is not None:
            return self.run
        return Path("runs") / "physics" / f"{self.system}-{self.variant_name()}"


@dataclass(frozen=True)
class RolloutConfig:
    """Options of a rollout of a trained network.

    Attributes:
      run: folder of a run of ``train``; by default that of its defaults.
      system: springs or charges, if the run may be only of this system.
      particles: number of particles; by default as many as in training.
      frames: number of frames that are rolled out.
      runs: number of new runs to compare with the simulator.
      seed: seed of the new runs, which are of other springs than those of training.
    """

    run: Path = Path("runs/physics/springs-seed0")
    system: System | None = None
    particles: int | None = None
    frames: int = 100
    runs: int = 16
    seed: int = 1000

    def check(self, command: str) -> None:
        """Raises an error for invalid options.

        Raises:
          ValueError: naming the command and the option as it is typed.
        """
        check_options(command, self, {"frames": 2, "runs": 1, "seed": 0})
        if self.particles is not None:
            check_particles(command, self.system or "springs", self.particles)
        if not (self.run / "config.json").is_file():
            expected = "the folder of a run, which experiments.physics train writes"
            raise bad_input(command, "--run", expected, self.run)


@dataclass(frozen=True)
class DrawConfig(RolloutConfig):
    """Options of a picture of a rollout.

    Attributes:
      run: folder of a run of ``train``; by default that of its defaults.
      system: springs or charges, if the run may be only of this system.
      particles: number of particles; by default as many as in training.
      frames: number of frames that are rolled out.
      runs: number of new runs, of which the first is drawn.
      seed: seed of the new runs, which are of other springs than those of training.
      out: file to write: an animation if it ends in .gif, a strip of frames if it ends in .png; by
        default rollout.gif in the folder of the run.
      strip: number of frames of a strip.
    """

    runs: int = 1
    out: Path | None = None
    strip: int = 6

    def check(self, command: str) -> None:
        """Raises an error for invalid options.

        Raises:
          ValueError: naming the command and the option as it is typed.
        """
        super().check(command)
        check_options(command, self, {"strip": 2})
        if self.out is not None and self.out.suffix not in (".gif", ".png"):
            raise bad_input(command, "--out", "a file that ends in .gif or .png", self.out)
        if self.out is not None and not self.out.absolute().parent.is_dir():
            raise bad_input(command, "--out", "a file in a folder that exists", self.out)


def check_particles(command: str, system: System, particles: int) -> None:
    """Raises ValueError if there are too few particles for a system."""
    if particles < _FEWEST[system]:
        expected = f"at least {_FEWEST[system]} for {system}"
        raise bad_input(command, "--particles", expected, particles)
