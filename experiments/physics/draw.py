"""Pictures of a rollout beside the simulator: an animation, or a strip of frames."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments._runs import shown
from experiments.physics.config import DrawConfig
from experiments.physics.data import World, on_device
from experiments.physics.rollout import load, new_runs
from experiments.physics.setup import predicted, start
from jaxgnn._errors import bad_input
from jaxgnn.datasets import ParticleMotion

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {"negative": "tab:blue", "positive": "tab:red", "neutral": "tab:gray"}
# Milliseconds between two frames of an animation.
_PACE = 80


@dataclass(frozen=True)
class Film:
    """The frames of one run.

    Attributes:
      motion: the simulated runs, of which the first is drawn.
      sides: frames [frames, particles, 2] by title: of the simulator and of the network.
    """

    motion: ParticleMotion
    sides: dict[str, np.ndarray]


def run(options: DrawConfig) -> None:
    """Rolls a trained network out and writes the picture.

    Raises:
      ValueError: if an option or the run is invalid, or neighbours are missing in the rollout.
    """
    options.check("draw")
    trained = load("draw", options.run, options.system)
    motion = new_runs("draw", options, trained)
    first, world, runs = start(trained.config.history), World.of(motion), on_device(motion)
    rolled, missing = predicted(trained.model, world, runs, options.frames, trained.config.history)
    if missing:
        expected = f"such that no particle has more than {world.capacity} neighbours"
        raise bad_input("draw", "the predicted positions", expected, "more")
    sides = {"simulator": motion.positions[0, first:], trained.config.label(): rolled[0]}
    out = options.run / "rollout.gif" if options.out is None else options.out
    film = Film(motion, sides)
    if out.suffix == ".gif":
        animate(film, out)
    else:
        draw_strip(film, out, options.strip)
    print(
        f"{options.frames} frames of {motion.num_particles} {motion.name}: {shown(out.absolute())}"
    )


def animate(film: Film, path: Path) -> None:
    """Writes an animated GIF, the simulator on the left and the network on the right."""
    from matplotlib.animation import FuncAnimation, PillowWriter

    figure, axes = _figure(1, len(film.sides), 3.2)
    frames = len(next(iter(film.sides.values())))

    def show(time: int) -> list[Any]:
        for ax, (title, positions) in zip(axes[0], film.sides.items(), strict=True):
            _draw_frame(ax, film, positions, time, f"{title}, frame {time + 1}")
        return []

    animation = FuncAnimation(figure, show, frames=frames, interval=_PACE, init_func=lambda: [])
    animation.save(path, writer=PillowWriter(fps=1000 // _PACE), dpi=80)


def draw_strip(film: Film, path: Path, count: int) -> None:
    """Writes a picture of some frames, the simulator above and the network below."""
    figure, axes = _figure(len(film.sides), count, 2.2)
    frames = len(next(iter(film.sides.values())))
    times = np.linspace(0, frames - 1, count).round().astype(int)
    for row, (title, positions) in zip(axes, film.sides.items(), strict=True):
        for ax, time in zip(row, times, strict=True):
            _draw_frame(ax, film, positions, int(time), f"{title}, frame {time + 1}")
    figure.savefig(path, dpi=120)


def _figure(rows: int, columns: int, side: float) -> tuple[Any, np.ndarray]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(columns * side, rows * (side + 0.2)), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)


def _draw_frame(ax: Axes, film: Film, positions: np.ndarray, time: int, title: str) -> None:
    """Draws the particles and the springs of a frame."""
    motion, x = film.motion, positions[time]
    ax.clear()
    if motion.box is not None:
        x, low, high = x % motion.box, np.zeros(2), np.full(2, motion.box)
    else:
        every = np.concatenate([side.reshape(-1, 2) for side in film.sides.values()])
        low, high = every.min(axis=0) - 0.3, every.max(axis=0) + 0.3
    if motion.senders is not None and motion.receivers is not None:
        ends = np.stack([x[motion.senders], x[motion.receivers]])
        ax.plot(*np.moveaxis(ends, 2, 0), color="0.7", linewidth=1, zorder=1)
    charges = motion.charges[0]
    kinds = np.where(charges > 0, "positive", np.where(charges < 0, "negative", "neutral"))
    colours = [_COLOURS[kind] for kind in kinds]
    ax.scatter(*x.T, s=60 * motion.masses[0], c=colours, edgecolors="white", zorder=2)
    ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), xticks=[], yticks=[], aspect="equal")
    ax.set_title(title, fontsize=8)
