"""Arrays that a caller hands over and then fills anew: what was made of them stays as it was."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

from jaxgnn import ops
from jaxgnn.graph import CBSR, CSRGraph, Incidence


def aligned(values, dtype) -> np.ndarray:
    """A copy that begins where JAX on a CPU reads a numpy array in place of copying it."""
    values = np.asarray(values, dtype)
    memory = np.zeros(values.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    array = memory[start : start + values.nbytes].view(dtype).reshape(values.shape)
    array[...] = values
    return array


SENDERS, RECEIVERS = [1, 2, 0, 3], [0, 0, 1, 2]
INDPTR, INDICES = [0, 2, 3, 4, 4], [1, 2, 0, 3]
WEIGHTS = [1.0, 2.0, 3.0, 4.0]
X = jnp.arange(8.0).reshape(4, 2)
GRAPH = CSRGraph.from_edges(SENDERS, RECEIVERS, 4)


def _from_scipy(data, indices, indptr):
    return CSRGraph.from_scipy(scipy.sparse.csr_array((data, indices, indptr), (4, 4), copy=False))


# What makes something, of which arrays, and what is asked of it.
CASES = {
    "from_edges": (
        lambda s, r, w: ops.spmm(CSRGraph.from_edges(s, r, 4, w), X),
        [(SENDERS, "int32"), (RECEIVERS, "int32"), (WEIGHTS, "float32")],
    ),
    "CSRGraph": (
        lambda p, i, w: CSRGraph(p, i, w),
        [(INDPTR, "int32"), (INDICES, "int32"), (WEIGHTS, "float32")],
    ),
    "CSRGraph, prepared": (
        lambda p, i: CSRGraph(p, i).prepared(),
        [(INDPTR, "int32"), (INDICES, "int32")],
    ),
    "with_weights": (lambda w: GRAPH.with_weights(w), [(WEIGHTS, "float32")]),
    "from_scipy": (
        _from_scipy,
        [(WEIGHTS, "float32"), (INDICES, "int32"), (INDPTR, "int32")],
    ),
    "from_hyperedge_index": (
        lambda index: Incidence.from_hyperedge_index(index, 4, 2),
        [([[0, 1, 1, 3], [0, 0, 1, 1]], "int32")],
    ),
    "Incidence": (
        lambda nodes, edges: Incidence(nodes, edges, 4, 2).prepared(),
        [([0, 1, 1, 3], "int32"), ([0, 0, 1, 1], "int32")],
    ),
    "CBSR": (
        lambda values, columns: CBSR(values, columns, 4),
        [([[1.0, 2.0]], "float32"), ([[0, 3]], "uint8")],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_was_made_of_an_array_does_not_change_with_it(name):
    make, given = CASES[name]
    arrays = [aligned(values, dtype) for values, dtype in given]
    made = make(*arrays)
    expected = make(*(np.array(values, dtype) for values, dtype in given))
    for array in arrays:
        array[...] = 0
    for a, e in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, e)
    if isinstance(made, CSRGraph):
        np.testing.assert_array_equal(ops.spmm(made, X), ops.spmm(expected, X))
