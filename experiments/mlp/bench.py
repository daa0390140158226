"""Times and differences of nine networks against plain JAX and eager torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jax
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from experiments._runs import shown
from experiments.benchmarks._baselines import torch_here
from experiments.benchmarks._cases import DIRECTIONS, Candidate
from experiments.benchmarks._layers import (
    Layers,
    flops,
    knows_cublaslt,
    torch_arrays,
    torch_layers,
    with_cublaslt,
)
from experiments.benchmarks._ratios import print_warnings, ratio_fields, ratio_text
from experiments.benchmarks._report import Column, Row, append_rows, header, line
from experiments.mlp.config import NETWORKS, BenchConfig, Network
from experiments.mlp.differences import largest_difference
from jaxgnn.testing.timing import device_description, kernel_time, measure_in_turns
from jaxgnn.training.plots import colour

# Names of the baselines, and their names in sentences and legends.
_BASELINES = {"torch": "torch", "xla": "XLA", "cublaslt": "XLA with cublasLt"}
_LAYERS = Layers("fused_mlp", "relu")
# More batches than usual, to resolve differences of a few per cent. A reduced network takes less
# than a millisecond.
_TIMING: dict[str, Any] = {"repeats": 15, "budget_ms": 5_000.0}
_REDUCED_TIMING: dict[str, Any] = {"repeats": 15, "batch_ms": 5.0}


def _columns(platform: str) -> tuple[Column, ...]:
    """The columns of a table; torch, cublasLt and kernels only where they are available."""
    on_gpu = platform != "cpu"
    here = {"xla": True, "torch": torch_here() is not None, "cublaslt": on_gpu and knows_cublaslt()}
    titles = {"torch": "torch", "xla": "XLA", "cublaslt": "lt"}
    peers = [name for name in _BASELINES if here[name]]
    compared = [name for name in peers if name != "cublaslt"]
    by_kernels = [name for name in peers if on_gpu and name != "torch"]
    return (
        Column("network", "network", 16),
        Column("batch", "batch_size", 5, "d"),
        Column("GFLOP", "gflop", 8, ".3f"),
        *(Column(f"{titles[n]} ms", partial(_time_text, name=n), 14, "s") for n in peers),
        Column("ours ms", partial(_time_text, name="ours"), 14, "s"),
        *([Column("kernels", "ours_kernel_ms", 9, ".4f")] if on_gpu else []),
        *(Column(f"x {titles[n]}", partial(ratio_text, baseline=n), 12, "s") for n in peers),
        *(Column(f"k x {titles[n]}", partial(_kernel_text, name=n), 12, "s") for n in by_kernels),
        *(Column(f"diff {titles[n]}", f"max_abs_diff_{n}", 10, ".1e") for n in compared),
    )


def _time_text(row: Row, name: str) -> str | None:
    """The median in milliseconds, and half of its interquartile range in per cent of it."""
    ms = row.get(f"{name}_ms")
    if ms is None:
        return None
    spread = (row[f"{name}_high_ms"] - row[f"{name}_low_ms"]) / 2 / ms
    return f"{ms:.4f} ± {spread:.0%}"


def _kernel_text(row: Row, name: str) -> str | None:
    """The ratio of the kernels' own times."""
    ratio = row.get(f"kernel_speedup_over_{name}")
    if ratio is None:
        return None
    return "same program" if row.get(f"same_program_as_{name}") else f"{ratio:.2f}"


def bench(config: BenchConfig) -> list[Row]:
    """Prints a table for each dtype and direction, and draws the speed-ups.

    Args:
      config: the options of the run.

    Returns:
      The rows, which are also appended to ``bench.jsonl`` in the run folder.

    Raises:
      ValueError: if there is no network of a requested number.
      NotImplementedError: if the named implementation supports none of the networks.
    """
    config.check()
    device = device_description()
    scale = config.scale or ("reduced" if device["platform"] == "cpu" else "full")
    numbers = config.networks or range(1, len(NETWORKS) + 1)
    networks = [NETWORKS[number - 1] for number in numbers]
    if scale == "reduced":
        networks = [network.reduced() for network in networks]
    print(", ".join(f"{key} {value}" for key, value in device.items()))
    print(f"{scale} sizes; diff: largest absolute difference of any entry of the results from ours")
    columns = _columns(str(device["platform"]))
    rows: list[Row] = []
    with jax.default_matmul_precision(config.precision):
        for dtype in config.dtypes:
            for direction in config.directions:
                kind = {"scale": scale, "dtype": dtype, "direction": direction}
                rows += _table(config, networks, kind, columns)
    print_warnings(row.get("others") for row in rows)
    append_rows(config.run / "bench.jsonl", [{**row, **device} for row in rows])
    picture = config.run / f"bench_{device['platform']}.png"
    title = f"ops.fused_mlp, {device['device']}, {scale} sizes, jax {device['jax']}"
    _draw(rows, title, picture)
    print(f"\npicture: {shown(picture.absolute())}")
    return rows


def _table(
    config: BenchConfig, networks: list[Network], kind: dict[str, str], columns: tuple[Column, ...]
) -> list[Row]:
    """Prints the table of a scale, dtype and direction; returns a row for each network."""
    print(f"\n{kind['dtype']}, {kind['direction']}\n{header(columns)}", flush=True)
    rows, reasons = [], {}
    for network in networks:
        row: Row = {
            "network": network.name(),
            "batch_size": network.batch_size,
            "implementation": config.implementation,
            "precision": config.precision,
            **kind,
        }
        try:
            row |= _measure(config, network, **kind)
        except NotImplementedError as error:
            reasons[network.name()] = error
        print(line(row, columns), flush=True)
        rows.append(row)
    if len(reasons) == len(rows):
        raise next(iter(reasons.values()))
    for name, reason in reasons.items():
        print(f"{name}: {reason}")
    for name, baseline in _BASELINES.items():
        for key, by in (("speedup_over", ""), ("kernel_speedup_over", ", by the kernels")):
            text = _summary([row for row in rows if row.get(f"{key}_{name}")], key, name)
            if text is not None:
                print(f"speedup over {baseline}{by}: {text}")
    return rows


