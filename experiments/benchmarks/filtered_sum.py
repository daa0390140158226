"""Times ``ops.filtered_sum`` against plain JAX.

Run ``python -m experiments.benchmarks.filtered_sum``. Rows: given filters, and filters that are
made of a basis of the edges, both with the gradients to all arrays. Bytes: the structure, filters
or basis, a gathered row for each edge, and the result; a gradient does the same for the senders,
and reads two gathered rows for each gradient of the edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from experiments.benchmarks._cases import DIRECTIONS, Case, Differentiable, implementations
from experiments.benchmarks._command import command
from experiments.benchmarks._session import Options, Session, run_op
from experiments.benchmarks._workloads import FILTERED, Filtered, input_sets
from jaxgnn import ops
from jaxgnn.graph import CSRGraph
from jaxgnn.testing.timing import Candidate


def bytes_moved(workload: Filtered, row: str, itemsize: int, direction: str) -> int:
    """Structure, gathered rows, results, and the arrays of edges, once for each pass."""
    nodes, edges, dim = workload.nodes, workload.edges, workload.dim
    of_edges = edges * (dim if row == "filtered_sum" else workload.features) * itemsize
    gathered, of_nodes = edges * dim * itemsize, nodes * dim * itemsize
    one_way = 4 * (nodes + edges) + of_edges + gathered + of_nodes
    if direction == "forward":
        return one_way
    # To the senders, with the place of each edge; to the edges; and to the kernel.
    passes = 1 if row == "filtered_sum" else 2
    return 2 * one_way + 4 * edges + passes * (of_edges + gathered + of_nodes)


def cases(workload: Filtered) -> Iterator[Case]:
    """Yields every row, dtype and direction; the gradient is timed with the forward."""
    graph = workload.graph()
    for row, (call, plain) in ROWS.items():
        for dtype in workload.dtypes:
            inputs = _inputs(workload, graph, row, dtype)
            itemsize = jnp.dtype(dtype).itemsize
            for direction in ("forward", "forward+backward"):
                yield Case(
                    op=row,
                    workload=workload,
                    direction=direction,
                    dtype=dtype,
                    nbytes=bytes_moved(workload, row, itemsize, direction),
                    candidates={
                        **implementations(call, direction, inputs),
                        "jax.ops": Candidate(DIRECTIONS[direction](plain), inputs),
                    },
                    edges=graph.num_edges,
                )


def _given(name: ops.Name | None) -> Differentiable:
    """The op with given filters, as ``f(graph, (x, weights))``."""
    return lambda graph, arrays: (ops.filtered_sum(graph, *arrays, implementation=name), None)


def _made(name: ops.Name | None) -> Differentiable:
    """The op with a basis, as ``f(graph, (x, made))``."""

    def call(graph: CSRGraph, arrays: Any) -> tuple[Any, None]:
        x, made = arrays
        return ops.filtered_sum(graph, x, **made, implementation=name), None

    return call


def _plain_sum(graph: CSRGraph, arrays: Any) -> tuple[Any, None]:
    x, weights = arrays
    rows, messages = graph.receivers(), x[graph.indices] * weights
    return jax.ops.segment_sum(messages, rows, graph.num_rows, indices_are_sorted=True), None


def _plain_made(graph: CSRGraph, arrays: Any) -> tuple[Any, None]:
    x, made = arrays
    weights = (made["basis"] @ made["kernel"] + made["bias"]) * made["envelope"][:, None]
    return _plain_sum(graph, (x, weights))


# Name of the row: the op of an implementation, and the same in plain JAX.
ROWS: dict[str, tuple[Callable[[ops.Name | None], Differentiable], Differentiable]] = {
    "filtered_sum": (_given, _plain_sum),
    "filtered_sum_made": (_made, _plain_made),
}


def _inputs(workload: Filtered, graph: CSRGraph, row: str, dtype: str) -> list[tuple]:
    nodes, edges, dim, features = graph.num_cols, graph.num_edges, workload.dim, workload.features
    shapes = {
        "basis": (edges, features),
        "kernel": (features, dim),
        "bias": (dim,),
        "envelope": (edges,),
    }

    def make(key):
        keys = iter(jax.random.split(key, 6))
        x, dy = (jax.random.normal(next(keys), (nodes, dim), dtype) for _ in range(2))
        if row == "filtered_sum":
            return (x, jax.random.normal(next(keys), (edges, dim), dtype)), dy
        made = {n: jax.random.normal(next(keys), shape, dtype) for n, shape in shapes.items()}
        return (x, made), dy

    return [(graph, arrays, dy) for arrays, dy in input_sets(make)]


if __name__ == "__main__":
    command(lambda options: run_op(cases, Session.start(options, FILTERED)), Options, __doc__)
