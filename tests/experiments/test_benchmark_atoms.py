"""The benchmark of tensor products: e3nn computes the same, and bytes are counted rightly."""

import jax
import numpy as np
import pytest

from experiments.benchmarks import tensor_product_sum
from experiments.benchmarks._atoms import ATOMS, Atoms

TINY = ATOMS["cpu", "tiny"][0]


@pytest.mark.parametrize("row", tensor_product_sum.ROWS)
def test_e3nn_computes_the_same_sums_and_forces(row):
    graph, product = TINY.graph(), TINY.product()
    context, arrays, _ = tensor_product_sum._inputs(TINY, graph, row, "float32")[0]
    build = tensor_product_sum.ROWS[row]
    ours = build(tensor_product_sum._ours(product, "ffi"), product)
    theirs = build(tensor_product_sum._of_e3nn(product), product)
    actual, expected = jax.jit(lambda *a: (ours(*a)[0], theirs(*a)[0]))(context, arrays)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_bytes_of_tensor_products():
    # Two paths of 2 channels; 4 edges a node.
    workload = Atoms("atoms", 3, 4, "2x0e", 1)
    structure, of_edges, of_nodes = 4 * (3 + 12), 12 * (4 + 4 + 2), 3 * 8
    one_pass = structure + 2 * (of_edges + of_nodes)
    assert tensor_product_sum.bytes_moved(workload, 12, 2, 1) == one_pass
    assert tensor_product_sum.bytes_moved(workload, 12, 2, 3) == 3 * one_pass
