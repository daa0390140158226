"""Facts of arrays and edges as short texts."""

from __future__ import annotations

from typing import Any

import numpy as np


def degrees_of(counts: np.ndarray) -> str | None:
    """The least, mean and largest degree; None without nodes."""
    if not counts.size:
        return None
    return f"{counts.min():,} / {counts.mean():.1f} / {counts.max():,} (least, mean, largest)"


def shape_of(value: Any, most: int = 4) -> str:
    """An array as dtype and shape; a long sequence as its length; other values by ``repr``."""
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
    """A number of bytes in a readable unit."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError
