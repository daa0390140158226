"""Adds the gradients of extremes to the numbers of the senders that have them.

A warp takes a piece of a row. Each lane has a column and adds its gradient to the holder, the
sender of the only edge that has the extreme: nothing is read for the other edges. Where several
edges have it, the warp looks for them among the edges of its piece. Additions are atomic, in no
fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from pallas_kernels import simt
from pallas_kernels.graph.rows import Piece, Pieces
from pallas_kernels.simt.values import Array, Value
from pallas_kernels.simt.warp import LANES, Warp

_WARPS = 8
# Neighbours that a lane reads before it compares them.
_READ_AHEAD = 4


class Extreme(NamedTuple):
    """An extreme of each row, [rows, dim] each.

    Attributes:
      best: the extreme, of the dtype of the numbers; None if those that have no holder have no
        gradient.
      gradient: the gradient to each edge that has it, float32.
      holder: the sender that has it alone, int32; below -1 where several edges have it, and -1
        where none has it.
    """

    best: Any
    gradient: Any
    holder: Any


def add_extremes(
    graph: Pieces, x: jax.Array, extremes: Sequence[Extreme], dx: jax.Array
) -> jax.Array:
    """Adds the gradients of extremes to ``dx``.

    Args:
      graph: the graph, whose rows have the extremes.
      x: numbers of the senders, [cols, dim], float32, bfloat16 or float16.
      extremes: the extremes.
      dx: what the gradients are added to, [cols, dim] float32.
    """
    dim = x.shape[-1]
    if dx.size == 0 or graph.num_edges == 0 or graph.num_rows == 0:
        return dx
    (result,) = simt.launch(
        _AddExtremes(),
        (graph, x, list(extremes)),
        [],
        name="aggregate_grad_extremes",
        grid=simt.Grid(graph.blocks(_WARPS), _WARPS, -(-dim // LANES)),
        updated=[dx],
    )
    return result


@dataclass(frozen=True)
class _AddExtremes:
    """Each warp takes one piece of a row at a time, and 32 of its columns."""

    def __call__(self, warp: Warp, inputs, dx: Array) -> None:
        graph, x, extremes = inputs
        own = warp.slice * LANES + warp.lane
        inside = own < x.shape[-1]
        column = warp.select(inside, own, 0)

        def add(piece: Piece) -> None:
            is_first = piece.begin == graph.indptr.load(piece.row)
            for extreme in extremes:
                holder = extreme.holder.row(piece.row).load(column)
                slope = extreme.gradient.row(piece.row).load(column)
                alone = inside & is_first & (holder >= 0)
                warp.when(alone, lambda h=holder, s=slope: dx.row(h).add(column, s))
                if extreme.best is not None:
                    best = extreme.best.row(piece.row).load(column)
                    share(piece, inside & (holder < -1), best, slope)

        def share(piece: Piece, is_shared: Value, best: Value, slope: Value) -> None:
            def compare(first, _):
                edges = [first + i for i in range(_READ_AHEAD)]
                senders = [graph.indices.load(e.at_most(piece.end - 1)) for e in edges]
                numbers = [x.row(sender).load(column) for sender in senders]
                for edge, sender, number in zip(edges, senders, numbers, strict=True):
                    has_it = is_shared & (edge < piece.end) & (number == best)
                    warp.when(has_it, lambda s=sender: dx.row(s).add(column, slope))

            def look() -> None:
                warp.loop(piece.begin, piece.end, _READ_AHEAD, (), compare)

            warp.when(warp.ballot(is_shared) != 0, look)

        graph.for_each(warp, add)
