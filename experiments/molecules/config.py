"""Command-line options of the learnt potentials."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from experiments._options import PAGE_ALONE, Reporting, check_options, option
from jaxgnn._errors import bad_input

Model = Literal["schnet", "painn", "nequip"]
NAMES: dict[Model, str] = {"schnet": "SchNet", "painn": "PaiNN", "nequip": "NequIP"}
"""Names of the potentials in tables and pictures."""

# Endings of the files that can be read.
SUFFIXES = (".extxyz", ".xyz", ".extxyz.gz", ".xyz.gz", ".db")

# Minimum of each numeric option.
_LOWEST = {
    "structures": 8,
    "num_layers": 1,
    "features": 1,
    "energy_weight": 0,
    "batch_size": 1,
    "steps": 1,
    "learning_rate": 0,
    "eval_every": 0,
    "checkpoint_every": 0,
    "dynamics": 0,
    "temperature": 0,
}


@dataclass(frozen=True)
class TrainConfig:
    """Options of one training run.

    Attributes:
      system: generated data: silicon, whose energy depends on angles, or argon, whose energy is
        that of pairs; crystals and clusters.
      structures: number of generated structures.
      data: file of structures with energies and forces to learn instead, extxyz or ASE's .db, in
        electron volts and Å.
      energy_key: key of the energy in an extxyz file.
      forces_key: name of the forces in an extxyz file.
      validation: fraction of the structures to choose the best step by.
      test: fraction of the structures to score with.
      model: the potential: schnet, painn or nequip.
      cutoff: distance up to which atoms are neighbours, in Å; by default 3.8 for silicon, 6.5 for
        argon and 5.0 for a file.
      num_layers: number of interactions.
      features: width of the potential; of nequip, number of scalars, of vectors and of tensors.
      energy_weight: weight of the squared error of the energy per atom; that of forces is 1.
      batch_size: number of structures in a batch.
      steps: number of training steps.
      learning_rate: learning rate of Adam, which falls to zero along a cosine.
      dynamics: steps of a run of dynamics with the trained potential, of 1 fs each; 0 for none.
      temperature: temperature at which the dynamics starts, in kelvin.
      implementation: implementation of the ops; by default the fastest.
      seed: seed of the random streams of this run; commands have ``--seeds``.
      eval_every: steps between evaluations.
      checkpoint_every: steps between checkpoints; 0 for only the last.
      run: folder of the run; by default named after the options, below runs/molecules.
      fresh: discard the run in the folder instead of resuming it.
      progress: show a progress bar.
      report: files to write besides the report.
    """

    system: Literal["silicon", "argon"] = "silicon"
    structures: int = 800
    data: Path | None = None
    energy_key: str = "energy"
    forces_key: str = "forces"
    validation: float = 0.1
    test: float = 0.1
    model: Model = "nequip"
    cutoff: float | None = None
    num_layers: int = 2
    features: int = 8
    energy_weight: float = 30.0
    batch_size: int = 4
    steps: int = 900
    learning_rate: float = 0.01
    dynamics: int = 500
    temperature: float = 600.0
    implementation: Literal["xla", "pallas", "ffi"] | None = None
    seed: tyro.conf.Suppress[int] = 0
    eval_every: int = 300
    checkpoint_every: int = 500
    run: Path | None = None
    fresh: bool = False
    progress: bool = True
    report: Reporting = PAGE_ALONE

    def check(self) -> None:
        """Raises an error for invalid options, before any data is read.

        Raises:
          ValueError: naming the option as it is typed.
        """
        check_options("train", self, _LOWEST)
        if self.cutoff is not None and not 0 < self.cutoff < float("inf"):
            raise bad_input("train", "--cutoff", "a positive number", self.cutoff)
        for name in ("validation", "test"):
            if not 0 < getattr(self, name) < 1:
                raise bad_input("train", option(name), "in (0, 1)", getattr(self, name))
        if self.validation + self.test >= 1:
            got = f"{self.validation} and {self.test}"
            raise bad_input("train", "--validation and --test", "below 1 together", got)
        if self.data is not None and not self.data.name.endswith(SUFFIXES):
            expected = f"a file that ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
            raise bad_input("train", "--data", expected, self.data)
        has_keys = self.data is not None and self.data.suffix != ".db"
        for name in ("energy_key", "forces_key"):
            if not has_keys and getattr(self, name) != getattr(type(self), name):
                expected = "left out without --data of an extxyz file"
                raise bad_input("train", option(name), expected, getattr(self, name))

    def radius(self) -> float:
        """The cutoff: that of the options, or the default of the data."""
        defaults = {"silicon": 3.8, "argon": 6.5}
        default = 5.0 if self.data is not None else defaults[self.system]
        return default if self.cutoff is None else self.cutoff

    def data_name(self) -> str:
        """Name of the data in tables and folders."""
        return self.system if self.data is None else self.data.name.split(".")[0]

    def label(self) -> str:
        """Name of the potential in tables and pictures."""
        return NAMES[self.model]

    def variant_name(self) -> str:
        """Folder name that distinguishes the run from others of the same data."""
        return f"{self.model}-seed{self.seed}"

    def run_folder(self) -> Path:
        """Folder of the run: ``run``, by default a named folder below runs/molecules."""
        if self.run is not None:
            return self.run
        return Path("runs") / "molecules" / f"{self.data_name()}-{self.variant_name()}"
