"""The front door of ops on graphs: opens the graph of a call once, and checks its arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jaxtyping import Array, Float, UInt32

from jaxgnn._errors import bad_input
from jaxgnn.graph import CBSR, CSRGraph, is_concrete
from jaxgnn.graph.csr.edge_list import way_to_edge_slots
from jaxgnn.graph.csr.masked_graph import edge_presence, unmasked
from jaxgnn.graph.csr.require_graph import check_graph, refuse_weights
from jaxgnn.graph.csr.validation import bounded_graph
from jaxgnn.graph.local.local_graph import Spread, edge_words, exchange_senders
from jaxgnn.graph.plan.device_sorting import on_gpu
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.checks import check_float, from_numpy

_MEMORY = "_opened"  # Attribute of a concrete graph with the results of earlier calls.


@dataclass(frozen=True)
class Opened:
    """The graph of a call, checked once. Inner functions take it and do not check again.

    Attributes:
      graph: graph of one device, whose indices are in range and whose plan has the parts that the
        op needs.
      presence: presence of each edge of a ``MaskedGraph``, or None. The weights of ``graph``
        include it unless the op applies it itself.
      spread: the part of a graph over several devices that the caller passed, or None.
    """

    graph: CSRGraph
    presence: Float[Array, " edges"] | None = None
    spread: Spread | None = None

    def senders(self, *arrays: Any, axes: Sequence[int] = ()) -> tuple[Any, ...]:
        """Returns arrays of the columns of ``graph``, with the rows of other devices.

        Args:
          *arrays: arrays of the senders, or ``CBSR``; NumPy arrays become JAX arrays.
          axes: axis of the senders in each of them, by default the last but one.

        Raises:
          ValueError: if an array does not have one row for each node of this device.
        """
        arrays = from_numpy(*arrays)
        return arrays if self.spread is None else exchange_senders(self.spread, arrays, axes)

    def numbers(self) -> UInt32[Array, " edges"] | None:
        """Lower words of the numbers of the edges in the whole graph; None for their slots."""
        return edge_words(self.spread)


def open_graph(
    op: str,
    graph: Any,
    *,
    refuses: str | None = None,
    scales: bool = False,
    apart: bool = False,
) -> Opened:
    """Checks the graph of a call, and returns it with the parts of its plan that the op needs.

    A concrete graph is checked in its first call; later calls of the same op find the result.
    Indices of a traced graph are clamped unless they are known to be in range.

    Args:
      op: name of the op, for errors.
      graph: graph that the op was called with.
      refuses: advice for weights, where the op refuses a graph that has them; None where it applies
        or ignores them.
      scales: whether the op applies the scales of a graph without weights.
      apart: whether the op applies the presence of a ``MaskedGraph`` itself, as ops that refuse
        weights always do; otherwise the weights of the result include it.

    Raises:
      ValueError: unless ``graph`` is a valid graph of at least one node, without weights where they
        are refused.
    """
    key = op, refuses, scales, apart, on_gpu()
    memory = getattr(graph, "__dict__", {}).get(_MEMORY, {})
    opened = memory.get(key)
    if opened is None:
        opened = _opened(op, graph, refuses, scales, apart or refuses is not None)
        # A graph that referenced itself would be freed late.
        is_kept = is_concrete(graph.indptr, graph.indices) and opened.graph is not graph
        if is_kept and opened.spread is None:
            graph.__dict__[_MEMORY] = memory | {key: opened}
    return opened


def _opened(op: str, graph: Any, refuses: str | None, scales: bool, apart: bool) -> Opened:
    spread = graph if isinstance(graph, Spread) else None
    checked = check_graph(op, graph if spread is None else spread.bipartite())
    if refuses is not None:
        refuse_weights(op, "graph", checked, refuses, scales=scales)
    if is_concrete(checked.indptr, checked.indices):
        checked = checked.prepared_for(op)
    else:
        checked = bounded_graph(checked)
    return Opened(unmasked(checked, apart=apart), edge_presence(checked), spread)


@dataclass(frozen=True)
class Arrays:
    """Checks the arrays of one call, and maps a function over their leading axes.

    Attributes:
      op: name of the op, for errors.
      graph: checked graph.
      batch: leading axes of all arrays of nodes; arrays of edges have these or none.
    """

    op: str
    graph: CSRGraph
    batch: tuple[Any, ...]

    def nodes(self, argument: str, array: Any, side: str, *tail: int | None) -> None:
        """Raises ValueError unless ``array`` is [*batch, nodes, *tail]; None for any size.

        Args:
          argument: name of the array.
          array: floating array, or ``CBSR``.
          side: ``"row"`` for receivers, ``"column"`` for senders.
          *tail: sizes of the axes after that of the nodes.
        """
        count = self.graph.num_rows if side == "row" else self.graph.num_cols
        note = f"one row for each {side} of the graph"
        self._check(argument, array, (self.batch,), (count, *tail), note)

    def edges(self, argument: str, array: Any, *tail: int | None, dtype: Any = None) -> None:
        """Raises ValueError unless ``array`` is None, [*batch, E, *tail] or [E, *tail].

        Args:
          argument: name of the array.
          array: floating array, or None.
          *tail: sizes of the axes after that of the edge slots; None for any size.
          dtype: dtype that the array must have, or None for any floating one.
        """
        if array is None:
            return
        shape, note = (self.graph.num_edges, *tail), "one entry for each edge slot"
        self._check(argument, array, (self.batch, ()), shape, note, may_be_empty=not tail)
        if dtype is not None and array.dtype != dtype:
            raise bad_input(self.op, argument, f"{dtype}, as the features of nodes", array.dtype)

    def shared(self, argument: str, array: Any, *shape: int | None) -> None:
        """Raises ValueError unless ``array`` is of this shape, without leading axes."""
        self._check(argument, array, ((),), shape, "shared by all edges")

    def in_axes(self, arrays: Mapping[str, Any], axes: Mapping[str, int]) -> dict[str, int | None]:
        """Axes to map over: 0 for arrays of ``axes`` that have leading axes, else None.

        Args:
          arrays: arrays by name.
          axes: number of axes without leading ones of those arrays that may have these.
        """
        return {
            name: 0 if name in axes and array.ndim > axes[name] else None
            for name, array in arrays.items()
        }

    def map(self, run: Callable[..., Any], *arrays: Any, in_axes: Any = 0) -> Any:
        """Maps ``run(graph, *arrays)`` over the leading axes; see ``over_leading_axes``."""
        batch_dims = len(self.batch)
        return dispatch.over_leading_axes(run, batch_dims, self.graph, *arrays, in_axes=in_axes)

    def _check(self, argument, array, batches, tail, note, *, may_be_empty=False):
        if isinstance(array, CBSR):
            array = jax.ShapeDtypeStruct(array.shape, array.dtype)
        check_float(self.op, argument, array, len(tail), may_be_empty=may_be_empty)
        leading, sizes = array.shape[: array.ndim - len(tail)], array.shape[-len(tail) :]
        fits = all(want in (None, got) for want, got in zip(tail, sizes, strict=True))
        if fits and leading in batches:
            return
        wanted = [
            [*batch, *("any" if size is None else size for size in tail)]
            for batch in dict.fromkeys(batches)
        ]
        shapes = " or ".join(f"[{', '.join(map(str, shape))}]" for shape in wanted)
        got = f"shape {array.shape}"
        if note.endswith("edge slot") and sizes[0] != self.graph.num_edges:
            got += way_to_edge_slots(self.graph.num_edges, (*sizes[:1], 0))
        raise bad_input(self.op, argument, f"of shape {shapes}, {note}", got)
