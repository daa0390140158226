"""Curves of one run, or of several for comparison, each with one seed or more."""

import itertools
import math
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import numpy as np

from jaxgnn._errors import bad_input

from .files import Row, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

History = Sequence[Row]

_Style = Literal["-", "--", ":", "-."]
_LINE_STYLES: tuple[_Style, ...] = ("-", "--", ":", "-.")
_MOST_COLUMNS = 3
# Widths of lines, from the first label to the last, so that covered lines stay visible.
_WIDEST, _THINNEST = 2.2, 1.3
# Legends above a panel have two columns if no text in them is longer.
_LETTERS_OF_A_COLUMN = 28
# Numbers of letters that fit below a panel, and that the line beside a label and the gap take.
_LETTERS_OF_A_PANEL, _LETTERS_OF_A_KEY = 60, 8
# A curve with fewer points shows them: a single point has no line.
_FEW_POINTS = 20
# Look of the dots at the best evaluations.
_DOT = {"marker": "o", "markersize": 6, "markeredgecolor": "white", "linestyle": "none"}

# Ten colours that differ in lightness as well as in hue, dark enough to read on white.
PALETTE = (
    "#1f77b4",
    "#ff7f0e",
    "#2ca02c",
    "#d62728",
    "#9467bd",
    "#8c564b",
    "#e377c2",
    "#7f7f7f",
    "#bcbd22",
    "#17becf",
)

_GEOMETRIC = "#7a0f4d"

_IMPLEMENTATIONS = {
    # This library.
    "xla": PALETTE[0],
    "pallas": PALETTE[1],
    "ffi": PALETTE[2],
    # Other libraries, in shades that the palette does not have.
    "numpy": "#b0b0b0",
    "scipy": "#5b3a8c",
    "jax": "#0b3c6f",
    "jraph": "#c49c00",
    "e3nn": "#7a6a53",
    "torch": "#b0122b",
    "torch compiled": "#f0696b",
    "torch_geometric": _GEOMETRIC,
    "torch-geometric": _GEOMETRIC,
    "pyg": _GEOMETRIC,
    "pyg convs": "#e89ac7",
    "liger": "#00695c",
}


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
    label, each field has a colour. Implementations have their fixed colours. Values that are not
    finite are gaps in the curve, and counted in the legend. A panel of losses has a logarithmic
    axis if all of them are positive and the largest is more than ten times the smallest.

    Args:
      histories: Rows by label; each row is a dict of ``step`` and other numbers, such as
        ``FitResult.history``. Rows without a field are ignored in its curve. A label may also
        have several histories, one for each seed. Its curve is then the mean of those that have
        a finite value at a step, in a band of one standard deviation (of the sample) to each side.
      path: The PNG file.
      fields: Fields to draw; None for all except ``step``.
      title: Title of the picture: data set, model, number of seeds.
      best: By label, the step of its best evaluation, or one for each of its seeds; marked by dots
        on the curves of the label that have a value there.
      axis_labels: Labels of the axes, by the last word of the fields of a panel and by ``step``,
        such as ``{"step": "epoch", "loss": "loss (nats)"}``; by default that word itself.

    Raises:
      ValueError: There is nothing to draw, a field occurs in no history, a row has no step, or
        ``best`` has a label without a history, or not one step for each of its histories.
    """
    # Takes half a second, which a run without a picture avoids.
    from matplotlib.figure import Figure

    seeds = {label: _seeds(history) for label, history in histories.items()}
    panels = _panels(seeds, fields)
    dots = _best_steps(seeds, best or {})

    columns = min(len(panels), _MOST_COLUMNS)
    rows_of_panels = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(5 * columns, 3.9 * rows_of_panels), dpi=120, layout="constrained")
    grid = figure.subplots(rows_of_panels, columns, squeeze=False).ravel()
    names = {"step": "step"} | {word: word for word in panels} | dict(axis_labels or {})
    for axes, word in zip(grid, panels, strict=False):
        inside = _curves(seeds, panels[word])
        _draw_panel(axes, inside, dots)
        axes.set_ylabel(printable(names[word]))
        axes.set_xlabel(printable(names["step"]))
        entries = _entries(inside, len(seeds))
        _add_legend(axes, [*entries, *_entry_of_dots(inside, dots, names["step"])])
    for axes in grid[len(panels) :]:
        axes.remove()
    if title is not None:
        figure.suptitle(printable(title))
    if len(seeds) > 1:
        _add_labels(figure, seeds, _LETTERS_OF_A_PANEL * columns)
    figure.savefig(os.fspath(path), format="png")


@dataclass(frozen=True, eq=False)
class _Curve:
    """The values of one field for a label, and the look of its line in matplotlib's notation."""

    label: str
    field: str  # its last word is its panel
    colour: str
    style: _Style
    width: float
    steps: np.ndarray  # [points] int64, where any of the seeds has the field
    values: np.ndarray  # [seeds, points] float64; NaN where a seed has none
    gaps: str  # number of values that can not be drawn, to distinguish them from missing ones

    def mean_and_deviation(self) -> tuple[np.ndarray, np.ndarray]:
        """[points] each, over the seeds that have a value; the deviation of a single seed is 0."""
        finite = np.isfinite(self.values)
        count = finite.sum(0)
        # Numbers near the largest float64 have no finite sum or square.
        scale = np.abs(self.values[finite]).max(initial=0.0) or 1.0
        values = np.where(finite, self.values / scale, 0.0)
        mean = np.divide(values.sum(0), count, out=np.full(len(count), np.nan), where=count > 0)
        squares = np.where(finite, (values - mean) ** 2, 0.0).sum(0)
        return mean * scale, np.sqrt(squares / np.maximum(count - 1, 1)) * scale


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
    """By label, the best step of each of its histories; labels without marks are missing."""
    found = {}
    for label, steps in best.items():
        if label not in seeds:
            raise bad_input("plot_curves", "best", f"by labels among {list(seeds)}", repr(label))
        several = [int(steps)] if isinstance(steps, int | np.integer) else list(steps)
        if len(several) != len(seeds[label]):
            expected = f"a step for each of the {len(seeds[label])} histories"
            raise bad_input("plot_curves", f"best[{label!r}]", expected, steps)
        found[label] = several
    return found


