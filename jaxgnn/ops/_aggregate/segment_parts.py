"""Reductions of segments of a matrix of floats, with their gradients.

Sums, extremes and logarithms of sums of exponentials are each the transpose of another, or composed
of the others, and so is all else. So gradients of any order are again reductions of segments and
gathers. The only scatters are sums and extremes of unsorted entries on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxgnn._ffi import aggregate as ffi
from jaxgnn.graph import CSRGraph
from jaxgnn.ops._aggregate import pallas
from jaxgnn.ops._aggregate.reference import aggregate as reference
from jaxgnn.ops._aggregate.segment_order import order_of_sorted, sorted_order
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.custom_gradient import custom_vjp
from jaxgnn.ops.core.dtypes import accumulation_dtype
from jaxgnn.ops.core.rounding import exponential, quotient
from pallas_kernels.arguments.aggregate import Form, count_of


def _by_rows(forward, order):
    """A kernel of segments: entries in the order of their segments are the neighbours of rows."""

    def run(ids, x, *, reduction, num_segments, is_sorted, keep):
        if is_sorted:
            indptr, entries = order_of_sorted(ids, num_segments)
        else:
            indptr, entries = order(ids, num_segments)
        graph = CSRGraph(indptr, entries, num_cols=ids.shape[0], in_range=True)
        y, found = forward(graph, x, form=Form((reduction,), False), keep=keep)
        holder = found.highest if reduction == "max" else found.lowest
        return y, jnp.diff(indptr), None if holder is None else count_of(holder)

    return run


_by_order = _by_rows(ffi.forward, ffi.segment_order)


def _on_cpu(ids, x, *, reduction, num_segments, is_sorted, keep):
    """Reduces unsorted entries by XLA's scatters, which are faster on a CPU."""
    how = {"num_segments": num_segments, "is_sorted": is_sorted, "keep": keep}
    if is_sorted or keep or reduction == "logsumexp":
        return _by_order(ids, x, reduction=reduction, **how)
    return reference.reduce_segments(ids, x, reduction=reduction, **how)


SEGMENTS = dispatch.sparse_kernel(
    "aggregate.segments",
    ("float32", "bfloat16", "float16"),
    reference.reduce_segments,
    _by_rows(pallas.forward, sorted_order),
    _on_cpu,
)


class Segments(NamedTuple):
    """The static part of a call."""

    request: dispatch.Request
    num_segments: int
    is_sorted: bool

    def reduce(self, reduction: str, ids: Array, x: Array, *, keep: bool = False):
        """The reduction, the number of entries of each segment, and ties or None."""
        how = {"num_segments": self.num_segments, "is_sorted": self.is_sorted}
        return SEGMENTS(self.request, ids, x, reduction=reduction, **how, keep=keep)

    def have(self, ids: Array) -> Array:
        """A mask of the entries that are in a segment, [entries, 1]."""
        return ((ids >= 0) & (ids < self.num_segments))[:, None]


def _with_gradient(keep: Callable[..., Any], gradient: Callable[..., Array]):
    """Gives ``function(segments, ids, x)`` its gradient to ``x``.

    Args:
      keep: ``keep(x, result)`` is the part of them that the gradient needs.
      gradient: ``gradient(segments, ids, kept, slope)``, with the slope of the result.
    """

    def decorated(function):
        run = custom_vjp(function, nondiff_argnums=(0,))

        def forward(segments, ids, x):
            made = run(segments, ids, x)
            return made, (ids, keep(x, made))

        def backward(segments, residuals, slope):
            return None, gradient(segments, *residuals, slope)

        run.defvjp(forward, backward)
        return run

    return decorated


@_with_gradient(lambda x, made: None, lambda s, ids, _, slope: spread(s, ids, slope[0]))
def total(
    segments: Segments, ids: Int[Array, " entries"], x: Float[Array, "entries dim"]
) -> tuple[Float[Array, "segments dim"], Int[Array, " segments"]]:
    """The sum of each segment, and its number of entries."""
    return segments.reduce("sum", ids, x)[:2]


