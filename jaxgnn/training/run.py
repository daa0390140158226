"""The folder of one run: its configuration, versions and devices, metrics and checkpoints.

``RunFolder`` writes it while the run trains; ``read_record`` reads it for reports.
"""

import dataclasses
import enum
import importlib.metadata
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax

from jaxgnn._errors import bad_input

from ._config import LoopConfig
from .files import Row, printable, read_if_there, read_json, read_steps, write_json
from .lock import FolderLock, lock_folder
from .processes import wait_for_all, writes_files

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "jaxgnn")
# Names of the peaks of memory in ``summary.json``.
HOST, DEVICE = "peak_host_bytes", "peak_device_bytes"


class RunFolder:
    """Opens the folder of a run, and creates it if it is new.

    | file | content |
    |---|---|
    | ``config.json`` | the configuration at the first start, or after its last permitted change |
    | ``versions.json`` | a list: versions, devices, git commit and time of each start |
    | ``metrics.jsonl`` | a row for each training step; does not depend on where the run stopped |
    | ``timing.jsonl`` | milliseconds a step and compile seconds, in order of time |
    | ``summary.json`` | the best evaluation, and the peak memory of all starts, in bytes |
    | ``checkpoints/`` | one folder a checkpoint |
    | ``.lock`` | the process that has the folder open |

    One process at a time can open a folder. It is open until ``close``, or until the object is
    deleted or the process dies. ``load_model`` and ``read_rows``, which only read the files of a
    run, do not need to open it.

    If a program has several processes, all of them open the folder, on a shared file system.
    Process 0 has the lock and writes; the others read checkpoints and rows.

    Attributes:
      path: The folder.
      writes: Whether this process writes to it.

    Args:
      path: The folder, usually ``runs/<name>``.
      config: A dataclass; its fields are dataclasses, mappings, sequences, paths, enums,
        strings, numbers, bools or None.
      may_change: Fields that may differ when the run is resumed, as dotted names
        (``"loop.steps"``); a name covers everything below it.

    Raises:
      ValueError: The path is no text in UTF-8. Or the folder belongs to a run with another
        configuration; the message names the fields. Or it holds checkpoints but no configuration,
        or an invalid file. Or another process has it open; the message names it.
      TypeError: ``config`` is not a dataclass, or has a field that JSON does not support.
    """

    def __init__(
        self, path: str | os.PathLike[str], config: Any, *, may_change: Iterable[str] = ()
    ):
        # Orbax requires absolute paths.
        self.path = Path(path).absolute()
        if printable(str(self.path)) != str(self.path):  # neither can Orbax name it
            got = f"{printable(str(self.path))}; rename the folder, or choose another one"
            raise bad_input("RunFolder", "path", "text in UTF-8", got)
        self.metrics_path = self.path / "metrics.jsonl"
        self.timing_path = self.path / "timing.jsonl"
        self.checkpoints_path = self.path / "checkpoints"
        self.processes_path = self.path / "processes"  # the place of each of several processes
        if not dataclasses.is_dataclass(config) or isinstance(config, type):
            raise TypeError(f"config: expected a dataclass instance, got {type(config).__name__}")
        values = _to_json(config, "config")
        self.writes = writes_files()
        self._lock: FolderLock | None = None
        if self.writes:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = lock_folder(self.path)
            self._check_config(values, tuple(may_change))
            self.write_json("config.json", values)
            starts = read_if_there(self.path / "versions.json", list, "a list, of the run's starts")
            self.write_json("versions.json", [*starts, _describe_start()])
        wait_for_all("the run's folder")

    def write_json(self, name: str, value: Any) -> None:
        """Writes ``value`` as JSON to the file ``name`` of this folder, in one atomic step.

        Does nothing unless ``writes``, which is true in one process.
        """
        if self.writes:
            write_json(self.path / name, value)

    def write_summary(self, values: Mapping[str, Any]) -> None:
        """Writes ``summary.json``: the values, and the peak memory of all starts so far."""
        if not self.writes:
            return
        before = read_if_there(self.path / "summary.json", dict, "an object, the summary")
        peaks = {
            name: max((n for n in (before.get(name), peak) if isinstance(n, int)), default=None)
            for name, peak in _peak_memory().items()
        }
        self.write_json("summary.json", {**values, **peaks})

    def read_metrics(self) -> list[Row]:
        """The rows of ``metrics.jsonl`` so far.

        Raises:
          ValueError: A row is not a row of a step; the message names it.
        """
        return read_steps(self.metrics_path)

    def close(self) -> None:
        """Lets other processes open the folder; this one must not write there afterwards."""
        if self._lock is not None:
            self._lock.release()

    def _check_config(self, values: dict[str, Any], may_change: tuple[str, ...]) -> None:
        file = self.path / "config.json"
        if not file.exists():
            if self.checkpoints_path.exists():
                raise ValueError(f"{self.path} holds checkpoints but no config.json")
            return
        before = flatten(read_json(file, dict, "an object, the configuration of the run"))
        now = flatten(values)
        differing = [
            f"{name}: {_show(before, name)} before, {_show(now, name)} now"
            for name in sorted(before.keys() | now.keys())
            if _show(before, name) != _show(now, name)
            and not _is_below(name, may_change)
            # An option that an earlier version did not have, and that is not used.
            and not (name not in before and now[name] is None)
        ]
        if differing:
            raise ValueError(
                f"{self.path} was started with another configuration ({'; '.join(differing)}); "
                "use another folder, or the same configuration to resume"
            )


