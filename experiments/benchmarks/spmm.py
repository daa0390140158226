"""Times ``ops.spmm`` against scipy and ``torch.sparse.mm``.

Run ``python -m experiments.benchmarks.spmm``. Bytes: offsets and senders once, one row of features
gathered for each edge, the result once. Gathered rows that a cache serves can exceed the
bandwidth of the memory possible.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax.numpy as jnp

from experiments.benchmarks import _products
from experiments.benchmarks._baselines import scipy_spmm, torch_spmm
from experiments.benchmarks._cases import Case, implementations
from experiments.benchmarks._command import command
from experiments.benchmarks._session import Options, Session, run_op
from experiments.benchmarks._workloads import Workload
from jaxgnn.graph import CSRGraph


def bytes_moved(graph: CSRGraph, dim: int, itemsize: int, direction: str) -> int:
    """Bytes of one direction; the backward does the same on the transposed graph."""
    rows, cols = graph.shape
    shared = structure_bytes(graph) + graph.num_edges * dim * itemsize
    ways = {"forward": [rows], "backward": [cols], "forward+backward": [rows, cols]}
    return sum(shared + written * dim * itemsize for written in ways[direction])


def bytes_once(graph: CSRGraph, dim: int, itemsize: int, direction: str) -> int:
    """Bytes with every array once: the minimum even if a cache serves all repeated rows.

    Each direction reads the features of one side and writes those of the other.
    """
    one_way = structure_bytes(graph) + sum(graph.shape) * dim * itemsize
    return 2 * one_way if direction == "forward+backward" else one_way


def structure_bytes(graph: CSRGraph) -> int:
    """Row offsets, senders, and weights if there are any, once."""
    arrays = (graph.indptr, graph.indices, graph.weights)
    return sum(array.nbytes for array in arrays if array is not None)


def cases(workload: Workload) -> Iterator[Case]:
    """Yields a case for every dtype and direction."""
    graph = workload.graph()
    for dtype in workload.dtypes:
        inputs = _products.dense_inputs(workload, dtype)
        for direction in workload.directions:
            yield Case(
                op="spmm",
                workload=workload,
                direction=direction,
                dtype=dtype,
                nbytes=bytes_moved(graph, workload.dim, jnp.dtype(dtype).itemsize, direction),
                candidates={
                    **implementations(_products.spmm, direction, inputs),
                    **scipy_spmm(graph, inputs, direction),
                    **torch_spmm(graph, inputs, direction),
                },
                edges=graph.num_edges,
            )


if __name__ == "__main__":
    command(lambda options: run_op(cases, Session.start(options)), Options, __doc__)
