"""The GPU kernels: every tail of k and width, over poisoned memory, against float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

from jaxgnn import CBSR, CSRGraph, deterministic, ops
from jaxgnn.ops._maxk.reference import maxk as maxk_reference
from jaxgnn.ops._maxk_spmm.maxk_spmm import FORWARD
from jaxgnn.testing import DTYPES, assert_bit_equal, assert_close, random_array
from tests.ops._table import longest_row, rows_of_all_kinds

pytestmark = [pytest.mark.gpu, pytest.mark.costly(4)]

TAILS = (1, 2, 3, 5, 8, 16, 31, 33, 96, 255)
# Eight rows a warp, one row a warp, ids of one and of two bytes, nearly all shared memory.
WIDTHS = (256, 255, 300, 1024, 1030, 4096, 7100, 8192)


@pytest.fixture(scope="module", params=["ffi", "pallas"])
def implementation(request):
    if FORWARD.unavailable(request.param, "cuda"):
        pytest.skip(f"reason: {FORWARD.unavailable(request.param, 'cuda')}")
    return request.param


@pytest.fixture
def maxk_spmm(implementation):
    return functools.partial(ops.maxk_spmm, implementation=implementation)


def _power_law(nodes, edges, exponent, seed=0, weighted=False) -> CSRGraph:
    """As the published graphs are: a power law of degrees at both ends."""
    rng = np.random.default_rng(seed)
    weight = np.arange(1, nodes + 1) ** -exponent
    order = rng.permutation(nodes)
    ends = order[rng.choice(nodes, size=(2, edges), p=weight / weight.sum())]
    weights = rng.normal(size=edges).astype("float32") if weighted else None
    return CSRGraph.from_edges(ends[0], ends[1], nodes, weights)


# The shapes of the four published graphs, smaller; the first has rows of several pieces.
GRAPHS = {
    "reddit": lambda: _power_law(2_000, 150_000, 0.8),
    "products": lambda: _power_law(9_000, 150_000, 0.5, weighted=True),
    "proteins": lambda: _power_law(700, 120_000, 0.4).normalized("sym"),
    "flickr": lambda: _power_law(70_000, 200_000, 0.6).normalized("mean"),
}


@functools.cache
def _graph(name) -> CSRGraph:
    return GRAPHS[name]()


def _edges(graph) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Receivers, senders and coefficients of the edges, padding left out, the last in float64."""
    count = int(graph.indptr[-1])
    rows, columns = np.asarray(graph.receivers())[:count], np.asarray(graph.indices)[:count]
    coefficients = np.ones(count)
    for factors, at in (
        (graph.weights, np.arange(count)),
        (graph.row_scale, rows),
        (graph.col_scale, columns),
    ):
        if factors is not None:
            coefficients = coefficients * np.asarray(factors).astype(np.float64)[at]
    return rows, columns, coefficients


def _aggregate(graph, x, transposed=False) -> np.ndarray:
    rows, columns, coefficients = _edges(graph)
    matrix = scipy.sparse.csr_matrix((coefficients, (rows, columns)), shape=graph.shape)
    return (matrix.T if transposed else matrix) @ np.asarray(x).astype(np.float64)


def _poison(*shape_dtypes):
    """What the allocator hands out next holds NaN."""
    jax.block_until_ready([jnp.full(shape, jnp.nan, dtype) for shape, dtype in shape_dtypes])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("k", TAILS)
def test_forward_and_backward_agree_with_float64_at_every_tail(k, name, dtype, maxk_spmm):
    graph, dim = _graph(name), 256
    kept = ops.maxk(random_array((graph.num_cols, dim), dtype, seed=k), k)
    dy = random_array((graph.num_rows, dim), dtype, seed=1)
    _poison(((graph.num_rows, dim), dtype), (kept.values.shape, dtype))
    y, pull_back = jax.vjp(lambda v: maxk_spmm(graph, CBSR(v, kept.indices, dim)), kept.values)
    (dvalues,) = pull_back(dy)
    length = longest_row(graph)
    assert_close(y, _aggregate(graph, kept.todense()), reduction_length=length)
    exact = _aggregate(graph, dy, transposed=True)
    exact = np.take_along_axis(exact, np.asarray(kept.indices).astype(np.int64), axis=1)
    assert_close(dvalues, exact, reduction_length=length)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [5, 32, 200])
