"""Curves of one run, or of several beside each other."""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ._log import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LINE_STYLES = ("-", "--", ":", "-.")
_MOST_COLUMNS = 3


def plot_curves(
    histories: Mapping[str, Sequence[Row]],
    path: str | os.PathLike[str],
    *,
    fields: Iterable[str] | None = None,
) -> None:
    """Draws loss and metrics against the step, and writes a PNG.

    Fields whose names end in the same word share a panel: ``validation accuracy`` and
    ``test accuracy``. A run keeps its colour in all panels, a field its line style; with a single
    run, each field has a colour. What is not finite is a gap in the curve, and counted in its
    label.

    Args:
      histories: Rows by label of the run; each row is a dict of ``step`` and other numbers, such as
        ``FitResult.history``. A row without a field is left out of that curve.
      path: The PNG file.
      fields: What to draw; everything but ``step`` if None.

    Raises:
      ValueError: There is nothing to draw, a field occurs in no history, or a row has no step.
    """
    # Half a second of start-up that a run without a picture need not pay.
    from matplotlib.figure import Figure

    found = {name: None for rows in histories.values() for row in rows for name in row}
    found.pop("step", None)
    wanted = list(found if fields is None else fields)
    missing = [name for name in wanted if name not in found]
    if missing or not wanted:
        raise ValueError(
            f"plot_curves: no {missing or 'fields'} in the histories; they have {list(found)}"
        )

    for label, rows in histories.items():
        for number, row in enumerate(rows, start=1):
            if "step" not in row:
                raise ValueError(f"plot_curves: row {number} of {label!r} has no step: {list(row)}")

    panels: dict[str, list[str]] = {}
    for name in wanted:
        panels.setdefault(name.split()[-1], []).append(name)
    columns = min(len(panels), _MOST_COLUMNS)
    rows_of_panels = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(5 * columns, 3.6 * rows_of_panels), dpi=120, layout="constrained")
    grid = figure.subplots(rows_of_panels, columns, squeeze=False).ravel()
    for axes, (title, names) in zip(grid, panels.items(), strict=False):
        _draw_panel(axes, title, names, histories)
    for axes in grid[len(panels) :]:
        axes.remove()
    figure.savefig(os.fspath(path), format="png")


def _draw_panel(
    axes: "Axes", title: str, names: Sequence[str], histories: Mapping[str, Sequence[Row]]
) -> None:
    single = len(histories) == 1
    for run, (label, rows) in enumerate(histories.items()):
        for index, name in enumerate(names):
            points = [(row["step"], row[name]) for row in rows if name in row]
            if not points:
                continue
            steps, values = zip(*points, strict=True)
            axes.plot(
                steps,
                values,
                color=f"C{(index if single else run) % 10}",
                linestyle="-" if single else _LINE_STYLES[index % len(_LINE_STYLES)],
                linewidth=1.4,
                # A single point has no line.
                marker="o" if len(points) < 20 else None,
                markersize=3,
                label=_curve_label(label, name, single, len(names)) + _gaps(values),
            )
    axes.set_title(title)
    axes.set_xlabel("step")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small")


def _gaps(values: Sequence[float]) -> str:
    """Says how many values have no place in the picture, which else would look like none at all."""
    missing = sum(not math.isfinite(value) for value in values)
    return f" ({missing} of {len(values)} not finite)" if missing else ""


def _curve_label(label: str, name: str, single: bool, fields: int) -> str:
    if single:
        return name
    return label if fields == 1 else f"{label}: {name}"
