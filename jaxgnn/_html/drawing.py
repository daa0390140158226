"""Draws small graphs as SVG: nodes are placed by forces, in NumPy alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxgnn._html.writer import Html, element

_COLORS = (
    *("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd"),
    *("#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf"),
)
_SIZE, _MARGIN, _RADIUS = 180, 12, 5
_MOST_NODES, _MOST_EDGES = 40, 400
_STEPS = 80
_LINE = {"stroke": "#888", "stroke_width": 1, "fill": "none"}


class SmallGraph(NamedTuple):
    """A graph to draw.

    Attributes:
      num_nodes: number of nodes.
      senders: node that each edge leaves.
      receivers: node that each edge enters.
      groups: group of each node, which gives its colour, integers from 0; None for one colour.
      names: name of each node, shown when the pointer is on it; None for its number.
      caption: text below the drawing.
    """

    num_nodes: int
    senders: np.ndarray
    receivers: np.ndarray
    groups: np.ndarray | None = None
    names: Sequence[Any] | np.ndarray | None = None
    caption: str = ""

    @property
    def is_drawn(self) -> bool:
        """Whether it is small enough, and there is something to draw."""
        return 0 < self.num_nodes <= _MOST_NODES and len(self.senders) <= _MOST_EDGES


def drawing(graph: SmallGraph) -> Html:
    """Returns an inline SVG: edges as lines, with an arrow where only one direction is an edge."""
    at = _MARGIN + (_SIZE - 2 * _MARGIN) * small_layout(*graph[:3])
    edges = set(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))
    picture = element(
        "svg",
        *(part for u, v in sorted(edges) for part in _edge(at, u, v, (v, u) in edges)),
        *(_node(graph, at, node) for node in range(graph.num_nodes)),
        xmlns="http://www.w3.org/2000/svg",
        width=_SIZE,
        height=_SIZE,
        viewBox=f"0 0 {_SIZE} {_SIZE}",
        role="img",
    )
    caption = element("div", graph.caption, style="font-size:80%;opacity:.7")
    return element("div", picture, caption if graph.caption else "")


def _edge(at: np.ndarray, sender: int, receiver: int, is_both: bool) -> list[Html]:
    """Returns the line of an edge and its arrow; nothing for the second direction of two."""
    (x, y), end = at[sender], at[receiver]
    if sender == receiver:  # A loop is a small circle above the node.
        return [element("circle", cx=f"{x:.1f}", cy=f"{y - 7:.1f}", r=5, **_LINE)]
    if is_both and sender > receiver:
        return []
    along = (end - at[sender]) / max(float(np.linalg.norm(end - at[sender])), 1e-6)
    corners = {"x1": x, "y1": y, "x2": end[0], "y2": end[1]}
    line = element("line", **{key: f"{value:.1f}" for key, value in corners.items()}, **_LINE)
    if is_both:
        return [line]
    across = np.array([-along[1], along[0]])
    tip = end - _RADIUS * along
    corners = tip, tip - 6 * along + 2.5 * across, tip - 6 * along - 2.5 * across
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in corners)
    return [line, element("polygon", points=points, fill="#888")]


def _node(graph: SmallGraph, at: np.ndarray, node: int) -> Html:
    group = 0 if graph.groups is None else int(graph.groups[node])
    color = "#bbb" if group < 0 else _COLORS[group % len(_COLORS)]
    name = element("title", str(node if graph.names is None else graph.names[node]))
    x, y = (f"{coordinate:.1f}" for coordinate in at[node])
    return element("circle", name, cx=x, cy=y, r=_RADIUS, fill=color, stroke="white")


def small_layout(num_nodes: int, senders: np.ndarray, receivers: np.ndarray) -> np.ndarray:
    """Places nodes in the unit square, the same for the same graph.

    Nodes start on a circle. Then all nodes repel each other and edges attract, as in
    https://doi.org/10.1002/spe.4380211102, in steps that become shorter.

    Args:
      num_nodes: number of nodes, at most a few dozen: the cost is its square.
      senders: node that each edge leaves.
      receivers: node that each edge enters.

    Returns:
      Float64 positions [nodes, 2], centred, in [0, 1].
    """
    angles = 2 * np.pi * np.arange(num_nodes) / max(num_nodes, 1)
    at = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    if num_nodes < 3:
        return _in_square(at)
    joined = np.zeros((num_nodes, num_nodes), bool)
    joined[senders, receivers] = joined[receivers, senders] = True
    np.fill_diagonal(joined, False)
    length = np.sqrt(4 / num_nodes)
    for step in range(_STEPS):
        apart = at[:, None] - at[None]
        distance = np.maximum(np.linalg.norm(apart, axis=-1), 1e-3)
        force = length**2 / distance**2 - joined * distance / length
        move = (apart * force[..., None]).sum(axis=1) - 0.05 * at  # All move to the centre, too.
        size = np.maximum(np.linalg.norm(move, axis=1, keepdims=True), 1e-9)
        at = at + move / size * np.minimum(size, 0.2 * (1 - step / _STEPS))
    return _in_square(at)


def _in_square(at: np.ndarray) -> np.ndarray:
    """Returns positions scaled to the unit square, and centred in it."""
    if not len(at):
        return np.zeros((0, 2))
    low, high = at.min(axis=0), at.max(axis=0)
    return 0.5 + (at - (low + high) / 2) / max(float((high - low).max()), 1e-9)