def _to_json(value: Any, name: str) -> Any:
    """Converts ``value`` for the json module; ``name`` is its place, for errors."""
    # Before the plain types, because an enum may also be a string or an integer.
    if isinstance(value, enum.Enum):
        return value.name
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, LoopConfig):  # with the mode that its metric's name implies
        value = dataclasses.replace(value, select_mode=value.mode)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _to_json(item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item, f"{name}.{index}") for index, item in enumerate(value)]
    raise TypeError(f"{name}: cannot write a {type(value).__name__} to config.json")


def flatten(value: Any, name: str = "") -> dict[str, Any]:
    """Leaves of the content of ``config.json``, by dotted name.

    A list is a leaf: its length is part of its value.
    """
    if not isinstance(value, dict) or not value:
        return {name: value}
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= flatten(item, f"{name}.{key}" if name else key)
    return flat


def _show(flat: dict[str, Any], name: str) -> str:
    return json.dumps(flat[name]) if name in flat else "absent"


def _is_below(name: str, parents: tuple[str, ...]) -> bool:
    return any(name == parent or name.startswith(parent + ".") for parent in parents)


def _describe_start() -> dict[str, Any]:
    git, commit = None, _git("rev-parse", "HEAD")
    if commit is not None:  # else the working directory is outside of a checkout
        git = {"commit": commit, "dirty": bool(_git("status", "--porcelain"))}
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "packages": {name: _package_version(name) for name in _PACKAGES},
        "devices": [
            {"platform": device.platform, "kind": device.device_kind} for device in jax.devices()
        ],
        "git": git,
    }


def _package_version(name: str) -> str | None:
    """The installed version; None if the package is used from a checkout, uninstalled."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    if shutil.which("git") is None:
        return None
    # Without the option, ``git status`` takes a lock that disturbs the user's own git.
    command = ["git", "--no-optional-locks", *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else None


def _peak_memory() -> dict[str, int | None]:
    """The peaks of this process so far in bytes: its resident set, and allocations on one device.

    The latter is None if the devices do not report it, such as CPUs.
    """
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    counted = [device.memory_stats() or {} for device in jax.local_devices()]
    peaks = [stats["peak_bytes_in_use"] for stats in counted if "peak_bytes_in_use" in stats]
    return {
        # Linux counts in KiB, macOS in bytes.
        HOST: resident if sys.platform == "darwin" else 1024 * resident,
        DEVICE: max(peaks, default=None),
    }


@dataclasses.dataclass(frozen=True)
class Start:
    """One start of a run, from ``versions.json``."""

    time: datetime
    python: str
    packages: dict[str, str | None]  # versions; None if a package is used from a checkout
    devices: list[str]  # the kind of each
    commit: str | None  # of the checkout it was started in; None outside of one
    changed: bool  # whether the checkout had changes


@dataclasses.dataclass(frozen=True)
class Record:
    """The files of a run; missing files are empty."""

    folder: Path
    config: dict[str, Any]  # by dotted names
    starts: list[Start]
    rows: list[Row]
    timing: list[Row]
    summary: dict[str, Any]
    result: dict[str, Any]  # content of ``result.json``, which experiments write

    @property
    def best_step(self) -> int | None:
        """The step of the best evaluation, if the run has one."""
        best = self.summary.get("best")
        return None if best is None else best["step"]


def read_record(folder: str | os.PathLike[str]) -> Record:
    """Reads a run folder, which another process may be writing to.

    Raises:
      ValueError: There is no such folder, or a file is invalid; the message names it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder")
    versions = folder / "versions.json"
    config = read_if_there(folder / "config.json", dict, "an object, the configuration of the run")
    summary = read_if_there(folder / "summary.json", dict, "an object, the summary of the run")
    starts = read_if_there(versions, list, "a list, of the run's starts")
    best = summary.get("best")
    if best is not None and not (isinstance(best, dict) and isinstance(best.get("step"), int)):
        raise ValueError(f"{folder / 'summary.json'}: expected a best evaluation with a step")
    return Record(
        folder=folder,
        config=flatten(config) if config else {},
        starts=[_start(versions, start) for start in starts],
        rows=read_steps(folder / "metrics.jsonl"),
        timing=read_steps(folder / "timing.jsonl"),
        summary=summary,
        result=read_if_there(folder / "result.json", dict, "an object, the results of the run"),
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
