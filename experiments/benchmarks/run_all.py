"""Times every op: ``python -m experiments.benchmarks`` does the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tyro

from experiments.benchmarks import (
    edge_mlp_aggregate,
    fused_linear,
    fused_linear_maxk,
    fused_mlp,
    hypergraph_conv,
    maxk,
    maxk_spmm,
    mhc_layer,
    mhc_post,
    mhc_post_pre,
    mhc_pre,
    segment_softmax,
    sinkhorn,
    spmm,
)
from experiments.benchmarks._hypergraphs import Coupling, Hypergraph, Step
from experiments.benchmarks._report import Row
from experiments.benchmarks._session import Options, Session
from experiments.benchmarks._workloads import (
    MESSAGES,
    ROWS,
    STREAMS,
    WORKLOADS,
    Messages,
    Rows,
    Streams,
    Workload,
)

OPS: Mapping[type, tuple[Any, ...]] = {
    Workload: (maxk, spmm, maxk_spmm, segment_softmax),
    Streams: (mhc_pre, mhc_post, sinkhorn, mhc_post_pre, mhc_layer),
    Rows: (fused_linear, fused_linear_maxk, fused_mlp),
    Messages: (edge_mlp_aggregate,),
    Hypergraph: (hypergraph_conv,),
    Coupling: (hypergraph_conv,),
    Step: (hypergraph_conv,),
}


def main(options: Options) -> list[Row]:
    """Runs the benchmarks as one session: one table, one date, one measured bandwidth."""
    session = Session.start(options, WORKLOADS, STREAMS, ROWS, MESSAGES, *hypergraph_conv.TABLES)
    return session.run(
        case
        for kind, ops in OPS.items()
        for op in ops
        for workload in session.workloads
        if isinstance(workload, kind)
        for case in op.cases(workload)
    )


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
