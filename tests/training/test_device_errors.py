"""A device that fails ends a training with its error, though the others wait for it."""

import os
import queue
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxgnn.training import LoopConfig, _device_errors, fit
from jaxgnn.training._device_errors import LaunchWatch, wait_for_devices


@pytest.mark.long
def test_the_device_that_fails_is_named_and_nobody_waits_for_the_other_one():
    """Device 0 waits for device 1; JAX would wait with it, and end the process by a signal."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.training.failing_device"],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 1, ended.stderr
    assert "RuntimeError: fit: device cpu:1 failed at the losses up to step 2" in ended.stderr
    assert "MemoryError: no room for 95 GiB" in ended.stderr


def test_what_is_on_one_device_or_no_array_is_not_waited_for():
    wait_for_devices({"loss": jnp.ones(())}, "a step")
    wait_for_devices([1.0, None], "a step")


def _fail_to_launch(arrays):
    with _device_errors.launching(arrays, "step 3"):
        raise jax.errors.JaxRuntimeError("no room")


@pytest.fixture
def on_two(four_devices):
    return jax.device_put(jnp.zeros(4), NamedSharding(Mesh(four_devices[:2], ("d",)), P("d")))


def test_a_launch_that_fails_tells_the_memory_of_each_device(monkeypatch, on_two):
    first, second = (shard.device for shard in on_two.addressable_shards)
    in_use = {first: 3 << 30, second: 1 << 28}
    ended = []
    monkeypatch.setattr(_device_errors.atexit, "register", ended.append)
    failed = r"fit: one of the devices \S+:0, \S+:1 failed at the launch of step 3"
    with pytest.raises(RuntimeError, match=f"^{failed}: no room$"):
        _fail_to_launch(on_two)
    monkeypatch.setattr(
        _device_errors, "_stats", lambda d: {"bytes_limit": 1 << 32, "bytes_in_use": in_use[d]}
    )
    memory = r"\(free memory: \S+:0 1.00 GiB, \S+:1 3.75 GiB\)"
    with pytest.raises(RuntimeError, match=f"^{failed} {memory}: no room$"):
        _fail_to_launch(on_two)
    assert ended == [_device_errors._leave] * 2
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"^no room$"):
        _fail_to_launch(jnp.zeros(4))
    assert len(ended) == 2


def test_a_device_is_named_where_other_processes_wait_for_it(monkeypatch):
    class Failing:
        device = "cuda:7"
        data = property(lambda self: self)

        def block_until_ready(self):
            raise MemoryError("no room")

    monkeypatch.setattr(_device_errors, "_shards", lambda values: [Failing()])
    monkeypatch.setattr(_device_errors.atexit, "register", lambda leave: None)
    wait_for_devices(None, "step 3")
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(RuntimeError, match="fit: device cuda:7 failed at step 3: no room"):
        wait_for_devices(None, "step 3")


@pytest.fixture
def ends(monkeypatch):
    """A watch that looks often and gives up after 0.2 s; instead of ending, it puts into this."""
    ends = queue.SimpleQueue()
    values = {"LAUNCH_S": 0.2, "_INTERVAL_S": 0.01, "_leave": lambda: ends.put(None)}
    for name, value in values.items():
        monkeypatch.setattr(_device_errors, name, value)
    stats = {"bytes_limit": 3 << 30, "bytes_in_use": 1 << 30}
    monkeypatch.setattr(_device_errors, "_stats", lambda device: stats)
    return ends


def _ends(watch, ends, seconds, *, compiling=False):
    """Whether the watch ends a launch that lasts so long."""
    with watch, watch.launch("step 3"):
        try:
            # JAX compiles below frames of Python of its own, and calls what is compiled in C alone.
            if compiling:
                (lambda: ends.get(timeout=seconds))()
            else:
                ends.get(timeout=seconds)
        except queue.Empty:
            return False
    return True


_LATE = (
    r"fit: step 3 has not been launched on the devices \S+:0, \S+:1 after \d+ s: {}, or one of "
    r"them has failed and the others wait for it \(free memory: \S+:0 2.00 GiB, \S+:1 2.00 GiB\)\n"
)


@pytest.mark.parametrize(
    ("compiling", "longest_s", "why"),
    [(False, 100.0, "earlier steps take long"), (True, 0.3, "it is still compiled")],
)
def test_a_launch_that_does_not_end_is_told_once_and_then_ends_the_process(
    compiling, longest_s, why, on_two, ends, capsys
):
    assert _ends(LaunchWatch(on_two, longest_s), ends, 20.0, compiling=compiling)
    late = _LATE.format(why)
    assert re.fullmatch(f"{late}(error: {late})+", capsys.readouterr().err)


@pytest.mark.parametrize("because", ["compiling", "long steps", "another process"])
def test_a_launch_that_may_take_longer_is_not_ended(because, on_two, ends, monkeypatch):
    watch = LaunchWatch(on_two, longest_s=100.0)
    if because == "long steps":
        watch.steps_took(10.0)
        watch.steps_took(1.0)
    if because == "another process":
        monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert not _ends(watch, ends, 0.3, compiling=because == "compiling")


def test_nothing_is_told_of_quick_launches_however_many(on_two, ends, capsys):
    with LaunchWatch(on_two, longest_s=0.2) as watch:
        for step in range(30):
            with watch.launch(f"step {step}"):
                time.sleep(0.01)
    assert ends.empty()
    assert not capsys.readouterr().err


def test_a_training_on_two_devices_is_watched_and_leaves_no_thread(four_devices, capsys):
    seen = []

    def loss(model, batch, rngs):
        seen.extend(t for t in threading.enumerate() if t.name == _device_errors.THREAD)
        return jnp.mean(model(batch) ** 2), {}

    def batches(step):
        return np.ones((4, 2), np.float32)

    for devices in (1, 2):
        options = {"config": LoopConfig(steps=20), "mesh": Mesh(four_devices[:devices], ("d",))}
        model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
        fit(model, optax.sgd(0.1), loss, batches, progress=False, **options)
        assert bool(seen) == (devices == 2)
    assert not any(thread.is_alive() for thread in seen)
    assert not capsys.readouterr().err
