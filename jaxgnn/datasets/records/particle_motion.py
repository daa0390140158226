"""The record of data sets of moving particles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxgnn.datasets.records.record import Record


@dataclass(frozen=True, repr=False)
class ParticleMotion(Record):
    """Positions of particles in equal intervals of time, recorded in several independent runs.

    Attributes:
      name: the system: ``"springs"`` or ``"charges"``.
      positions: [runs, frames, particles, 2] float32. In a periodic box they are not wrapped, so
        that differences between frames are velocities.
      masses: [runs, particles] float32.
      charges: [runs, particles] float32, zero in a system without charges.
      senders: [springs] int32, one end of each spring; both directions of a spring are listed, and
        all runs have the same springs. None for a system without springs.
      receivers: [springs] int32, the other end.
      lengths: [runs, springs] float32, length at which a spring exerts no force; or None.
      stiffness: [runs, springs] float32, force per length; or None.
      interval: time between two frames.
      reach: distance beyond which particles do not interact; None for springs.
      box: side of the periodic box; None for an open plane.
    """

    name: str
    positions: np.ndarray
    masses: np.ndarray
    charges: np.ndarray
    interval: float
    senders: np.ndarray | None = None
    receivers: np.ndarray | None = None
    lengths: np.ndarray | None = None
    stiffness: np.ndarray | None = None
    reach: float | None = None
    box: float | None = None

    @property
    def num_runs(self) -> int:
        """Number of independent runs."""
        return self.positions.shape[0]

    @property
    def num_frames(self) -> int:
        """Number of recorded frames of a run."""
        return self.positions.shape[1]

    @property
    def num_particles(self) -> int:
        """Number of particles of a run."""
        return self.positions.shape[2]

    def _facts(self) -> list[tuple[str, Any]]:
        shape = ("runs", self.num_runs), ("frames", self.num_frames)
        return [*shape, ("particles", self.num_particles)]
