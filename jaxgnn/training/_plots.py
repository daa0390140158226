"""Curves of one run, or of several beside each other, each with one seed or more."""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import numpy as np

from jaxgnn._errors import bad_input

from ._colours import PALETTE, colours
from ._log import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

History = Sequence[Row]

_Style = Literal["-", "--", ":", "-."]
_LINE_STYLES: tuple[_Style, ...] = ("-", "--", ":", "-.")
_MOST_COLUMNS = 3
# Legends above a panel have two columns if no text in them is longer.
_LETTERS_OF_A_COLUMN = 28
# A curve of fewer points shows them: a single one has no line.
_FEW_POINTS = 20


def plot_curves(
    histories: Mapping[str, History | Sequence[History]],
    path: str | os.PathLike[str],
    *,
    fields: Iterable[str] | None = None,
    title: str | None = None,
    best: Mapping[str, int | Sequence[int]] | None = None,
    axis_labels: Mapping[str, str] | None = None,
) -> None:
    """Draws loss and metrics against the step, and writes a PNG.

    Fields whose names end in the same word share a panel: ``validation accuracy`` and
    ``test accuracy``. A label keeps its colour in all panels, a field its line style; with a single
    label, each field has a colour. Implementations have the colours that they have in all
    pictures. What is not finite is a gap in the curve, and counted in the legend. A panel of losses
    has a logarithmic axis if all of them are positive and the largest is more than ten times the
    smallest.

    Args:
      histories: Rows by label; each row is a dict of ``step`` and other numbers, such as
        ``FitResult.history``. A row without a field is left out of that curve. A label may also
        have several histories, one for each seed: then its curve is the mean of those that have
        a finite value at a step, in a band of one standard deviation (of the sample) to each side.
      path: The PNG file.
      fields: What to draw; everything but ``step`` if None.
      title: Of the picture: data set, model, number of seeds.
      best: By label, the step of its best evaluation, or one for each of its seeds; marked by dots
        on the curves of the label that have a value there.
      axis_labels: What is written at the axes, by the last word of the fields of a panel and by
        ``step``, such as ``{"step": "epoch", "loss": "loss (nats)"}``; that word itself where
        there is none.

    Raises:
      ValueError: There is nothing to draw, a field occurs in no history, a row has no step, or
        ``best`` has a label without a history, or not one step for each of its histories.
    """
    # Half a second of start-up that a run without a picture need not pay.
    from matplotlib.figure import Figure

    seeds = {label: _seeds(history) for label, history in histories.items()}
    panels = _panels(seeds, fields)
    dots = _best_steps(seeds, best or {})
    curves = _curves(seeds, panels)

    columns = min(len(panels), _MOST_COLUMNS)
    rows_of_panels = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(5 * columns, 3.9 * rows_of_panels), dpi=120, layout="constrained")
    grid = figure.subplots(rows_of_panels, columns, squeeze=False).ravel()
    for axes, word in zip(grid, panels, strict=False):
        inside = [curve for curve in curves if curve.panel == word]
        _draw_panel(axes, inside, dots)
        axes.set_ylabel((axis_labels or {}).get(word, word))
        axes.set_xlabel((axis_labels or {}).get("step", "step"))
        _add_legend(axes, inside, dots, several=len(seeds) > 1)
    for axes in grid[len(panels) :]:
        axes.remove()
    _add_titles(figure, curves, title, several=len(seeds) > 1)
    figure.savefig(os.fspath(path), format="png")


