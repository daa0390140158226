"""Reductions over the edges of each row, and their gradients, in plain JAX."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxgnn._arrays.arrays import rows_at
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.plan.row_sums import sum_rows
from jaxgnn.ops.core.dtypes import accumulation_dtype
from pallas_kernels.arguments.aggregate import Form, Statistics, Terms, count_of
from pallas_kernels.arguments.reductions import ARRAYS, REDUCTIONS


def forward(
    graph: CSRGraph, x: Float[Array, "numbers dim"], *, form: Form, keep: bool
) -> tuple[Float[Array, "rows columns"], Statistics]:
    """The results side by side, rounded, and with ``keep`` the statistics for the gradients."""
    edges = _Edges(graph, x, form)
    parts = {name: edges.reduced(name) for name in dict.fromkeys(form.reductions)}
    y = jnp.concatenate([parts[name] for name in form.reductions], axis=-1).astype(x.dtype)
    if not keep:
        return y, Statistics()
    statistics = {
        "mean": lambda: edges.centre()[0],
        "mean_rest": lambda: edges.centre()[1],
        "variance": edges.variance,
        "highest": lambda: edges.have(edges.extreme(edges.values)),
        "lowest": lambda: edges.have(-edges.extreme(-edges.values)),
        "peak": lambda: edges.exponentials()[1],
        "total": lambda: jnp.where(edges.count > 0, edges.total(), 0),
        "soft": edges.soft,
        **{name: partial(edges.sum_of_function, name) for name in form.sums_of_functions},
    }
    return y, Statistics.of_kept({name: statistics[name]() for name in form.kept()})


class _Edges:
    """The numbers of the edges, [edges, dim] in the accumulation dtype, and their reductions."""

    def __init__(self, graph: CSRGraph, x: Float[Array, "numbers dim"], form: Form):
        wide = x.astype(accumulation_dtype(x.dtype))
        self.graph, self.form = graph, form
        self.rows, self.num_rows = graph.receivers(), graph.num_rows
        self.values = wide if form.by_edge else wide[graph.indices]
        self.count = jnp.diff(graph.indptr)[:, None].astype(wide.dtype)

    def reduced(self, name: str) -> Float[Array, "rows dim"]:
        """The reduction of this name; zero for rows without edges."""
        totals = {
            "sum": lambda: self.sum(self.values),
            "mean": self.mean,
            "variance": self.variance,
            "max": lambda: self.extreme(self.values),
            "min": lambda: -self.extreme(-self.values),
            "soft": self.soft,
            "log_total": self.log_total,
            "count": lambda: jnp.maximum(self.count, 1),
            "each": lambda: self.sum_of_function(name),
        }
        reduction = REDUCTIONS[name]
        result = reduction.result(ARRAYS, *(totals[total]() for total in reduction.totals))
        return jnp.where(self.count > 0, result, 0)

    def sum_of_function(self, name: str) -> Float[Array, "rows dim"]:
        """The sum of the function of each number that this reduction has."""
        return self.sum(REDUCTIONS[name].of_each(self.values))

    def sum(self, values: Float[Array, "edges dim"]) -> Float[Array, "rows dim"]:
        return sum_rows(values, self.graph.indptr)

    def of_edges(self, per_row: Array, padding: float = 0) -> Array:
        """The value of each edge's row."""
        return rows_at(per_row, self.rows, padding, are_sorted=True)

    def mean(self) -> Float[Array, "rows dim"]:
        return self.sum(self.values) / jnp.maximum(self.count, 1)

    def _moved(self) -> tuple[Array, Array, Array]:
        """A number of each row, the distances of all from it, and the mean of these.

        Equal numbers have distances of zero, which their distances from a rounded mean may not be.
        """
        first = jnp.asarray(self.graph.indptr)[:-1]
        start = rows_at(lax.stop_gradient(self.values), first, are_sorted=True)
        start = jnp.where(self.count > 0, start, 0)
        distances = self.values - self.of_edges(start)
        return start, distances, self.sum(distances) / jnp.maximum(self.count, 1)

    def centre(self) -> tuple[Float[Array, "rows dim"], Float[Array, "rows dim"]]:
        """The mean, rounded, and the rest of it."""
        start, _, offset = self._moved()
        mean = start + offset
        return mean, (start - mean) + offset

    def variance(self) -> Float[Array, "rows dim"]:
        _, distances, offset = self._moved()
        squares = (distances - self.of_edges(offset)) ** 2
        return self.sum(squares) / jnp.maximum(self.count, 1)

    def extreme(self, values: Float[Array, "edges dim"]) -> Float[Array, "rows dim"]:
        """The maximum of each row; its gradient goes as the form says."""
        highest = jax.ops.segment_max(values, self.rows, self.num_rows, indices_are_sorted=True)
        if self.form.ties == "share":
            return highest
        highest = lax.stop_gradient(highest)
        slots = self._first(lax.stop_gradient(values) == self.of_edges(highest))
        taken = jnp.take_along_axis(values, slots, axis=0, mode="fill", fill_value=0)
        return jnp.where(slots < values.shape[0], taken, highest)

    def have(self, extreme: Float[Array, "rows dim"]) -> Array:
        """The edges that have the extreme of their row, in the form that gradients need."""
        have_it = self.values == self.of_edges(extreme)
        if self.form.keeps == "slot":
            return self._first(have_it)
        count = self.sum(have_it.astype(extreme.dtype))
        if self.form.keeps == "count":
            return count
        senders = jnp.where(have_it, self.graph.indices[:, None], -1)
        holder = jax.ops.segment_max(senders, self.rows, self.num_rows, indices_are_sorted=True)
        return jnp.where(count == 1, holder, ~count.astype(holder.dtype))

    def _first(self, found: Bool[Array, "edges dim"]) -> Int[Array, "rows dim"]:
        """The first slot of each row where ``found`` is True, zero for rows without edges.

        It is the number of slots if there is none, as for a NaN.
        """
        size = found.shape[0]
        numbers = jnp.where(found, jnp.arange(size, dtype=jnp.int32)[:, None], size)
        first = jax.ops.segment_min(numbers, self.rows, self.num_rows, indices_are_sorted=True)
        return jnp.where(self.count > 0, jnp.minimum(first, size), 0)

    def exponentials(self) -> tuple[Array, Array]:
        """Exponentials of the numbers of edges, zero in padding, and the shift of each row."""
        real = (self.rows < self.num_rows)[:, None]
        # The shift does not change the result, so it need not be differentiated.
        values = lax.stop_gradient(self.values)
        shift = jax.ops.segment_max(values, self.rows, self.num_rows, indices_are_sorted=True)
        # A row of only -inf would give inf - inf.
        shift = jnp.where(shift == -jnp.inf, 0, shift)
        shifted = jnp.where(real, self.values - self.of_edges(shift), 0)
        return jnp.where(real, jnp.exp(shifted), 0), shift

    def total(self) -> Float[Array, "rows dim"]:
        """The sum of the exponentials, one for rows without edges."""
        return jnp.where(self.count > 0, self.sum(self.exponentials()[0]), 1)

    def log_total(self) -> Float[Array, "rows dim"]:
        return jnp.log(self.total()) + self.exponentials()[1]

    def soft(self) -> Float[Array, "rows dim"]:
        return self.sum(self.exponentials()[0] * self.values) / self.total()