def _curves(seeds: Mapping[str, Sequence[History]], fields: Sequence[str]) -> list[_Curve]:
    """The curves of a panel: for each label, those of the fields that it has.

    Labels have colours and widths, fields have styles. With a single label, fields have colours.
    """
    shades, widths = colours(seeds), np.linspace(_WIDEST, _THINNEST, len(seeds))
    curves = []
    for (label, histories), width in zip(seeds.items(), widths, strict=True):
        looks = zip(fields, itertools.cycle(_LINE_STYLES), itertools.cycle(PALETTE), strict=False)
        for field, style, shade in looks:
            look = (shade, "-", 1.4) if len(seeds) == 1 else (shades[label], style, float(width))
            if any(field in row for rows in histories for row in rows):
                curves.append(_Curve(label, field, *look, *_points(field, histories)))
    return curves


def _points(field: str, histories: Sequence[History]) -> tuple[np.ndarray, np.ndarray, str]:
    """Steps, values and gaps of a curve."""
    points = [{int(row["step"]): row[field] for row in rows if field in row} for rows in histories]
    steps = sorted(set().union(*points))
    recorded = [value for seed in points for value in seed.values()]
    missing = sum(not math.isfinite(value) for value in recorded)
    values = [[seed.get(step, math.nan) for step in steps] for seed in points]
    gaps = f" ({missing} of {len(recorded)} not finite)" if missing else ""
    return np.array(steps), np.array(values), gaps


def _is_logarithmic(field: str, finite: np.ndarray) -> bool:
    """Whether a panel of this field has losses that are positive and span a factor of ten."""
    if field.split()[-1] != "loss" or finite.size == 0:
        return False
    return bool(0 < 10 * finite.min() < finite.max())


