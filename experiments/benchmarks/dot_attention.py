"""Times ``ops.dot_attention`` against plain JAX and ``TransformerConv`` of torch-geometric.

Run ``python -m experiments.benchmarks.dot_attention``. Bytes: two rows of all heads gathered for
each edge forward, four backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from experiments.benchmarks import _attention
from experiments.benchmarks._cases import Case
from experiments.benchmarks._command import command
from experiments.benchmarks._session import Options
from experiments.benchmarks._workloads import Workload


def cases(workload: Workload) -> Iterator[Case]:
    """Yields a case for every dtype and direction."""
    return _attention.cases("dot_attention", workload)


if __name__ == "__main__":
    command(partial(_attention.run, cases), Options, __doc__)
