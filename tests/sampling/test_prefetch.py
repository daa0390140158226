"""Threads that work ahead keep order, report errors, and end."""

import contextlib
import gc
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
import warnings
from pathlib import Path

import pytest

from jaxgnn.sampling.prefetch import Prefetched

ROOT = Path(__file__).parents[2]


def _threads():
    return [t for t in threading.enumerate() if t.name.startswith("jaxgnn-loader")]


def _wait_for_no_threads():
    for thread in _threads():
        thread.join(5)
    assert not _threads()


@pytest.fixture(autouse=True)
def no_thread_is_left():
    _wait_for_no_threads()
    yield
    gc.collect()
    _wait_for_no_threads()


def test_results_come_in_order_though_later_ones_are_ready_first():
    def slow_at_first(item):
        time.sleep(0.02 if item % 3 == 0 else 0)
        return item * item

    made = Prefetched(slow_at_first, range(20), threads=3, depth=5)
    assert list(made) == [i * i for i in range(20)]
    assert list(made) == []
    assert list(Prefetched(slow_at_first, [], threads=2, depth=1)) == []


def test_no_more_than_depth_results_are_computed_ahead():
    taken = []
    made = Prefetched(lambda item: taken.append(item), iter(range(100)), threads=2, depth=3)
    next(made)
    for _ in range(100):
        time.sleep(0.002)
        if len(taken) == 4:
            break
    time.sleep(0.02)
    assert sorted(taken) == [0, 1, 2, 3]


def test_an_exception_is_raised_at_its_place_with_the_traceback_of_the_thread():
    def fails_at_three(item):
        if item == 3:
            raise KeyError("the broken item")
        return item

    made = Prefetched(fails_at_three, range(10), threads=2, depth=4)
    assert [next(made) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="the broken item") as caught:
        next(made)
    assert "fails_at_three" in "".join(traceback.format_tb(caught.value.__traceback__))
    with pytest.raises(StopIteration):
        next(made)


def test_an_exception_of_the_items_is_raised_after_the_results_before():
    def items():
        yield 1
        raise OSError("no more items")

    made = Prefetched(str, items(), threads=2, depth=4)
    assert next(made) == "1"
    with pytest.raises(OSError, match="no more items"):
        next(made)


def test_threads_end_when_the_iterator_is_closed_or_dropped():
    made = Prefetched(lambda item: item, iter(int, 1), threads=2, depth=3)
    next(made)
    assert len(_threads()) == 2
    made.close()
    assert list(made) == []
    _wait_for_no_threads()
    made = Prefetched(lambda item: item, iter(int, 1), threads=2, depth=3)
    next(made)
    del made
    _wait_for_no_threads()


def test_a_fork_that_asks_for_the_batches_of_its_parent_gets_an_error():
    made = Prefetched(lambda item: item, iter(int, 1), threads=1, depth=3)
    next(made)
    with made._shared.changed:  # as a thread may have it when the process forks
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # JAX warns of any fork
            child = os.fork()
        if not child:
            signal.alarm(20)  # ends a fork that hangs
            status = 1
            with contextlib.suppress(BaseException):
                try:
                    next(made)
                except RuntimeError as error:
                    right = re.search(r"its fork \d+ has none; iterate over the loader", str(error))
                    status = 0 if right else 2
                del made
            os._exit(status)
        assert os.waitpid(child, 0)[1] == 0


SCRIPT = """
    import signal, sys, time
    import numpy as np
    from jaxgnn import CSRGraph
    from jaxgnn.sampling import NeighborLoader

    # A shell that starts the tests in the background ignores Ctrl-C, and children inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rng = np.random.default_rng(0)
    graph = CSRGraph.from_edges(*rng.integers(0, 5000, (2, 50000)), 5000)
    loader = NeighborLoader(graph, None, (5, 5), 100, num_threads=2)
    for epoch in range(1000):
        for batch in loader:
            if epoch == 0:
                print("a batch", flush=True)
            {body}
"""


def _start(body):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    script = textwrap.dedent(SCRIPT).format(body=body)
    command = [sys.executable, "-W", "error", "-c", script]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, env=environment, text=True, **pipes)
    assert process.stdout.readline() == "a batch\n"
    return process


@pytest.mark.parametrize("body", ["pass", "time.sleep(60)"])
def test_ctrl_c_ends_the_process(body):
    process = _start(body)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert "KeyboardInterrupt" in errors and process.returncode == -signal.SIGINT


def test_a_process_that_ends_in_the_midst_of_an_epoch_does_not_crash():
    process = _start("sys.exit(7)")
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (7, "")
