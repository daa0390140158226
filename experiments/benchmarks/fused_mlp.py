"""Times ``ops.fused_mlp``, two layers with relu and gelu, against plain JAX and torch.

Run ``python -m experiments.benchmarks.fused_mlp``. ``auto`` is ``implementation=None``, and
``plain`` is the formula in JAX, on a GPU also compiled with cuBLASLt. Bytes: the input and the
output; values between the layers need not leave the chip.
"""

from __future__ import annotations

from collections.abc import Iterator

from experiments.benchmarks import _layers
from experiments.benchmarks._cases import Case
from experiments.benchmarks._command import command
from experiments.benchmarks._session import Options, Session, run_op
from experiments.benchmarks._workloads import ROWS, Rows


def cases(workload: Rows) -> Iterator[Case]:
    """Yields every activation, dtype and direction."""
    for activation in workload.activations:
        yield from _layers.cases(_layers.Layers("fused_mlp", activation), workload, 2)


if __name__ == "__main__":
    command(lambda options: run_op(cases, Session.start(options, ROWS)), Options, __doc__)
