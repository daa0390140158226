"""Pictures of a rollout beside the simulator: an animation, or a strip of frames."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments._runs import shown
from experiments.physics.config import DrawConfig
from experiments.physics.data import World, on_device
from experiments.physics.rollout import load, new_runs, roll_out
from experiments.physics.setup import start
from jaxgnn.datasets import ParticleMotion

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Colours of negative, positive and no charges.
_COLOURS = {-1: "tab:blue", 1: "tab:red", 0: "tab:gray"}
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
    rolled = roll_out("draw", trained, world, runs, options.frames)
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
    panels = [_Panel(ax, film, title) for ax, title in zip(axes[0], film.sides, strict=True)]

    def show(time: int) -> list[Any]:
        for panel in panels:
            panel.show(time)
        return []

    frames = len(next(iter(film.sides.values())))
    animation = FuncAnimation(figure, show, frames=frames, interval=_PACE, init_func=lambda: [])
    animation.save(path, writer=PillowWriter(fps=1000 // _PACE), dpi=80)


def draw_strip(film: Film, path: Path, count: int) -> None:
    """Writes a picture of some frames, the simulator above and the network below."""
    figure, axes = _figure(len(film.sides), count, 2.2)
    frames = len(next(iter(film.sides.values())))
    times = np.linspace(0, frames - 1, count).round().astype(int)
    for row, title in zip(axes, film.sides, strict=True):
        for ax, time in zip(row, times.tolist(), strict=True):
            _Panel(ax, film, title).show(time)
    figure.savefig(path, dpi=120)


def _figure(rows: int, columns: int, side: float) -> tuple[Any, np.ndarray]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(columns * side, rows * (side + 0.2)))
    FigureCanvasAgg(figure)
    figure.subplots_adjust(left=0.01, right=0.99, bottom=0.01, top=0.94, wspace=0.03, hspace=0.12)
    return figure, figure.subplots(rows, columns, squeeze=False)


class _Panel:
    """The particles and springs of one side of a film, which move in their axes.

    Args:
      ax: the axes.
      film: the film.
      title: the side.
    """

    def __init__(self, ax: Axes, film: Film, title: str):
        from matplotlib.collections import LineCollection

        motion = film.motion
        self.ax, self.title, self.motion = ax, title, motion
        self.positions = film.sides[title]
        low, high = _limits(film)
        ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), xticks=[], yticks=[], aspect="equal")
        self.lines = LineCollection([], colors="0.7", linewidths=1, zorder=1)
        ax.add_collection(self.lines)
        kinds = np.sign(motion.charges[0]).astype(int).tolist()
        colours, sizes = [_COLOURS[kind] for kind in kinds], 60 * motion.masses[0]
        places = np.zeros(motion.num_particles)
        self.dots = ax.scatter(places, places, s=sizes, c=colours, edgecolors="white", zorder=2)

    def show(self, time: int) -> None:
        """Moves everything to a frame."""
        motion, x = self.motion, self.positions[time]
        x = x if motion.box is None else x % motion.box
        self.dots.set_offsets(x)
        if motion.senders is not None and motion.receivers is not None:
            self.lines.set_segments(
                list(np.stack([x[motion.senders], x[motion.receivers]], axis=1))
            )
        self.ax.set_title(f"{self.title}, frame {time + 1}", fontsize=8)


def _limits(film: Film) -> tuple[np.ndarray, np.ndarray]:
    """The corners of what is drawn: the box, or all positions of both sides."""
    if film.motion.box is not None:
        return np.zeros(2), np.full(2, film.motion.box)
    every = np.concatenate([side.reshape(-1, 2) for side in film.sides.values()])
    return every.min(axis=0) - 0.3, every.max(axis=0) + 0.3