def _draw_panel(axes: "Axes", curves: Sequence[_Curve], dots: Mapping[str, Sequence[int]]) -> None:
    finite = np.concatenate([curve.values[np.isfinite(curve.values)] for curve in curves])
    if _is_logarithmic(curves[0].field, finite):
        axes.set_yscale("log")
    # Zero and below have no logarithm: bands end at the smallest value of the panel.
    lowest = finite.min() if axes.get_yscale() == "log" else -math.inf
    for curve in curves:
        mean, deviation = curve.mean_and_deviation()
        axes.plot(
            curve.steps,
            mean,
            color=curve.colour,
            linestyle=curve.style,
            linewidth=curve.width,
            marker="o" if len(mean) < _FEW_POINTS else None,
            markersize=3,
        )
        if len(curve.values) > 1:
            low, high = np.maximum(mean - deviation, lowest), mean + deviation
            axes.fill_between(curve.steps, low, high, color=curve.colour, alpha=0.18, linewidth=0)
        places = np.isin(curve.steps, dots.get(curve.label, ()))
        if places.any():
            look = {"color": curve.colour, "zorder": 5, **_DOT}
            axes.plot(curve.steps[places], mean[places], **look)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _add_legend(axes: "Axes", entries: Sequence["Line2D"]) -> None:
    """Puts a legend above a panel, if it has entries."""
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


def _entries(curves: Sequence[_Curve], labels: int) -> list["Line2D"]:
    """Legend entries of a panel: fields with their colours, or of several labels with styles.

    The styles are grey, as the picture's legend explains the colours. Gaps name their label.
    """
    if labels == 1:
        return [_key(_named(c.field, len(c.values)) + c.gaps, c.colour, c.style) for c in curves]
    styles = {curve.field: curve.style for curve in curves}
    fields = [_key(field, "0.4", style) for field, style in styles.items()]
    gaps = [_key(f"{c.label}: {c.field}{c.gaps}", c.colour, c.style) for c in curves if c.gaps]
    return (fields if len(fields) > 1 else []) + gaps


def _entry_of_dots(
    curves: Sequence[_Curve], dots: Mapping[str, Sequence[int]], step: str
) -> list["Line2D"]:
    """Legend entry of the dots, with their step if it is common to all; empty if none is drawn."""
    drawn = {place for c in curves for place in dots.get(c.label, ()) if place in c.steps}
    if not drawn:
        return []
    key = _key(f"best, {step} {min(drawn)}" if len(drawn) == 1 else f"best {step}", "0.4", "-")
    key.set(**_DOT)
    return [key]


def _key(label: str, colour: str, style: _Style) -> "Line2D":
    """A line for a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, linestyle=style, label=printable(label))


def _named(name: str, seeds: int) -> str:
    """Text that explains a line of several seeds, and its band."""
    return name if seeds == 1 else f"{name} (mean ± std of {seeds} seeds)"


def _add_labels(figure: "Figure", seeds: Mapping[str, Sequence[History]], letters: int) -> None:
    """Adds a legend of the labels' colours below the panels, in lines of ``letters`` letters."""
    names = {label: printable(_named(label, len(rows))) for label, rows in seeds.items()}
    keys = [_key(names[label], shade, "-") for label, shade in colours(seeds).items()]
    columns = letters // (max(map(len, names.values())) + _LETTERS_OF_A_KEY)
    columns = min(len(keys), max(1, columns))
    figure.legend(handles=keys, loc="outside lower center", ncols=columns, frameon=False)


def colour(label: str) -> str:
    """The colour of an implementation or a peer, or of any other label.

    Args:
      label: The name, in upper or lower case. An unknown name gets a colour of the palette that
        depends only on its text, so that two names may share a colour; ``colours`` gives several
        labels different ones.

    Returns:
      A colour as ``#rrggbb``.
    """
    known = _IMPLEMENTATIONS.get(label.lower())
    return known or PALETTE[zlib.crc32(label.encode()) % len(PALETTE)]


def colours(labels: Iterable[str]) -> dict[str, str]:
    """A colour for each label of one picture.

    Args:
      labels: The labels in the order in which they are drawn. Labels known to ``colour`` have
        their fixed colour. The others take the unused colours of the palette in order, and start
        again after the last one.

    Returns:
      Label -> colour as ``#rrggbb``.
    """
    found = {label: _IMPLEMENTATIONS.get(label.lower()) for label in labels}
    free = [shade for shade in PALETTE if shade not in found.values()] or list(PALETTE)
    others = [label for label, shade in found.items() if shade is None]
    turns = {label: free[place % len(free)] for place, label in enumerate(others)}
    return {label: shade or turns[label] for label, shade in found.items()}
