"""Settings for the tests of this folder."""

import pytest

from tests._settings import COMPILED_QUICKLY, jax_settings


@pytest.fixture
def compiled_quickly():
    """For tests on every graph; the others of these ops have the optimisations that users have."""
    with jax_settings(COMPILED_QUICKLY):
        yield
