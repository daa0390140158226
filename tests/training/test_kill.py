"""A process killed at any moment, also while it saves, ends where an undisturbed one ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

SCRIPT = Path(__file__).with_name("tiny_run.py")
ROOT = SCRIPT.parents[2]
SECONDS_A_STEP = 0.02


def start(folder: Path, seconds_a_step: float = 0.0) -> subprocess.Popen[str]:
    # -W error: the script has the tests' warning policy.
    command = [sys.executable, "-W", "error", str(SCRIPT), str(folder), str(seconds_a_step)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output


def kill_when(folder: Path, moment: Callable[[], bool]) -> None:
    """Starts the run and sends SIGKILL as soon as `moment()` is true."""
    process = start(folder, SECONDS_A_STEP)
    deadline = time.monotonic() + 120
    while not moment():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.0005)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def saving(folder: Path, step: int, inside: str = "") -> bool:
    """Whether the checkpoint of `step` is being written, and has got as far as `inside`."""
    return (folder / "checkpoints" / f"{step}.orbax-checkpoint-tmp" / inside).exists()


def rows(folder: Path) -> int:
    log = folder / "metrics.jsonl"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def test_a_run_killed_while_saving_and_between_equals_an_undisturbed_one(tmp_path):
    folder, undisturbed = tmp_path / "killed", tmp_path / "undisturbed"
    reference = start(undisturbed)

    # In the first save, when there is nothing to go back to.
    kill_when(folder, lambda: saving(folder, 4))
    assert not (folder / "checkpoints" / "4").exists()
    # Among the steps after a checkpoint: the log is ahead of it.
    kill_when(folder, lambda: rows(folder) >= 10)
    assert (folder / "checkpoints" / "8").exists()
    # Late in a save, when part of its items is complete.
    kill_when(folder, lambda: saving(folder, 16, "info"))
    # Out of step with anything: as the last start begins to save.
    kill_when(folder, lambda: saving(folder, 20, "optimizer.orbax-checkpoint-tmp"))

    assert finish(start(folder)) == finish(reference)
    killed_log = (folder / "metrics.jsonl").read_bytes()
    assert killed_log == (undisturbed / "metrics.jsonl").read_bytes()
    assert killed_log.count(b"\n") == 24
    assert not list((folder / "checkpoints").glob("*tmp*"))
