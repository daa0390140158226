"""A graph as points and lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from jaxgnn._arrays.arrays import is_concrete
from jaxgnn._errors import bad_input
from jaxgnn.draw.axes import (
    axes_or_new,
    checked_colors,
    concrete_array,
    hide_scales,
    package,
    scatter,
)
from jaxgnn.graph import CSRGraph

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Layout = Literal["spring", "kamada_kawai", "circular", "spectral"]
"""Layouts of networkx."""

_WHERE = "draw.draw_graph"


def draw_graph(
    graph: CSRGraph,
    node_colors: npt.ArrayLike | None = None,
    *,
    nodes: npt.ArrayLike | None = None,
    edge_scores: npt.ArrayLike | None = None,
    positions: npt.ArrayLike | None = None,
    layout: Layout = "spring",
    class_names: Sequence[str] | None = None,
    labels: bool = False,
    max_nodes: int = 500,
    seed: int = 0,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draws a graph with coloured nodes.

    An edge has an arrow if its reverse is no edge. Self loops are not drawn.

    Args:
      graph: concrete square graph.
      node_colors: [nodes] integers for classes, in distinct colours with a legend; or numbers, with
        a bar of colours. None for one colour.
      nodes: ids of the nodes to draw with the edges between them, such as a neighbourhood; None for
        all.
      edge_scores: [edge slots] numbers, such as ``explain.edge_scores``: edges of larger absolute
        scores are wider and darker, negative ones blue instead of red.
      positions: [nodes, 2] coordinates of the nodes; None to compute a layout.
      layout: ``"spring"``, ``"kamada_kawai"``, ``"circular"`` or ``"spectral"``, by networkx.
      class_names: name of each class in the legend.
      labels: whether to write the id of each node on it.
      max_nodes: largest number of nodes that is drawn.
      seed: seed of the layout ``"spring"``.
      title: title of the picture.
      ax: axes to draw on; None for those of a new figure, ``ax.figure``.

    Returns:
      The axes; ``ax.figure.savefig(path)`` saves the picture.

    Raises:
      ImportError: if matplotlib or networkx is missing; the message says how to install it.
      ValueError: if an argument is not as described, or there are more than ``max_nodes`` nodes.

    Example:
      >>> from jaxgnn.graph import CSRGraph
      >>> graph = CSRGraph.from_edges([0, 1, 2], [1, 2, 0], 3)
      >>> draw_graph(graph, [0, 0, 1], class_names=("a", "b")).get_legend() is None
      False
    """
    _check_graph(graph)
    if layout not in get_args(Layout):
        names = ", ".join(map(repr, get_args(Layout)))
        raise bad_input(_WHERE, "layout", f"one of {names}", repr(layout))
    colors = checked_colors(_WHERE, "node_colors", node_colors, graph.num_rows)
    kept = _kept_nodes(graph, nodes, max_nodes)
    scores = _checked_scores(graph, edge_scores)
    ends, scores = _edges_between(graph, kept, scores)
    at = _positions(graph, kept, ends, positions, layout, seed)
    ax = axes_or_new(_WHERE, ax)
    size = float(np.clip(4000 / max(len(kept), 1), 12, 160))
    _draw_edges(ax, at, ends, scores, size)
    scatter(_WHERE, ax, at, None if colors is None else colors[kept], class_names, size)
    if labels:
        for node, (x, y) in zip(kept, at, strict=True):
            ax.annotate(str(node), (x, y), ha="center", va="center", fontsize=7, zorder=4)
    hide_scales(ax, title)
    return ax


def _check_graph(graph: Any) -> None:
    if not isinstance(graph, CSRGraph):
        raise bad_input(_WHERE, "graph", "a jaxgnn.graph.CSRGraph", type(graph).__name__)
    if not is_concrete(graph.indptr, graph.indices):
        raise bad_input(_WHERE, "graph", "concrete; call it outside jit", "a tracer")
    if not graph.is_square:
        raise bad_input(_WHERE, "graph", "square", f"shape {graph.shape}")


