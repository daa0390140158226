"""A table of facts, with a drawing of a small graph beside it, as one piece of HTML."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxgnn._notebook.layout import MOST_NODES, small_layout

_COLORS = (
    *("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd"),
    *("#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf"),
)
_SIZE, _MARGIN, _RADIUS = 180, 12, 5
_MOST_EDGES = 400


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
        return 0 < self.num_nodes <= MOST_NODES and len(self.senders) <= _MOST_EDGES


def page(title: str, rows: Iterable[tuple[str, Any]], drawn: SmallGraph | None = None) -> str:
    """HTML of a title, rows of a name and a value, and a drawing if the graph is small.

    All texts are escaped. Rows whose value is None are left out.
    """
    cells = "".join(
        "<tr><th style='text-align:left;font-weight:normal;opacity:.7;padding:1px 12px 1px 0'>"
        f"{html.escape(str(name))}</th>"
        f"<td style='text-align:left;padding:1px 0'>{html.escape(str(value))}</td></tr>"
        for name, value in rows
        if value is not None
    )
    head = f"<div><b>{html.escape(title)}</b></div>"
    table = f"<table style='border-collapse:collapse;font-size:90%;margin:0'>{cells}</table>"
    figure = drawing(drawn) if drawn is not None and drawn.is_drawn else ""
    return (
        "<div style='display:flex;gap:24px;align-items:flex-start'>"
        f"<div>{head}{table}</div>{figure}</div>"
    )


def drawing(graph: SmallGraph) -> str:
    """An inline SVG: edges as lines, with an arrow where only one direction is an edge."""
    at = _MARGIN + (_SIZE - 2 * _MARGIN) * small_layout(*graph[:3])
    pairs = set(zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True))
    lines = "".join(_line(at, u, v, (v, u) in pairs) for u, v in sorted(pairs))
    nodes = "".join(_node(graph, at, node) for node in range(graph.num_nodes))
    caption = f"<div style='font-size:80%;opacity:.7'>{html.escape(graph.caption)}</div>"
    return (
        f"<div><svg xmlns='http://www.w3.org/2000/svg' width='{_SIZE}' height='{_SIZE}' "
        f"viewBox='0 0 {_SIZE} {_SIZE}' role='img'>{lines}{nodes}</svg>"
        f"{caption if graph.caption else ''}</div>"
    )


def _line(at: np.ndarray, sender: int, receiver: int, is_both: bool) -> str:
    style = "stroke='#888' stroke-width='1' fill='none'"
    (x, y), end = at[sender], at[receiver]
    if sender == receiver:  # a loop: a small circle above the node
        return f"<circle cx='{x:.1f}' cy='{y - 7:.1f}' r='5' {style}/>"
    if is_both and sender > receiver:
        return ""
    along = (end - at[sender]) / max(float(np.linalg.norm(end - at[sender])), 1e-6)
    line = f"<line x1='{x:.1f}' y1='{y:.1f}' x2='{end[0]:.1f}' y2='{end[1]:.1f}' {style}/>"
    if is_both:
        return line
    across = np.array([-along[1], along[0]])
    tip = end - _RADIUS * along
    corners = tip, tip - 6 * along + 2.5 * across, tip - 6 * along - 2.5 * across
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in corners)
    return f"{line}<polygon points='{points}' fill='#888'/>"


def _node(graph: SmallGraph, at: np.ndarray, node: int) -> str:
    group = 0 if graph.groups is None else int(graph.groups[node])
    color = "#bbb" if group < 0 else _COLORS[group % len(_COLORS)]
    name = node if graph.names is None else graph.names[node]
    x, y = at[node]
    return (
        f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{_RADIUS}' fill='{color}' stroke='white'>"
        f"<title>{html.escape(str(name))}</title></circle>"
    )
