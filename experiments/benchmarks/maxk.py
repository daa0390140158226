"""Times ``ops.maxk`` against ``lax.top_k`` and ``torch.topk``.

Run ``python -m experiments.benchmarks.maxk``. Bytes: every tensor once.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax import lax

from experiments.benchmarks._baselines import torch_top_k
from experiments.benchmarks._cases import DIRECTIONS, Candidate, Case, implementations
from experiments.benchmarks._command import command
from experiments.benchmarks._session import Options, Session, run_op
from experiments.benchmarks._workloads import Workload, input_sets
from jaxgnn import ops
from jaxgnn.graph import column_dtype


def bytes_moved(rows: int, dim: int, k: int, itemsize: int, direction: str) -> int:
    """Forward: reads the rows, writes values and columns. Backward: the other way round."""
    kept = rows * k * (itemsize + column_dtype(dim).itemsize)
    one_way = rows * dim * itemsize + kept
    return one_way if direction == "forward" else 2 * one_way


def cases(workload: Workload) -> Iterator[Case]:
    """Yields every dtype, k and direction; the backward is timed with the forward it needs."""
    for dtype in workload.dtypes:
        for k in workload.ks:
            inputs = _inputs(workload, dtype, k)
            for direction in ("forward", "forward+backward"):
                yield Case(
                    op="maxk",
                    workload=workload,
                    direction=direction,
                    dtype=dtype,
                    nbytes=bytes_moved(
                        workload.nodes, workload.dim, k, jnp.dtype(dtype).itemsize, direction
                    ),
                    candidates=_candidates(k, direction, inputs),
                    k=k,
                    kernels=direction == "forward",
                )


def _inputs(workload: Workload, dtype: str, k: int) -> list[tuple]:
    def make(key):
        x_key, dy_key = jax.random.split(key)
        x = jax.random.normal(x_key, (workload.nodes, workload.dim), dtype)
        return None, x, jax.random.normal(dy_key, (workload.nodes, k), dtype)

    return input_sets(make)


def _candidates(k: int, direction: str, inputs: list[tuple]) -> dict[str, Candidate]:
    def build(name):
        def maxk(_, x):
            kept = ops.maxk(x, k, implementation=name)
            return kept.values, kept.indices

        return maxk

    def top_k(_, x):
        values, columns = lax.top_k(x, k)
        return values, columns

    return {
        **implementations(build, direction, inputs),
        "lax.top_k": Candidate(DIRECTIONS[direction](top_k), inputs),
        **torch_top_k(inputs, k, direction),
    }


if __name__ == "__main__":
    command(lambda options: run_op(cases, Session.start(options)), Options, __doc__)
