"""Couplings: parts of arrays with dense tables, and the same as sparse arrays."""

import numpy as np
import pytest

from jaxgnn.equivariant import TensorProduct
from jaxgnn.equivariant.couplings import coupling_arrays, couplings

PRODUCT = TensorProduct.of(
    "3x0e+2x1o", "0e+1o+2e", "3x0e+3x1o+2x1o", [(0, 0, 0), (0, 1, 1), (1, 2, 2)]
)


def test_couplings_have_the_parts_of_their_paths():
    last = couplings(PRODUCT)[-1]
    assert (last.of_in, last.of_sh, last.of_out) == (slice(3, 9), slice(4, 9), slice(12, 18))
    assert (last.of_weights, last.channels, last.table.shape) == (slice(6, 8), 2, (3, 5, 3))


def test_exchanged_couplings_read_the_result_and_add_to_the_features():
    for plain, exchanged in zip(
        couplings(PRODUCT), couplings(PRODUCT, exchanged=True), strict=True
    ):
        assert (exchanged.of_in, exchanged.of_out) == (plain.of_out, plain.of_in)
        np.testing.assert_array_equal(exchanged.table, plain.table.transpose(2, 1, 0))


@pytest.mark.parametrize("exchanged", [False, True])
def test_arrays_have_the_coefficients_of_the_tables(exchanged):
    arrays, end = coupling_arrays(PRODUCT, exchanged=exchanged), 0
    for row, coupling in zip(arrays.paths, couplings(PRODUCT, exchanged=exchanged), strict=True):
        start, end = end, end + row[-1]
        table = np.zeros(row[5:8])
        table[tuple(arrays.entries[start:end].T)] = arrays.coefficients[start:end]
        np.testing.assert_allclose(table, coupling.table, atol=1e-12)
        starts = coupling.of_in, coupling.of_sh, coupling.of_out, coupling.of_weights
        assert [*row[:4], row[4]] == [*(part.start for part in starts), coupling.channels]
    assert end == len(arrays.entries) == len(arrays.coefficients)
