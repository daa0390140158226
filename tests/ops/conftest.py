"""Settings for the tests of this folder."""

import jax
import pytest

from tests._settings import COMPILED_QUICKLY, jax_settings


def _parameters(test):
    return test.callspec.params if hasattr(test, "callspec") else {}


@pytest.fixture
def rounded_once(request):
    """For tests of what is rounded to 16 bits once, or gradients of which a rounding decides.

    On a GPU plain JAX rounds in between too, as the libraries do that it calls.
    """
    is_short = _parameters(request.node).get("dtype", "bfloat16") != "float32"
    if is_short and jax.default_backend() == "gpu":
        pytest.skip("reason: plain JAX rounds to 16 bits in between on a GPU; see tests/gpu")


@pytest.fixture
def compiled_quickly():
    """For tests on every graph; the others of these ops have the optimisations that users have."""
    with jax_settings(COMPILED_QUICKLY):
        yield
