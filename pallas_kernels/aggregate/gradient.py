"""The gradient of reductions to the numbers of the senders, summed along the transposed graph.

A warp takes a piece of the edges that leave a sender, and gathers the terms of their rows. A number
gets the gradient of a maximum if it equals the maximum. No scatter and no atomic addition is
needed, so results are the same to the last bit in every run. ``extremes.py`` adds the gradients of
extremes in less time.

Two float32 terms, such as those of ``logsumexp``, are gathered as one array in which they take
turns, so that a lane reads both at once and a warp reads half as many lines.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import simt
from pallas_kernels.aggregate.parts import WarpMaths
from pallas_kernels.arguments.aggregate import Terms
from pallas_kernels.arguments.reductions import REDUCTIONS
from pallas_kernels.attention.softmax import power
from pallas_kernels.chip import Chip
from pallas_kernels.graph.rows import Piece, Pieces, add_pieces
from pallas_kernels.graph.spmm import SpmmTile
from pallas_kernels.simt.values import Array, Value, fold_in_pairs
from pallas_kernels.simt.warp import LANES, Warp

# The number of neighbours that a lane reads ahead keeps this many numbers in registers.
_READ_AHEAD = 32
# The two terms that are gathered together where there are no others.
_PAIR = ("peak", "exp_constant")
# The names of factors of slopes begin with it, before the name of the reduction.
_EACH = "each "


def tile_for(
    chip: Chip, graph: Pieces, rows: int, dim: int, arrays: int, terms_each: int = 1
) -> SpmmTile:
    """Chooses how the warps share the work of a pass that gathers float32 arrays.

    Args:
      chip: the GPU.
      graph: the transposed graph.
      rows: how many rows the gathered arrays have.
      dim: how many columns.
      arrays: how many arrays there are.
      terms_each: how many terms take turns in an array.
    """
    size = graph.num_rows, rows * arrays, graph.num_edges
    tile = SpmmTile.choose(chip, *size, dim * terms_each, 4)
    if arrays == 1:
        return dataclasses.replace(tile, entries=max(tile.entries // terms_each, 1))
    fitting = (n for n in (4, 2) if n * arrays * tile.entries <= _READ_AHEAD)
    return dataclasses.replace(tile, ahead=next(fitting, 1))


def grad_columns(
    graph: Pieces,
    slots: jax.Array | None,
    x: jax.Array,
    terms: Terms,
    dtype: Any,
    tile: SpmmTile | None = None,
) -> jax.Array:
    """Sums the gradients of the edges that leave each sender.

    Args:
      graph: the transposed graph, whose rows are the senders.
      slots: for each edge of it the slot of the graph, [edges]; None unless terms have slots.
      x: numbers of the senders, [cols, dim], float32, bfloat16 or float16.
      terms: arrays [rows, dim], the gradients among them float32. Their holders are not used.
      dtype: dtype of the result.
      tile: how the work is divided; chosen by the shapes if None.

    Returns:
      [cols, dim].
    """
    cols, dim = x.shape
    terms = dataclasses.replace(terms, top_holder=None, bottom_holder=None)
    arrays = jax.tree.leaves(terms)
    if cols * dim == 0 or graph.num_edges == 0 or not arrays or arrays[0].size == 0:
        return jnp.zeros(x.shape, dtype)
    gathered = _gathered(terms)
    if tile is None:
        size = arrays[0].shape[0], dim, len(gathered), max(map(len, gathered))
        tile = tile_for(Chip.current(), graph, *size)
    slices = -(-dim // (tile.lanes * tile.entries))
    dx, *partial = simt.launch(
        _GradColumns(tile),
        (graph, slots, x, gathered),
        [jax.ShapeDtypeStruct(x.shape, dtype), *graph.partial_sums(dim)],
        name="aggregate_grad_columns",
        grid=simt.Grid(graph.blocks(tile.warps), tile.warps, slices),
    )
    return add_pieces(graph, partial[0], dx) if partial else dx


def _gathered(terms: Terms) -> dict[tuple[str, ...], jax.Array]:
    """Returns the arrays to gather, each with the names of the terms that take turns in it."""
    fields = [field.name for field in dataclasses.fields(terms) if field.name != "each"]
    there: dict[tuple[str, ...], jax.Array] = {
        (name,): array for name in fields if (array := getattr(terms, name)) is not None
    }
    there |= {(_EACH + name,): array for name, array in (terms.each or {}).items()}
    if set(there) == {(name,) for name in _PAIR}:
        both = jnp.stack([there[name,] for name in _PAIR], axis=-1)
        return {_PAIR: both.reshape(both.shape[0], -1)}
    return there


@dataclass(frozen=True)
class _GradColumns:
    """Each warp sums one piece at a time; its groups of lanes take turns at the edges."""

    tile: SpmmTile

    def __call__(self, warp: Warp, inputs, dx: Array, partial: Array | None = None) -> None:
        graph, slots, x, terms = inputs
        tile, dim = self.tile, x.shape[-1]
        groups = LANES // tile.lanes
        step = groups * tile.ahead
        column = (warp.slice * tile.lanes + warp.lane % tile.lanes) * tile.entries
        inside = column < dim
        # Lanes past the last column read the first one, and store nothing.
        read_column = warp.select(inside, column, 0)
        mine = warp.lane // tile.lanes

        def read_row(row):
            """Words of each array that is gathered, with the names of its terms."""
            return {
                names: array.row(row).load_words(
                    read_column * len(names), tile.entries * len(names)
                )
                for names, array in terms.items()
            }

        def of_column(words, i):
            """The terms of a column by name."""
            return {
                name: terms[names].unpack(found, i * len(names) + place)
                for names, found in words.items()
                for place, name in enumerate(names)
            }

        def add(edges, own, sums, end=None):
            """Adds the gradients of edges; if ``end`` is given, only of those before it."""
            inner = [e if end is None else e.at_most(end - 1) for e in edges]
            rows = [graph.indices.load(edge) for edge in inner]
            words = [read_row(row) for row in rows]
            at = [None if slots is None else slots.load(edge).to("i32") for edge in inner]
            for edge, read, slot in zip(edges, words, at, strict=True):
                for i in range(tile.entries):
                    more = _gradient(warp, own[i], slot, of_column(read, i))
                    if end is not None:
                        more = warp.select(edge < end, more, 0.0)
                    sums = [*sums[:i], sums[i] + more, *sums[i + 1 :]]
            return sums

        def edges_from(first):
            return [first + (mine + s * groups) for s in range(tile.ahead)]

        def sum_piece(piece: Piece) -> None:
            read = x.row(piece.row).load_words(read_column, tile.entries)
            own = [x.unpack(read, i) for i in range(tile.entries)]
            sums = [warp.f32(0.0) for _ in range(tile.entries)]
            full_end = piece.end - (step - 1)
            sums = warp.loop(
                piece.begin, full_end, step, sums, lambda e, s: add(edges_from(e), own, s)
            )
            # The rest is less than a step, so some of a lane's neighbours may be past the end.
            rest = piece.end - (piece.end - piece.begin) % step
            sums = warp.loop(
                rest, piece.end, step, sums, lambda e, s: add(edges_from(e), own, s, piece.end)
            )
            sums = [warp.sum_groups(s, tile.lanes) for s in sums]
            warp.when((mine == 0) & inside, lambda: store(piece, sums))

        def store(piece: Piece, sums) -> None:
            def store_row():
                dx.row(piece.row).store(column, *sums)

            if partial is None:
                return store_row()
            warp.when(piece.slot < 0, store_row)
            warp.when(piece.slot >= 0, lambda: partial.row(piece.slot).store(column, *sums))

        graph.for_each(warp, sum_piece)


def _gradient(warp: Warp, x: Value, slot: Value | None, terms: dict[str, Any]) -> Value:
    """The gradient of one edge to its number ``x``, by the formula of ``Terms``."""
    parts = []
    if "linear" in terms:
        parts.append(warp.fma(terms["linear"], x - terms["centre"], terms["constant"]))
    elif "constant" in terms:
        parts.append(terms["constant"])
    for name in ("top", "bottom"):
        if name in terms:
            have_it = terms[name] == (x if terms[name].kind == "f32" else slot)
            parts.append(warp.select(have_it, terms[f"{name}_gradient"], 0.0))
    if "peak" in terms:
        factor = terms.get("exp_constant", warp.f32(0.0))
        if "exp_linear" in terms:
            factor = warp.fma(terms["exp_linear"], x - terms["soft"] + 1.0, factor)
        parts.append(power(warp, x, terms["peak"]) * factor)
    for name, factor in terms.items():
        if name.startswith(_EACH):
            reduction = REDUCTIONS[name.removeprefix(_EACH)]
            parts.append(factor * reduction.slope_at(x, WarpMaths(warp)))
    return fold_in_pairs(parts, lambda a, b: a + b)