def _summary(rows: list[Row], key: str, name: str) -> str | None:
    """The geometric mean over networks whose program differs from the baseline's."""
    if not rows:
        return None
    others = [row for row in rows if not row[f"same_program_as_{name}"]]
    same = f"{len(rows) - len(others)} of {len(rows)} networks are the same program"
    if not others:
        return same
    ratios = [row[f"{key}_{name}"] for row in others]
    mean = statistics.geometric_mean(ratios)
    text = f"{mean:.2f}x, the geometric mean, from {min(ratios):.2f}x to {max(ratios):.2f}x"
    if key == "speedup_over":
        untold = sum(ratio_text(row, name) == "≈ same" for row in others)
        text += f"; {untold} of {len(others)} not told apart"
    return text if len(others) == len(rows) else f"{text}; {same} and are left out"


def _measure(config: BenchConfig, network: Network, scale: str, dtype: str, direction: str) -> Row:
    """Times, their ratios, and the differences of the results of one set of inputs.

    Raises:
      NotImplementedError: if the named implementation does not support this network.
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
    measured: Row = {"gflop": flops(direction, rows=rows, features=features) / 1e9}
    for name, timing in timings.items():
        if timing is not None:
            measured[f"{name}_ms"] = timing.median_ms
            measured |= {f"{name}_low_ms": timing.low_ms, f"{name}_high_ms": timing.high_ms}
            measured["others"] = timing.others
    measured |= _kernel_times(candidates)
    for name in results.keys() - {"ours"}:
        measured |= ratio_fields(name, timings[name], timings["ours"])
        difference = largest_difference(results["ours"], results[name])
        if difference == math.inf:
            raise FloatingPointError(f"bench: {network.name()}: ours or {name} is not finite")
        measured[f"max_abs_diff_{name}"] = difference
    return measured


def _kernel_times(candidates: dict[str, Candidate]) -> Row:
    """Times only the kernels, with their ratios; launching small networks takes longer."""
    times = {name: kernel_time(made) for name, made in candidates.items() if name != "torch"}
    known = {name: ms for name, ms in times.items() if ms is not None}
    measured: Row = {f"{name}_kernel_ms": ms for name, ms in known.items()}
    for name in known.keys() - {"ours"}:
        measured[f"kernel_speedup_over_{name}"] = known[name] / known["ours"]
    return measured


@lru_cache(maxsize=len(NETWORKS))
def _inputs(network: Network) -> list[tuple]:
    """Random inputs, generated once, because on a CPU that takes longer than the timing."""
    return _LAYERS.inputs(network.batch_size, network.features(), "float32")


def _draw(rows: Sequence[Row], title: str, path: Path) -> None:
    """Draws a panel for each dtype and direction: speed-ups of the networks with quartiles.

    Where both are the same program, an equals sign replaces the bar.
    """
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys((row["dtype"], row["direction"]) for row in rows))
    columns = min(2, len(kinds))
    lines = -(-len(kinds) // columns)
    figure = Figure(figsize=(5.5 * columns, 3.2 * lines + 0.9), dpi=120, layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False, sharey=True).ravel()
    timed = [name for name in _BASELINES if any(row.get(f"speedup_over_{name}") for row in rows)]
    width = 0.8 / max(len(timed), 1)
    for axes, kind in zip(panels, kinds, strict=False):
        same = [row for row in rows if (row["dtype"], row["direction"]) == kind]
        for place, name in enumerate(timed):
            _draw_bars(axes, same, name, width * (place - (len(timed) - 1) / 2), width)
        labels = [f"{row['network']}, {row['batch_size']}" for row in same]
        axes.set_xticks(range(len(same)), labels, rotation=40, ha="right", fontsize=7)
        axes.set_xlim(-0.6, len(same) - 0.4)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.axhline(1, color="0.3", linewidth=1)
        axes.set_title(", ".join(kind), fontsize="medium")
        axes.spines[["top", "right"]].set_visible(False)
    for axes in panels[::columns]:
        axes.set_ylabel("speed-up (ratio of times)")
    for axes in panels[len(kinds) - columns : len(kinds)]:
        axes.set_xlabel("widths of the network, batch size")
    for axes in panels[len(kinds) :]:
        axes.remove()
    figure.suptitle(title, fontsize="medium")
    handles = [Patch(color=colour(name), label=f"over {_BASELINES[name]}") for name in timed]
    handles.append(Patch(fill=False, linewidth=0, label="=  the same program, no ratio"))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize="small"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")


def _draw_bars(axes: Axes, rows: Sequence[Row], name: str, shift: float, width: float) -> None:
    """Draws the bars of one baseline in a panel, from one upwards or downwards."""
    for place, row in enumerate(rows):
        at, ratio = place + shift, row.get(f"speedup_over_{name}")
        if ratio is None:
            continue
        if row[f"same_program_as_{name}"]:
            axes.annotate("=", (at, 1), (0, 2), textcoords="offset points", ha="center")
            continue
        ends = [row[f"speedup_{end}_over_{name}"] for end in ("low", "high")]
        error = [[ratio - ends[0]], [ends[1] - ratio]]
        axes.bar(at, ratio - 1, width, bottom=1, color=colour(name))
        axes.errorbar(at, ratio, yerr=error, color="0.25", elinewidth=0.8, capsize=1.5)
