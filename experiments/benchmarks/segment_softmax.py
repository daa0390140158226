"""Times ``ops.segment_softmax`` against ``softmax`` of torch-geometric.

Run ``python -m experiments.benchmarks.segment_softmax``. Bytes: every tensor once.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp

from experiments.benchmarks._baselines import torch_segment_softmax
from experiments.benchmarks._cases import Case, Differentiable, implementations
from experiments.benchmarks._command import command
from experiments.benchmarks._session import Options, Session, run_op
from experiments.benchmarks._workloads import Workload, input_sets
from jaxgnn import ops
from jaxgnn.graph import CSRGraph


def bytes_moved(graph: CSRGraph, heads: int, itemsize: int, direction: str) -> int:
    """Forward: logits in, probabilities out. Backward: these and their gradient in, one out."""
    tensor = graph.num_edges * heads * itemsize
    forward = graph.indptr.nbytes + 2 * tensor
    backward = graph.indptr.nbytes + 3 * tensor
    return forward if direction == "forward" else forward + backward


def cases(workload: Workload) -> Iterator[Case]:
    """Yields every dtype and direction; the backward is timed with the forward it needs."""
    graph = workload.graph()
    for dtype in workload.dtypes:
        inputs = _inputs(workload, dtype)
        for direction in ("forward", "forward+backward"):
            size = jnp.dtype(dtype).itemsize
            yield Case(
                op="segment_softmax",
                workload=workload,
                direction=direction,
                dtype=dtype,
                nbytes=bytes_moved(graph, workload.heads, size, direction),
                candidates={
                    **implementations(build, direction, inputs),
                    **torch_segment_softmax(graph, inputs, direction),
                },
                edges=graph.num_edges,
            )


def _inputs(workload: Workload, dtype: str) -> list[tuple]:
    graph = workload.graph()
    shape = (graph.num_edges, workload.heads)

    def make(key):
        logits_key, dy_key = jax.random.split(key)
        return jax.random.normal(logits_key, shape, dtype), jax.random.normal(dy_key, shape, dtype)

    return [(graph, logits, dy) for logits, dy in input_sets(make)]


def build(name: ops.Name) -> Differentiable:
    """The op as ``f(graph, logits)``."""
    return lambda graph, logits: (ops.segment_softmax(graph, logits, implementation=name), None)


if __name__ == "__main__":
    command(lambda options: run_op(cases, Session.start(options)), Options, __doc__)