@dataclass(frozen=True, eq=False)
class _Curve:
    """What a label has of one field.

    Attributes:
      label: Of its histories.
      field: Its name.
      panel: The last word of the field.
      colour: Of the line, as ``#rrggbb``.
      style: Of the line, in matplotlib's notation.
      steps: [points] int64, where any of the seeds has the field.
      values: [seeds, points] float64; NaN where a seed has none.
      missing: How many of the recorded values are not finite.
      recorded: How many there are.
    """

    label: str
    field: str
    panel: str
    colour: str
    style: _Style
    steps: np.ndarray
    values: np.ndarray
    missing: int
    recorded: int

    @property
    def gaps(self) -> str:
        """How many values have no place in the picture, which else would look like none at all."""
        return f" ({self.missing} of {self.recorded} not finite)" if self.missing else ""

    def mean_and_deviation(self) -> tuple[np.ndarray, np.ndarray]:
        """[points] each, over the seeds that have a value; the deviation of a single one is 0."""
        finite = np.isfinite(self.values)
        count = finite.sum(0)
        values = np.where(finite, self.values, 0.0)
        mean = np.divide(values.sum(0), count, out=np.full(len(count), np.nan), where=count > 0)
        squares = np.where(finite, (values - mean) ** 2, 0.0).sum(0)
        return mean, np.sqrt(squares / np.maximum(count - 1, 1))


def _seeds(history: History | Sequence[History]) -> list[History]:
    """The histories of a label, one for each seed."""
    if len(history) == 0 or isinstance(history[0], Mapping):
        return [cast(History, history)]
    return list(cast(Sequence[History], history))


def _panels(
    seeds: Mapping[str, Sequence[History]], fields: Iterable[str] | None
) -> dict[str, list[str]]:
    """The fields to draw, by their last word."""
    found: dict[str, None] = {}
    for label, histories in seeds.items():
        for rows in histories:
            for number, row in enumerate(rows, start=1):
                if "step" not in row:
                    raise ValueError(
                        f"plot_curves: row {number} of {label!r} has no step: {list(row)}"
                    )
                found.update(dict.fromkeys(row))
    found.pop("step", None)
    wanted = list(found if fields is None else fields)
    missing = [name for name in wanted if name not in found]
    if missing or not wanted:
        raise ValueError(
            f"plot_curves: no {missing or 'fields'} in the histories; they have {list(found)}"
        )
    panels: dict[str, list[str]] = {}
    for name in wanted:
        panels.setdefault(name.split()[-1], []).append(name)
    return panels


def _best_steps(
    seeds: Mapping[str, Sequence[History]], best: Mapping[str, int | Sequence[int]]
) -> dict[str, list[int]]:
    """By label, the best step of each of its histories; those that are not to be marked lack."""
    found = {}
    for label, steps in best.items():
        if label not in seeds:
            raise bad_input("plot_curves", "best", f"by labels among {list(seeds)}", repr(label))
        several = [steps] if isinstance(steps, int) else list(steps)
        if len(several) != len(seeds[label]):
            expected = f"a step for each of the {len(seeds[label])} histories"
            raise bad_input("plot_curves", f"best[{label!r}]", expected, steps)
        found[label] = several
    return found


def _curves(
    seeds: Mapping[str, Sequence[History]], panels: Mapping[str, Sequence[str]]
) -> list[_Curve]:
    shades, single = colours(seeds), len(seeds) == 1
    curves = []
    for label, histories in seeds.items():
        for panel, fields in panels.items():
            for index, field in enumerate(fields):
                points = [
                    {int(row["step"]): row[field] for row in rows if field in row}
                    for rows in histories
                ]
                steps = sorted(set().union(*points))
                if not steps:
                    continue
                recorded = [value for seed in points for value in seed.values()]
                curves.append(
                    _Curve(
                        label,
                        field,
                        panel,
                        PALETTE[index % len(PALETTE)] if single else shades[label],
                        "-" if single else _LINE_STYLES[index % len(_LINE_STYLES)],
                        np.array(steps),
                        np.array([[seed.get(step, math.nan) for step in steps] for seed in points]),
                        sum(not math.isfinite(value) for value in recorded),
                        len(recorded),
                    )
                )
    return curves


