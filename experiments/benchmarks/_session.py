"""One run of the benchmarks: its settings, its device, and the loop that times every case."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax

from experiments.benchmarks import _bars
from experiments.benchmarks._cache import cache_bandwidth
from experiments.benchmarks._cases import Candidate, Case
from experiments.benchmarks._ratios import (
    below_forward,
    print_warnings,
    ratio_fields,
    ratio_text,
    timing_fields,
)
from experiments.benchmarks._report import Column, Output, Row, append_rows, header, line
from experiments.benchmarks._workloads import WORKLOADS, Scale
from jaxgnn._errors import bad_input
from jaxgnn.testing.timing import (
    Timing,
    copy_bandwidth,
    device_description,
    kernel_time,
    measure_in_turns,
)

COLUMNS = (
    Column("op", "op", 18),
    Column("workload", "workload", 16),
    Column("dtype", "dtype", 8),
    Column("direction", "direction", 16),
    Column("k", "k", 3, "d"),
    Column("implementation", "implementation", 15),
    Column("ms", "ms", 9, ".3f"),
    Column("25 %", "low_ms", 9, ".3f"),
    Column("75 %", "high_ms", 9, ".3f"),
    Column("kernels", "kernel_ms", 9, ".3f"),
    Column("x xla", partial(ratio_text, baseline="xla"), 12, "s"),
    Column("GB/s", "gb_per_s", 7, ".1f"),
    Column("of copy", "fraction_of_copy", 7, ".2f"),
    Column("TF/s", "tflop_per_s", 6, ".2f"),
    Column("of limit", "fraction_of_limit", 8, ".2f"),
    Column("peer", "peer", 9),
    Column("its ms", "peer_ms", 7, ".3f"),
)


@dataclass(frozen=True)
class Options(Output):
    """Settings of a run.

    Attributes:
      scale: ``full`` for the published results, ``small`` for a quick look, and ``tiny`` to check
        only that everything runs.
      only: names of workloads; by default all of the scale.
    """

    scale: Scale = "full"
    only: tuple[str, ...] = ()


@dataclass(frozen=True)
class Session:
    """Settings and device shared by all rows of a run.

    Attributes:
      workloads: workloads to run on, each a ``Workload``, ``Streams``, ``Rows`` or ``Messages``.
      out: folder of the JSONL files.
      timing: further arguments of ``measure`` and ``measure_in_turns``.
      device: description of the device and versions, by name.
      copy_gb_per_s: measured speed of an element-wise pass over memory, in GB/s.
    """

    workloads: tuple[Any, ...]
    out: Path
    timing: Mapping[str, float] = field(default_factory=dict)
    device: Mapping[str, str | int] = field(default_factory=device_description)
    copy_gb_per_s: float = field(default_factory=copy_bandwidth)

    @classmethod
    def start(cls, options: Options, *tables: Mapping[tuple, tuple[Any, ...]]):
        """Selects the workloads for this device and scale, measures the copy, prints the device.

        Args:
          options: the settings.
          *tables: workloads by platform and scale, ``WORKLOADS`` if none are given.

        Raises:
          ValueError: if ``--only`` names a workload that the tables do not have at this scale.
        """
        tiny = options.scale == "tiny"
        session = cls(
            workloads=_chosen(options, tables or (WORKLOADS,)),
            out=options.rows,
            timing={"repeats": 3, "batch_ms": 0.0} if tiny else {},
            copy_gb_per_s=copy_bandwidth(2**20 if tiny else None),
        )
        device = ", ".join(f"{key} {value}" for key, value in session.device.items())
        print(f"{device}; element-wise pass {session.copy_gb_per_s:.1f} GB/s")
        return session

    @cached_property
    def cache_gb_per_s(self) -> float:
        """Speed of the last cache in GB/s, measured on first use."""
        return cache_bandwidth(**self.timing)  # pyrefly: ignore

    def time_in_turns(self, candidates: Mapping[str, Candidate]) -> dict[str, Timing | None]:
        """Times candidates in turns; None for one that runs out of memory."""
        return measure_in_turns(candidates, **self.timing)  # pyrefly: ignore

    def run(self, cases: Iterable[Case]) -> list[Row]:
        """Times every candidate of every case; prints and appends the rows as soon as they exist.

        The candidates of a case take turns.

        A case without a candidate of XLA is compared with the last of its op, workload, dtype
        and direction that had one.
        """
        rows: list[Row] = []
        xla: dict[tuple, Timing | None] = {}
        columns: tuple[Column, ...] = ()
        for case in cases:
            timings = self.time_in_turns(case.candidates)
            kind = case.op, case.workload, case.dtype, case.direction
            xla[kind] = timings.get("xla", xla.get(kind))
            new = [self.row(case, name, timing, xla[kind]) for name, timing in timings.items()]
            if columns != (columns := self._columns(case)):
                print(header(columns), flush=True)
            for row in new:
                if case.kernels and row["ms"] is not None:
                    row["kernel_ms"] = kernel_time(case.candidates[row["implementation"]])
                print(line(row, columns), flush=True)
            append_rows(self.out / f"{case.op}.jsonl", new)
            rows += new
        for text in (*_bars.compare_with_bars(rows), *below_forward(rows)):
            print(text)
        print_warnings(row["others"] for row in rows)
        return rows

    def _columns(self, case: Case) -> tuple[Column, ...]:
        """The columns of an op's table; columns without a value in any row are omitted."""
        on_h200 = "H200" in str(self.device["device"])
        absent: set[str] = set()
        if self.device["platform"] == "cpu" or not case.kernels:
            absent |= {"kernel_ms"}
        if case.flops is None:
            absent |= {"tflop_per_s"}
        if not on_h200:
            absent |= {"fraction_of_limit"}
        if not _bars.has_peers(case.op, str(self.device["device"])):
            absent |= {"peer", "peer_ms"}
        return tuple(column for column in COLUMNS if column.key not in absent)

    def row(self, case: Case, name: str, timing: Timing | None, xla: Timing | None) -> Row:
        """One line of the JSONL file; times are None after running out of memory."""
        ms = None if timing is None else timing.median_ms
        rate = None if ms is None else case.nbytes / ms / 1e6
        row: Row = {
            "op": case.op,
            "workload": case.workload.name,
            "nodes": case.workload.nodes,
            "edges": case.edges,
            "dim": case.workload.dim,
            "dtype": case.dtype,
            "direction": case.direction,
            "k": case.k,
            "implementation": name,
            **timing_fields(timing),
            "kernel_ms": None,
            **ratio_fields("xla", xla, timing),
            "bytes": case.nbytes,
            "gb_per_s": rate,
            "fraction_of_copy": None if rate is None else rate / self.copy_gb_per_s,
            "copy_gb_per_s": self.copy_gb_per_s,
            "flops": case.flops,
            "tflop_per_s": None if ms is None or case.flops is None else case.flops / ms / 1e9,
            **self.device,
        }
        peer, peer_ms = _bars.published(row) or (None, None)
        limit = _bars.limit_ms(row)
        fraction = None if limit is None or ms is None else limit / ms
        return {**row, "fraction_of_limit": fraction, "peer": peer, "peer_ms": peer_ms}


def _chosen(options: Options, tables: Iterable[Mapping[tuple, tuple[Any, ...]]]) -> tuple[Any, ...]:
    """The workloads of the scale on this platform that ``--only`` names, or all."""
    platform = "cpu" if jax.default_backend() == "cpu" else "gpu"
    of_scale = (table.get((platform, options.scale), ()) for table in tables)
    workloads = tuple(itertools.chain.from_iterable(of_scale))
    names = [workload.name for workload in workloads]
    for name in options.only:
        if name not in names:
            expected = f"of {', '.join(names)} with --scale {options.scale} on a {platform}"
            raise bad_input("benchmarks", "--only", expected, name)
    return tuple(w for w in workloads if not options.only or w.name in options.only)


def run_op(cases: Callable[[Any], Iterable[Case]], session: Session) -> list[Row]:
    """Times an op on every workload of the session."""
    return session.run(case for workload in session.workloads for case in cases(workload))
