"""Performance targets: speed-ups to reach on a CPU, and times of other libraries on a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from experiments.benchmarks._report import RESULTS, read_rows

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Bar:
    """Target for how many times faster than ``baseline`` an implementation must be.

    Attributes:
      op: name of the op.
      direction: ``"forward"``, ``"backward"`` or ``"forward+backward"``.
      k: number of kept entries per row, for ops that have it; else None.
      implementation: name of the implementation whose time counts.
      baseline: another implementation of the same run, ``BYTE_LIMIT``, or a fixed time.
      factor: the least ratio of the baseline's time to the implementation's.
      workloads: workloads on which the target applies. By default ``uniform-1M``, for which it was
        stated: 20,000 nodes and 10^6 uniformly random edges, width 256.
      platform: ``"cpu"`` or ``"gpu"``.
      dtype: dtype of the features.
    """

    op: str
    direction: str
    k: int | None
    implementation: str
    baseline: str
    factor: float
    workloads: tuple[str, ...] = ()
    platform: str = "cpu"
    dtype: str = "float32"


BYTE_LIMIT = "byte limit"
_BAR_WORKLOAD = "uniform-1M"

# Four streams in bfloat16 on an H200: tokens x width.
_NARROW, _WIDE = ("16384x512", "16384x1280", "8192x2560"), ("8192x7168",)
_ON_GPU = {"platform": "gpu", "dtype": "bfloat16"}


def _layer_bars() -> Iterator[Bar]:
    """Targets of ``mhc_layer``, against the limit of its bytes and other libraries' layers."""
    limits = (
        ("forward", 1.25, _NARROW),
        ("forward+backward", 1.35, _NARROW),
        ("forward", 1.6, _WIDE),
        ("forward+backward", 1.6, _WIDE),
    )
    for direction, times, workloads in limits:
        where = {"workloads": workloads, **_ON_GPU}
        yield Bar("mhc_layer", direction, None, "pallas", BYTE_LIMIT, 1 / times, **where)
        for other, factor in (("TE", 2), ("TE f32 sums", 2), ("Liger", 6), ("xla", 3)):
            yield Bar("mhc_layer", direction, None, "pallas", other, factor, **where)


# Rows x width of the layers: sizes that are memory-bound on an H200, and a compute-bound one.
_TALL, _SQUARE = ("1000000x64", "1000000x128", "232965x256"), ("8192x4096",)


def _linear_bars() -> Iterator[Bar]:
    """Targets of ``fused_linear`` and ``fused_mlp``, against a copy of the rows and plain JAX."""
    tall = {"workloads": _TALL, **_ON_GPU}
    for op in ("fused_linear", "fused_mlp"):
        for direction, times in (("forward", 1.3), ("forward+backward", 1.6)):
            yield Bar(op, direction, None, "pallas", BYTE_LIMIT, 1 / times, **tall)
    for direction in ("forward", "forward+backward"):
        for plain in ("plain", "plain cublaslt"):
            yield Bar("fused_linear", direction, None, "pallas", plain, 1.1, **tall)
            square = {"workloads": _SQUARE, **_ON_GPU}
            yield Bar("fused_linear", direction, None, "auto", plain, 0.95, **square)


# Recurrent relational networks for Sudoku, compared with the same network with plain messages.
_BOARDS = Bar(
    "edge_mlp_aggregate",
    "training step",
    None,
    "auto",
    "xla",
    4,
    workloads=("256x81x96",),
    **_ON_GPU,
)


def _hypergraph_bars() -> Iterator[Bar]:
    """Targets of ``hypergraph_conv`` against torch-geometric, and of a step as a fixed time."""
    both, gpu = "forward+backward", {"platform": "gpu"}
    for tokens, factor in ((4096, 10), (32768, 20)):
        where = {"workloads": (f"{tokens} tokens",), **gpu}
        yield Bar("expert_coupling", both, None, "auto", "PyG convs", factor, **where)
    yield Bar("hypergraph_conv", both, None, "auto", "PyG", 3, workloads=("1M nodes",), **gpu)
    step = {"workloads": ("8 experts 4x64",), **gpu}
    yield Bar("expert_lm", "training step", None, "auto", "5 ms", 1, **step)


# Baselines that are not measured in the same run.
_FIXED_MS = {"5 ms": 5.0}

