"""Times ``ops.mhc_post``, with the gradients to all its arguments.

Run ``python -m experiments.benchmarks.mhc_post``. Bytes: the streams and the layer's output once,
as ``_streams.bytes_moved`` counts.
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

_ARRAYS = _streams.Arrays(("x", "f", "h_post", "h_res"), "y")


def cases(workload: Streams) -> Iterator[Case]:
    """Yields a case for every dtype and direction."""
    return _streams.cases("mhc_post", workload, _ARRAYS, partial(implementations, _build))


def _build(name: ops.Name):
    return lambda _, arrays: (ops.mhc_post(*arrays, implementation=name), None)


if __name__ == "__main__":
    command(lambda options: run_op(cases, Session.start(options, STREAMS)), Options, __doc__)
