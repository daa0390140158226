"""Reductions over the edges of each row, and their gradients, in plain JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxgnn.graph import CSRGraph
from jaxgnn.graph.plan.row_sums import sum_rows
from jaxgnn.ops._core.dtypes import accumulation_dtype
from pallas_kernels.aggregate.arguments import Form, Statistics, Terms


def forward(
    graph: CSRGraph, x: Float[Array, "numbers dim"], *, form: Form, keep: bool
) -> tuple[Float[Array, "rows columns"], Statistics]:
    """The results side by side, rounded, and with ``keep`` the statistics for the gradients.

    Args:
      graph: rows are receivers.
      x: numbers of the senders, or of the edges.
      form: the static description.
      keep: whether to return statistics; otherwise all statistics are None.
    """
    edges = _Edges(graph, x, form)
    made = {name: edges.reduced(name) for name in dict.fromkeys(form.reductions)}
    y = jnp.concatenate([made[name] for name in form.reductions], axis=-1).astype(x.dtype)
    if not keep:
        return y, Statistics()
    find = {
        "mean": edges.mean,
        "variance": edges.variance,
        "highest": lambda: edges.have(edges.extreme(edges.values)),
        "lowest": lambda: edges.have(-edges.extreme(-edges.values)),
        "log_total": edges.log_total,
        "soft": edges.soft,
    }
    return y, Statistics(**{field: find[field]() for field in form.kept()})


class _Edges:
    """The numbers of the edges, [edges, dim] in the accumulation dtype, and their reductions."""

    def __init__(self, graph: CSRGraph, x: Float[Array, "numbers dim"], form: Form):
        wide = x.astype(accumulation_dtype(x.dtype))
        self.graph, self.form = graph, form
        self.rows, self.num_rows = graph.receivers(), graph.num_rows
        self.values = wide if form.by_edge else wide[graph.indices]
        self.count = jnp.diff(graph.indptr)[:, None].astype(wide.dtype)

    def reduced(self, name: str) -> Float[Array, "rows dim"]:
        match name:
            case "sum":
                made = self.sum(self.values)
            case "mean":
                made = self.mean()
            case "var":
                made = self.variance()
            case "std":
                # The root of zero is zero, and so is its gradient.
                variance = self.variance()
                is_some = variance > 0
                made = jnp.where(is_some, jnp.sqrt(jnp.where(is_some, variance, 1)), 0)
            case "max":
                made = self.extreme(self.values)
            case "min":
                made = -self.extreme(-self.values)
            case "softmax":
                made = self.soft()
            case _:
                made = self.log_total()
        return jnp.where(self.count > 0, made, 0)

    def sum(self, values: Float[Array, "edges dim"]) -> Float[Array, "rows dim"]:
        return sum_rows(values, self.graph.indptr)

    def of_edges(self, per_row: Array, padding: float = 0) -> Array:
        """The value of each edge's row."""
        return per_row.at[self.rows].get(mode="fill", fill_value=padding, indices_are_sorted=True)

    def mean(self) -> Float[Array, "rows dim"]:
        return self.sum(self.values) / jnp.maximum(self.count, 1)

    def variance(self) -> Float[Array, "rows dim"]:
        distance = self.values - self.of_edges(self.mean())
        return self.sum(distance**2) / jnp.maximum(self.count, 1)

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

    def _exponentials(self) -> tuple[Array, Array]:
        """Exponentials of the numbers of edges, zero in padding, and the shift of each row."""
        real = (self.rows < self.num_rows)[:, None]
        # The shift does not change the result, so it need not be differentiated.
        values = lax.stop_gradient(self.values)
        shift = jax.ops.segment_max(values, self.rows, self.num_rows, indices_are_sorted=True)
        # A row of only -inf would give inf - inf.
        shift = jnp.where(shift == -jnp.inf, 0, shift)
        shifted = jnp.where(real, self.values - self.of_edges(shift), 0)
        return jnp.where(real, jnp.exp(shifted), 0), shift

    def log_total(self) -> Float[Array, "rows dim"]:
        exponentials, shift = self._exponentials()
        total = jnp.where(self.count > 0, self.sum(exponentials), 1)
        return jnp.log(total) + shift

    def soft(self) -> Float[Array, "rows dim"]:
        exponentials, _ = self._exponentials()
        total = jnp.where(self.count > 0, self.sum(exponentials), 1)
        return self.sum(exponentials * self.values) / total


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
        return array.at[rows].get(mode="fill", fill_value=0, indices_are_sorted=True)

    total = jnp.zeros_like(values)
    if terms.constant is not None:
        total = total + at(terms.constant)
    if terms.linear is not None:
        total = total + at(terms.linear) * values
    for extreme, gradient in (
        (terms.top, terms.top_gradient),
        (terms.bottom, terms.bottom_gradient),
    ):
        if extreme is not None:
            is_slot = jnp.issubdtype(extreme.dtype, jnp.integer)
            numbers = slots[:, None] if is_slot else values
            have_it = at(extreme).astype(numbers.dtype) == numbers
            total = total + jnp.where(have_it, at(gradient), 0)
    if terms.log_total is not None:
        factor = at(terms.exp_constant)
        if terms.exp_linear is not None:
            factor = factor + at(terms.exp_linear) * values
        total = total + jnp.exp(values - at(terms.log_total)) * factor
    return jnp.where((rows < graph.num_rows)[:, None], total, 0)