def grad_edges(
    graph: CSRGraph, x: Float[Array, "edges dim"], terms: Terms
) -> Float[Array, "edges dim"]:
    """The gradient to the numbers of edges; zero in padding slots."""
    slots = jnp.arange(graph.num_edges, dtype=jnp.int32)
    wide = x.astype(accumulation_dtype(x.dtype))
    return _contributions(graph, wide, slots, terms).astype(x.dtype)


def grad_columns(
    graph: CSRGraph, x: Float[Array, "cols dim"], terms: Terms
) -> Float[Array, "cols dim"]:
    """The gradient to the numbers of senders, summed over their edges."""
    wide = x.astype(accumulation_dtype(x.dtype))
    slots = jnp.arange(graph.num_edges, dtype=jnp.int32)
    of_edges = _contributions(graph, wide[graph.indices], slots, terms)
    plan = graph.made_plan("transpose", "permutation")
    return sum_rows(of_edges[plan.permutation], plan.transposed_indptr).astype(x.dtype)


def _contributions(graph, values, slots, terms):
    """Applies the formula of ``Terms`` to each edge, in the accumulation dtype."""
    rows = graph.receivers()

    def at(array):
        return rows_at(array, rows, are_sorted=True)

    total = jnp.zeros_like(values)
    if terms.constant is not None:
        total = total + at(terms.constant)
    if terms.linear is not None:
        total = total + at(terms.linear) * (values - at(terms.centre))
    for extreme, gradient in (
        (terms.top, terms.top_gradient),
        (terms.bottom, terms.bottom_gradient),
    ):
        if extreme is not None:
            is_slot = jnp.issubdtype(extreme.dtype, jnp.integer)
            numbers = slots[:, None] if is_slot else values
            have_it = at(extreme).astype(numbers.dtype) == numbers
            total = total + jnp.where(have_it, at(gradient), 0)
    if terms.peak is not None:
        factor = jnp.zeros_like(values)
        if terms.exp_constant is not None:
            factor = factor + at(terms.exp_constant)
        if terms.exp_linear is not None:
            factor = factor + at(terms.exp_linear) * (1 + (values - at(terms.soft)))
        total = total + jnp.exp(values - at(terms.peak)) * factor
    for name, factor in (terms.each or {}).items():
        total = total + at(factor) * REDUCTIONS[name].slope_at(values)
    return jnp.where((rows < graph.num_rows)[:, None], total, 0)


