"""Reads the record of a run from its folder."""

import dataclasses
import math
import os
import statistics
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from ._files import read_json
from ._log import Row, read_steps
from ._memory import DEVICE, HOST
from ._run import flatten
from ._table import Table


@dataclasses.dataclass(frozen=True)
class Start:
    """One start of a run, from ``versions.json``.

    Attributes:
      time: Date and time of the start.
      python: Version of Python.
      packages: Name -> version; None if a package is used from a checkout.
      devices: The kind of each device.
      commit: Commit of the checkout it was started in; None outside of one.
      changed: Whether the checkout had changes.
    """

    time: datetime
    python: str
    packages: dict[str, str | None]
    devices: list[str]
    commit: str | None
    changed: bool


@dataclasses.dataclass(frozen=True)
class Record:
    """The files of a run; missing files are empty.

    Attributes:
      folder: The folder.
      config: Dotted names of ``config.json`` and their values.
      starts: Each start of the run, from ``versions.json``.
      rows: Rows of ``metrics.jsonl``.
      timing: Rows of ``timing.jsonl``.
      summary: Content of ``summary.json``.
      result: Content of ``result.json``, which experiments write.
    """

    folder: Path
    config: dict[str, Any]
    starts: list[Start]
    rows: list[Row]
    timing: list[Row]
    summary: dict[str, Any]
    result: dict[str, Any]

    @property
    def best_step(self) -> int | None:
        """The step of the best evaluation, if the run has one."""
        best = self.summary.get("best")
        return None if best is None else best["step"]

    @property
    def first_step_seconds(self) -> float | None:
        """Seconds of the first step of the first start, compilation included."""
        seconds = [row["compile_seconds"] for row in self.timing if "compile_seconds" in row]
        return seconds[0] if seconds else None

    def step_ms(self) -> np.ndarray:
        """[steps] float64: milliseconds of each step without compilation.

        Steps that were waited for together each have their mean.
        """
        times: list[float] = []
        last = 0
        for row in self.timing:
            step = int(row["step"])
            if "ms_per_step" in row:
                times += [row["ms_per_step"]] * max(1, step - last)
            last = step
        return np.array(times)


def read_record(folder: str | os.PathLike[str]) -> Record:
    """Reads a run folder, which another process may be writing to.

    Raises:
      ValueError: There is no such folder, or a file is invalid; the message names it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder")
    versions = folder / "versions.json"
    config = _read(folder / "config.json", dict, "an object, the configuration of the run")
    summary = _read(folder / "summary.json", dict, "an object, the summary of the run")
    best = summary.get("best")
    if best is not None and not (isinstance(best, dict) and isinstance(best.get("step"), int)):
        raise ValueError(f"{folder / 'summary.json'}: expected a best evaluation with a step")
    return Record(
        folder=folder,
        config=flatten(config) if config else {},
        starts=[_start(versions, v) for v in _read(versions, list, "a list, of the run's starts")],
        rows=read_steps(folder / "metrics.jsonl"),
        timing=read_steps(folder / "timing.jsonl"),
        summary=summary,
        result=_read(folder / "result.json", dict, "an object, the results of the run"),
    )


def _start(path: Path, value: Any) -> Start:
    try:
        git = value["git"] or {"commit": None, "dirty": False}
        return Start(
            time=datetime.fromisoformat(value["time"]),
            python=str(value["python"]),
            packages=dict(value["packages"]),
            devices=[str(device["kind"]) for device in value["devices"]],
            commit=git["commit"],
            changed=git["dirty"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: expected a start of the run, got {value!r:.80}") from error


def _read[T](path: Path, kind: type[T], what: str) -> T:
    return read_json(path, kind, what) if path.exists() else kind()


def metrics_table(record: Record) -> Table:
    """The metrics of the last step and, if the run has one, of the best evaluation."""
    last = record.rows[-1] if record.rows else {}
    by_step = {int(row["step"]): row for row in record.rows}
    best = by_step.get(record.best_step or 0)
    columns = ["metric", *([] if best is None else [f"best, step {record.best_step}"])]
    columns.append(f"last, step {int(last.get('step', 0))}")
    shown = [best or {}, last] if best is not None else [last]
    names = {name: None for row in shown for name in row if name != "step"}
    select = record.summary.get("select")
    return Table(
        title="",
        columns=tuple(columns),
        rows=tuple((name, *(row.get(name, math.nan) for row in shown)) for name in names),
        note="" if best is None else f"The best step is that of the best {select}.",
    )


def costs(record: Record) -> dict[str, str]:
    """Time and memory of a run, as text; values that were not recorded are omitted."""
    found = {}
    if record.first_step_seconds is not None:
        found["first step, with compilation"] = f"{record.first_step_seconds:.2f} s"
    times = record.step_ms()
    if times.size:
        found["step, median"] = f"{statistics.median(times):.3g} ms"
        low, high = np.percentile(times, [10, 90])
        found["step, 10 % to 90 %"] = f"{low:.3g} to {high:.3g} ms"
        found["steps that were timed"] = str(times.size)
    for name, key in {"host": HOST, "device": DEVICE}.items():
        if isinstance(record.summary.get(key), int):
            found[f"peak memory, {name}"] = f"{record.summary[key] / 2**20:,.0f} MiB"
    return found
