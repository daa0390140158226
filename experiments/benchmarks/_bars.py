"""Performance targets: speed-ups to reach on a CPU, and times of other libraries on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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


# GB/s, read and written together, of a memory-to-memory copy on one NVIDIA H200.
_H200_COPY_GB_PER_S = 4300


def limit_ms(row: Row) -> float | None:
    """Time in which an H200 copies as many bytes as this row has; None on another device.

    It is not a limit for data that a cache serves, such as repeated gathers of the same rows.
    """
    return row["bytes"] / _H200_COPY_GB_PER_S / 1e6 if "H200" in row["device"] else None


# Medians in ms on one NVIDIA H200, width 256, on synthetic graphs of the same sizes and degrees,
# without communities. MaxK-GNN's CUDA kernels (float32) do not zero the output, and at k = 16 skip
# a part of the work. cuSPARSE: the better of ALG2 and ALG3. RTop-K: the exact variant.
_MAXK_GNN = {
    "reddit": {16: (4.96, 2.79), 32: (7.30, 6.63), 64: (13.2, 13.7)},
    "products": {16: (14.5, 9.31), 32: (15.8, 14.5), 64: (26.7, 26.3)},
    "proteins": {16: (3.26, 1.92), 32: (4.75, 4.59), 64: (8.36, 6.94)},
    "flickr": {16: (0.14, 0.07), 32: (0.17, 0.11), 64: (0.29, 0.16)},
}
_CUSPARSE = {
    "reddit": {"float32": 16.95, "bfloat16": 18.2},
    "products": {"float32": 34.2, "bfloat16": 16.85},
    "proteins": {"float32": 9.67, "bfloat16": 4.67},
    "flickr": {"float32": 0.23, "bfloat16": 0.19},
}
_RTOPK = {
    "reddit": {16: 0.261, 32: 0.280, 64: 0.292},
    "products": {16: 2.63, 32: 2.79, 64: 2.92},
}

# The layer of mhc_layer, four streams in bfloat16, tokens x width: kernels of TransformerEngine, or
# of Liger where TransformerEngine was not run; forward, and with the backward.
_MHC_LAYERS = {
    "16384x512": ("TE", 0.107, 0.489),
    "16384x1280": ("TE", 0.230, 1.076),
    "8192x2560": ("TE", 0.223, 1.064),
    "8192x7168": ("Liger", 1.779, 13.15),
}

# Eager torch, bfloat16 and relu, by op and direction.
_TORCH_LAYERS = {
    ("fused_linear", "forward"): {
        "8192x4096": 0.399,
        "232965x256": 0.142,
        "1000000x128": 0.370,
        "1000000x64": 0.154,
    },
    ("fused_mlp", "forward"): {
        "8192x4096": 0.741,
        "232965x256": 0.211,
        "1000000x128": 0.603,
        "1000000x64": 0.228,
    },
    ("fused_mlp", "forward+backward"): {
        "8192x4096": 2.89,
        "232965x256": 1.72,
        "1000000x128": 3.63,
        "1000000x64": 1.79,
    },
}

# Two HypergraphConv of torch-geometric 2.8, eight experts, float32; forward, and with backward.
_COUPLINGS = {
    "256 tokens": (2.3, 3.7),
    "4096 tokens": (3.1, 7.5),
    "32768 tokens": (18.3, 51.0),
}


# Ops with known times of other libraries.
PUBLISHED_OPS = {
    "expert_coupling",
    "fused_linear",
    "fused_mlp",
    "maxk",
    "maxk_spmm",
    "mhc_layer",
    "spmm",
}


def published(row: Row) -> tuple[str, float] | None:
    """Library that did the same on an H200, and its ms; None if unknown or on another device."""
    workload, direction, k, dtype = (row[key] for key in ("workload", "direction", "k", "dtype"))
    if "H200" in row["device"] and dtype == "bfloat16" and (row["op"], direction) in _TORCH_LAYERS:
        ms = _TORCH_LAYERS[row["op"], direction].get(workload)
        return ("torch", ms) if ms else None
    if "H200" in row["device"] and row["op"] == "mhc_layer" and dtype == "bfloat16":
        name, *both = _MHC_LAYERS.get(workload, ("", None, None))
        ms = both[direction != "forward"]
        return (name, ms) if ms else None
    if "H200" not in row["device"] or row["dim"] != 256:
        return None
    if row["op"] == "expert_coupling" and dtype == "float32" and workload in _COUPLINGS:
        return "PyG 2.8", _COUPLINGS[workload][direction != "forward"]
    ms = None
    name = {"maxk_spmm": "MaxK-GNN", "spmm": "cuSPARSE", "maxk": "RTop-K"}.get(row["op"], "")
    if name == "MaxK-GNN" and dtype == "float32" and direction in ("forward", "backward"):
        both = _MAXK_GNN.get(workload, {}).get(k)
        ms = both and both[direction == "backward"]
    elif name == "cuSPARSE" and direction == "forward":
        ms = _CUSPARSE.get(workload, {}).get(dtype)
    elif name == "RTop-K" and dtype == "float32" and direction == "forward":
        ms = _RTOPK.get(workload, {}).get(k)
    return (name, ms) if ms else None
