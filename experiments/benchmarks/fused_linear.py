"""Times ``ops.fused_linear`` with relu against plain JAX and torch, with all gradients.

Run ``python -m experiments.benchmarks.fused_linear``. ``auto`` is ``implementation=None``, and
``plain`` is ``relu(x @ kernel + bias)``, on a GPU also compiled with cuBLASLt. Bytes: the rows once
for each pass over them, as ``_layers.bytes_moved`` counts.
"""

from __future__ import annotations

from collections.abc import Iterator

from experiments.benchmarks import _layers
from experiments.benchmarks._cases import Case
from experiments.benchmarks._command import command
from experiments.benchmarks._session import Options, Session, run_op
from experiments.benchmarks._workloads import ROWS, Rows


def cases(workload: Rows) -> Iterator[Case]:
    """Yields a case for every dtype and direction."""
    return _layers.cases(_layers.Layers("fused_linear", "relu"), workload, 1)


if __name__ == "__main__":
    command(lambda options: run_op(cases, Session.start(options, ROWS)), Options, __doc__)
