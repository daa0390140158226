"""Shared parts of pictures: packages that may be missing, axes, colours with their legend."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxgnn._arrays.arrays import host_array, is_concrete
from jaxgnn._errors import bad_input

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_CLASSES = 20


def package(where: str, name: str, distribution: str | None = None) -> Any:
    """Imports a package; ImportError names it and how to install it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise
        missing = distribution or name.partition(".")[0]
        raise ImportError(
            f"{where}: {missing} is not installed; do pip install 'jaxgnn[draw]', or "
            f"pip install {missing}"
        ) from error


def axes_or_new(where: str, ax: Any) -> Axes:
    """Returns the given axes, or those of a new figure that no window manager keeps."""
    if ax is None:
        figure = package(where, "matplotlib.figure").Figure(layout="constrained")
        package(where, "matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
        return figure.subplots()
    if not hasattr(ax, "scatter"):
        raise bad_input(where, "ax", "matplotlib Axes, or None", type(ax).__name__)
    return ax


def concrete_array(where: str, argument: str, array: Any) -> np.ndarray:
    """Returns the array in numpy; ValueError if it is traced."""
    if not is_concrete(array):
        raise bad_input(where, argument, "concrete; call it outside jit", "a tracer")
    return host_array(where, argument, array)


def checked_colors(where: str, argument: str, colors: Any, count: int) -> np.ndarray | None:
    """Returns classes or numbers, one for each of ``count`` points; None for one colour."""
    if colors is None:
        return None
    array = concrete_array(where, argument, colors)
    if array.shape != (count,) or array.dtype.kind not in "iufb":
        expected = f"integers (classes) or numbers, of shape ({count},)"
        raise bad_input(where, argument, expected, f"{array.dtype}{list(array.shape)}")
    return array.astype(np.int64) if array.dtype.kind == "b" else array


def scatter(
    where: str,
    ax: Axes,
    at: np.ndarray,
    colors: np.ndarray | None,
    names: Sequence[str] | None,
    size: float,
) -> None:
    """Draws points: classes in distinct colours with a legend, numbers with a bar of colours.

    Raises:
      ValueError: if there are fewer names than classes.
    """
    options: dict[str, Any] = {"s": size, "zorder": 3, "linewidths": 0.4, "edgecolors": "white"}
    if colors is None:
        ax.scatter(at[:, 0], at[:, 1], color="#1f77b4", **options)
        return
    classes = np.unique(colors) if colors.dtype.kind in "iu" else np.zeros(0)
    if not 0 < len(classes) <= _MOST_CLASSES:
        points = ax.scatter(at[:, 0], at[:, 1], c=colors, cmap="viridis", **options)
        ax.figure.colorbar(points, ax=ax)
        return
    if names is not None and (classes.min() < 0 or classes.max() >= len(names)):
        expected = f"a name for each class from 0 to {classes.max()}"
        raise bad_input(where, "class_names", expected, f"{len(names)} names")
    palette = package(where, "matplotlib").colormaps["tab10" if len(classes) <= 10 else "tab20"]
    for number, label in enumerate(classes):
        of_class = colors == label
        text = str(label) if names is None else str(names[int(label)])
        kept = at[of_class]
        ax.scatter(kept[:, 0], kept[:, 1], color=palette(number), label=text, **options)
    # The same marks for any number of points.
    ax.legend(fontsize="small", frameon=False, markerscale=max(1.0, (36 / size) ** 0.5))


def hide_scales(ax: Axes, title: str | None) -> None:
    """Hides ticks, which mean nothing, and sets the title."""
    ax.set_xticks([])
    ax.set_yticks([])
    ax.set_title(title or "")
