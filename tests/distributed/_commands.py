"""Commands that several processes run together."""

import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRAINING = "experiments.maxk"
ROOT = Path(__file__).parents[2]


def free_port():
    """A port that nobody listens at."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def start(options, process, *, module=TRAINING, stderr=subprocess.PIPE):
    """Starts a training in one of two processes, each with one CPU device."""
    return subprocess.Popen(
        [sys.executable, "-m", module, "train", *options, "--process-id", str(process)],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"},
        stdout=subprocess.DEVNULL if stderr is not subprocess.PIPE else subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


def run_beside_a_still_one(options, when, module=None):
    """Runs two processes, of which number 1 stands still, until number 0 has ended.

    Args:
      options: of both.
      when: a file; as soon as it is there, process 1 stands still.
      module: what both run, if process 1 stands still in it by itself; else it is stopped.

    Returns:
      Standard error of process 0, its exit status, and the seconds from that moment to its end.
    """
    address = ["--coordinator", f"localhost:{free_port()}"]
    with tempfile.TemporaryFile("w+") as errors:
        run = functools.partial(start, [*options, *address], stderr=errors)
        processes = [run(i, module=module or TRAINING) for i in range(2)]
        begun = time.monotonic()
        try:
            while not when.exists():
                assert processes[0].poll() is None and time.monotonic() < begun + 200
                time.sleep(0.02)
            if module is None:
                processes[1].send_signal(signal.SIGSTOP)
            stopped = time.monotonic()
            code = processes[0].wait(timeout=200)
            seconds = time.monotonic() - stopped
        finally:
            for process in processes:
                process.kill()
                process.wait()
        errors.seek(0)
        return errors.read(), code, seconds


def run_two(options, *, others=((), ()), kill=None, when=None, module=TRAINING):
    """Runs both processes to their end.

    Args:
      options: of both.
      others: further ones of each.
      kill: the process that is killed by SIGKILL as soon as the file ``when`` is there, or None.
      when: that file.
      module: whose command ``train`` they run.

    Returns:
      Standard output and error of each, their exit statuses, and the seconds from the kill to the
      end of both.
    """
    address = ["--coordinator", f"localhost:{free_port()}"]
    given = ([*options, *others[i], *address] for i in range(2))
    processes = [start(typed, i, module=module) for i, typed in enumerate(given)]
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