def _kept_nodes(graph: CSRGraph, nodes: Any, max_nodes: int) -> np.ndarray:
    kept = np.arange(graph.num_rows) if nodes is None else concrete_array(_WHERE, "nodes", nodes)
    in_range = kept.dtype.kind in "iu" and kept.ndim == 1
    in_range = in_range and ((kept >= 0) & (kept < graph.num_rows)).all()
    if not in_range or len(np.unique(kept)) != len(kept):
        expected = f"different ids of nodes in [0, {graph.num_rows})"
        raise bad_input(_WHERE, "nodes", expected, repr(nodes))
    if len(kept) > max_nodes:
        argument = "graph" if nodes is None else "nodes"
        way = "pass nodes= with the ids to draw, or a larger max_nodes="
        raise bad_input(
            _WHERE, argument, f"of at most {max_nodes:,} nodes", f"{len(kept):,}; {way}"
        )
    return kept


def _checked_scores(graph: CSRGraph, value: Any) -> np.ndarray | None:
    if value is None:
        return None
    scores = concrete_array(_WHERE, "edge_scores", value)
    if scores.shape != (graph.num_edges,) or scores.dtype.kind not in "iuf":
        expected = f"numbers of shape ({graph.num_edges},), one for each edge slot"
        raise bad_input(_WHERE, "edge_scores", expected, f"{scores.dtype}{list(scores.shape)}")
    return scores


def _edges_between(
    graph: CSRGraph, kept: np.ndarray, scores: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Places in ``kept`` of both ends of the edges between these nodes, and their scores."""
    place = np.full(graph.num_rows + 1, -1)  # The last entry is for padding.
    place[kept] = np.arange(len(kept))
    ends = np.stack([place[np.asarray(graph.indices)], place[np.asarray(graph.receivers())]])
    inside = (ends >= 0).all(axis=0) & (ends[0] != ends[1])
    return ends[:, inside], None if scores is None else scores[inside]


def _positions(
    graph: CSRGraph, kept: np.ndarray, ends: np.ndarray, value: Any, layout: str, seed: int
) -> np.ndarray:
    if value is not None:
        at = concrete_array(_WHERE, "positions", value)
        if at.shape != (graph.num_rows, 2) or at.dtype.kind not in "iuf":
            expected = f"numbers of shape ({graph.num_rows}, 2)"
            raise bad_input(_WHERE, "positions", expected, f"{at.dtype}{list(at.shape)}")
        return at[kept]
    networkx = package(_WHERE, "networkx")
    plain = networkx.Graph()
    plain.add_nodes_from(range(len(kept)))
    plain.add_edges_from(ends.T.tolist())
    options = {"seed": seed} if layout == "spring" else {}
    placed = getattr(networkx, f"{layout}_layout")(plain, **options)
    return np.array([placed[node] for node in range(len(kept))]).reshape(len(kept), 2)


def _draw_edges(
    ax: Axes, at: np.ndarray, ends: np.ndarray, scores: np.ndarray | None, size: float
) -> None:
    pairs = set(zip(*ends.tolist(), strict=True))
    largest = 0.0 if scores is None else float(np.abs(scores).max(initial=0))
    shares = None if scores is None else np.abs(scores) / (largest or 1)
    for number, (sender, receiver) in enumerate(ends.T.tolist()):
        is_both = (receiver, sender) in pairs
        if is_both and scores is None and sender > receiver:
            continue
        style: dict[str, Any] = {"color": "#888888", "linewidth": 0.8, "alpha": 0.8}
        if scores is not None and shares is not None:
            share = float(shares[number])
            color = "#b2182b" if scores[number] >= 0 else "#2166ac"
            style = {"color": color, "linewidth": 0.4 + 3 * share, "alpha": 0.15 + 0.85 * share}
        arrow = {"arrowstyle": "-" if is_both and scores is None else "-|>", **style}
        arrow |= {"shrinkA": 0, "shrinkB": size**0.5 / 2, "mutation_scale": 7}
        ax.annotate("", xy=at[receiver], xytext=at[sender], arrowprops=arrow, zorder=1)
