"""What all tests of this folder need."""

import jax
import pytest


@pytest.fixture(scope="session", autouse=True)
def needs_gpu():
    if jax.default_backend() != "gpu":
        pytest.skip(f"reason: needs a CUDA device, got {jax.default_backend()}")
