"""Times ``ops.sinkhorn`` with 20 iterations and the exact gradient.

Run ``python -m experiments.benchmarks.sinkhorn``. Bytes: logits, matrices and their gradients once.
These are small: for a few ten thousand tokens a cache holds them, as it does after ``mhc_pre``, and
the time is that of arithmetic and launches.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from experiments.benchmarks import _streams
from experiments.benchmarks._cases import Case, implementations
from experiments.benchmarks._command import command
from experiments.benchmarks._session import Options, Session, run_op
from experiments.benchmarks._workloads import STREAMS, Streams
from jaxgnn import ops

_ARRAYS = _streams.Arrays(("h_res",), "h_res")


def cases(workload: Streams) -> Iterator[Case]:
    """Yields every direction of the workloads that time ``sinkhorn``."""
    if not workload.matrices:
        return iter(())
    candidates = partial(implementations, _build)
    return _streams.cases("sinkhorn", workload, _ARRAYS, candidates, dtypes=("float32",))


def _build(name: ops.Name):
    return lambda _, arrays: (ops.sinkhorn(*arrays, implementation=name), None)


if __name__ == "__main__":
    command(lambda options: run_op(cases, Session.start(options, STREAMS)), Options, __doc__)
