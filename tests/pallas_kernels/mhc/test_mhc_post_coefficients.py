"""The coefficients of ``mhc_post`` side by side: emulated."""

import numpy as np
import pytest

from jaxgnn.testing import random_array
from pallas_kernels.mhc.post_coefficients import stack_coefficients
from tests.pallas_kernels._emulator import emulated


# Lanes without a token, and warps that take turns.
@pytest.mark.emulated
@pytest.mark.parametrize("tokens, n", [(77, 4), (5, 2)])
def test_the_coefficients_of_each_token_are_a_column(tokens, n):
    given = [random_array((tokens, k), "float32", seed=k) for k in (n, n * n)]
    with emulated():
        made = stack_coefficients(*given)
    np.testing.assert_array_equal(made, np.concatenate(given, axis=1).T)
