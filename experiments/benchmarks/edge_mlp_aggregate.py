"""Times ``ops.edge_mlp_aggregate`` and a training step of a network with it, against plain JAX.

Run ``python -m experiments.benchmarks.edge_mlp_aggregate``. ``xla`` concatenates both ends of each
edge, as is usual in JAX; ``split`` is the op without its own edge kernels, ``auto`` with those that
it chooses. Bytes: nodes once for each pass, and the structure; products: the fewest that suffice.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax.numpy as jnp

from experiments.benchmarks import _messages
from experiments.benchmarks._cases import Case
from experiments.benchmarks._command import command
from experiments.benchmarks._session import Options, Session, run_op
from experiments.benchmarks._workloads import MESSAGES, Messages

_OP = "edge_mlp_aggregate"
# Peak of an H200: 10^12 multiplications and additions a second, 16 bits; and GB/s of its memory.
_PEAK_TFLOP_PER_S, _PEAK_GB_PER_S = 989, 4800


def cases(workload: Messages) -> Iterator[Case]:
    """Yields the op in each dtype and direction, then the training step of a network."""
    graph = workload.graph()
    edges = workload.boards * graph.num_edges
    for dtype in workload.dtypes:
        op, itemsize = _messages.MessageOp(workload, graph), jnp.dtype(dtype).itemsize
        inputs = op.inputs(dtype)
        for direction in ("forward", "forward+backward"):
            case = Case(
                op=_OP,
                workload=workload,
                direction=direction,
                dtype=dtype,
                nbytes=_messages.bytes_moved(workload, graph, direction, itemsize),
                candidates=op.candidates(direction, inputs),
                edges=edges,
                flops=_messages.flops(workload, graph, direction),
            )
            yield _announced(case)
        if workload.steps:
            case = Case(
                op=_OP,
                workload=workload,
                direction="training step",
                dtype=dtype,
                nbytes=_messages.step_bytes(workload, itemsize),
                candidates=_messages.training_steps(workload, graph, dtype),
                edges=edges,
                flops=_messages.step_flops(workload, graph),
            )
            yield _announced(case)


def _announced(case: Case) -> Case:
    """Prints the minimal cost of a case on an H200."""
    assert case.flops is not None
    by_flops = case.flops / _PEAK_TFLOP_PER_S / 1e9
    by_bytes = case.nbytes / _PEAK_GB_PER_S / 1e6
    print(
        f"{case.workload.name} {case.direction}: {case.flops / 1e9:.2f} GFLOP, "
        f"{case.nbytes / 1e6:.1f} MB; an H200 needs at least {by_flops:.4f} ms for these products "
        f"and {by_bytes:.4f} ms for these bytes",
        flush=True,
    )
    return case


if __name__ == "__main__":
    command(lambda options: run_op(cases, Session.start(options, MESSAGES)), Options, __doc__)
