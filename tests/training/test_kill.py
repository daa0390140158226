"""A process killed at any moment, also while it saves, ends where an undisturbed one ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxgnn.training import RunFolder

from .tiny_run import Config

SCRIPT = Path(__file__).with_name("tiny_run.py")
ROOT = SCRIPT.parents[2]


@pytest.fixture(autouse=True)
def environment(monkeypatch, compilation_cache_folder):
    """What the processes inherit: this checkout, the CPU, and the tests' compiled programs."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(compilation_cache_folder))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "0")


def start(folder: Path, *arguments: str, compiles: bool = False) -> subprocess.Popen[str]:
    # JAX does not write an entry of its cache in one piece: a process that may be killed, or that
    # runs beside another, only reads them.
    seconds = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0" if compiles else "1e9"}
    # The processes have the tests' policy on warnings.
    command = [sys.executable, "-W", "error", str(SCRIPT), str(folder), *arguments]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | seconds,
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output


def wait_until_killed(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, errors


def wait_for_rows(process: subprocess.Popen[str], log: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    while not log.exists() or log.read_bytes().count(b"\n") < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.long
def test_a_run_killed_again_and_again_equals_an_undisturbed_one(tmp_path):
    folder, undisturbed = tmp_path / "killed", tmp_path / "undisturbed"
    log, checkpoints = folder / "metrics.jsonl", folder / "checkpoints"
    expected = finish(start(undisturbed, "0", compiles=True))

    # In the first save, when there is nothing to go back to: one of its items is in place.
    wait_until_killed(start(folder, "0", "6.orbax-checkpoint-tmp/model"))
    assert [path.name for path in checkpoints.iterdir()] == ["6.orbax-checkpoint-tmp"]

    # From outside, somewhere among the steps between two checkpoints: the log is
    # ahead of the checkpoint.
    process = start(folder, "0.1")
    wait_for_rows(process, log, 8)
    with pytest.raises(ValueError, match=f"is in use by process {process.pid} on "):
        RunFolder(folder, Config())
    process.kill()
    wait_until_killed(process)
    assert (checkpoints / "6").exists() and not (checkpoints / "12").exists()

    # At the last moment of a save: all is written, and only the name is missing.
    wait_until_killed(start(folder, "0", "checkpoints/12"))
    assert not (checkpoints / "12").exists()

    assert finish(start(folder, "0")) == expected
    assert log.read_bytes() == (undisturbed / "metrics.jsonl").read_bytes()
    assert log.read_bytes().count(b"\n") == 18
    assert not list(checkpoints.glob("*tmp*"))
