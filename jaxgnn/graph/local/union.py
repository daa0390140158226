"""LocalUnion: the edges of several relations that enter one device's rows, as one graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxgnn._arrays.arrays import KeepsArrays
from jaxgnn._errors import bad_input
from jaxgnn.graph.csr.csr_graph import CSRGraph
from jaxgnn.graph.csr.rows import Normalization
from jaxgnn.graph.local.halo import Halo


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class JoinedHalo(KeepsArrays):
    """The tables of rows of several relations; ``starts`` has the first own row of each table."""

    halos: tuple[Halo, ...]
    starts: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    rows: int = dataclasses.field(metadata={"static": True})

    @property
    def table_rows(self) -> int:
        """Number of rows of all tables."""
        return sum(halo.table_rows for halo in self.halos)

    def exchange(self, x: Array, row_axis: int = 0) -> Array:
        """Returns the tables, one after the other, from the own rows of all senders."""
        if not hasattr(x, "ndim") or x.shape[row_axis] != self.rows:
            expected = f"an array of {self.rows} rows along axis {row_axis}, those of all relations"
            raise bad_input("halo_exchange", "x", expected, getattr(x, "shape", type(x).__name__))
        parts = (
            halo.exchange(lax.slice_in_dim(x, start, start + halo.rows, axis=row_axis), row_axis)
            for halo, start in zip(self.halos, self.starts, strict=True)
        )
        return jnp.concatenate([*parts], axis=row_axis)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class LocalUnion(CSRGraph):
    """The edges of several relations that enter one device's rows, inside of ``jax.shard_map``.

    Ops accept it instead of the union of the whole relations. Its columns are the own nodes of
    all senders, and ``indices`` are places in the tables of ``halo``.

    Attributes:
      halo: exchange of the rows that edges read, among the devices.
      is_of_squares: whether the senders and receivers of each relation are the same nodes.
    """

    halo: JoinedHalo = dataclasses.field(default=cast(JoinedHalo, None))
    is_of_squares: bool = dataclasses.field(default=True, metadata={"static": True})

    @property
    def is_square(self) -> bool:
        """Whether rows and columns can be the same nodes."""
        return self.is_of_squares and self.num_rows == self.num_cols

    def bipartite(self) -> CSRGraph:
        """Returns the own rows by the entries of the tables, as a graph without a halo."""
        return without_halo(self, col_scale=None)

    def normalized(self, kind: Normalization | None) -> CSRGraph:
        """Divides by the degrees of rows; ValueError for kinds that divide by those of senders."""
        if kind not in (None, "mean"):
            expected = "'mean' or None for relations that are spread over devices"
            raise bad_input("CSRGraph.normalized", "kind", expected, repr(kind))
        return super().normalized(kind)


def without_halo(graph: Any, **fields: Any) -> CSRGraph:
    """The own rows of a device by the entries of the table, with other values of some fields."""
    current = {field.name: getattr(graph, field.name) for field in dataclasses.fields(CSRGraph)}
    return CSRGraph(**{**current, "num_cols": graph.halo.table_rows, **fields})


def joined_halo(parts: Sequence[tuple[Any, int]]) -> tuple[JoinedHalo, list[int]]:
    """Returns the tables of several relations, and the start of that of each relation.

    ``parts`` has for each relation the rows of the device, and the first of its senders among all.
    Relations that all gather the same senders share a table.
    """
    halos: list[Halo] = []
    starts: list[int] = []
    begins: list[int] = []
    shared: dict[int, int] = {}
    end = 0
    for graph, start in parts:
        gathers_all = graph.halo.send is None
        if gathers_all and start in shared:
            begins.append(shared[start])
            continue
        if gathers_all:
            shared[start] = end
        begins.append(end)
        halos.append(graph.halo)
        starts.append(start)
        end += graph.halo.table_rows
    rows = max(start + graph.num_cols for graph, start in parts)
    return JoinedHalo(tuple(halos), tuple(starts), rows), begins
