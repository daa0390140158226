"""A device that fails ends a training with its error, though the others wait for it."""

import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest

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
