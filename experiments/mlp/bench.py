"""Nine networks, ours beside plain JAX and eager torch: times and differences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments._runs import shown
from experiments.benchmarks._cases import DIRECTIONS, Candidate
from experiments.benchmarks._layers import (
    Layers,
    flops,
    torch_arrays,
    torch_layers,
    with_cublaslt,
)
from experiments.benchmarks._report import Column, Row, append_rows, header, line
from experiments.mlp.config import NETWORKS, BenchConfig, Network
from experiments.mlp.differences import largest_difference
from jaxgnn._errors import bad_input
from jaxgnn.testing.timing import device_description, kernel_time, measure_in_turns

_COLUMNS = (
    Column("network", "network", 16),
    Column("batch", "batch_size", 5, "d"),
    Column("GFLOP", "gflop", 8, ".3f"),
    Column("torch ms", "torch_ms", 9, ".4f"),
    Column("XLA ms", "xla_ms", 9, ".4f"),
    Column("lt ms", "cublaslt_ms", 9, ".4f"),
    Column("ours ms", "ours_ms", 9, ".4f"),
    Column("kernels", "ours_kernel_ms", 9, ".4f"),
    Column("x torch", "speedup_over_torch", 7, ".3f"),
    Column("x XLA", "speedup_over_xla", 7, ".3f"),
    Column("x lt", "speedup_over_cublaslt", 7, ".3f"),
    Column("k x XLA", "kernel_speedup_over_xla", 7, ".3f"),
    Column("k x lt", "kernel_speedup_over_cublaslt", 7, ".3f"),
    Column("diff torch", "max_abs_diff_torch", 10, ".1e"),
    Column("diff XLA", "max_abs_diff_xla", 10, ".1e"),
)
_LAYERS = Layers("fused_mlp", "relu")
# Differences of a few per cent are told: more batches than usual. A reduced network takes less than
# a millisecond.
_TIMING: dict[str, Any] = {"repeats": 15, "budget_ms": 5_000.0}
_REDUCED_TIMING: dict[str, Any] = {"repeats": 15, "batch_ms": 2.0}
_BASELINES = {
    "speedup_over_xla": "XLA",
    "speedup_over_cublaslt": "XLA with cublasLt",
    "speedup_over_torch": "torch",
}
_KERNEL_BASELINES = {
    f"kernel_{key}": f"{name}, by the time of the kernels"
    for key, name in _BASELINES.items()
    if name != "torch"
}


def bench(config: BenchConfig) -> list[Row]:
    """Prints a table for each dtype and direction, and draws the speed-ups.

    Args:
      config: the options of the run.

    Returns:
      The rows, which are appended to ``bench.jsonl`` in the run folder as well.

    Raises:
      ValueError: if there is no network of a number that is asked for.
      NotImplementedError: if the named implementation runs none of the networks.
    """
    for number in config.networks:
        if not 1 <= number <= len(NETWORKS):
            raise bad_input("bench", "--networks", f"in 1..{len(NETWORKS)}", number)
    device = device_description()
    scale = config.scale or ("reduced" if device["platform"] == "cpu" else "full")
    numbers = config.networks or range(1, len(NETWORKS) + 1)
    networks = [NETWORKS[number - 1] for number in numbers]
    if scale == "reduced":
        networks = [network.reduced() for network in networks]
    print(", ".join(f"{key} {value}" for key, value in device.items()))
    print(f"{scale} sizes; diff: largest absolute difference of any entry of the results from ours")
    rows: list[Row] = []
    with jax.default_matmul_precision(config.precision):
        for dtype in config.dtypes:
            for direction in config.directions:
                rows += _table(config, networks, scale, {"dtype": dtype, "direction": direction})
    append_rows(config.run / "bench.jsonl", [{**row, **device} for row in rows])
    picture = config.run / f"bench_{device['platform']}.png"
    _draw(rows, f"{device['device']}, {scale} sizes, jax {device['jax']}", picture)
    print(f"\npicture: {shown(picture.absolute())}")
    return rows


def _table(config: BenchConfig, networks: list[Network], scale: str, kind: dict) -> list[Row]:
    print(f"\n{kind['dtype']}, {kind['direction']}\n{header(_COLUMNS)}", flush=True)
    rows, reasons = [], {}
    for network in networks:
        row: Row = {
            "network": network.name(),
            "batch_size": network.batch_size,
            "scale": scale,
            "implementation": config.implementation,
            "precision": config.precision,
            **kind,
        }
        try:
            row |= _measure(config, network, scale, **kind)
        except NotImplementedError as error:
            reasons[network.name()] = error
        print(line(row, _COLUMNS), flush=True)
        rows.append(row)
    if len(reasons) == len(rows):
        raise next(iter(reasons.values()))
    for name, reason in reasons.items():
        print(f"{name}: {reason}")
    for key, baseline in (_BASELINES | _KERNEL_BASELINES).items():
        ratios = [row[key] for row in rows if row.get(key)]
        if ratios:
            mean = statistics.geometric_mean(ratios)
            spread = f"from {min(ratios):.3f}x to {max(ratios):.3f}x"
            print(f"speedup over {baseline}: {mean:.3f}x, the geometric mean, {spread}")
    return rows


def _measure(config: BenchConfig, network: Network, scale: str, dtype: str, direction: str) -> Row:
    """Times, their ratios, and the differences of the results of one set of inputs.

    Raises:
      NotImplementedError: if the named implementation can not run this network.
      FloatingPointError: if a result is not finite.
    """
    rows, features = network.batch_size, network.features()
    inputs = jax.tree.map(lambda array: array.astype(dtype), _inputs(network))
    in_jax = {"ours": _LAYERS.ours(config.implementation), "xla": _LAYERS.plain}
    candidates = {
        name: Candidate(jax.jit(DIRECTIONS[direction](function)), inputs, jit=False)
        for name, function in in_jax.items()
    }
    candidates |= with_cublaslt(DIRECTIONS[direction](_LAYERS.plain), inputs)
    candidates |= torch_layers(_LAYERS, direction, inputs)
    results = {}
    for name, candidate in candidates.items():
        result = candidate.run(*candidate.inputs[0])
        results[name] = torch_arrays(result) if name == "torch" else result
    timings = measure_in_turns(candidates, **(_REDUCED_TIMING if scale == "reduced" else _TIMING))
    ms = {name: timing.median_ms for name, timing in timings.items() if timing}
    measured: Row = {"gflop": flops(direction, rows=rows, features=features) / 1e9}
    measured |= {f"{name}_ms": value for name, value in ms.items()}
    measured |= _kernel_times(candidates)
    for name in results.keys() - {"ours"}:
        if {"ours", name} <= ms.keys():
            measured[f"speedup_over_{name}"] = ms[name] / ms["ours"]
        difference = largest_difference(results["ours"], results[name])
        if difference == math.inf:
            raise FloatingPointError(f"bench: {network.name()}: ours or {name} is not finite")
        measured[f"max_abs_diff_{name}"] = difference
    return measured


def _kernel_times(candidates: dict[str, Candidate]) -> Row:
    """Times the kernels alone, with their ratios; launching small networks takes longer."""
    times = {name: kernel_time(made) for name, made in candidates.items() if name != "torch"}
    known = {name: ms for name, ms in times.items() if ms is not None}
    measured: Row = {f"{name}_kernel_ms": ms for name, ms in known.items()}
    for name in known.keys() - {"ours"}:
        measured[f"kernel_speedup_over_{name}"] = known[name] / known["ours"]
    return measured


@lru_cache(maxsize=len(NETWORKS))
def _inputs(network: Network) -> list[tuple]:
    """Made once: on a CPU that takes longer than timing what is done with them."""
    return _LAYERS.inputs(network.batch_size, network.features(), "float32")


def _draw(rows: Sequence[Row], title: str, path: Path) -> None:
    """A panel for each dtype and direction, with the speed-up of each network."""
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys((row["dtype"], row["direction"]) for row in rows))
    columns = min(2, len(kinds))
    lines = -(-len(kinds) // columns)
    figure = Figure(figsize=(5.5 * columns, 3.2 * lines + 0.4), dpi=120, layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False, sharey=True).ravel()
    for axes, kind in zip(panels, kinds, strict=False):
        same = [row for row in rows if (row["dtype"], row["direction"]) == kind]
        timed = [(key, name) for key, name in _BASELINES.items() if any(key in r for r in same)]
        width = 0.8 / max(len(timed), 1)
        for place, (key, baseline) in enumerate(timed):
            at = np.arange(len(same)) + width * (place - (len(timed) - 1) / 2)
            over_one = np.array([row.get(key, math.nan) for row in same]) - 1
            axes.bar(at, over_one, width, bottom=1, label=f"over {baseline}", color=f"C{place}")
        labels = [f"{row['network']}, {row['batch_size']}" for row in same]
        axes.set_xticks(range(len(same)), labels, rotation=40, ha="right", fontsize=7)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.axhline(1, color="0.3", linewidth=1)
        axes.set_title(", ".join(kind), fontsize="medium")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize="small")
    for axes in panels[::columns]:
        axes.set_ylabel("speed-up")
    for axes in panels[len(kinds) :]:
        axes.remove()
    figure.suptitle(title, fontsize="medium")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