@pytest.mark.parametrize("dim", WIDTHS)
def test_every_width_agrees_with_float64(dim, k, dtype, maxk_spmm, implementation):
    graph = _graph("proteins")
    x = random_array((graph.num_cols, dim), dtype, seed=2)
    kept = ops.maxk(x, k)
    length = longest_row(graph)
    y, pull_back = jax.vjp(lambda v: maxk_spmm(graph, CBSR(v, kept.indices, dim)), kept.values)
    assert_close(y, _aggregate(graph, kept.todense()), reduction_length=length)
    exact = _aggregate(graph, x, transposed=True)
    exact = np.take_along_axis(exact, np.asarray(kept.indices).astype(np.int64), axis=1)
    assert_close(pull_back(x)[0], exact, reduction_length=length)
    y = ops.spmm(graph, x, implementation=implementation)
    assert_close(y, _aggregate(graph, x), reduction_length=length)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_to_weights_agree_with_float64(dtype, maxk_spmm, implementation):
    graph, dim = _graph("products"), 256
    x, dy = (random_array((graph.num_cols, dim), dtype, seed=seed) for seed in (3, 4))
    kept = ops.maxk(x, 32)
    rows, columns, _ = _edges(graph)
    for op, features, dense in (
        (maxk_spmm, kept, kept.todense()),
        (functools.partial(ops.spmm, implementation=implementation), x, x),
    ):

        def of_weights(weights, op=op, features=features):
            return op(graph.with_weights(weights), features)

        _, pull_back = jax.vjp(of_weights, graph.weights)
        left = np.asarray(dy).astype(np.float64)[rows]
        exact = np.sum(left * np.asarray(dense).astype(np.float64)[columns], axis=1)
        assert_close(pull_back(dy)[0], exact, reduction_length=dim)


# Heads of whole words, of odd widths, and narrower than a lane reads at once.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads, dim", [(4, 64), (3, 37), (1, 256), (16, 4), (40, 1)])
@pytest.mark.parametrize("name", ["reddit", "flickr"])
def test_sums_of_heads_and_their_gradients_agree_with_float64(
    name, heads, dim, dtype, implementation
):
    graph = _graph(name)
    rows, columns, scales = _edges(graph.with_weights(None))
    weights = random_array((graph.num_edges, heads), "float32", seed=6)
    x, dy = (random_array((graph.num_cols, heads, dim), dtype, seed=seed) for seed in (7, 8))

    def run(weights, x):
        return ops.spmm(graph.with_weights(weights), x, implementation=implementation)

    _poison((x.shape, dtype))
    y, pull_back = jax.vjp(run, weights, x)
    dweights, dx = pull_back(dy)
    for head in range(heads):
        of_head = graph.with_weights(weights[:, head])
        length = longest_row(graph)
        assert_close(y[:, head], _aggregate(of_head, x[:, head]), reduction_length=length)
        exact = _aggregate(of_head, dy[:, head], transposed=True)
        assert_close(dx[:, head], exact, reduction_length=length)
        ends = (np.asarray(a[:, head]).astype(np.float64) for a in (dy, x))
        left, right = (a[ids] for a, ids in zip(ends, (rows, columns), strict=True))
        exact = scales * np.sum(left * right, axis=1)
        assert_close(dweights[:, head], exact, reduction_length=dim)


