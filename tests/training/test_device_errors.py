"""A device that fails ends a training with its error, though the others wait for it."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxgnn.training import _device_errors
from jaxgnn.training._device_errors import wait_for_devices


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


def test_a_launch_that_fails_tells_the_memory_of_each_device(monkeypatch, four_devices):
    two = jax.device_put(jnp.zeros(4), NamedSharding(Mesh(four_devices[:2], ("d",)), P("d")))
    in_use = {two.addressable_shards[0].device: 3 << 30, two.addressable_shards[1].device: 1 << 28}
    ended = []
    monkeypatch.setattr(_device_errors.atexit, "register", ended.append)
    failed = r"fit: one of the devices \S+:0, \S+:1 failed at the launch of step 3"
    with pytest.raises(RuntimeError, match=f"^{failed}: no room$"):
        _fail_to_launch(two)
    monkeypatch.setattr(
        _device_errors, "_stats", lambda d: {"bytes_limit": 1 << 32, "bytes_in_use": in_use[d]}
    )
    memory = r"\(free memory: \S+:0 1.00 GiB, \S+:1 3.75 GiB\)"
    with pytest.raises(RuntimeError, match=f"^{failed} {memory}: no room$"):
        _fail_to_launch(two)
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
