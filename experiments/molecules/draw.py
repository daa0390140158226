"""Pictures of a trained potential."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments.molecules.dynamics import Trajectory
from experiments.molecules.errors import Prediction
from jaxgnn.training.plots import PALETTE


def draw_results(
    predictions: Mapping[str, Sequence[Prediction]],
    trajectory: Trajectory | None,
    path: Path,
    title: str,
) -> None:
    """Draws predicted against true forces and, after dynamics, energies against time.

    Args:
      predictions: predictions for the test structures, by the name of the method.
      trajectory: energies of a run of dynamics, or None.
      path: the PNG file.
      title: title of the picture.
    """
    # Takes half a second, which runs without a picture avoid.
    from matplotlib.figure import Figure

    panels = 1 if trajectory is None else 2
    figure = Figure(figsize=(5 * panels, 4.2), dpi=120, layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    _draw_forces(axes[0], predictions)
    if trajectory is not None:
        _draw_energies(axes[1], trajectory)
    for each in axes:
        each.grid(alpha=0.25)
        each.spines[["top", "right"]].set_visible(False)
        each.legend(frameon=False, fontsize="small")
    figure.suptitle(title)
    figure.savefig(path, format="png")


def _draw_forces(axes, predictions: Mapping[str, Sequence[Prediction]]) -> None:
    for (name, rows), colour in zip(predictions.items(), PALETTE[1::-1], strict=False):
        true, found = (
            np.concatenate([getattr(row, field).ravel() for row in rows])
            for field in ("true_forces", "forces")
        )
        axes.plot(true, found, ".", markersize=2, color=colour, label=name)
        axes.plot([true.min(), true.max()], [true.min(), true.max()], color="0.3", linewidth=0.8)
    axes.set_xlabel("true force, eV/Å")
    axes.set_ylabel("predicted force, eV/Å")


def _draw_energies(axes, trajectory: Trajectory) -> None:
    for name, colour in zip(("potential", "total"), PALETTE, strict=False):
        energies = getattr(trajectory, name)
        axes.plot(trajectory.times, 1e3 * (energies - energies[0]), color=colour, label=name)
    axes.set_xlabel("time, fs")
    axes.set_ylabel("energy per atom minus that at the start, meV")
