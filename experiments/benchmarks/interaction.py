"""Times ``ops.interaction``, the block of learnt simulators and weather models, against plain JAX.

Run ``python -m experiments.benchmarks.interaction``. ``xla`` concatenates both ends of each edge
and its features, as is usual in JAX; ``auto`` is the op with what it chooses. Bytes: features of
edges are read and written, and a row is gathered for each end; the gradient reads them again, with
the gradient to the new features, and writes one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from experiments.benchmarks._cases import DIRECTIONS, Case, Differentiable
from experiments.benchmarks._command import command
from experiments.benchmarks._session import Options, Session, run_op
from experiments.benchmarks._workloads import INTERACTIONS, Messages, input_sets
from jaxgnn import ops
from jaxgnn.testing.timing import Candidate

_NAMES: dict[str, ops.Name | None] = {"auto": None, "xla": "xla"}


def bytes_moved(workload: Messages, itemsize: int, direction: str) -> int:
    """Rows of edges and gathered rows once a pass, sums and tables of nodes once."""
    of_edges = workload.edges * workload.dim * itemsize
    of_nodes = workload.nodes * workload.dim * itemsize
    forward = 4 * of_edges + 3 * of_nodes
    return forward if direction == "forward" else 2 * forward + 2 * of_edges


def flops(workload: Messages, direction: str) -> int:
    """Products of the layers with rows of edges, and of the first one with rows of nodes."""
    each = 2 * workload.dim**2
    forward = each * (workload.layers * workload.edges + 2 * workload.nodes)
    return forward if direction == "forward" else 3 * forward


def cases(workload: Messages) -> Iterator[Case]:
    """Yields every dtype and direction; the gradient is timed with the forward."""
    for dtype in workload.dtypes:
        inputs, itemsize = _inputs(workload, dtype), jnp.dtype(dtype).itemsize
        for direction in ("forward", "forward+backward"):
            yield Case(
                op="interaction",
                workload=workload,
                direction=direction,
                dtype=dtype,
                nbytes=bytes_moved(workload, itemsize, direction),
                candidates={
                    name: Candidate(DIRECTIONS[direction](_call(implementation)), inputs)
                    for name, implementation in _NAMES.items()
                },
                edges=workload.edges,
                flops=flops(workload, direction),
            )


def _call(implementation: ops.Name | None) -> Differentiable:
    """The op as ``f(graph, arrays) -> ((edges, sums), None)``."""

    def run(graph, arrays: Any):
        h, e, kernels, biases, scale, offset = arrays
        made = ops.interaction(
            graph, h, e, ops.EdgeMLPParams(kernels, biases), activation="silu",
            scale=scale, offset=offset, implementation=implementation,
        )  # fmt: skip
        return made, None

    return run


def _inputs(workload: Messages, dtype: str) -> list[tuple]:
    graph, dim = workload.graph().prepared("interaction"), workload.dim

    def make(key):
        keys = iter(jax.random.split(key, 8 + workload.layers))
        nodes, edges = (graph.num_rows, dim), (graph.num_edges, dim)
        h, e, dsums, dedges = (
            jax.random.normal(next(keys), shape, dtype) for shape in (nodes, edges, nodes, edges)
        )
        widths = [3 * dim, *[dim] * workload.layers]
        kernels = [
            jax.random.normal(next(keys), (before, dim), dtype) * before**-0.5
            for before in widths[:-1]
        ]
        rows = [jax.random.normal(next(keys), (dim,), dtype) for _ in range(3)]
        arrays = h, e, kernels, [rows[0]] * workload.layers, *rows[1:]
        return arrays, (dedges, dsums)

    return [(graph, arrays, dy) for arrays, dy in input_sets(make)]


if __name__ == "__main__":
    command(lambda options: run_op(cases, Session.start(options, INTERACTIONS)), Options, __doc__)