@_with_gradient(lambda x, made: None, lambda s, ids, _, slope: total(s, ids, slope)[0])
def spread(
    segments: Segments, ids: Int[Array, " entries"], per_segment: Float[Array, "segments dim"]
) -> Float[Array, "entries dim"]:
    """The value of each entry's segment; zero for entries out of range."""
    return reference.spread(ids, per_segment)


def _log_total_gradient(segments, ids, kept, slope):
    x, y = kept
    real = segments.have(ids)
    probability = jnp.where(real, jnp.exp(jnp.where(real, x - spread(segments, ids, y), 0)), 0)
    # Far from zero the rounding of y is a factor of all, by which they do not add up to one.
    sums, _ = total(segments, ids, probability)
    divisor = jnp.where(sums > 0, sums, 1)
    return probability * spread(segments, ids, slope[0] / divisor)


@_with_gradient(lambda x, made: (x, made[0]), _log_total_gradient)
def log_total(
    segments: Segments, ids: Int[Array, " entries"], x: Float[Array, "entries dim"]
) -> tuple[Float[Array, "segments dim"], Int[Array, " segments"]]:
    """The logarithm of the sum of exponentials of each segment, and its number of entries."""
    return segments.reduce("logsumexp", ids, x)[:2]


def _product_gradient(segments, ids, kept, slope):
    x, y = kept
    return spread(segments, ids, slope * y) / x


@_with_gradient(lambda x, made: (x, made), _product_gradient)
def product(
    segments: Segments, ids: Int[Array, " entries"], x: Float[Array, "entries dim"]
) -> Float[Array, "segments dim"]:
    """The product of each segment, whose entries are not zero, by ``jax.ops``."""
    return jax.ops.segment_prod(x, ids, segments.num_segments, segments.is_sorted)


def extreme(
    segments: Segments,
    reduction: str,
    ids: Int[Array, " entries"],
    x: Float[Array, "entries dim"],
) -> tuple[Float[Array, "segments dim"], Int[Array, " segments"]]:
    """The maximum or minimum of each segment, and its number of entries.

    Entries that are equal to it share the gradient.
    """
    return _extreme(segments, reduction, False, ids, x)[:2]


@partial(custom_vjp, nondiff_argnums=(0, 1, 2))
def _extreme(segments, reduction, keep, ids, x):
    return segments.reduce(reduction, ids, x, keep=keep)


def _extreme_forward(segments, reduction, keep, ids, x):
    y, members, ties = _extreme(segments, reduction, True, ids, x)
    return (y, members, ties if keep else None), (ids, x, y, ties)


def _extreme_backward(segments, reduction, keep, residuals, gradients):
    ids, x, y, ties = residuals
    share = (gradients[0] / jnp.maximum(ties, 1)).astype(x.dtype)
    have_it = x == reference.spread(ids, y)
    return None, jnp.where(have_it, spread(segments, ids, share), 0)


_extreme.defvjp(_extreme_forward, _extreme_backward)


def _sum(segments, ids, x):
    return total(segments, ids, x)[0]


def _mean_of_jax(data, ids, count, is_sorted):
    """The mean of integers or complex numbers.

    Sums of integers are not rounded, but float sums are used where these would overflow.
    """
    sums = partial(
        jax.ops.segment_sum, segment_ids=ids, num_segments=count, indices_are_sorted=is_sorted
    )
    is_whole = not jnp.issubdtype(data.dtype, jnp.inexact)
    total = sums(data.astype(jnp.int32) if is_whole and data.dtype.itemsize < 4 else data)
    members = sums(jnp.ones(ids.shape, jnp.int32))
    divisors = jnp.maximum(members, 1).reshape(-1, *[1] * (total.ndim - 1))
    mean = total / divisors.astype(total.dtype)
    if not is_whole:
        return mean
    rounded = sums(data.astype(mean.dtype))
    is_held = jnp.abs(rounded) < jnp.iinfo(total.dtype).max / 2  # far from both ends
    return jnp.where(is_held, mean, rounded / divisors.astype(mean.dtype))


def _mean(segments, ids, x):
    sums, members = total(segments, ids, x.astype(accumulation_dtype(x.dtype)))
    return quotient(sums, _at_least_one(members, sums)).astype(x.dtype)


