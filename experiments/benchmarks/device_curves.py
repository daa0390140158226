"""Trains one network on 1, 2 and 4 devices, and draws their curves in one picture.

Run ``JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=4 python -m experiments.benchmarks.device_curves``. The
network is MaxK-GraphSAGE on a synthetic graph of 2,000 nodes, with dropout behind MaxK. It draws
``device_curves.png`` and prints, for each number of devices, the first step whose loss differs from
that on one device by more than a hundred-thousandth, the largest relative difference of any step,
and the accuracy at the end.

Only the order of sums over nodes differs. Two steps amplify that difference. Adam divides gradients
by their size, which enlarges the rounding of small ones. MaxK chooses between entries that are
equal up to rounding. With dropout of a bag of words there are such entries from the second step: a
node that has lost all of its words has the bias of the first layer, whose entries are all equal up
to their sign after Adam's first step. So features are not dropped here. Once MaxK chooses
differently, losses differ as they do between seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from experiments.benchmarks._command import command
from experiments.benchmarks._report import Column, Output, Row, header, line
from experiments.maxk.config import TrainConfig
from experiments.maxk.train import train
from jaxgnn._errors import bad_input
from jaxgnn.training import plot_curves, read_rows

_FIELDS = ("loss", "validation accuracy", "test accuracy")
# Rounding alone causes a hundredth of it.
_APART = 1e-5
_COLUMNS = (
    Column("devices", "devices", 7, "d"),
    Column("apart from step", "apart_from", 16, "d"),
    Column("by at most", "loss_difference", 11, ".1e"),
    Column("validation", "validation accuracy", 11, ".4f"),
    Column("test", "test accuracy", 7, ".4f"),
)


@dataclass(frozen=True)
class DeviceCurvesOptions(Output):
    """Settings of the trainings.

    Attributes:
      devices: numbers of devices; all are compared with the first.
      dataset: data set of ``experiments.maxk``.
      epochs: steps of each training.
    """

    devices: tuple[int, ...] = (1, 2, 4)
    dataset: str = "synthetic"
    epochs: int = 100

    def check(self) -> None:
        """Raises ValueError for the first invalid option, by the name that is typed."""
        there = jax.device_count()
        for count in self.devices:
            if not 1 <= count <= there:
                expected = f"in 1..{there}, the devices that there are"
                raise bad_input("device_curves", "--devices", expected, count)
        if self.epochs < 1:
            raise bad_input("device_curves", "--epochs", "at least 1", self.epochs)


def main(options: DeviceCurvesOptions) -> list[Row]:
    """Trains on every number of devices, draws the curves and prints the differences.

    Raises:
      ValueError: if an option is invalid.
    """
    options.check()
    histories = {count: _history(options, count) for count in options.devices}
    first = histories[options.devices[0]]
    rows = [_row(count, history, first) for count, history in histories.items()]
    print(header(_COLUMNS))
    for row in rows:
        print(line(row, _COLUMNS))
    path = options.pictures / "device_curves.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    labels = {f"{count} device{'s' * (count > 1)}": rows for count, rows in histories.items()}
    title = f"MaxK-GraphSAGE on {options.dataset} data, one graph over several devices"
    plot_curves(labels, path, fields=_FIELDS, title=title)
    print(path)
    return rows


def _history(options: DeviceCurvesOptions, devices: int) -> Sequence[dict[str, Any]]:
    """The log of a training on this number of devices."""
    folder = (options.out or Path("runs/benchmarks")) / "device_curves" / str(devices)
    config: Any = {"dataset": options.dataset, "model": "sage", "num_layers": 2}
    config |= {"hidden_features": 64, "k": (16,), "epochs": options.epochs, "eval_every": 1}
    config |= {"input_dropout": 0.0}
    config |= {"run": folder, "fresh": folder.exists(), "devices": devices, "progress": False}
    train(TrainConfig(**config))
    return read_rows(folder / "metrics.jsonl")


def _row(devices: int, history: Sequence[dict[str, Any]], first: Sequence[dict[str, Any]]) -> Row:
    pairs = zip(history, first, strict=True)
    differences = [abs(one["loss"] - other["loss"]) / other["loss"] for one, other in pairs]
    apart = (step for step, one in enumerate(differences, start=1) if one > _APART)
    return {
        "devices": devices,
        "apart_from": next(apart, None),
        "loss_difference": max(differences),
        **history[-1],
    }


if __name__ == "__main__":
    command(main, DeviceCurvesOptions, __doc__)
