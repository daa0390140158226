"""Settings for the tests of this folder."""

import jax
import pytest


@pytest.fixture(autouse=True, scope="package")
def compile_fast():
    """These tests compile many small programs and run each a few times."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
