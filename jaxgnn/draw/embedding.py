"""Features of nodes, or of graphs, as points in two dimensions."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from jaxgnn._errors import bad_input
from jaxgnn.draw.axes import (
    axes_or_new,
    checked_colors,
    concrete_array,
    hide_scales,
    package,
    scatter,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Projection = Literal["pca", "tsne"]
"""Ways to two dimensions: principal components, or t-SNE."""

_WHERE = "draw.draw_embedding"


def draw_embedding(
    x: npt.ArrayLike,
    colors: npt.ArrayLike | None = None,
    *,
    method: Projection = "pca",
    class_names: Sequence[str] | None = None,
    max_points: int = 5000,
    perplexity: float = 30.0,
    seed: int = 0,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draws rows of features as points in two dimensions.

    Args:
      x: [points, features] finite numbers, such as the output of a layer. Two features are drawn as
        they are.
      colors: [points] integers for classes, in distinct colours with a legend; or numbers, with a
        bar of colours. None for one colour.
      method: ``"pca"``, the two principal components; or ``"tsne"``, which keeps neighbours
        together and distances between clusters mean nothing (https://jmlr.org/papers/v9/vandermaaten08a.html).
      class_names: name of each class in the legend.
      max_points: of more points a random sample of this size is drawn, with a warning.
      perplexity: of ``"tsne"``, at most a third of the number of points.
      seed: seed of the sample and of t-SNE.
      title: title of the picture.
      ax: axes to draw on; None for those of a new figure, ``ax.figure``.

    Returns:
      The axes; ``ax.figure.savefig(path)`` saves the picture.

    Raises:
      ImportError: if matplotlib or scikit-learn is missing; the message says how to install it.
      ValueError: if an argument is not as described.

    Example:
      >>> import numpy as np
      >>> ax = draw_embedding(np.eye(5, 3), [0, 0, 1, 1, 1])
      >>> len(ax.collections)
      2
    """
    points = concrete_array(_WHERE, "x", x).astype(np.float64)
    if points.ndim != 2 or points.shape[0] < 3 or points.shape[1] < 2:
        expected = "of shape [points, features], at least three points of two features"
        raise bad_input(_WHERE, "x", expected, f"shape {points.shape}")
    if not np.isfinite(points).all():
        row, column = np.argwhere(~np.isfinite(points))[0]
        raise bad_input(_WHERE, "x", "finite", f"{points[row, column]} at [{row}, {column}]")
    if method not in get_args(Projection):
        raise bad_input(_WHERE, "method", "'pca' or 'tsne'", repr(method))
    if not isinstance(max_points, int) or max_points < 3:
        raise bad_input(_WHERE, "max_points", "an int of at least 3", repr(max_points))
    shown = checked_colors(_WHERE, "colors", colors, len(points))
    if len(points) > max_points:
        kept = np.sort(np.random.default_rng(seed).permutation(len(points))[:max_points])
        warnings.warn(
            f"{_WHERE}: drawing a random sample of {max_points:,} of {len(points):,} points; "
            "pass a larger max_points= for more",
            stacklevel=2,
        )
        title = f"{title or ''} ({max_points:,} of {len(points):,} points)".strip()
        points, shown = points[kept], None if shown is None else shown[kept]
    at = _projected(points, method, perplexity, seed)
    ax = axes_or_new(_WHERE, ax)
    size = float(np.clip(8000 / len(at), 4, 60))
    scatter(_WHERE, ax, at, shown, class_names, size)
    hide_scales(ax, title)
    return ax


def _projected(points: np.ndarray, method: str, perplexity: float, seed: int) -> np.ndarray:
    if points.shape[1] == 2:
        return points
    if method == "pca":
        pca = package(_WHERE, "sklearn.decomposition", "scikit-learn").PCA
        return pca(n_components=2, svd_solver="full").fit_transform(points)
    tsne = package(_WHERE, "sklearn.manifold", "scikit-learn").TSNE
    options: dict[str, Any] = {"random_state": seed, "init": "pca"}
    return tsne(perplexity=min(perplexity, (len(points) - 1) / 3), **options).fit_transform(points)
