"""Times every op: ``python -m experiments.benchmarks`` does the same."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, get_type_hints

from experiments.benchmarks import hypergraph_conv
from experiments.benchmarks._atoms import ATOMS
from experiments.benchmarks._command import command
from experiments.benchmarks._report import Row
from experiments.benchmarks._session import Options, Session
from experiments.benchmarks._workloads import FILTERED, MESSAGES, ROWS, STREAMS, WORKLOADS
from jaxgnn.ops.core.registry import OPS


def modules() -> list[ModuleType]:
    """The benchmarks of all ops; each has ``cases(workload)``."""
    names = [benchmark.module for op in OPS for benchmark in op.benchmarks]
    return [importlib.import_module(f"experiments.benchmarks.{name}") for name in names]


def takes(module: ModuleType) -> Any:
    """Type of a benchmark's workloads, for use with ``isinstance``."""
    return get_type_hints(module.cases)["workload"]


def main(options: Options) -> list[Row]:
    """Runs the benchmarks as one session: one table, one date, one measured bandwidth."""
    session = Session.start(
        options, WORKLOADS, STREAMS, ROWS, MESSAGES, FILTERED, ATOMS, *hypergraph_conv.TABLES
    )
    return session.run(
        case
        for module in modules()
        for workload in session.workloads
        if isinstance(workload, takes(module))
        for case in module.cases(workload)
    )


if __name__ == "__main__":
    command(main, Options, __doc__)