# Of multiples of 32 up to 256, eight rows go together.
@pytest.mark.parametrize("dtype", [*DTYPES, "float16"])
@pytest.mark.parametrize("dim", [1, 7, 32, 64, 160, 192, 255, 256, 300, 600, 1001, 1024])
def test_maxk_has_the_bits_of_the_reference(dim, dtype, implementation):
    x = np.array(random_array((501, dim), "float32", seed=5, scale=10.0))
    x[0] = 0.0
    x[1] = np.where(np.arange(dim) % 2, -0.0, 0.0)
    x[2] = np.round(x[2])  # ties
    x[3, ::2] = np.nan
    x[4] = np.inf
    x[5, ::3] = -np.inf
    x = jnp.asarray(x).astype(dtype)
    for k in sorted({1, (dim + 2) // 3, dim}):
        for by in ("value", "magnitude"):
            _poison(((501, k), dtype))
            kept = ops.maxk(x, k, by=by, implementation=implementation)
            exact = maxk_reference.maxk(x, k=k, by=by, early_stop=None)
            assert_bit_equal(kept, exact)
        _poison(((501, dim), dtype))
        dense = ops.todense(kept, implementation=implementation)
        assert_bit_equal(dense, maxk_reference.todense(exact))


@pytest.mark.parametrize("dim", [64, 256])
def test_maxk_is_exact_whatever_16_bits_can_tell(dim, implementation):
    x = rows_of_all_kinds(300, dim, least=1e-43)
    for k in (1, dim // 8, dim - 1):
        for by in ("value", "magnitude"):
            kept = ops.maxk(x, k, by=by, implementation=implementation)
            assert_bit_equal(kept, maxk_reference.maxk(x, k=k, by=by, early_stop=None))


def test_deterministic_gradients_repeat_to_the_bit_and_agree_with_the_atomic_ones(maxk_spmm):
    graph = _graph("reddit")
    kept = ops.maxk(random_array((graph.num_cols, 64), "float32", seed=6), 8)

    def gradient():
        def loss(values):
            return jnp.sum(jnp.sin(maxk_spmm(graph, CBSR(values, kept.indices, 64))))

        return jax.grad(loss)(kept.values)

    with deterministic():
        first = gradient()
        for _ in range(5):
            assert_bit_equal(first, gradient())
    np.testing.assert_allclose(gradient(), first, rtol=1e-3, atol=1e-4)


def test_what_a_kernel_does_not_take_is_named_and_none_still_works(maxk_spmm, implementation):
    graph = _graph("proteins")
    wide = ops.maxk(random_array((graph.num_cols, 20_000), "float32", seed=7), 3)
    with pytest.raises(NotImplementedError, match="at most 16384 columns, got 20000"):
        maxk_spmm(graph, wide)
    assert ops.maxk_spmm(graph, wide).shape == (graph.num_rows, 20_000)
    x = random_array((4, 2000), "float32", seed=8)
    with pytest.raises(NotImplementedError, match="at most 1024 columns, got 2000"):
        ops.maxk(x, 3, implementation=implementation)
    with pytest.raises(NotImplementedError, match="early_stop None on a GPU, got 4"):
        ops.maxk(x[:, :64], 3, early_stop=4, implementation=implementation)
    assert ops.maxk(x, 3, early_stop=4).k == 3


def test_many_calls_inside_one_captured_graph(implementation):
    graph = _graph("reddit")

    @jax.jit
    def network(x):
        for _ in range(8):
            kept = ops.maxk(x, 16, implementation=implementation)
            x = ops.maxk_spmm(graph.normalized("mean"), kept, implementation=implementation)
        return x

    # Widths that take different amounts of shared memory, in one graph too.
    @jax.jit
    def both(wide, narrow):
        return network(wide), network(narrow), network(wide)

    wide = random_array((graph.num_cols, 1024), "float32", seed=9)
    narrow = random_array((graph.num_cols, 64), "float32", seed=9)
    first = network(narrow)
    for _ in range(5):
        assert_bit_equal(first, network(narrow))
        assert_bit_equal(first, both(wide, narrow)[1])
