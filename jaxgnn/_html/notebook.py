"""Shows an object in a notebook: a table of facts, beside a drawing of a small graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from jaxgnn._html.drawing import SmallGraph, drawing
from jaxgnn._html.writer import Html, element

_NAME = "text-align:left;font-weight:normal;opacity:.7;padding:1px 12px 1px 0"
_VALUE = "text-align:left;padding:1px 0"


def facts(title: str, rows: Iterable[tuple[str, Any]], drawn: SmallGraph | None = None) -> Html:
    """Returns a title, rows of a name and a value, and a drawing if the graph is small.

    Rows whose value is None are omitted.
    """
    cells = [
        element("tr", element("th", str(name), style=_NAME), element("td", str(v), style=_VALUE))
        for name, v in rows
        if v is not None
    ]
    head = element("div", element("b", title))
    table = element("table", *cells, style="border-collapse:collapse;font-size:90%;margin:0")
    figure = drawing(drawn) if drawn is not None and drawn.is_drawn else Html()
    sides = element("div", head, table), figure
    return element("div", *sides, style="display:flex;gap:24px;align-items:flex-start")


def degrees_of(counts: np.ndarray) -> str | None:
    """Returns the least, mean and largest degree as text; None without nodes."""
    if not counts.size:
        return None
    return f"{counts.min():,} / {counts.mean():.1f} / {counts.max():,} (least, mean, largest)"


def shape_of(value: Any, most: int = 4) -> str:
    """Returns the text of a value: an array as dtype and shape, a long sequence as its length."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {shape_of(item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple | list) and len(value) > most:
        return f"({len(value)} of them)"
    if isinstance(value, tuple | list):
        return "(" + ", ".join(shape_of(item) for item in value) + ")"
    return repr(value)


def bytes_of(count: int) -> str:
    """Returns a number of bytes in a readable unit."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError
