"""Predicts training steps on up to 1,024 devices from times on one device by ``many_gpus``.

Run ``python -m experiments.benchmarks.scaling_model``, with the options that name the folder to
which ``many_gpus`` has written its rows. The model of a step on n devices is

    ms(n) = whole + (ms(1) - whole) · imbalance / n
            + (row bytes + gradient bytes) / bandwidth + collectives · latency

- Whole is the time that does not shrink with the rows of a device: in each layer small sums and
  products, and the packing of all rows for the edges.

- Row bytes are those that a device receives: in each layer the rows of others that its edges read,
  forward and backward. If nearly all rows are read, all rows of the others, N (1 - 1/n), are sent;
  otherwise only those that are read, by lists. If rows are distributed independently of the edges,
  their number is (1 - 1/n) Σ_j (1 - (1 - 1/n)^d_j), over nodes j of d_j receivers.
- Gradient bytes are those of an all-reduce, 2 (1 - 1/n) of the parameters.
- Up to 8 devices are one host. For more, all traffic is assumed to use the network, at its
  bandwidth for each device.

It draws ``many_gpus.png``: the predicted speedups as dashed lines, the measured ones as dots. The
model has no overlap of computation and communication. For a measured number of devices, the
difference is printed beside the prediction. ``papers100M`` fits no single device, so its time on
one is that of the products-like graph, scaled by the number of edges.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.benchmarks._command import command
from experiments.benchmarks._report import Column, Output, Row, header, line, read_rows
from experiments.benchmarks._wire import bytes_of_row
from jaxgnn._errors import bad_input
from jaxgnn.datasets import SCALES, SyntheticScale
from jaxgnn.training.plots import PALETTE

_DEVICES_OF_HOST = 8
_SAMPLES = 100_000
# Nodes and edges of ogbn-papers100M, with the degrees of the products-like graph.
_PAPERS = SyntheticScale(111_059_956, 1_615_685_872, 128, 172, SCALES["products"].exponent)
_COLUMNS = (
    Column("graph", "workload", 10),
    Column("k", "k", 3, "d"),
    Column("devices", "devices", 7, "d"),
    Column("ms", "model_ms", 9, ".2f"),
    Column("x one", "speedup", 8, ".2f"),
    Column("of it wire", "wire_part", 10, ".3f"),
    Column("measured", "ms", 9, ".2f"),
    Column("model by measured", "ratio", 17, ".3f"),
)


@dataclass(frozen=True)
class ScalingModelOptions(Output):
    """Settings of the prediction; the folder of the rows is that of ``many_gpus``.

    Attributes:
      most: largest number of devices.
      host_gb_per_s: bandwidth at which a device receives from others of its host, in GB/s.
      network_gb_per_s: bandwidth at which a device receives through the network, in GB/s.
      latency_us: microseconds of a collective of no bytes.
      whole_us: microseconds of a layer, forward and backward, that do not shrink with its rows.
    """

    most: int = 1024
    host_gb_per_s: float = 300.0
    network_gb_per_s: float = 50.0
    latency_us: float = 40.0
    whole_us: float = 350.0

    def check(self) -> None:
        """Raises ValueError for the first invalid option, by the name that is typed."""
        for name in ("most", "host_gb_per_s", "network_gb_per_s"):
            if not getattr(self, name) > 0:
                option = "--" + name.replace("_", "-")
                raise bad_input("scaling_model", option, "positive", getattr(self, name))
        if not self.measured.exists():
            expected = "a folder in which experiments.benchmarks.many_gpus has written rows"
            raise bad_input("scaling_model", "--out", expected, self.rows)

    @property
    def measured(self) -> Path:
        """The file of the rows."""
        return self.rows / "many_gpus.jsonl"


@dataclass(frozen=True)
class Link:
    """Connection between devices.

    Attributes:
      gb_per_s: bandwidth at which a device receives, in GB/s.
      latency_us: microseconds of a collective of no bytes.
    """

    gb_per_s: float
    latency_us: float

    def ms(self, nbytes: float, collectives: int) -> float:
        """Milliseconds of several collectives that together deliver ``nbytes``."""
        return nbytes / self.gb_per_s / 1e6 + collectives * self.latency_us / 1e3


@dataclass(frozen=True)
class Step:
    """A training step on one device.

    Attributes:
      ms: its time, in milliseconds.
      layers: number of convolutions.
      row_bytes: bytes sent for a row in a layer, forward and backward.
      collectives: collectives of a layer, forward and backward.
      parameter_bytes: size of all parameters.
      whole_us: microseconds of a layer that do not shrink with its rows.
    """

    ms: float
    layers: int
    row_bytes: int
    collectives: int
    parameter_bytes: float
    whole_us: float = 0.0


def wire_ms(step: Step, devices: int, rows_received: float, link: Link) -> float:
    """Milliseconds in which a device receives the rows and gradients of a step."""
    if devices == 1:
        return 0.0
    gradients = 2 * (1 - 1 / devices) * step.parameter_bytes
    rows = step.layers * rows_received * step.row_bytes
    return link.ms(rows + gradients, step.layers * step.collectives + 1)


def step_ms(
    step: Step, devices: int, rows_received: float, link: Link, imbalance: float = 1.0
) -> float:
    """Milliseconds of a step on this number of devices."""
    whole_ms = step.layers * step.whole_us / 1e3
    rows_ms = max(step.ms - whole_ms, 0.0) * imbalance / devices
    return min(step.ms, whole_ms) + rows_ms + wire_ms(step, devices, rows_received, link)


def rows_read(sizes: SyntheticScale, devices: int) -> float:
    """Expected rows of others that a device reads, if rows are distributed evenly.

    The degree of the node of rank r is proportional to ``(r + 1)^-exponent``.
    """
    ranks = (np.arange(_SAMPLES) + 0.5) / _SAMPLES * sizes.nodes
    weights = (ranks + 1) ** -sizes.exponent
    degrees = weights / weights.mean() * (sizes.edges / sizes.nodes)
    apart = 1 - 1 / devices
    return float(apart * sizes.nodes * np.mean(1 - apart**degrees))


def main(options: ScalingModelOptions) -> list[Row]:
    """Prints the predictions beside the measurements.

    Raises:
      ValueError: if an option is invalid, or the file has no row of one device.
    """
    options.check()
    measured = [row for row in read_rows(options.measured) if row["ms"] is not None]
    others = ("weak", "overlap", "records")
    measured = [row for row in measured if row.get("times", 1) == 1]
    measured = [row for row in measured if not any(row.get(key) for key in others)]
    alone = [row for row in measured if row["devices"] == 1 and row["workload"] in SCALES]
    if not alone:
        raise bad_input(
            "scaling_model", "--out", "a folder with rows of one device", options.measured
        )
    rows: list[Row] = []
    print(header(_COLUMNS))
    for one in alone:
        rows += _curve(options, one, SCALES[one["workload"]], one["workload"], measured)
        if one["workload"] == "products":
            scale = _PAPERS.edges / one["edges"]
            rows += _curve(options, {**one, "ms": one["ms"] * scale}, _PAPERS, "papers100M", ())
    for row in rows:
        print(line(row, _COLUMNS))
    path = options.pictures / "many_gpus.png"
    draw(rows, path, f"Training step of MaxK-GraphSAGE, from {alone[-1]['device']}")
    print(path)
    return rows


def draw(rows: Sequence[Row], path: Path, heading: str) -> None:
    """Draws a panel for each graph: predicted speedups dashed, measured ones as dots on lines.

    Args:
      rows: rows that ``main`` returns.
      path: the PNG to write.
      heading: title of the picture.
    """
    names = list(dict.fromkeys(row["workload"] for row in rows))
    ks = list(dict.fromkeys(row["k"] for row in rows))
    figure = Figure(figsize=(3.2 * len(names) + 1, 4.4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    shades: dict[str, str] = {}
    for axes, name in zip(panels, names, strict=True):
        for k, colour in zip(ks, itertools.cycle(PALETTE), strict=False):
            curve = [row for row in rows if (row["workload"], row["k"]) == (name, k)]
            devices = [row["devices"] for row in curve]
            label = "dense" if k is None else f"k = {k}"
            predicted = [row["speedup"] for row in curve]
            axes.plot(devices, predicted, "--", color=colour, linewidth=1, alpha=0.8)
            dots = [row for row in curve if row["ms"] is not None and curve[0]["ms"] is not None]
            speedups = [curve[0]["ms"] / row["ms"] for row in dots]
            axes.plot([row["devices"] for row in dots], speedups, "o-", color=colour, markersize=4)
            shades[label] = colour
        most = [row["devices"] for row in rows]
        axes.plot([1, max(most)], [1, max(most)], ":", color="0.6", linewidth=0.9)
        is_measured = any(row["ms"] is not None for row in rows if row["workload"] == name)
        title = name if is_measured else f"{name}, predicted only"
        axes.set(xscale="log", yscale="log", title=title, xlabel="devices")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("times as fast as one")
    _add_legend(figure, shades)
    figure.suptitle(heading, fontsize="medium")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _add_legend(figure: Figure, shades: Mapping[str, str]) -> None:
    """Adds one legend below all panels: colours of the networks, and marks of what is measured."""
    handles = [Line2D([], [], color=colour, label=label) for label, colour in shades.items()]
    marks = (("measured", "-", "o"), ("predicted by the model", "--", ""), ("ideal", ":", ""))
    for label, style, marker in marks:
        options: dict[str, Any] = {"linestyle": style, "marker": marker, "markersize": 4}
        handles.append(Line2D([], [], color="0.4", label=label, **options))
    where: dict[str, Any] = {"loc": "outside lower center", "ncols": len(handles)}
    figure.legend(handles=handles, frameon=False, fontsize="small", **where)


def _curve(
    options: ScalingModelOptions,
    one: Row,
    sizes: SyntheticScale,
    name: str,
    measured: Sequence[Row],
) -> Iterator[Row]:
    """The rows of a network on 1, 2, 4, … devices."""
    k, width = one["k"], one["dim"]
    step = Step(
        ms=one["ms"],
        layers=one["layers"],
        row_bytes=bytes_of_row(width, k, one["wire_dtype"] or "float32"),
        collectives=2 if k is None or one.get("records") else 3,
        parameter_bytes=1e6 * one["parameter_mb"],
        whole_us=options.whole_us,
    )
    same = {row["devices"]: row for row in measured if _is_same(row, one)}
    devices = 1
    while devices <= options.most:
        within = devices <= _DEVICES_OF_HOST
        bandwidth = options.host_gb_per_s if within else options.network_gb_per_s
        link, real = Link(bandwidth, options.latency_us), same.get(devices)
        received = rows_read(sizes, devices) if real is None else real["rows_received"]
        imbalance = 1.0 if real is None else real["imbalance"]
        ms = step_ms(step, devices, received, link, imbalance)
        yield {
            "workload": name,
            "k": k,
            "devices": devices,
            "model_ms": ms,
            "speedup": step.ms / ms,
            "wire_part": wire_ms(step, devices, received, link) / ms,
            "ms": None if real is None else real["ms"],
            "ratio": None if real is None else ms / real["ms"],
        }
        devices *= 2


def _is_same(row: Row, one: Row) -> bool:
    """Whether two rows have the same network, graph and device."""
    keys = ("workload", "k", "layers", "dim", "device", "wire_dtype", "partition")
    options = all(row.get(key) == one.get(key) for key in ("overlap", "records"))
    return options and all(row[key] == one[key] for key in keys)


if __name__ == "__main__":
    command(main, ScalingModelOptions, __doc__)
