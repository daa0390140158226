"""Sums, extremes and logarithms of sums of exponentials of segments, with their gradients.

Each of these is the transpose of another, or is composed of the others, so that gradients of any
order are again reductions of segments and gathers. The only scatters are sums and extremes of
unsorted entries on a CPU.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxgnn._ffi import aggregate as ffi
from jaxgnn.graph import CSRGraph
from jaxgnn.ops._aggregate import pallas
from jaxgnn.ops._aggregate.reference import segments as reference
from jaxgnn.ops._core import dispatch
from jaxgnn.ops._core.custom_gradient import custom_vjp
from pallas_kernels.aggregate.arguments import Form, count_of

_DTYPES = ("float32", "bfloat16", "float16")


def _by_rows(forward, order):
    """A kernel of segments: entries in the order of their segments are the neighbours of rows."""

    def run(ids, x, *, reduction, num_segments, is_sorted, keep):
        if is_sorted:
            indptr, entries = _order_of_sorted(ids, num_segments)
        else:
            indptr, entries = order(ids, num_segments)
        graph = CSRGraph(indptr, entries, num_cols=ids.shape[0], in_range=True)
        y, found = forward(graph, x, form=Form((reduction,), False), keep=keep)
        holder = found.highest if reduction == "max" else found.lowest
        return y, jnp.diff(indptr), None if holder is None else count_of(holder)

    return run


def _order_of_sorted(ids, num_segments):
    """Offsets and order of ascending ids, with negative ones first."""
    ends = jnp.arange(num_segments + 1, dtype=ids.dtype)
    indptr = jnp.searchsorted(ids, ends).astype(jnp.int32)
    size = jnp.int32(ids.shape[0])
    entries = jnp.arange(ids.shape[0], dtype=jnp.int32) + indptr[0]
    return indptr - indptr[0], jnp.where(entries < size, entries, entries - size)


def _sorted_order(ids, num_segments):
    places = jnp.where((ids < 0) | (ids >= num_segments), num_segments, ids)
    entries = jnp.arange(ids.shape[0], dtype=jnp.int32)
    keys, entries = lax.sort((places, entries), num_keys=1, is_stable=True)
    ends = jnp.arange(num_segments + 1, dtype=ids.dtype)
    return jnp.searchsorted(keys, ends).astype(jnp.int32), entries


_by_order = _by_rows(ffi.forward, ffi.segment_order)


def _on_cpu(ids, x, *, reduction, num_segments, is_sorted, keep):
    """Reduces unsorted entries by XLA's scatters, which are faster on a CPU."""
    how = {"num_segments": num_segments, "is_sorted": is_sorted, "keep": keep}
    if is_sorted or keep or reduction == "logsumexp":
        return _by_order(ids, x, reduction=reduction, **how)
    return reference.reduce_segments(ids, x, reduction=reduction, **how)


SEGMENTS = dispatch.Kernel(
    "aggregate.segments",
    {
        "xla": dispatch.xla(reference.reduce_segments),
        "pallas": dispatch.pallas(_by_rows(pallas.forward, _sorted_order), dtypes=_DTYPES),
        "ffi": dispatch.ffi(dtypes=_DTYPES, cpu=_on_cpu),
    },
)


class Segments(NamedTuple):
    """The static part of a call.

    Attributes:
      request: the implementation.
      num_segments: number of segments.
      is_sorted: whether the ids ascend.
    """

    request: dispatch.Request
    num_segments: int
    is_sorted: bool

    def reduce(self, reduction: str, ids: Array, x: Array, *, keep: bool = False):
        """The reduction, the number of entries of each segment, and ties or None."""
        return SEGMENTS(self.request, ids, x, reduction=reduction, **self._how, keep=keep)

    @property
    def _how(self):
        return {"num_segments": self.num_segments, "is_sorted": self.is_sorted}


@partial(custom_vjp, nondiff_argnums=(0,))
def total(
    segments: Segments, ids: Int[Array, " entries"], x: Float[Array, "entries dim"]
) -> tuple[Float[Array, "segments dim"], Int[Array, " segments"]]:
    """The sum of each segment, and its number of entries."""
    return segments.reduce("sum", ids, x)[:2]


