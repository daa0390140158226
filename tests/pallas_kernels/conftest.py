"""Fixtures of the tests of kernels that tensor cores and the copy engine run."""

import contextlib

import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu


@pytest.fixture
def interpreted(capfd):
    """Runs kernels of the copy engine, and fails where threads race for shared memory."""

    @contextlib.contextmanager
    def run():
        with plgpu.force_gpu_interpret_mode(plgpu.InterpretGPUParams(detect_races=True)):
            yield
        assert "RACE" not in capfd.readouterr().out

    return run
