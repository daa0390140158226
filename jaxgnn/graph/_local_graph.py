"""LocalGraph: one device's rows of a graph that is spread over the devices of a mesh."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, UInt32

from jaxgnn._errors import bad_input
from jaxgnn.graph._arrays import KeepsArrays
from jaxgnn.graph._csr import CSRGraph
from jaxgnn.graph._edge_numbers import EdgeNumbers, Words
from jaxgnn.graph._halo import Halo
from jaxgnn.graph._normalization import Normalization, degree_scales

_PART = "the rows of one device"


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class EdgesByOwner(KeepsArrays):
    """The edges of one device's rows in two graphs, without weights and scales.

    Attributes:
      near: the edges from own senders, whose columns are the own columns.
      far: those from senders of other devices, whose columns are places in the table.
      near_slots: edge slot of the device's block of each slot of ``near``; zero for padding.
      far_slots: edge slot of the device's block of each slot of ``far``; zero for padding.
    """

    near: CSRGraph
    far: CSRGraph
    near_slots: Int[Array, " near"]
    far_slots: Int[Array, " far"]


def _at(weights: Array | None, slots: Int[Array, " edges"]) -> Array | None:
    return None if weights is None else jnp.asarray(weights)[slots]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class LocalGraph(CSRGraph):
    """The rows of one device of a square graph, inside of ``jax.shard_map``.

    Layers and ops take it in the place of the whole graph, with the features of the device's own
    nodes. It has as many rows as columns, which are the own nodes and then padding. Ops first get
    the rows of other nodes that the edges read (``halo``); ``indices`` are places in that table,
    and the plan is that of the rows by the table.

    Attributes:
      col_scale: factor of each entry of the table; or of each own node, which ops then exchange.
      halo: how the devices give each other the rows that their edges read.
      numbers: where the edges stand in the whole graph, by which dropout draws.
      split: the same edges in two parts, own senders and others, for sums that begin before the
        rows of others arrive; or None.
      row_ids: number in the whole graph of each own row, int32, -1 for padding rows; None where
        rows and columns are the same nodes, which ``halo.ids`` has.
    """

    halo: Halo = dataclasses.field(default=cast(Halo, None))
    numbers: EdgeNumbers = dataclasses.field(default=cast(EdgeNumbers, None))
    split: EdgesByOwner | None = None
    row_ids: Int[Array, " rows"] | None = None

    @property
    def is_real_row(self) -> Bool[Array, " rows"]:
        """Which rows are nodes of the graph, and no padding."""
        return self.halo.is_real if self.row_ids is None else self.row_ids >= 0

    def bipartite(self) -> CSRGraph:
        """The own rows by the entries of the table, as a graph without a halo."""
        scale = self._table_scale()
        return CSRGraph(
            indptr=self.indptr,
            indices=self.indices,
            weights=self.weights,
            num_cols=self.halo.table_rows,
            row_scale=self.row_scale,
            col_scale=scale,
            plan=self.plan,
            normalization=self.normalization,
            in_range=self.in_range,
        )

    def _table_scale(self) -> Array | None:
        """The factor of each entry of the table, or None."""
        scale = self.col_scale
        if scale is None or scale.shape[0] == self.halo.table_rows:
            return scale
        return self.halo.exchange(scale)

    def near_and_far(self) -> tuple[CSRGraph, CSRGraph]:
        """The own rows by own columns, and by the table: together the edges of ``bipartite()``."""
        split, scale = self.split, self._table_scale()
        assert split is not None
        own = scale
        if scale is not None:
            begin = self.halo.first_own()
            own = lax.dynamic_slice_in_dim(jnp.asarray(scale), begin, self.halo.rows)
        rows = {"row_scale": self.row_scale, "normalization": self.normalization}
        near = split.near.with_weights(_at(self.weights, split.near_slots))
        far = split.far.with_weights(_at(self.weights, split.far_slots))
        return near._with_fields(col_scale=own, **rows), far._with_fields(col_scale=scale, **rows)

    def edge_numbers(self) -> Words:
        """The number of each edge slot in the whole graph; anything for padding slots."""
        return self.numbers.of_slots(jnp.asarray(self.indptr), self.receivers())

    def senders_as_rows(self) -> Int[Array, " edges"]:
        """The own row that is the sender of each edge slot, -1 for nodes of other devices."""
        rows = self.indices - self.halo.first_own()
        return jnp.where((rows >= 0) & (rows < self.num_rows), rows, -1)

    def normalized(self, kind: Normalization | None) -> LocalGraph:
        """Normalises by the degrees in the whole graph; see ``CSRGraph.normalized``.

        Raises:
          ValueError: as there; or if the graph has weights and ``kind`` is not ``"mean"``.
        """
        if self.weights is not None and kind in ("sym", "gcn"):
            expected = "without weights; shard a graph that is normalised, graph.normalized(kind)"
            raise bad_input("LocalGraph.normalized", "self", expected, "weights")
        return cast(LocalGraph, super().normalized(kind))

    def _scales(self, kind: Normalization) -> dict[str, Any]:
        """The scales of the own nodes as receivers and as senders."""
        columns = None
        if kind == "sym":
            transposed = self.bipartite().made_plan("transpose").transposed_indptr
            columns = self.halo.add_at_owners(jnp.diff(transposed))
        scales = degree_scales(self.degrees(), columns)
        return dict(zip(("row_scale", "col_scale"), scales, strict=True))

    def transpose(self) -> NoReturn:
        """Raises ValueError: the edges that leave own nodes are on other devices."""
        instead = "shard graph.transpose() with the same partition"
        raise bad_input("LocalGraph.transpose", "self", f"a whole graph; {instead}", _PART)

    def with_self_loops(self, *args: Any, **options: Any) -> NoReturn:
        """Raises ValueError: the edges of a device are fixed when the graph is sharded."""
        expected = "a whole graph; shard graph.with_self_loops()"
        raise bad_input("LocalGraph.with_self_loops", "self", expected, _PART)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class LocalMatrix(CSRGraph):
    """The rows of one device of a sparse matrix, such as features, with all of its columns.

    Attributes:
      numbers: where the stored entries stand in the whole matrix, by which dropout draws.
    """

    numbers: EdgeNumbers = dataclasses.field(default=cast(EdgeNumbers, None))

    def edge_numbers(self) -> Words:
        """The number of each stored entry in the whole matrix; anything for padding slots."""
        return self.numbers.of_slots(jnp.asarray(self.indptr), self.receivers())


def with_senders(graph: Any, *of_senders: Any, axes: Sequence[int] = ()) -> tuple[Any, ...]:
    """Returns the graph that kernels take, and what its columns give.

    Of a ``LocalGraph`` this exchanges rows between devices. Other graphs are returned unchanged.

    Args:
      graph: the graph that an op was called with.
      of_senders: arrays or compressed rows of the nodes.
      axes: the axis of the nodes in each of them, by default the last but one.

    Raises:
      ValueError: if what is exchanged has not one row for each own node.
    """
    if not isinstance(graph, LocalGraph):
        return graph, *of_senders
    axes = axes or (-2,) * len(of_senders)
    tables = (graph.halo.exchange(x, axis) for x, axis in zip(of_senders, axes, strict=True))
    return graph.bipartite(), *tables


def sum_of_parts(
    graph: Any, x: Any, axis: int, product: Callable[[CSRGraph, Any], Array]
) -> Array | None:
    """Sums over the edges from own senders while the rows of others travel, and then over theirs.

    Args:
      graph: the graph that an op was called with.
      x: array or compressed rows of the own nodes.
      axis: the axis of the nodes.
      product: the op, a sum over edges of a graph and the rows of its columns.

    Returns:
      The sum of both; None unless the graph is one device's and its edges are in two parts.
    """
    if not isinstance(graph, LocalGraph) or graph.split is None:
        return None
    near, far = graph.near_and_far()
    table = graph.halo.exchange(x, axis)
    return product(near, x) + product(far, table)


def require_whole(where: str, graph: Any, instead: str) -> None:
    """Raises ValueError if the graph is one device's part; ``instead`` says what to do.

    Args:
      where: name of the layer or function in the message.
      graph: the graph.
      instead: what to shard, for example.
    """
    if isinstance(graph, LocalGraph):
        raise bad_input(where, "graph", f"a whole graph; {instead}", _PART)


def edge_words(graph: Any) -> UInt32[Array, " edges"] | None:
    """The lower 32 bits of the number in the whole graph of each edge slot of a device.

    None for a whole graph, whose edge slots are numbered as they stand.
    """
    return jnp.asarray(graph.edge_numbers().low) if isinstance(graph, LocalGraph) else None