_PAIR = ("mhc_post_pre", "forward+backward", None, "pallas", "pallas pair", 1 / 0.8)

BARS = (
    Bar("maxk", "forward", 32, "ffi", "lax.top_k", 12),
    Bar("spmm", "forward", None, "ffi", "xla", 5),
    Bar("spmm", "forward", None, "ffi", "scipy", 1.5),
    Bar("maxk_spmm", "forward", 32, "ffi", "xla", 15),
    Bar("maxk_spmm", "backward", 32, "ffi", "xla", 15),
    *_layer_bars(),
    *_linear_bars(),
    _BOARDS,
    *_hypergraph_bars(),
    Bar(*_PAIR, workloads=_NARROW + _WIDE, **_ON_GPU),
)


def compare_with_bars(rows: Sequence[Row]) -> Iterator[str]:
    """One line for each target for which the rows of a run have both times.

    It compares the kernels' own times where both sides have them, or where the baseline is the byte
    limit; otherwise the times of a call.
    """
    for bar in BARS:
        same = [
            row
            for row in rows
            if (row["op"], row["direction"]) == (bar.op, bar.direction)
            and (row["platform"], row["dtype"]) == (bar.platform, bar.dtype)
            and row["k"] in (bar.k, None)
            and (not bar.workloads or row["workload"] in bar.workloads)
        ]
        for workload in dict.fromkeys(row["workload"] for row in same):
            of_workload = [row for row in same if row["workload"] == workload]
            for kind in ("kernel_ms", "ms"):
                ms = {row["implementation"]: row.get(kind) for row in of_workload}
                ours, theirs = ms.get(bar.implementation), ms.get(bar.baseline)
                if bar.baseline == BYTE_LIMIT:
                    theirs = limit_ms(of_workload[0])
                elif kind == "ms" and bar.baseline in _FIXED_MS:
                    theirs = _FIXED_MS[bar.baseline]
                if ours and theirs:
                    yield _line(bar, workload, theirs / ours)
                    break


def _line(bar: Bar, workload: str, ratio: float) -> str:
    verdict = "met" if ratio >= bar.factor else "NOT met"
    if not bar.workloads and workload != _BAR_WORKLOAD:
        verdict += f", though the bar is for {_BAR_WORKLOAD}"
    what = f"{bar.op} {bar.direction}" + (f", k = {bar.k}" if bar.k else "")
    return (
        f"{what}, {workload}: {bar.implementation} is {ratio:.2f}x {bar.baseline} "
        f"(bar: {bar.factor:.3g}x): {verdict}"
    )


# GB/s, read and written together, of a memory-to-memory copy on one NVIDIA H200, once measured with
# torch. Kernels of the rows "copy" in results/fused_mlp.jsonl reach up to 4,251.
_H200_COPY_GB_PER_S = 4300


def limit_ms(row: Row) -> float | None:
    """Time in which an H200 copies as many bytes as this row has; None on another device.

    It is not a limit for data that a cache serves, such as repeated gathers of the same rows.
    """
    return row["bytes"] / _H200_COPY_GB_PER_S / 1e6 if "H200" in row["device"] else None


# Once-measured times of other libraries; each row has its card, date and command.
PEERS = RESULTS / "peers.jsonl"

_SAME = ("op", "workload", "direction", "k", "dtype", "dim", "device")


@cache
def _peers() -> dict[tuple[Any, ...], tuple[str, float]]:
    """The fastest once-measured library and its ms, by the values of ``_SAME``."""
    fastest: dict[tuple[Any, ...], tuple[str, float]] = {}
    for row in read_rows(PEERS):
        key = tuple(row[name] for name in _SAME)
        if row["ms"] is not None and row["ms"] < fastest.get(key, ("", math.inf))[1]:
            fastest[key] = row["implementation"], row["ms"]
    return fastest


def has_peers(op: str, device: str) -> bool:
    """Whether another library was once measured on a device at what an op does."""
    return any((row["op"], row["device"]) == (op, device) for row in read_rows(PEERS))


def published(row: Row) -> tuple[str, float] | None:
    """Library that did the same on the same device, and its ms; None if there is none known.

    Its graphs have the sizes and degrees of ours, without communities.
    """
    return _peers().get(tuple(row[name] for name in _SAME))
