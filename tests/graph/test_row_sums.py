"""Sums over rows."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxgnn.graph.plan.row_sums import sum_rows


def test_offsets_of_the_host_are_summed_by_under_jit():
    indptr = np.array([0, 40, 40, 50], np.int32)  # more edges than are added in one turn
    values = np.arange(60, dtype=np.float32)
    sums = jax.jit(lambda values: sum_rows(values, indptr))(jnp.asarray(values))
    np.testing.assert_array_equal(sums, [values[:40].sum(), 0, values[40:50].sum()])
