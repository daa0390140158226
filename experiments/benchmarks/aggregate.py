"""Times ``ops.neighbour_reduce`` and ``ops.aggregate`` against jax.ops and torch-geometric.

Run ``python -m experiments.benchmarks.aggregate``. Rows: the maximum of the neighbours, the four
reductions of PNA in one pass over them, and the maximum of messages. Bytes: a gathered row of
features for each edge forward, and one for each array that the gradient needs backward.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp

from experiments.benchmarks._baselines import torch_aggregation
from experiments.benchmarks._cases import DIRECTIONS, Case, Differentiable, implementations
from experiments.benchmarks._command import command
from experiments.benchmarks._session import Options, Session, run_op
from experiments.benchmarks._workloads import Workload, input_sets
from jaxgnn import ops
from jaxgnn.graph import CSRGraph
from jaxgnn.testing.timing import Candidate

_MAX: tuple[ops.Aggregation, ...] = ("max",)
_PNA: tuple[ops.Aggregation, ...] = ("mean", "max", "min", "std")
# Name of the row: reductions, and whether they reduce messages.
ROWS: dict[str, tuple[tuple[ops.Aggregation, ...], bool]] = {
    "neighbour_max": (_MAX, False),
    "neighbour_pna": (_PNA, False),
    "message_max": (_MAX, True),
}
# Messages of all edges are timed only up to this size.
_MOST_BYTES = 2**33


def bytes_moved(graph: CSRGraph, row: str, dim: int, itemsize: int, direction: str) -> int:
    """Structure once a pass, gathered rows, and every streamed array of nodes or edges once.

    In the backward each edge needs the result and its gradient for an extreme, and a constant and a
    factor for mean and deviation. Gradients are float32.
    """
    reductions, by_edge = ROWS[row]
    structure = graph.indptr.nbytes + (0 if by_edge else graph.indices.nbytes)
    edge, node = graph.num_edges * dim, graph.num_rows * dim
    forward = structure + (edge + node * len(reductions)) * itemsize
    if direction == "forward":
        return forward
    extremes = sum(name in ("max", "min") for name in reductions)
    terms = extremes * (itemsize + 4) + (8 if "std" in reductions else 0)
    if by_edge:  # rows are streamed, and so are messages and their gradients
        return forward + structure + 2 * edge * itemsize + node * terms
    return forward + structure + edge * terms + 2 * graph.num_cols * dim * itemsize


def cases(workload: Workload) -> Iterator[Case]:
    """Yields every row, dtype and direction; the gradient is timed with the forward it needs."""
    graph = workload.graph()
    for row, (reductions, by_edge) in ROWS.items():
        for dtype in workload.dtypes:
            size = jnp.dtype(dtype).itemsize
            if by_edge and graph.num_edges * workload.dim * size > _MOST_BYTES:
                continue
            inputs = _inputs(workload, row, dtype)
            for direction in ("forward", "forward+backward"):
                yield Case(
                    op=row,
                    workload=workload,
                    direction=direction,
                    dtype=dtype,
                    nbytes=bytes_moved(graph, row, workload.dim, size, direction),
                    candidates={
                        **implementations(
                            lambda name, row=row: build(row, name), direction, inputs
                        ),
                        **_segments(row, direction, inputs),
                        **torch_aggregation(graph, inputs, reductions, direction),
                    },
                    edges=graph.num_edges,
                )


def build(row: str, name: ops.Name) -> Differentiable:
    """The op of a row as ``f(graph, x)``."""
    reductions, by_edge = ROWS[row]
    op = ops.aggregate if by_edge else ops.neighbour_reduce
    return lambda graph, x: (op(graph, x, reductions, implementation=name), None)


def _segments(row: str, direction: str, inputs: list[tuple]) -> dict[str, Candidate]:
    """``jax.ops.segment_max`` over the edges, with ``indices_are_sorted``."""
    reductions, by_edge = ROWS[row]
    if reductions != _MAX:
        return {}

    def run(graph, x):
        messages = x if by_edge else x[graph.indices]
        rows = graph.receivers()
        return jax.ops.segment_max(messages, rows, graph.num_rows, indices_are_sorted=True), None

    return {"jax.ops": Candidate(DIRECTIONS[direction](run), inputs)}


def _inputs(workload: Workload, row: str, dtype: str) -> list[tuple]:
    graph, dim = workload.graph(), workload.dim
    reductions, by_edge = ROWS[row]
    numbers = graph.num_edges if by_edge else graph.num_cols

    def make(key):
        x_key, dy_key = jax.random.split(key)
        shape = graph.num_rows, len(reductions) * dim
        x = jax.random.normal(x_key, (numbers, dim), dtype)
        return x, jax.random.normal(dy_key, shape, dtype)

    return [(graph, x, dy) for x, dy in input_sets(make)]


if __name__ == "__main__":
    command(lambda options: run_op(cases, Session.start(options)), Options, __doc__)
