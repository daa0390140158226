"""Host-side checks of a graph's values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn._errors import bad_input
from jaxgnn.graph._arrays import is_concrete, require_integers, require_length

if TYPE_CHECKING:
    from jaxgnn.graph._csr import CSRGraph


def validate_graph(graph: CSRGraph) -> None:
    """Raises ValueError naming the first entry that would mislead a kernel."""
    if not is_concrete(*jax.tree.leaves(graph)):
        raise bad_input("CSRGraph.validate", "self", "concrete; call it outside jit", "a tracer")
    check_shapes("CSRGraph", graph)
    indptr, indices = np.asarray(graph.indptr), np.asarray(graph.indices)
    _check_offsets("CSRGraph", "indptr", indptr, graph.num_edges)
    _check_ids("CSRGraph", "indices", indices[: indptr[-1]], graph.num_cols)
    for name in ("weights", "row_scale", "col_scale"):
        values = getattr(graph, name)
        if values is not None:
            used = values[: indptr[-1]] if name == "weights" else values
            _check_finite("CSRGraph", name, used)
    if graph.plan is not None:
        _check_plan(graph, indptr)


def check_shapes(where: str, graph: CSRGraph) -> None:
    """The checks that shapes and dtypes allow, at trace time; ``where`` is the op that asks."""
    if graph.indptr.ndim != 1 or graph.indptr.shape[0] < 1:
        expected = "one-dimensional with at least one entry"
        raise bad_input(where, "graph.indptr", expected, f"shape {graph.indptr.shape}")
    require_integers(where, "graph.indptr", graph.indptr)
    require_length(where, "graph.indices", graph.indices, graph.indices.size, "per edge")
    if graph.indices.dtype != jnp.int32:
        raise bad_input(where, "graph.indices", "int32", graph.indices.dtype)
    lengths = (
        ("weights", graph.num_edges, "per edge slot"),
        ("row_scale", graph.num_rows, "per row"),
        ("col_scale", graph.num_cols, "per column"),
    )
    for name, length, what in lengths:
        values = getattr(graph, name)
        if values is None:
            continue
        require_length(where, f"graph.{name}", values, length, what)
        if not jnp.issubdtype(values.dtype, jnp.floating):
            raise bad_input(where, f"graph.{name}", "of a floating dtype", values.dtype)


def _check_offsets(where, name, indptr, num_edges):
    if indptr[0] != 0:
        raise bad_input(where, f"{name}[0]", "0", int(indptr[0]))
    falling = np.diff(indptr) < 0
    if falling.any():
        at = int(np.flatnonzero(falling)[0]) + 1
        raise bad_input(where, f"{name}[{at}]", f"at least {indptr[at - 1]}", int(indptr[at]))
    if indptr[-1] > num_edges:
        expected = f"at most the number of edge slots, {num_edges}"
        raise bad_input(where, f"{name}[{len(indptr) - 1}]", expected, int(indptr[-1]))


def _check_ids(where, name, ids, bound):
    outside = (ids < 0) | (ids >= bound)
    if outside.any():
        at = int(np.flatnonzero(outside)[0])
        raise bad_input(where, f"{name}[{at}]", f"in [0, {bound})", int(ids[at]))


def _check_finite(where, name, values):
    bad = np.flatnonzero(~np.isfinite(np.asarray(values).astype(np.float64)))
    if bad.size:
        at = int(bad[0])
        raise bad_input(where, f"{name}[{at}]", "finite", float(values[at]))


def _check_plan(graph, indptr):
    """A plan from elsewhere must fit this graph, or kernels would read past its arrays."""
    plan, num_edges = graph.plan, graph.num_edges
    transposed = np.asarray(plan.transposed_indptr)
    require_length("CSRGraph", "plan.transposed_indptr", transposed, graph.num_cols + 1, "more")
    _check_offsets("CSRGraph", "plan.transposed_indptr", transposed, num_edges)
    for name, bound in (("transposed_indices", graph.num_rows), ("permutation", num_edges)):
        ids = np.asarray(getattr(plan, name))
        require_length("CSRGraph", f"plan.{name}", ids, num_edges, "per edge slot")
        _check_ids("CSRGraph", f"plan.{name}", ids[: indptr[-1]], bound)
    schedules = (
        ("schedule", plan.schedule, indptr),
        ("transposed_schedule", plan.transposed_schedule, transposed),
    )
    for name, schedule, row_offsets in schedules:
        _check_schedule(f"plan.{name}", schedule, row_offsets)


def _check_schedule(name, schedule, indptr):
    rows, offsets = np.asarray(schedule.rows), np.asarray(schedule.offsets)
    require_length("CSRGraph", f"{name}.offsets", offsets, len(rows) + 1, "more than units")
    num_rows = len(indptr) - 1
    _check_ids("CSRGraph", f"{name}.rows", rows, num_rows + 1)
    bounds = np.append(indptr, indptr[-1])
    inside = (offsets[:-1] >= bounds[rows]) & (offsets[1:] <= bounds[rows + 1])
    if not inside.all():
        at = int(np.flatnonzero(~inside)[0])
        got = [int(offsets[at]), int(offsets[at + 1])]
        raise bad_input("CSRGraph", f"{name} unit {at}", f"within row {rows[at]}", got)
    if not np.array_equal(np.unique(rows[rows < num_rows]), np.arange(num_rows)):
        raise bad_input("CSRGraph", f"{name}.rows", "covering every row", "a row without a unit")
