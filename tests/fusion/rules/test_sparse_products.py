"""Products of sparse arrays of JAX, and of known matrices that are mostly zero, become sums."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import sparse

import jaxgnn
from tests.fusion._cases import applied, arrays, assert_same, fuse, refused

ROWS, COLUMNS = 6, 7
_rng = np.random.default_rng(0)
_DENSE = _rng.normal(size=(ROWS, COLUMNS)) * (_rng.random((ROWS, COLUMNS)) < 0.3)
# With padding, which has indices out of range.
MATRIX = sparse.BCOO.fromdense(jnp.asarray(_DENSE, jnp.float32), nse=20)
BY_ROWS = sparse.BCSR.from_bcoo(sparse.BCOO.fromdense(jnp.asarray(_DENSE, jnp.float32)))
REPEATED = sparse.BCOO((jnp.arange(4.0), jnp.array([[1, 2], [0, 0], [1, 2], [5, 6]])), shape=(6, 7))
X, Y, TWO = arrays((COLUMNS, 3), (ROWS, 3), (2, COLUMNS, 3))
PADDED = sparse.BCOO((jnp.ones(3), jnp.array([[1, 2], [6, 0], [3, 7]])), shape=(6, 7))
LARGE = 600
_PLACES = _rng.random((LARGE, LARGE)) < 0.01
KNOWN = jnp.asarray(_PLACES * _rng.normal(size=_PLACES.shape), jnp.float32)
TENTH = jnp.asarray(np.arange(LARGE**2).reshape(LARGE, LARGE) % 10 == 0, jnp.float32)
(NODES,) = arrays((LARGE, 8))

PRODUCTS = {
    "padding that has values": (
        lambda data, x: sparse.BCOO((data, PADDED.indices), shape=PADDED.shape) @ x,
        (PADDED.data, X),
    ),
    "a matrix": (lambda x: MATRIX @ x, (X,)),
    "a transpose": (lambda y: MATRIX.T @ y, (Y,)),
    "from the left": (lambda y: y.T @ MATRIX, (Y,)),
    "a vector": (lambda x: MATRIX @ x, (X[:, 0],)),
    "repeated entries": (lambda x: REPEATED @ x, (X,)),
    "values that are arguments": (
        lambda data, x: sparse.BCOO((data, MATRIX.indices), shape=MATRIX.shape) @ x,
        (MATRIX.data, X),
    ),
    "a transpose of arguments": (
        lambda data, y: sparse.BCOO((data, MATRIX.indices), shape=MATRIX.shape).T @ y,
        (MATRIX.data, Y),
    ),
    "rows": (lambda x: BY_ROWS @ x, (X,)),
    "a batch": (lambda x: jax.vmap(lambda x: MATRIX @ x)(x), (TWO,)),
    "a known matrix": (lambda x: KNOWN @ x, (NODES,)),
    "a known transpose": (lambda x: KNOWN.T @ x, (NODES,)),
    "a known matrix and a vector": (lambda x: KNOWN @ x, (NODES[:, 0],)),
    "a known matrix and a batch": (
        lambda x: jnp.einsum("ij,bjd->bid", KNOWN, x),
        (NODES.reshape(LARGE, 2, 4).swapaxes(0, 1),),
    ),
}


@pytest.mark.costly(4)
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_sparse_product_is_a_sum_over_its_entries(name):
    fn, args = PRODUCTS[name]
    assert applied(fuse(fn), *args) == ["spmm"]
    assert_same(fn, fuse(fn), *args)


def test_what_padding_would_read_may_be_nan():
    x = X.at[0].set(jnp.nan)  # column 0 has no entry then
    dense = jnp.asarray(_DENSE, jnp.float32).at[:, 0].set(0)
    matrix = sparse.BCOO.fromdense(dense, nse=20)
    np.testing.assert_allclose(fuse(lambda x: matrix @ x)(x), dense[:, 1:] @ x[1:], atol=1e-5)


def test_a_matrix_that_is_an_argument_is_known_if_it_is_static():
    def run(matrix, x):
        return matrix @ x

    fused = fuse(run, static_graph="matrix")
    assert applied(fused, MATRIX, X) == ["spmm"]
    np.testing.assert_allclose(fused(MATRIX, X), run(MATRIX, X), rtol=1e-5, atol=1e-6)
    assert "known only when it runs" in refused(fuse(run), MATRIX, X)


def test_a_known_matrix_assumes_finite_rows():
    (one,) = jaxgnn.fuse.explain(fuse(lambda x: KNOWN @ x), NODES, measure=False).findings.applied
    assert one.assumes == ("rows of finite numbers, which a zero in the matrix makes zero",)


LEFT = {
    "weights": (lambda x: (KNOWN + 1) @ x, (NODES,)),
    "a matrix of which a tenth is not zero": (lambda x: TENTH @ x, (NODES,)),
    "a small matrix": (lambda x: KNOWN[:100, :100] @ x[:100], (NODES,)),
    "a matrix that is computed": (lambda a, x: a @ x, (KNOWN, NODES)),
    "zeros": (lambda x: (KNOWN * 0) @ x, (NODES,)),
}


@pytest.mark.costly(2)
@pytest.mark.parametrize("name", LEFT)
def test_other_products_stay(name):
    fn, args = LEFT[name]
    assert "spmm" not in applied(fuse(fn), *args)
    assert_same(fn, fuse(fn), *args)


def test_reasons_are_named():
    for name, reason in (
        ("a matrix of which a tenth is not zero", "0.1 of the known matrix is not zero"),
        ("zeros", "are zero"),
    ):
        fn, args = LEFT[name]
        assert reason in refused(fuse(fn), *args)


def test_weights_are_not_named():
    fn, args = LEFT["weights"]
    assert "known matrix" not in refused(fuse(fn), *args)


def test_another_product_of_a_sparse_array_is_named():
    def run(x):
        return (MATRIX * 2.0 @ x[:, None] * MATRIX.sum()).sum()

    def pairs(x, y):
        return sparse.bcoo_dot_general_sampled(
            x, y, MATRIX.indices, dimension_numbers=(([1], [1]), ([], []))
        )

    text = str(jaxgnn.fuse.explain(pairs, Y, X, measure=False))
    assert "this product of a sparse array has no op" in text
