"""Scale factors of rows by their degrees, for ``PNAConv``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxgnn._errors import bad_input
from jaxgnn.graph import CSRGraph, is_concrete

Scaler = Literal["identity", "amplification", "attenuation", "linear", "inverse_linear"]
"""Scales by degree of the aggregated values of a node."""


class DegreeAverages(NamedTuple):
    """Averages over the nodes of a training set, used as scales by ``PNAConv``.

    Attributes:
      linear: mean of the degree d.
      log: mean of ``log(d + 1)``.
    """

    linear: float
    log: float

    @classmethod
    def of(cls, *graphs: CSRGraph) -> DegreeAverages:
        """The averages over the nodes of graphs, such as all of a training set.

        All rows are counted, also padding of a batch, as nodes of degree 0: pass the graphs
        themselves and not padded batches of them.

        Args:
          *graphs: concrete graphs; the degree of a row is the number of its edges.

        Raises:
          ValueError: if there is no graph, a graph is traced, or no graph has an edge.

        Example:
          >>> graph = CSRGraph.from_edges(senders=[0, 1, 2], receivers=[1, 2, 2], num_nodes=3)
          >>> DegreeAverages.of(graph).linear
          1.0
        """
        where = "DegreeAverages.of"
        if not graphs:
            raise bad_input(where, "graphs", "one graph or more", "none")
        for graph in graphs:
            if not isinstance(graph, CSRGraph) or not is_concrete(graph.indptr):
                got = "a traced one" if isinstance(graph, CSRGraph) else type(graph).__name__
                raise bad_input(where, "graphs", "concrete graphs; call it outside jit", got)
        return cls._of(where, np.concatenate([np.diff(np.asarray(g.indptr)) for g in graphs]))

    @classmethod
    def of_histogram(cls, counts: npt.ArrayLike) -> DegreeAverages:
        """The averages from the number of nodes of each degree 0, 1, …, as PyG's ``deg``.

        Args:
          counts: whole numbers, [largest degree + 1].

        Raises:
          ValueError: if the counts are not a one-dimensional array of non-negative numbers, or no
            node has an edge.

        Example:
          >>> DegreeAverages.of_histogram([1, 1, 1]).linear
          1.0
        """
        where = "DegreeAverages.of_histogram"
        numbers = np.asarray(counts)
        fits = numbers.ndim == 1 and np.issubdtype(numbers.dtype, np.integer)
        if not fits or (numbers < 0).any():
            expected = "whole numbers of at least 0, [largest degree + 1]"
            raise bad_input(where, "counts", expected, f"{numbers.dtype}{list(numbers.shape)}")
        return cls._of(where, np.repeat(np.arange(len(numbers)), numbers))

    @classmethod
    def _of(cls, where: str, degrees: np.ndarray) -> DegreeAverages:
        if not degrees.any():
            raise bad_input(where, "the degrees", "of at least one edge", "none")
        return cls(float(degrees.mean()), float(np.log(degrees + 1.0).mean()))


def averages_or_graph(value: Any) -> str | None:
    """Checks for averages, or a graph to compute them from."""
    is_good = isinstance(value, DegreeAverages) and all(
        isinstance(v, int | float) and math.isfinite(v) and v > 0 for v in value
    )
    is_good = is_good or (isinstance(value, CSRGraph) and is_concrete(value.indptr))
    return (
        None
        if is_good
        else (
            "nn.DegreeAverages of positive numbers, such as DegreeAverages.of_histogram(deg), or a "
            "concrete CSRGraph"
        )
    )


def degree_scales(
    graph: CSRGraph, averages: DegreeAverages, scalers: Sequence[Scaler], dtype: DTypeLike
) -> Float[Array, "rows scalers"]:
    """The factor of each row and scale; a degree of 0 counts as 1 where it would divide."""
    degrees = graph.degrees().astype(dtype)
    at_least_one = jnp.maximum(degrees, 1)
    mean, log = averages
    made = {
        "identity": lambda: jnp.ones_like(degrees),
        "amplification": lambda: jnp.log(degrees + 1) / log,
        "attenuation": lambda: log / jnp.log(at_least_one + 1),
        "linear": lambda: degrees / mean,
        "inverse_linear": lambda: mean / at_least_one,
    }
    return jnp.stack([made[name]() for name in scalers], axis=-1)
