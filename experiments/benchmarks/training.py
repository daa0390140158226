"""Trains ``experiments.maxk`` on synthetic data: speed, memory, accuracy of ReLU and of every k.

Run ``python -m experiments.benchmarks.training``. MaxK-GraphSAGE by the recipe of
``experiments.maxk``, and the same network in torch-geometric, with ReLU and the recipe's k, where
that is installed.

- ms a step: forward, backward and Adam, until the host has the loss. Median and quartiles after a
  warm-up.
- ms an epoch: a step and the evaluation of the whole graph, until the host has the scores.
- peak: peak memory of the device, including data, graph and evaluation; unknown on a CPU. Every row
  is trained in a separate process, on a graph built by another process, so that neither a larger
  run nor the sorting of the edges hides it.
- test: accuracy on the test nodes at the first best validation, of one seed, and its epoch. The
  accuracy of the most frequent class is printed first.

Processes do not take turns: speeds may differ because of drift of the machine.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import pickle
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import jax
import numpy as np

from experiments.benchmarks._command import command
from experiments.benchmarks._processes import in_new_process
from experiments.benchmarks._ratios import (
    print_warnings,
    ratio_fields,
    ratio_text,
    timing_fields,
)
from experiments.benchmarks._report import (
    Column,
    Output,
    Row,
    append_rows,
    header,
    line,
    read_rows,
)
from experiments.benchmarks._workloads import build_graph
from experiments.maxk.config import TrainConfig
from experiments.maxk.train import train
from jaxgnn._errors import bad_input
from jaxgnn.datasets import NodeDataset, synthetic
from jaxgnn.graph import CSRGraph
from jaxgnn.testing.machine import read_cpu, share_of_others
from jaxgnn.testing.timing import Timing, device_description, is_out_of_memory, quartiles

_COLUMNS = (
    Column("graph", "workload", 8),
    Column("library", "library", 15),
    Column("activation", "activation", 10),
    Column("k", "k", 3, "d"),
    Column("ms a step", "ms", 9, ".2f"),
    Column("25 %", "low_ms", 9, ".2f"),
    Column("75 %", "high_ms", 9, ".2f"),
    Column("x relu", partial(ratio_text, baseline="relu"), 8, "s"),
    Column("ms an epoch", "epoch_ms", 11, ".2f"),
    Column("peak MiB", "peak_mib", 9, ".0f"),
    Column("test", "test", 6, ".4f"),
    Column("at epoch", "best_epoch", 8, "d"),
)
_WARM_UP = 5
_TORCH_MODULES = ("torch", "torch_geometric")


@dataclass(frozen=True)
class TrainingOptions(Output):
    """Settings of a run.

    Attributes:
      scale: a synthetic graph of ``jaxgnn.datasets``.
      epochs: training steps, each followed by an evaluation.
      ks: entries that MaxK keeps of each row.
      learning_rate: learning rate of Adam; the recipe's if None.
      torch: also train in torch-geometric.
    """

    scale: Literal["tiny", "flickr", "reddit", "products"] = "reddit"
    epochs: int = 100
    ks: tuple[int, ...] = (16, 32, 64)
    learning_rate: float | None = None
    torch: bool = True

    def check(self) -> None:
        """Raises ValueError for the first invalid option, by the name that is typed."""
        if self.epochs < 1:
            raise bad_input("training", "--epochs", "at least 1", self.epochs)
        if min(self.ks, default=1) < 1:
            raise bad_input("training", "--ks", "at least 1", min(self.ks))


def main(options: TrainingOptions) -> list[Row]:
    """Trains all variants, prints the rows, and appends them to ``training.jsonl``.

    This process does not use the device, so that each of the others has it to itself.
    """
    options.check()
    rows: list[Row] = []
    relu: Timing | None = None
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.pickle"
        configs = [_config(options, k, Path(folder)) for k in (None, *options.ks)]
        common = in_new_process(_make_data, data, configs[0])
        print(", ".join(f"{key} {value}" for key, value in common.items()))
        runs: list[tuple[Callable, TrainConfig]] = [(_train_jaxgnn, config) for config in configs]
        runs += _torch_runs(options, common["platform"], Path(folder))
        print(header(_COLUMNS), flush=True)
        for worker, config in runs:
            trained = in_new_process(worker, data, config)
            timing = _steady(trained.pop("step_ms"))
            relu = relu if rows else timing
            times = {**timing_fields(timing), **ratio_fields("relu", relu, timing)}
            row = _row(config, common, {**times, "others": trained.pop("others", None), **trained})
            print(line(row, _COLUMNS), flush=True)
            append_rows(options.rows / "training.jsonl", [row])
            rows.append(row)
    print_warnings(row["others"] for row in rows)
    return rows


def _config(options: TrainingOptions, k: int | None, folder: Path) -> TrainConfig:
    """The settings of one run, with ReLU if ``k`` is None, else with MaxK."""
    return TrainConfig(
        dataset="synthetic",
        scale=options.scale,
        model="sage",
        activation="relu" if k is None else "maxk",
        k=None if k is None else (k,),
        epochs=options.epochs,
        learning_rate=options.learning_rate,
        checkpoint_every=0,
        run=folder / f"run-{k}",
        progress=False,
    )


def _torch_runs(
    options: TrainingOptions, platform: str, folder: Path
) -> list[tuple[Callable, TrainConfig]]:
    """ReLU and the recipe's k in torch-geometric; if unavailable none, with a printed reason."""
    if not options.torch:
        return []
    device = "cpu" if platform == "cpu" else "cuda"
    reason = _why_no_torch(device)
    if reason is not None:
        print(f"no rows of torch-geometric: {reason}")
        return []
    relu = _config(options, None, folder)
    worker = partial(_train_torch, device=device)
    return [(worker, relu), (worker, _config(options, relu.recipe().k, folder))]


