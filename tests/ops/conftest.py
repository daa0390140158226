"""Settings for the tests of this folder."""

import jax
import pytest

from tests._settings import COMPILED_QUICKLY, jax_settings


@pytest.fixture
def rounded_once(request):
    """For tests of linear layers in 16 bits: the result is rounded once, and decides a gradient.

    On a GPU plain JAX rounds products before biases are added, as the libraries do that it calls.
    """
    is_short = request.getfixturevalue("dtype") != "float32"
    if is_short and jax.default_backend() == "gpu":
        pytest.skip("reason: on a GPU plain JAX rounds products to 16 bits; see tests/gpu")


@pytest.fixture
def compiled_quickly():
    """For tests on every graph; the others of these ops have the optimisations that users have."""
    with jax_settings(COMPILED_QUICKLY):
        yield
