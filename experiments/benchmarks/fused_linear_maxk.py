"""Times ``ops.fused_linear`` with ``ops.MaxK``, which computes compressed rows from dense ones.

Run ``python -m experiments.benchmarks.fused_linear_maxk``. An eighth of the columns is kept.
``auto`` is ``implementation=None``, ``product`` is ``x @ kernel + bias`` alone, in plain JAX, and
``two ops`` applies ``ops.maxk`` after that. Bytes: rows in, values and columns out, and in the
backward pass x and values' gradients in, rows' gradients out.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax.numpy as jnp

from experiments.benchmarks import _layers
from experiments.benchmarks._cases import (
    DIRECTIONS,
    Candidate,
    Case,
    Differentiable,
    implementations,
)
from experiments.benchmarks._command import command
from experiments.benchmarks._session import Options, Session, run_op
from experiments.benchmarks._workloads import ROWS, Rows
from jaxgnn import ops
from jaxgnn.graph import column_dtype

_WIDEST = 256  # wider layers are compute-bound
_COLUMNS_OF_ONE_KEPT = 8


def bytes_moved(direction: str, *, rows: int, dim: int, k: int, itemsize: int) -> int:
    """Bytes of the rows, once for each pass that has to read or write them, without parameters.

    Raises:
      KeyError: if there is no such direction.
    """
    dense, values, columns = dim * itemsize, k * itemsize, k * column_dtype(dim).itemsize
    one_way = dense + values + columns
    return rows * {"forward": one_way, "forward+backward": 2 * one_way + dense}[direction]


def cases(workload: Rows) -> Iterator[Case]:
    """Yields every dtype and direction for widths that are memory-bound."""
    if workload.dim > _WIDEST:
        return
    k, features = max(1, workload.dim // _COLUMNS_OF_ONE_KEPT), (workload.dim,) * 2
    for dtype in workload.dtypes:
        dense = _layers.Layers("fused_linear", "relu").inputs(workload.nodes, features, dtype)
        kept = [(context, arrays, dy[:, :k]) for context, arrays, dy in dense]
        for direction in _layers.LAYER_DIRECTIONS:
            sizes = {"rows": workload.nodes, "dim": workload.dim, "k": k}
            yield Case(
                op="fused_linear_maxk",
                workload=workload,
                direction=direction,
                dtype=dtype,
                nbytes=bytes_moved(direction, **sizes, itemsize=jnp.dtype(dtype).itemsize),
                candidates={
                    **implementations(lambda name: _ours(k, name), direction, kept),
                    "auto": Candidate(DIRECTIONS[direction](_ours(k, None)), kept),
                    "two ops": Candidate(DIRECTIONS[direction](_two_ops(k)), kept),
                    "product": Candidate(DIRECTIONS[direction](_product), dense),
                },
                k=k,
                flops=_layers.flops(direction, rows=workload.nodes, features=features),
                kernels=True,
            )


def _ours(k: int, implementation: ops.Name | None) -> Differentiable:
    def linear(_, arrays):
        x, (kernel,), (bias,) = arrays
        options = {"activation": ops.MaxK(k), "implementation": implementation}
        kept = ops.fused_linear(x, kernel, bias, **options)
        return kept.values, kept.indices

    return linear


def _product(_, arrays):
    x, (kernel,), (bias,) = arrays
    return x @ kernel + bias, None


def _two_ops(k: int) -> Differentiable:
    def linear(_, arrays):
        kept = ops.maxk(_product(_, arrays)[0], k)
        return kept.values, kept.indices

    return linear


if __name__ == "__main__":
    command(lambda options: run_op(cases, Session.start(options, ROWS)), Options, __doc__)
