"""LocalGraph: one device's rows of a graph that is spread over the devices of a mesh."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jaxgnn._errors import bad_input
from jaxgnn.graph._csr import CSRGraph
from jaxgnn.graph._halo import Halo
from jaxgnn.graph._normalization import Normalization, degree_scales

_PART = "the rows of one device"


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
    """

    halo: Halo = dataclasses.field(default=cast(Halo, None))

    def bipartite(self) -> CSRGraph:
        """The own rows by the entries of the table, as a graph without a halo."""
        scale = self.col_scale
        if scale is not None and scale.shape[0] != self.halo.table_rows:
            scale = self.halo.exchange(scale)
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


def require_whole(where: str, graph: Any, instead: str) -> None:
    """Raises ValueError if the graph is one device's part; ``instead`` says what to do.

    Args:
      where: name of the layer or function in the message.
      graph: the graph.
      instead: what to shard, for example.
    """
    if isinstance(graph, LocalGraph):
        raise bad_input(where, "graph", f"a whole graph; {instead}", _PART)


def key_of_device(graph: Any, key: Any) -> Any:
    """The key for draws of edges: another one on each device of a graph that is spread over some.

    Edge slots are numbered by device, so these draws depend on the number of devices.
    """
    if key is None or not isinstance(graph, LocalGraph):
        return key
    return jax.random.fold_in(key, jax.lax.axis_index(graph.halo.axis))
