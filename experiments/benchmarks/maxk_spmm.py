"""Times ``ops.maxk_spmm`` against the dense product, XLA's and the best available.

Run ``python -m experiments.benchmarks.maxk_spmm``; ``--break-even`` measures instead the largest k
at which it is faster than the dense product. Bytes: offsets and senders once; for each edge the k
values and columns of a sender forward, and backward the k entries of the gradient at a sender's
columns; the columns and the results once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import jax.numpy as jnp

from experiments.benchmarks import _break_even, _products, spmm
from experiments.benchmarks._cases import DIRECTIONS, Candidate, Case, implementations
from experiments.benchmarks._command import command
from experiments.benchmarks._session import Options, Session, run_op
from experiments.benchmarks._workloads import BREAK_EVEN_TOO, WORKLOADS, Workload
from jaxgnn import ops
from jaxgnn.graph import CSRGraph, column_dtype


@dataclass(frozen=True)
class MaxkSpmmOptions(Options):
    """Settings of a run.

    Attributes:
      break_even: measure the largest k / dim at which the k-sparse kernels are faster.
      dims: widths to try for the break-even.
      parts: values of k to try for the break-even, in 32nds of the width, ascending.
    """

    break_even: bool = False
    dims: tuple[int, ...] = _break_even.DIMS
    parts: tuple[int, ...] = _break_even.PARTS


def bytes_moved(graph: CSRGraph, dim: int, k: int, itemsize: int, direction: str) -> int:
    """Bytes that must move if every gathered row is read from memory."""
    structure, column = spmm.structure_bytes(graph), column_dtype(dim).itemsize
    forward = structure + graph.num_edges * k * (itemsize + column)
    forward += graph.num_rows * dim * itemsize
    backward = structure + graph.num_edges * k * itemsize
    backward += graph.num_cols * k * (column + itemsize)
    ways = {"forward": forward, "backward": backward, "forward+backward": forward + backward}
    return ways[direction]


def bytes_once(graph: CSRGraph, dim: int, k: int, itemsize: int, direction: str) -> int:
    """Bytes with every array once, as in ``spmm.bytes_once``: the kept entries and the dense rows.

    One is read and the other written. The backward reads the columns and writes the values.
    """
    kept = graph.num_cols * k * (itemsize + column_dtype(dim).itemsize)
    one_way = spmm.structure_bytes(graph) + kept + graph.num_rows * dim * itemsize
    return 2 * one_way if direction == "forward+backward" else one_way


def cases(workload: Workload) -> Iterator[Case]:
    """Yields every dtype and direction: first the dense product, independent of k, then every k.

    XLA has no k-sparse kernel, so its time is that of the dense product, without the expansion.
    """
    graph = workload.graph()
    for dtype in workload.dtypes:
        dense = _products.dense_inputs(workload, dtype)
        for direction in workload.directions:
            names: dict[str, ops.Name | None] = {"xla": "xla", "spmm": None}
            candidates = {
                label: Candidate(DIRECTIONS[direction](_products.spmm(name)), dense)
                for label, name in names.items()
            }
            size = jnp.dtype(dtype).itemsize
            nbytes = spmm.bytes_moved(graph, workload.dim, size, direction)
            yield _case(workload, direction, dtype, None, nbytes, candidates)
        for k in workload.ks:
            yield from _cases_of_k(workload, dtype, k)


def _cases_of_k(workload: Workload, dtype: str, k: int) -> Iterator[Case]:
    graph, inputs = workload.graph(), _products.kept_inputs(workload, dtype, k)
    for direction in workload.directions:
        size = jnp.dtype(dtype).itemsize
        nbytes = bytes_moved(graph, workload.dim, k, size, direction)
        candidates = implementations(_products.maxk_spmm, direction, inputs)
        candidates.pop("xla", None)
        yield _case(workload, direction, dtype, k, nbytes, candidates)


def _case(workload, direction, dtype, k, nbytes, candidates) -> Case:
    edges, kernels = workload.graph().num_edges, k is not None and direction != "forward+backward"
    return Case(
        "maxk_spmm", workload, direction, dtype, nbytes, candidates, k, edges, kernels=kernels
    )


def main(options: MaxkSpmmOptions) -> None:
    """Times the op, or measures the break-even."""
    if options.break_even:
        session = Session.start(options, WORKLOADS, BREAK_EVEN_TOO)
        _break_even.run(session, dims=options.dims, parts=options.parts)
    else:
        run_op(cases, Session.start(options))


if __name__ == "__main__":
    command(main, MaxkSpmmOptions, __doc__)
