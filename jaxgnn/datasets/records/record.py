"""The text of a data set: shapes instead of arrays, and a table in a notebook."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from jaxgnn._html.drawing import SmallGraph
from jaxgnn._html.notebook import degrees_of, facts, shape_of


class Record:
    """Base class of data sets, which are dataclasses of arrays made with ``repr=False``."""

    def __repr__(self) -> str:
        """Shows shapes instead of arrays, and leaves out fields that are None."""
        texts = (f"{name}={shape}" for name, shape in self._shapes())
        return f"{type(self).__name__}({', '.join(texts)})"

    def _repr_html_(self) -> str:
        """Returns a table for notebooks, with a drawing of a small graph."""
        shapes = (row for row in self._shapes() if row[0] != "name")
        title = f"{type(self).__name__} {getattr(self, 'name', '')}".strip()
        return facts(title, [*self._facts(), *shapes], self._drawn())

    def _shapes(self) -> list[tuple[str, str]]:
        """Names of the fields that are not None, and their shapes."""
        record: Any = self
        fields = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(record))
        return [(name, shape_of(value)) for name, value in fields if value is not None]

    def _facts(self) -> list[tuple[str, Any]]:
        """Names and values that stand before the fields."""
        return []

    def _drawn(self) -> SmallGraph | None:
        """Returns the graph to draw, if it is small; None for none."""
        return None


def facts_of_edges(num_nodes: int, receivers: np.ndarray) -> list[tuple[str, Any]]:
    """Returns numbers of nodes and of edges, and degrees."""
    degrees = np.bincount(receivers, minlength=num_nodes) if num_nodes else np.zeros(0, np.int64)
    return [
        ("nodes", f"{num_nodes:,}"),
        ("edges", f"{len(receivers):,}"),
        ("edges into a node", degrees_of(degrees)),
    ]
