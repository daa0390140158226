"""Commands that several processes run together."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


def free_port():
    """A port that nobody listens at."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def start(options, process):
    """Starts a training in one of two processes, each with one CPU device."""
    return subprocess.Popen(
        [sys.executable, "-m", "experiments.maxk", "train", *options, "--process-id", str(process)],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_two(options, *, others=((), ()), kill=None, when=None):
    """Runs both processes to their end.

    Args:
      options: of both.
      others: further ones of each.
      kill: the process that is killed by SIGKILL as soon as the file ``when`` is there, or None.
      when: that file.

    Returns:
      Standard output and error of each, their exit statuses, and the seconds from the kill to the
      end of both.
    """
    address = ["--coordinator", f"localhost:{free_port()}"]
    processes = [start([*options, *others[i], *address], i) for i in range(2)]
    begun = time.monotonic()
    try:
        while kill is not None and not when.exists():
            assert processes[kill].poll() is None and time.monotonic() < begun + 200
            time.sleep(0.02)
        killed = time.monotonic()
        if kill is not None:
            processes[kill].send_signal(signal.SIGKILL)
        texts = [process.communicate(timeout=200) for process in processes]
        seconds = time.monotonic() - killed
    finally:
        for process in processes:
            process.kill()
    return texts, [process.returncode for process in processes], seconds
