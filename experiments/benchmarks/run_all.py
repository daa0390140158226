"""Times every op: ``python -m experiments.benchmarks`` does the same."""

from __future__ import annotations

import tyro

from experiments.benchmarks import maxk, maxk_spmm, segment_softmax, spmm
from experiments.benchmarks._report import Row
from experiments.benchmarks._session import Options, Session

OPS = (maxk, spmm, maxk_spmm, segment_softmax)


def main(options: Options) -> list[Row]:
    """Runs the benchmarks as one session: one table, one date, one measured bandwidth."""
    session = Session.start(options)
    return session.run(
        case for op in OPS for workload in session.workloads for case in op.cases(workload)
    )


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