def _why_no_torch(device: str) -> str | None:
    missing = [name for name in _TORCH_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed"
    return in_new_process(_torch_unavailable, device)


def _k(config: TrainConfig) -> int | None:
    """The k of all layers; None for ReLU."""
    ks = config.layer_ks()
    return None if ks is None else ks[0]


def _row(config: TrainConfig, common: Row, trained: Row) -> Row:
    """One line of the JSONL file, from the measurements of a process."""
    settings, peak = config.recipe(), trained.pop("peak_bytes")
    epochs = _steady(trained.pop("epoch_ms"))
    return {
        "op": "training",
        "workload": config.scale,
        "layers": settings.num_layers,
        "dim": settings.hidden_features,
        "dtype": config.dtype,
        "activation": config.activation,
        "k": _k(config),
        "epochs": settings.epochs,
        "learning_rate": settings.learning_rate,
        "epoch_ms": epochs and epochs.median_ms,
        "peak_mib": None if peak is None else peak / 2**20,
        **trained,
        **common,
    }


def _steady(times: Sequence[float]) -> Timing | None:
    """Milliseconds without the warm-up; all of a short run; None if there are none."""
    steady = times[min(_WARM_UP, len(times) - 1) :]
    if not steady:
        return None
    low, median, high = quartiles(steady)
    return Timing(median, min(steady), len(steady), 1, low, high)


# -- functions that run in separate processes -------------------------------------------------


def _make_data(path: Path, config: TrainConfig) -> Row:
    """Writes dataset and graph to a file; returns the fields that all rows share."""
    on_device = jax.default_backend() != "cpu"
    dataset = synthetic(config.scale, seed=config.seed, on_device=on_device)
    graph = build_graph(dataset.senders, dataset.receivers, dataset.num_nodes)
    dataset = NodeDataset(**jax.device_get(vars(dataset)))
    with path.open("wb") as file:
        pickle.dump((dataset, jax.device_get(graph)), file, protocol=5)
    return {
        "nodes": graph.num_rows,
        "edges": graph.num_edges,
        "most_frequent_class": _most_frequent(dataset),
        **device_description(),
    }


def _most_frequent(dataset: NodeDataset) -> float:
    """Share of the test nodes whose class is the most frequent one of the training nodes."""
    labels = np.asarray(dataset.labels)
    most = np.bincount(labels[np.asarray(dataset.train)]).argmax()
    return float((labels[np.asarray(dataset.test)] == most).mean())


def _read_data(path: Path) -> tuple[NodeDataset, CSRGraph]:
    with path.open("rb") as file:
        return pickle.load(file)


def _train_jaxgnn(path: Path, config: TrainConfig) -> Row:
    """Trains our network by the loop of ``experiments.maxk``, and returns the measurements."""
    dataset, graph = _read_data(path)
    before = read_cpu()
    with contextlib.redirect_stdout(io.StringIO()):
        outcome = train(config, dataset, jax.device_put(graph))
    assert config.run is not None
    timing = read_rows(config.run / "timing.jsonl")
    memory = jax.local_devices()[0].memory_stats() or {}
    return {
        "library": "jaxgnn",
        "others": share_of_others(before, read_cpu()),
        # Without the first step, which includes compilation.
        "step_ms": [row["ms_per_step"] for row in timing if "ms_per_step" in row],
        "epoch_ms": outcome.epoch_ms,
        "peak_bytes": memory.get("peak_bytes_in_use"),
        "test": outcome.test,
        "validation": outcome.validation,
        "best_epoch": outcome.epoch,
    }


def _train_torch(path: Path, config: TrainConfig, device: str) -> Row:
    """Trains in torch-geometric; returns only versions if it runs out of memory."""
    from experiments.benchmarks import _pyg

    dataset, _ = _read_data(path)
    trained: Row = {"step_ms": [], "epoch_ms": [], "peak_bytes": None}
    try:
        trained = _pyg.train(dataset, config.recipe(), _k(config), device=device, seed=config.seed)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    return {"library": "torch_geometric", **trained, **_pyg.VERSIONS}


def _torch_unavailable(device: str) -> str | None:
    from experiments.benchmarks import _pyg

    return _pyg.unavailable(device)


if __name__ == "__main__":
    command(main, TrainingOptions, __doc__)
