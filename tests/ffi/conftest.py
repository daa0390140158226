"""What tests of this folder share."""

import pytest


@pytest.fixture(autouse=True)
def no_cache_of_kernels(monkeypatch):
    """Compiles each kernel in each test."""
    monkeypatch.setenv("JAXGNN_KERNEL_CACHE_DIR", "")
