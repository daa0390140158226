"""Checks of a graph's shapes and values, and the clamping of ids that nothing has checked.

Graphs call these functions, so that ``graph`` is a ``CSRGraph`` here without its type.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn._arrays.arrays import (
    first_outside,
    is_concrete,
    is_size,
    match_varying,
)
from jaxgnn._errors import bad_input
from jaxgnn.graph.plan.built_parts import given_plan
from jaxgnn.graph.plan.edge_blocks import make_edge_blocks
from jaxgnn.graph.plan.schedule import MAX_EDGES_PER_UNIT, make_schedule, units
from jaxgnn.graph.plan.sorting import transpose_on_host


def validate_graph(graph: Any) -> None:
    """Raises ValueError naming the first invalid entry."""
    if not is_concrete(*arrays_of(graph)):
        raise bad_input("CSRGraph.validate", "self", "concrete; call it outside jit", "a tracer")
    validate_structure(graph)
    indptr = np.asarray(graph.indptr)
    for name in ("weights", "row_scale", "col_scale"):
        values = getattr(graph, name)
        if values is not None:
            values = np.asarray(values)
            check_finite("CSRGraph", name, values[: indptr[-1]] if name == "weights" else values)
    plan = given_plan(graph)
    if plan is not None:
        _check_plan(graph, plan, indptr)


def arrays_of(graph: Any) -> list[Any]:
    """Returns the arrays of a graph and of its existing plan; no plan is built for this."""
    fields = graph.indptr, graph.indices, graph.weights, graph.row_scale, graph.col_scale
    return jax.tree.leaves((fields, given_plan(graph)))


def validate_structure(graph: Any) -> None:
    """The part of ``validate_graph`` for the inputs of the plan: offsets and senders."""
    check_shapes("CSRGraph", graph)
    indptr, indices = np.asarray(graph.indptr), np.asarray(graph.indices)
    check_offsets("CSRGraph", "indptr", indptr, graph.num_edges)
    _check_ids("CSRGraph", "indices", indices[: indptr[-1]], graph.num_cols)


def check_shapes(where: str, graph: Any) -> None:
    """Raises ValueError for the first array of a wrong shape or dtype; ``where`` is the op."""
    for name, expected, got in _wrong_shapes(graph):
        raise bad_input(where, f"graph.{name}", expected, got)


_OFFSETS, _IDS = (jnp.dtype(jnp.int32), jnp.dtype(jnp.int64)), (jnp.dtype(jnp.int32),)


def _wrong_shapes(graph: Any) -> Iterator[tuple[str, str, Any]]:
    """Yields name, expected and actual value of each array of a wrong shape or dtype."""
    indptr, indices, weights = graph.indptr, graph.indices, graph.weights
    if indptr.ndim != 1 or indptr.shape[0] < 1:
        expected = "one-dimensional with at least one entry (map over several graphs by jax.vmap)"
        yield "indptr", expected, f"shape {indptr.shape}"
    if indptr.dtype not in _OFFSETS:
        yield "indptr", "of integer dtype int32 or int64", indptr.dtype
    if not is_size(graph.num_cols):
        yield "num_cols", "an integer in [0, 2^31)", repr(graph.num_cols)
    if indices.ndim != 1:
        yield "indices", f"of shape ({indices.size},), one entry per edge", indices.shape
    if indices.dtype not in _IDS:
        yield "indices", "int32", indices.dtype
    edges = graph.num_edges
    if weights is not None:
        if weights.ndim not in (1, 2) or weights.shape[0] != edges:
            yield (
                "weights",
                f"of shape ({edges},), one entry per edge slot, or ({edges}, heads)",
                (weights.shape),
            )
        if not jnp.issubdtype(weights.dtype, jnp.floating):
            yield "weights", "of a floating dtype", weights.dtype
    sides = ("row_scale", graph.num_rows, "row"), ("col_scale", graph.num_cols, "column")
    for name, length, what in sides:
        scale = getattr(graph, name)
        if scale is None:
            continue
        if scale.shape != (length,):
            yield name, f"of shape ({length},), one entry per {what}", scale.shape
        if not jnp.issubdtype(scale.dtype, jnp.floating):
            yield name, "of a floating dtype", scale.dtype
    for name, array, length, dtypes in _arrays_of_plan(graph, given_plan(graph)):
        if array.shape != (length,):
            yield f"plan.{name}", f"of shape ({length},), as this graph has it", array.shape
        if array.dtype not in dtypes:
            yield f"plan.{name}", " or ".join(dtype.name for dtype in dtypes), array.dtype


def _arrays_of_plan(graph: Any, plan: Any) -> Iterator[tuple[str, Any, int, tuple[Any, ...]]]:
    """Yields name, array, length and dtypes of each part that a plan has."""
    if plan is None:
        return
    edges = graph.num_edges
    arrays = [
        ("transposed_indptr", plan.transposed_indptr, graph.num_cols + 1, _OFFSETS),
        ("transposed_indices", plan.transposed_indices, edges, _IDS),
        ("permutation", plan.permutation, edges, _OFFSETS),
    ]
    for side, num_rows in (("schedule", graph.num_rows), ("transposed_schedule", graph.num_cols)):
        schedule, length = getattr(plan, side), units(num_rows, edges)
        if schedule is None:
            continue
        arrays.append((f"{side}.rows", schedule.rows, length, _IDS))
        arrays.append((f"{side}.offsets", schedule.offsets, length + 1, _OFFSETS))
        arrays.append((f"{side}.pieces", schedule.pieces, length, _IDS))
        arrays.append((f"{side}.piece_counts", schedule.piece_counts, 2, _IDS))
    yield from (row for row in arrays if row[1] is not None)


def bounded_graph(graph: Any) -> Any:
    """Returns a traced graph with senders and offsets clamped, or the same graph if in range.

    Kernels would read or write other memory at an id out of range. Where offsets decrease, or do
    not begin at 0, the graph has no edges. A plan of ids that are not known is dropped.
    """
    if graph.in_range:
        return graph
    indptr, indices = match_varying(jnp.asarray(graph.indptr), jnp.asarray(graph.indices))
    rises = jnp.all(indptr[..., 1:] >= indptr[..., :-1], -1, keepdims=True)
    indptr = jnp.where(rises & (indptr[..., :1] == 0), indptr.clip(0, graph.num_edges), 0)
    indices = indices.clip(0, graph.num_cols - 1)
    bounded = graph._with_fields(indptr=indptr, indices=indices, plan=None, in_range=True)
    degrees = graph.__dict__.get("_uniform_degrees")
    return bounded if degrees is None else bounded.with_known_degrees(degrees)


def check_offsets(where, name, indptr, num_edges):
    if indptr[0] != 0:
        raise bad_input(where, f"{name}[0]", "0", int(indptr[0]))
    falling = indptr[1:] < indptr[:-1]  # Differences may overflow.
    if falling.any():
        at = int(np.flatnonzero(falling)[0]) + 1
        raise bad_input(where, f"{name}[{at}]", f"at least {indptr[at - 1]}", int(indptr[at]))
    if indptr[-1] > num_edges:
        expected = f"at most the number of edge slots, {num_edges}"
        raise bad_input(where, f"{name}[{len(indptr) - 1}]", expected, int(indptr[-1]))


def _check_ids(where, name, ids, bound):
    at = first_outside(ids, bound)
    if at is not None:
        raise bad_input(where, f"{name}[{at}]", f"in [0, {bound})", int(ids[at]))


def check_finite(where: str, name: str, values: np.ndarray) -> None:
    """Raises ValueError naming the first value that is not finite."""
    if values.dtype not in (np.float32, np.float64):  # NumPy has no test for others.
        values = values.astype(np.float32)
    bad = np.argwhere(~np.isfinite(values))
    if bad.size:
        at = tuple(bad[0].tolist())
        place = ", ".join(map(str, at))
        raise bad_input(where, f"{name}[{place}]", "finite", float(values[at]))


def _check_plan(graph, plan, indptr):
    """Raises unless the plan belongs to its graph; another plan gives wrong results."""
    if plan.transposed_indptr is not None:
        _check_transpose(graph, plan, indptr)
    elif plan.permutation is not None:
        transposed = transpose_on_host(indptr, np.asarray(graph.indices), graph.num_cols)
        check_equal("CSRGraph", "plan.permutation", np.asarray(plan.permutation), transposed[2])
    if plan.schedule is not None:
        _check_schedule("plan.schedule", plan.schedule, indptr, graph.num_edges)
    if plan.transposed_schedule is not None:
        offsets = np.asarray(plan.transposed_indptr)
        _check_schedule(
            "plan.transposed_schedule", plan.transposed_schedule, offsets, graph.num_edges
        )
    if plan.edge_blocks:
        _check_edge_blocks(graph, plan, indptr)


def _check_edge_blocks(graph, plan, indptr):
    indices, is_weighted = np.asarray(graph.indices), plan.edge_blocks[0].edges is not None
    transposed = transpose_on_host(indptr, indices, graph.num_cols, with_permutation=is_weighted)
    expected = make_edge_blocks(indptr, *transposed)
    wanted, got = ([blocks.shape for blocks in b] for b in (expected, plan.edge_blocks))
    if wanted != got:
        raise bad_input("CSRGraph", "plan.edge_blocks", f"of shapes {wanted}", got)
    for at, (actual, computed) in enumerate(zip(plan.edge_blocks, expected, strict=True)):
        check_equal("CSRGraph", f"plan.edge_blocks[{at}]", actual, computed)


def _check_transpose(graph, plan, indptr):
    transposed, num_edges = np.asarray(plan.transposed_indptr), int(indptr[-1])
    check_offsets("CSRGraph", "plan.transposed_indptr", transposed, graph.num_edges)
    if transposed[-1] != num_edges:
        name = f"plan.transposed_indptr[{graph.num_cols}]"
        raise bad_input("CSRGraph", name, f"the number of edges, {num_edges}", int(transposed[-1]))
    _check_ids(
        "CSRGraph",
        "plan.transposed_indices",
        np.asarray(plan.transposed_indices)[:num_edges],
        graph.num_rows,
    )
    if plan.permutation is None:
        _check_same_transpose(graph, plan, indptr)
    else:
        _check_permutation(graph, plan, indptr)


def _check_same_transpose(graph, plan, indptr):
    """Compares with the computed transpose, where no permutation identifies the edges."""
    transposed = transpose_on_host(
        indptr, np.asarray(graph.indices), graph.num_cols, with_permutation=False
    )
    names = "transposed_indptr", "transposed_indices"
    for name, expected in zip(names, transposed[:2], strict=True):
        real = slice(0, None if name == "transposed_indptr" else int(indptr[-1]))
        check_equal(
            "CSRGraph", f"plan.{name}", np.asarray(getattr(plan, name))[real], expected[real]
        )


def _check_permutation(graph, plan, indptr):
    transposed, num_edges = np.asarray(plan.transposed_indptr), int(indptr[-1])
    receivers = np.asarray(plan.transposed_indices)[:num_edges]
    permutation = np.asarray(plan.permutation)[:num_edges]
    _check_ids("CSRGraph", "plan.permutation", permutation, num_edges)
    if num_edges and np.bincount(permutation).max() > 1:
        twice = int(np.bincount(permutation).argmax())
        raise bad_input("CSRGraph", "plan.permutation", "a permutation", f"edge {twice} repeatedly")
    senders = np.repeat(np.arange(graph.num_cols), np.diff(transposed))
    rows = np.repeat(np.arange(graph.num_rows), np.diff(indptr))[permutation]
    columns = np.asarray(graph.indices)[permutation]
    wrong = (rows != receivers) | (columns != senders)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        expected = f"the position of an edge from {senders[at]} to {receivers[at]}"
        got = f"{permutation[at]}, an edge from {columns[at]} to {rows[at]}"
        raise bad_input("CSRGraph", f"plan.permutation[{at}]", expected, got)


def _check_schedule(name, schedule, indptr, num_edges):
    rows, offsets = np.asarray(schedule.rows), np.asarray(schedule.offsets)
    num_rows = len(indptr) - 1
    _check_ids("CSRGraph", f"{name}.rows", rows, num_rows + 1)
    steps = np.diff(rows, prepend=-1, append=num_rows)
    if ((steps < 0) | (steps > 1)).any():
        at = int(np.flatnonzero((steps < 0) | (steps > 1))[0])
        got = f"{[-1, *rows.tolist(), num_rows][at + 1]} at {at}"
        raise bad_input("CSRGraph", f"{name}.rows", "every row in ascending order", got)
    for at, edge in ((0, 0), (len(rows), int(indptr[-1]))):
        if offsets[at] != edge:
            raise bad_input("CSRGraph", f"{name}.offsets[{at}]", f"{edge}", int(offsets[at]))
    bounds = np.append(indptr, indptr[-1])
    starts, ends = offsets[:-1], offsets[1:]
    fits = (bounds[rows] <= starts) & (starts <= ends) & (ends <= bounds[rows + 1])
    fits &= ends - starts <= MAX_EDGES_PER_UNIT
    if not fits.all():
        at = int(np.flatnonzero(~fits)[0])
        expected = f"at most {MAX_EDGES_PER_UNIT} edges of row {rows[at]}"
        got = f"edges {starts[at]} to {ends[at]}"
        raise bad_input("CSRGraph", f"{name} unit {at}", expected, got)
    check_equal("CSRGraph", name, schedule, make_schedule(indptr, num_edges))


def check_equal(where, name, actual, expected):
    """Raises unless the derived parts of a plan equal the computed ones."""
    wanted, got = jax.tree.structure(expected), jax.tree.structure(actual)
    if wanted != got:
        raise bad_input(where, name, f"of structure {wanted}", got)
    arrays = jax.tree_util.tree_leaves_with_path(expected), jax.tree_util.tree_leaves(actual)
    for (path, wanted), got in zip(*arrays, strict=True):
        at, wanted, got = name + jax.tree_util.keystr(path), np.asarray(wanted), np.asarray(got)
        if wanted.shape != got.shape:
            raise bad_input(where, at, f"of shape {wanted.shape}", got.shape)
        if wanted.dtype != got.dtype:
            raise bad_input(where, at, wanted.dtype.name, got.dtype)
        if (wanted != got).any():
            first = int(np.flatnonzero(wanted != got)[0])
            raise bad_input(where, f"{at}[{first}]", f"{wanted[first]}", int(got[first]))
