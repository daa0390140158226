"""Largest k / dim at which the k-sparse product is faster than the dense one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import get_args

from experiments.benchmarks import _products
from experiments.benchmarks._cases import Candidate, implementations
from experiments.benchmarks._ratios import print_warnings
from experiments.benchmarks._report import Column, Row, append_rows, header, line
from experiments.benchmarks._session import Session
from experiments.benchmarks._workloads import Workload
from jaxgnn import ops

PARTS = (1, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32)
DIMS = (64, 256)
_SPARSE = "k-sparse"
# Ratio to the dense product's time beyond which no larger k is tried.
_LOST = 1.5

_COLUMNS = (
    Column("workload", "workload", 12),
    Column("dtype", "dtype", 8),
    Column("dim", "dim", 4, "d"),
    Column("k", "k", 4, "d"),
    Column("k/dim", "ratio", 6, ".3f"),
    Column("k-sparse", "sparse", 9),
    Column("ms", "sparse_ms", 9, ".3f"),
    Column("dense", "dense", 9),
    Column("ms", "dense_ms", 9, ".3f"),
)


def run(session: Session, *, dims: Sequence[int] = DIMS, parts: Sequence[int] = PARTS) -> list[Row]:
    """Measures forward and backward together; prints the break-even of each workload and of all.

    Args:
      session: provides the workloads' graphs and dtypes; their widths and k are ignored.
      dims: widths.
      parts: k in 32nds of the width, ascending; larger k are skipped once k-sparse is far slower
        than dense.
    """
    rows: list[Row] = []
    print(header(_COLUMNS), flush=True)
    for of_session in session.workloads:
        for dim in dims:
            for dtype in of_session.dtypes:
                rows += _sweep(session, _of_width(of_session, dim, parts), dtype)
    for (workload, dtype, dim), same in _by_kind(rows).items():
        print(f"{workload} {dtype} dim {dim}: break-even at k/dim = {break_even(same):g}")
    if rows:
        print(f"least of them: {least_break_even(rows):g}")
    print_warnings(row["others"] for row in rows)
    return rows


def break_even(rows: Iterable[Mapping]) -> float:
    """The largest k / dim up to which the k-sparse product is faster; 0 if it never is.

    It minimises the product of ``sparse_ms / dense_ms`` from the smallest k up to it. Without noise
    that is the last k that wins, and one noisy measurement does not move it far.

    Args:
      rows: rows of one workload, dtype and width, k ascending.
    """
    best, total, least = 0.0, 0.0, 0.0
    for row in rows:
        total += math.log(row["sparse_ms"] / row["dense_ms"])
        if total < least:
            best, least = row["ratio"], total
    return best


def least_break_even(rows: Sequence[Mapping]) -> float:
    """The smallest break-even over all measured workloads, dtypes and widths."""
    return min(break_even(same) for same in _by_kind(rows).values())


def _by_kind(rows: Iterable[Mapping]) -> dict[tuple, list[Mapping]]:
    kinds: dict[tuple, list[Mapping]] = {}
    for row in rows:
        kinds.setdefault((row["workload"], row["dtype"], row["dim"]), []).append(row)
    return kinds


def _of_width(workload: Workload, dim: int, parts: Sequence[int]) -> Workload:
    ks = tuple(dict.fromkeys(max(1, dim * part // 32) for part in parts))
    return dataclasses.replace(workload, dim=dim, ks=ks)


def _sweep(session: Session, workload: Workload, dtype: str) -> list[Row]:
    """Rows of one workload, width and dtype, k ascending."""
    rows: list[Row] = []
    dense_names = get_args(ops.Name)
    for k in workload.ks:
        inputs = _products.kept_inputs(workload, dtype, k)
        try:
            sparse_name = ops.sparse_implementation(*inputs[0][0])
        except NotImplementedError as error:
            print(error)
            return rows
        candidates = {_SPARSE: _usable(_products.maxk_spmm, inputs).get(sparse_name)}
        usable = _usable(_products.todense_and_spmm, inputs)
        candidates |= {name: usable.get(name) for name in dense_names}
        times, others = _times(session, candidates)
        sparse_ms, dense = times.pop(_SPARSE), times
        dense_name = min(dense, key=dense.__getitem__)
        # The best dense product hardly depends on k, so it is chosen at the first.
        dense_names = (dense_name,)
        row = {
            **_labels(workload, dtype, k),
            "sparse": sparse_name,
            "sparse_ms": sparse_ms,
            "dense": dense_name,
            "dense_ms": dense[dense_name],
            "others": others,
            **session.device,
        }
        print(line(row, _COLUMNS), flush=True)
        append_rows(session.out / "maxk_spmm_break_even.jsonl", [row])
        rows.append(row)
        if sparse_ms > _LOST * dense[dense_name]:
            break
    return rows


def _labels(workload: Workload, dtype: str, k: int) -> Row:
    return {
        "op": "maxk_spmm_break_even",
        "workload": workload.name,
        "nodes": workload.nodes,
        "edges": workload.graph().num_edges,
        "dim": workload.dim,
        "dtype": dtype,
        "direction": "forward+backward",
        "k": k,
        "ratio": k / workload.dim,
    }


def _usable(build: Callable, inputs: list[tuple]) -> dict[str, Candidate]:
    """The implementations of an op that support both directions here."""
    return implementations(build, "forward+backward", inputs)


def _times(
    session: Session, candidates: Mapping[str, Candidate | None]
) -> tuple[dict[str, float], float | None]:
    """Milliseconds, measured in turns, and the share of the cores that other processes used.

    A time is infinite if the implementation is missing or runs out of memory.
    """
    present = {name: made for name, made in candidates.items() if made is not None}
    timings = {name: one for name, one in session.time_in_turns(present).items() if one is not None}
    ms = {name: timings[name].median_ms if name in timings else math.inf for name in candidates}
    return ms, next((one.others for one in timings.values()), None)