def _draw_panel(axes: "Axes", curves: Sequence[_Curve], dots: Mapping[str, Sequence[int]]) -> None:
    finite = np.concatenate([curve.values[np.isfinite(curve.values)] for curve in curves])
    is_loss = curves[0].panel == "loss" and finite.size > 0 and finite.min() > 0
    if is_loss and finite.max() > 10 * finite.min():
        axes.set_yscale("log")
    for curve in curves:
        mean, deviation = curve.mean_and_deviation()
        marker = "o" if len(mean) < _FEW_POINTS else None
        axes.plot(
            curve.steps,
            mean,
            color=curve.colour,
            linestyle=curve.style,
            linewidth=1.4,
            marker=marker,
            markersize=3,
        )
        if len(curve.values) > 1:
            # Below zero there is no logarithm: there the band ends at the smallest value.
            low = mean - deviation
            if axes.get_yscale() == "log":
                low = np.maximum(low, finite.min())
            axes.fill_between(
                curve.steps, low, mean + deviation, color=curve.colour, alpha=0.18, linewidth=0
            )
        places = np.isin(curve.steps, dots.get(curve.label, ()))
        axes.plot(
            curve.steps[places],
            mean[places],
            linestyle="none",
            marker="o",
            markersize=6,
            markerfacecolor=curve.colour,
            markeredgecolor="white",
            zorder=5,
        )
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _add_legend(
    axes: "Axes", curves: Sequence[_Curve], dots: Mapping[str, Sequence[int]], *, several: bool
) -> None:
    """Says above a panel which field each line is, which values it lacks, and what the dots are."""
    entries = _of_several_labels(curves) if several else _of_one_label(curves)
    steps = [step for curve in curves for step in _drawn_dots(curve, dots)]
    if steps:
        text = f"best, step {steps[0]}" if len(set(steps)) == 1 else "best step"
        dot = _key(text, "0.4", "-")
        dot.set(marker="o", markersize=6, markeredgecolor="white", linestyle="none")
        entries.append(dot)
    if entries:
        longest = max(len(str(entry.get_label())) for entry in entries)
        axes.legend(
            handles=entries,
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=1 if longest > _LETTERS_OF_A_COLUMN else 2,
            frameon=False,
            fontsize="small",
        )


def _of_one_label(curves: Sequence[_Curve]) -> list["Line2D"]:
    return [_key(curve.field + curve.gaps, curve.colour, curve.style) for curve in curves]


def _of_several_labels(curves: Sequence[_Curve]) -> list["Line2D"]:
    """The styles of the fields, in grey: the legend of the picture tells whose each colour is."""
    styles = {curve.field: curve.style for curve in curves}
    fields = [_key(field, "0.4", style) for field, style in styles.items()]
    gaps = [
        _key(f"{curve.label}: {curve.field}{curve.gaps}", curve.colour, curve.style)
        for curve in curves
        if curve.gaps
    ]
    return (fields if len(fields) > 1 else []) + gaps


def _drawn_dots(curve: _Curve, dots: Mapping[str, Sequence[int]]) -> list[int]:
    return [step for step in dots.get(curve.label, ()) if step in curve.steps]


def _key(label: str, colour: str, style: _Style) -> "Line2D":
    """A line for a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, linestyle=style, label=label)


def _add_titles(
    figure: "Figure", curves: Sequence[_Curve], title: str | None, *, several: bool
) -> None:
    """The title of the picture and, below the panels, which label each colour is."""
    if title is not None:
        figure.suptitle(title)
    if several:
        shades = {_with_seeds(curve): curve.colour for curve in curves}
        figure.legend(
            handles=[_key(label, shade, "-") for label, shade in shades.items()],
            loc="outside lower center",
            ncols=min(len(shades), 4),
            frameon=False,
        )


def _with_seeds(curve: _Curve) -> str:
    seeds = len(curve.values)
    return f"{curve.label} ({seeds} seeds)" if seeds > 1 else curve.label