def _total_forward(segments, ids, x):
    return total(segments, ids, x), ids


def _total_backward(segments, ids, gradients):
    return None, spread(segments, ids, gradients[0])


@partial(custom_vjp, nondiff_argnums=(0,))
def spread(
    segments: Segments, ids: Int[Array, " entries"], per_segment: Float[Array, "segments dim"]
) -> Float[Array, "entries dim"]:
    """The value of each entry's segment; zero for entries out of range."""
    return reference.spread(ids, per_segment)


def _spread_forward(segments, ids, per_segment):
    return spread(segments, ids, per_segment), ids


def _spread_backward(segments, ids, gradient):
    return None, total(segments, ids, gradient)[0]


total.defvjp(_total_forward, _total_backward)
spread.defvjp(_spread_forward, _spread_backward)


@partial(custom_vjp, nondiff_argnums=(0, 1))
def extreme(
    segments: Segments,
    reduction: str,
    ids: Int[Array, " entries"],
    x: Float[Array, "entries dim"],
) -> tuple[Float[Array, "segments dim"], Int[Array, " segments"]]:
    """The maximum or minimum of each segment, and its number of entries.

    Entries that are equal to it share the gradient.
    """
    return segments.reduce(reduction, ids, x)[:2]


def _extreme_forward(segments, reduction, ids, x):
    made = _extreme_and_ties(segments, reduction, ids, x)
    return made[:2], (ids, x, made[0], made[2])


def _extreme_backward(segments, reduction, residuals, gradients):
    ids, x, y, ties = residuals
    share = (gradients[0] / jnp.maximum(ties, 1)).astype(x.dtype)
    have_it = x == reference.spread(ids, y)
    return None, jnp.where(have_it, spread(segments, ids, share), 0)


extreme.defvjp(_extreme_forward, _extreme_backward)


@partial(custom_vjp, nondiff_argnums=(0, 1))
def _extreme_and_ties(segments, reduction, ids, x):
    return segments.reduce(reduction, ids, x, keep=True)


def _extreme_and_ties_forward(segments, reduction, ids, x):
    y, members, ties = _extreme_and_ties(segments, reduction, ids, x)
    return (y, members, ties), (ids, x, y, ties)


_extreme_and_ties.defvjp(_extreme_and_ties_forward, _extreme_backward)


@partial(custom_vjp, nondiff_argnums=(0,))
def log_total(
    segments: Segments, ids: Int[Array, " entries"], x: Float[Array, "entries dim"]
) -> tuple[Float[Array, "segments dim"], Int[Array, " segments"]]:
    """The logarithm of the sum of exponentials of each segment, and its number of entries."""
    return segments.reduce("logsumexp", ids, x)[:2]


def _log_total_forward(segments, ids, x):
    made = log_total(segments, ids, x)
    return made, (ids, x, made[0])


def _log_total_backward(segments, residuals, gradients):
    ids, x, y = residuals
    real = ((ids >= 0) & (ids < segments.num_segments))[:, None]
    probability = jnp.exp(jnp.where(real, x - spread(segments, ids, y), 0))
    return None, probability * spread(segments, ids, gradients[0])


log_total.defvjp(_log_total_forward, _log_total_backward)


@partial(custom_vjp, nondiff_argnums=(0,))
def product(
    segments: Segments, ids: Int[Array, " entries"], x: Float[Array, "entries dim"]
) -> Float[Array, "segments dim"]:
    """The product of each segment, whose entries are not zero, by ``jax.ops``."""
    return jax.ops.segment_prod(x, ids, segments.num_segments, segments.is_sorted)


def _product_forward(segments, ids, x):
    y = product(segments, ids, x)
    return y, (ids, x, y)


def _product_backward(segments, residuals, gradient):
    ids, x, y = residuals
    return None, spread(segments, ids, gradient * y) / x


product.defvjp(_product_forward, _product_backward)
