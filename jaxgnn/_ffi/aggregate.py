"""Typed calls of the CPU kernels of reductions over the edges of each row."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxgnn._ffi._call import call, call_many, widened
from jaxgnn.graph import CSRGraph
from jaxgnn.graph.csr.operands import structure
from pallas_kernels.arguments.aggregate import STATISTICS, Form, Statistics, Terms
from pallas_kernels.arguments.reductions import REDUCTIONS

TARGETS = {
    "jaxgnn_aggregate": ("cpu",),
    "jaxgnn_aggregate_grad_columns": ("cpu",),
    "jaxgnn_aggregate_grad_edges": ("cpu",),
    "jaxgnn_segment_order": ("cpu",),
}


_KINDS = {"float": jnp.float32, "int": jnp.int32}
_TERMS = tuple(field for field in Terms.__dataclass_fields__ if field != "each")
_OF_EDGES = tuple(field for field in _TERMS if not field.endswith("_holder"))


def forward(
    graph: CSRGraph, x: Float[Array, "numbers dim"], *, form: Form, keep: bool
) -> tuple[Float[Array, "rows columns"], Statistics]:
    """The reductions side by side, and with ``keep`` the statistics for their gradients."""
    dtype, x = x.dtype, widened(x)
    rows, dim = graph.num_rows, x.shape[-1]
    kept = form.kept() if keep else {}
    results: list[tuple[tuple[int, ...], Any]] = [((rows, len(form.reductions) * dim), x.dtype)]
    for field in STATISTICS:
        shape = (rows, dim) if field in kept else (0,)
        results.append((shape, _KINDS[kept.get(field, "float")]))
    units, offsets, indices = structure(graph)
    y, *arrays = call_many(
        "jaxgnn_aggregate",
        results,
        units,
        offsets,
        None if form.by_edge else indices,
        x,
        reductions=",".join(form.reductions),
        ties=form.keeps,
    )
    pairs = zip(STATISTICS, arrays, strict=True)
    return y.astype(dtype), Statistics(**{field: array for field, array in pairs if field in kept})


def limits(graph: CSRGraph, x: Array, *, form: Form, keep: bool) -> str | None:
    """The reason why the compiled kernels do not have these reductions; None if they have."""
    others = [name for name in form.reductions if not REDUCTIONS[name].is_compiled]
    compiled = (name for name, reduction in REDUCTIONS.items() if reduction.is_compiled)
    return f"needs reductions among {', '.join(compiled)}, got {others[0]}" if others else None


def gradient_limits(graph: CSRGraph, x: Array, terms: Terms) -> str | None:
    """The reason why the compiled kernels do not have the gradient; None if they have."""
    return f"has no gradient of {', '.join(terms.each)}" if terms.each else None


def grad_columns(
    graph: CSRGraph, x: Float[Array, "cols dim"], terms: Terms
) -> Float[Array, "cols dim"]:
    """The gradient to the senders, in a fixed order: sums along the rows of the transposed graph.

    To them are added the gradients of extremes. One that a single edge has is added to its sender,
    for which nothing is gathered. If most extremes are shared, they are compared with the numbers
    of all edges, along the transposed graph.
    """
    terms = dataclasses.replace(terms, top=_values(terms.top), bottom=_values(terms.bottom))
    dtype, x, terms = x.dtype, widened(x), _widened(terms)
    dx = call(
        "jaxgnn_aggregate_grad_columns",
        (x.shape, jnp.float32),
        *structure(graph),
        *structure(graph.transpose()),
        x,
        *_arrays(terms, _TERMS),
        num_rows=np.int64(graph.num_rows),
    )
    return dx.astype(dtype)


def grad_edges(
    graph: CSRGraph, x: Float[Array, "edges dim"], terms: Terms
) -> Float[Array, "edges dim"]:
    """The gradient to the numbers of edges; zero in padding slots."""
    units, offsets, _ = structure(graph)
    dtype, x, terms = x.dtype, widened(x), _widened(terms)
    arrays = _arrays(terms, _OF_EDGES)
    dx = call("jaxgnn_aggregate_grad_edges", (x.shape, x.dtype), units, offsets, x, *arrays)
    return dx.astype(dtype)


def segment_order(
    ids: Int[Array, " entries"], num_segments: int
) -> tuple[Int[Array, " segments+1"], Int[Array, " entries"]]:
    """Offsets of the segments, and the entries in their order; those out of range are last."""
    results = [((num_segments + 1,), jnp.int32), (ids.shape, jnp.int32)]
    indptr, order = call_many("jaxgnn_segment_order", results, ids)
    return indptr, order


def _arrays(terms: Terms, fields: Sequence[str]) -> list[Array | None]:
    return [getattr(terms, field) for field in fields]


def _widened(terms: Terms) -> Terms:
    """The terms with float16 extremes in float32, to be compared with widened numbers."""
    extremes = {"top": terms.top, "bottom": terms.bottom}
    wide = {name: widened(array) for name, array in extremes.items() if array is not None}
    return dataclasses.replace(terms, **wide)


def _values(extreme: Array | None) -> Array | None:
    """An extreme; None for slots, of which the holders say all."""
    is_slot = extreme is not None and jnp.issubdtype(extreme.dtype, jnp.integer)
    return None if is_slot else extreme
