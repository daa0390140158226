"""Settings for the tests of this folder."""

import pytest

from tests._settings import COMPILED_QUICKLY, jax_settings


@pytest.fixture(scope="module")
def compiled_quickly():
    """For trainings, most of whose time is compilation."""
    with jax_settings(COMPILED_QUICKLY):
        yield
