"""Fixtures of the tests of kernels that tensor cores and the copy engine run."""

import contextlib

import pytest

from tests.pallas_kernels._tensor_cores import interpreting


@pytest.fixture
def interpreted(capfd):
    """Runs kernels of the copy engine, and fails where threads race for shared memory."""

    @contextlib.contextmanager
    def run():
        with interpreting(detect_races=True):
            yield
        assert "RACE" not in capfd.readouterr().out

    return run
