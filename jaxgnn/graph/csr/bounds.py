"""Keeps kernels inside of their arrays for graphs and compressed rows that are not validated.

Values of traced arrays are not known when a program is traced. A kernel would read or write other
memory at an id out of range, so ops clamp ids unless it is known that they are in range.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxgnn._arrays.arrays import match_varying

if TYPE_CHECKING:
    from jaxgnn.graph.csr.cbsr import CBSR
    from jaxgnn.graph.csr.csr_graph import CSRGraph


def bounded_graph(graph: CSRGraph) -> CSRGraph:
    """Returns a traced graph with senders and offsets clamped, or the same graph if in range.

    A sender out of range becomes the nearest node, 0 or the last, and an offset past the last edge
    becomes the number of edges. Where offsets decrease, or do not begin at 0, the graph has no
    edges. A plan of ids that are not known is dropped.
    """
    if graph.in_range:
        return graph
    indptr, indices = match_varying(jnp.asarray(graph.indptr), jnp.asarray(graph.indices))
    rises = jnp.all(indptr[..., 1:] >= indptr[..., :-1], -1, keepdims=True)
    indptr = jnp.where(rises & (indptr[..., :1] == 0), indptr.clip(0, graph.num_edges), 0)
    indices = indices.clip(0, graph.num_cols - 1)
    made = graph._with_fields(indptr=indptr, indices=indices, plan=None, in_range=True)
    degrees = graph.__dict__.get("_uniform_degrees")
    return made if degrees is None else made.with_known_degrees(degrees)


def bounded_rows(cbsr: CBSR) -> CBSR:
    """Compressed rows with all columns in range: entries out of range count as zeros.

    They get a free column of their row. There is one, since fewer than ``dim`` are used.
    """
    if cbsr.in_range:
        return cbsr
    columns = jnp.asarray(cbsr.indices)
    if cbsr.dim <= np.iinfo(columns.dtype).max:
        exists = columns < cbsr.dim
        # As columns ascend, those up to the first free one are at the place of their number.
        taken = lax.cumprod(
            (columns == jnp.arange(cbsr.k, dtype=columns.dtype)).astype(jnp.int32), columns.ndim - 1
        )
        free = jnp.sum(taken, -1, keepdims=True).clip(0, cbsr.dim - 1).astype(columns.dtype)
        values = jnp.where(exists, cbsr.values, 0)
        cbsr = dataclasses.replace(cbsr, values=values, indices=jnp.where(exists, columns, free))
    return dataclasses.replace(cbsr, in_range=True)