def _at_least_one(members, like):
    """The numbers of entries as divisors, in the shape and dtype of ``like``."""
    return jnp.broadcast_to(jnp.maximum(members, 1)[:, None], like.shape).astype(like.dtype)


def _extreme_or_empty(reduction, segments, ids, x, empty=None):
    y, members = extreme(segments, reduction, ids, x)
    if empty is None:
        empty = -math.inf if reduction == "max" else math.inf
    return jnp.where(members[:, None] > 0, y, empty)


_max, _min = (partial(_extreme_or_empty, how) for how in ("max", "min"))


def _logsumexp(segments, ids, x):
    wide = x.astype(accumulation_dtype(x.dtype))
    y, members = log_total(segments, ids, wide)
    return jnp.where(members[:, None] > 0, y, -jnp.inf).astype(x.dtype)


def _softmax(segments, ids, x):
    wide = x.astype(accumulation_dtype(x.dtype))
    real = segments.have(ids)
    # The shift does not change the result, so it need not be differentiated.
    peaks, _ = extreme(segments, "max", ids, lax.stop_gradient(wide))
    shifted = jnp.where(real, wide - spread(segments, ids, peaks), 0)
    exponentials = exponential(shifted)
    sums, _ = total(segments, ids, exponentials)
    divisors = jnp.where(real, spread(segments, ids, sums), 1)
    return jnp.where(real, quotient(exponentials, divisors), 0).astype(x.dtype)


def _moments(segments, ids, x):
    """Distances of the entries from the means of their segments, and variances."""
    wide = x.astype(accumulation_dtype(x.dtype))
    sums, members = total(segments, ids, wide)
    count = _at_least_one(members, sums)
    distances = wide - spread(segments, ids, quotient(sums, count))
    return distances, quotient(total(segments, ids, distances**2)[0], count)


def _variance(segments, ids, x):
    return _moments(segments, ids, x)[1].astype(x.dtype)


def _normalize(segments, ids, x, eps):
    distances, variance = _moments(segments, ids, x)
    # Entries out of range have a factor of zero.
    factor = lax.rsqrt(jnp.maximum(variance, jnp.asarray(eps, variance.dtype)))
    return (distances * spread(segments, ids, factor)).astype(x.dtype)


def _prod(segments, ids, x):
    """The product. Entries that are zero are handled separately: a single one becomes a factor.

    So the gradient to it is the product of the others.
    """
    wide = x.astype(accumulation_dtype(x.dtype))
    is_zero = wide == 0
    zeros, _ = total(segments, ids, is_zero.astype(wide.dtype))
    others = product(segments, ids, jnp.where(is_zero, 1, wide))
    alone, _ = total(segments, ids, jnp.where(is_zero, wide, 0))
    made = jnp.where(zeros == 0, others, jnp.where(zeros == 1, others * alone, 0))
    return made.astype(x.dtype)


class Kind(NamedTuple):
    """The computation of a function of this module.

    Attributes:
      function: ``function(segments, ids, x, *options)`` of a matrix of floats.
      of_jax: the same by ``jax.ops``, for data that are no floats and for empty input; None where
        integers become floats first.
      by_entry: whether the result has the shape of the data, or a row for each segment.
      empty: the result of segments without entries if the input is empty.
    """

    function: Callable[..., Array]
    of_jax: Callable[..., Array] | None = None
    by_entry: bool = False
    empty: float = 0.0


KINDS = {
    "segment_sum": Kind(_sum, jax.ops.segment_sum),
    "segment_mean": Kind(_mean, _mean_of_jax),
    "segment_max": Kind(_max, jax.ops.segment_max),
    "segment_min": Kind(_min, jax.ops.segment_min),
    "segment_max_or_constant": Kind(_max, jax.ops.segment_max),
    "segment_min_or_constant": Kind(_min, jax.ops.segment_min),
    "segment_prod": Kind(_prod, jax.ops.segment_prod),
    "segment_logsumexp": Kind(_logsumexp, empty=-math.inf),
    "segment_variance": Kind(_variance),
    "segment_softmax": Kind(_softmax, by_entry=True),
    "segment_normalize": Kind(_normalize, by_entry=True),
}