def reduce_segments(
    ids: Int[Array, " entries"],
    x: Float[Array, "entries dim"],
    *,
    reduction: str,
    num_segments: int,
    is_sorted: bool,
    keep: bool,
) -> tuple[Float[Array, "segments dim"], Int[Array, " segments"], Array | None]:
    """The reduction of each segment, zero without entries, and the number of its entries.

    Entries of ids out of range are dropped. With ``keep`` the third result is the number of entries
    that have the extreme, else None.
    """
    how = {"num_segments": num_segments, "indices_are_sorted": is_sorted}
    wide = x.astype(accumulation_dtype(x.dtype))
    members = jax.ops.segment_sum(jnp.ones(ids.shape, jnp.int32), ids, **how)
    ties = None
    if reduction == "sum":
        made = jax.ops.segment_sum(wide, ids, **how)
    elif reduction == "logsumexp":
        peaks = jax.ops.segment_max(wide, ids, **how)
        peaks = jnp.where(peaks == -jnp.inf, 0, peaks)
        exponentials = jnp.exp(wide - spread(ids, peaks))
        made = jnp.log(jax.ops.segment_sum(exponentials, ids, **how)) + peaks
    else:
        extreme = jax.ops.segment_max if reduction == "max" else jax.ops.segment_min
        made = extreme(wide, ids, **how)
        if keep:
            have_it = (wide == spread(ids, made)).astype(wide.dtype)
            ties = jax.ops.segment_sum(have_it, ids, **how)
    return jnp.where(members[:, None] > 0, made, 0).astype(x.dtype), members, ties


def spread(
    ids: Int[Array, " entries"], per_segment: Float[Array, "segments dim"]
) -> Float[Array, "entries dim"]:
    """The value of the segment of each entry; zero for those out of range."""
    places = jnp.where(ids < 0, per_segment.shape[0], ids)  # a negative id is no id from the end
    return rows_at(per_segment, places)


def terms_of(
    form: Form,
    graph: CSRGraph,
    y: Float[Array, "rows columns"],
    statistics: Statistics,
    dy: Float[Array, "rows columns"],
) -> Terms:
    """The terms of the gradient to the number of an edge, from that of the result ``y``."""
    wide = accumulation_dtype(y.dtype)
    count = jnp.maximum(jnp.diff(graph.indptr), 1)[:, None].astype(wide)
    parts = zip(*(jnp.split(a, len(form.reductions), axis=-1) for a in (y, dy)), strict=True)
    of = {name: (y, dy.astype(wide)) for name, (y, dy) in zip(form.reductions, parts, strict=True)}
    sums: dict[str, Array] = {}
    each: dict[str, Array] = {}
    for name, reduction in REDUCTIONS.items():
        if name not in of:
            continue
        slope = of[name][1]
        if reduction.gradient is not None:
            for term, part in reduction.gradient(slope, count, statistics).items():
                sums[term] = sums[term] + part if term in sums else part
        elif reduction.value is not None:
            total = statistics.each[name]
            _, pull_back = jax.vjp(lambda t, r=reduction: r.of_sum(t, count), total)
            each[name] = pull_back(slope.astype(total.dtype))[0]
    if "linear" in sums:
        rest = -statistics.mean_rest * sums["linear"]
        sums["constant"] = sums["constant"] + rest if "constant" in sums else rest
    return Terms(
        **sums,
        centre=statistics.mean,
        peak=statistics.peak,
        soft=statistics.soft,
        each=each or None,
        **_extremes(form, graph, of, statistics),
    )


def _extremes(form, graph, of, statistics):
    terms = {}
    for name, kept, field in (("max", "highest", "top"), ("min", "lowest", "bottom")):
        if name in of:
            y, dy = of[name]
            tied = getattr(statistics, kept)
            terms[field] = tied if form.keeps == "slot" else y
            terms[f"{field}_gradient"] = _share(form, tied, dy)
            if not form.by_edge:
                terms[f"{field}_holder"] = _holder(form, graph, tied)
    return terms


def _share(form, tied, dy):
    """The gradient that each edge with an extreme gets."""
    if form.keeps == "slot":
        return dy
    count = count_of(tied).astype(dy.dtype) if form.keeps == "holder" else tied
    return dy / jnp.maximum(count, 1)


def _holder(form, graph, tied):
    """The sender that has the extreme alone, negative where there is none."""
    if form.keeps == "holder":
        return tied
    senders = rows_at(jnp.asarray(graph.indices), tied, -1)
    return jnp.where(jnp.diff(graph.indptr)[:, None] > 0, senders, -1)
