"""The kernels of layers of edges on a GPU: against float64, on graphs of all kinds."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CSRGraph, ops
from jaxgnn.ops._edge_mlp.edge_mlp_aggregate import BACKWARD, FORWARD
from jaxgnn.ops._edge_mlp.reference import edge_mlp_aggregate as reference
from jaxgnn.ops._edge_mlp.reference.edge_mlp_aggregate import EdgeOperands, EdgeOptions
from jaxgnn.ops.core import dispatch
from jaxgnn.testing import assert_bit_equal, assert_close, random_array, to_float64

pytestmark = [pytest.mark.gpu, pytest.mark.costly(4)]

PALLAS = dispatch.resolve("edge_mlp_aggregate", "pallas")


@pytest.fixture(scope="module", autouse=True)
def needs_kernels():
    if FORWARD.unavailable("pallas", "cuda"):
        pytest.skip(f"reason: {FORWARD.unavailable('pallas', 'cuda')}")


def _sudoku():
    """81 cells, each the neighbour of 20."""
    cells = np.arange(81)
    row, column = np.divmod(cells, 9)
    box = row // 3 * 3 + column // 3
    same = sum((place[:, None] == place for place in (row, column, box)), start=0) > 0
    return CSRGraph.from_edges(*np.nonzero(same & ~np.eye(81, dtype=bool)), 81)


def _ragged(rows=3001, cols=1007, edges=30_000, hub=9000):
    """Rows of no edge, of few, and of thousands; slots of padding in between."""
    rng = np.random.default_rng(0)
    receivers = np.floor(rows * rng.random(edges) ** 3).astype(int)
    receivers[:hub] = 17
    receivers = np.where(receivers % 5 == 0, 17, receivers)
    mask = rng.random(edges) < 0.95
    return CSRGraph.from_edges(
        rng.integers(0, cols, edges), receivers, rows, num_senders=cols, edge_mask=mask
    )


def _few():
    """Fewer rows than a tile has, of one edge or none."""
    return CSRGraph.from_edges([0, 3, 3], [4, 0, 2], 5)


GRAPHS = {"sudoku": _sudoku, "ragged": _ragged, "few": _few}
# Name of a graph, batch, widths.
SHAPES = [
    ("sudoku", 256, (96, 96, 96)),
    ("sudoku", 3, (96, 96, 96)),
    ("sudoku", 1, (64, 64)),
    ("sudoku", 3, (128, 128, 128)),
    ("sudoku", 7, (32, 96)),
    ("sudoku", 7, (96,)),
    ("ragged", 1, (128, 128)),
    ("ragged", 3, (64, 128, 32)),
    ("ragged", 1, (96,)),
    ("few", 3, (64, 64)),
    ("sudoku", 64, (256, 256)),
    ("sudoku", 3, (192, 192, 192)),
    ("sudoku", 7, (256,)),
    ("sudoku", 7, (192, 128)),
    ("ragged", 3, (192, 64, 256)),
    ("ragged", 1, (256, 256)),
    ("few", 3, (192, 128)),
    ("sudoku", 64, (256, 256, 256)),
    ("sudoku", 1, (256, 256, 256)),
    ("ragged", 3, (256, 256, 256)),
    ("ragged", 1, (192,)),
    ("few", 3, (256, 256, 64)),
]
# What is exact in two layers has too many bits behind more.
DEEP = [
    ("sudoku", 7, (192, 192, 192, 192, 192)),
    ("sudoku", 3, (256, 192, 64, 128)),
    ("sudoku", 3, (128, 128, 128, 128, 128, 128)),
]


def _operands(graph, batch, widths, weights, make, features=None):
    """Of layers of these widths, every second without a bias; ``make(shape, seed, fan_in)``.

    ``features``, five for each edge, for so many of the batch.
    """
    pairs = list(itertools.pairwise(widths))
    kernels = [make(form, i, form[0]) for i, form in enumerate(pairs)]
    biases = [None if i % 2 else make(form[1:], 20 + i, 1) for i, form in enumerate(pairs)]
    receivers = make((batch, graph.num_rows, widths[0]), 30, 1)
    senders = make((batch, graph.num_cols, widths[0]), 31, 1)
    of_edges, projection = None, None
    if features is not None:
        real = graph.receivers() < graph.num_rows  # padding slots hold anything
        of_edges = make((features, graph.num_edges, 5), 32, 1)
        of_edges = jnp.where(real[:, None], of_edges, jnp.nan)
        projection = make((5, widths[0]), 33, 5)
    projected = of_edges, weights, projection
    return EdgeOperands(receivers, senders, *projected, tuple(kernels), tuple(biases))


def _real(dtype, shape, seed, fan_in):
    return random_array(shape, dtype, seed, scale=fan_in**-0.5)


def _integer(dtype, shape, seed, fan_in):
    """Small ones: all sums of the layers are exact."""
    rng = np.random.default_rng(seed)
    most = 1 if fan_in > 1 else 2
    return jnp.asarray(rng.integers(-most, most + 1, shape), jnp.float32).astype(dtype)


def _options(graph, activation, last=True):
    return EdgeOptions(activation, last, False, *graph.uniform_degrees())


def _weights(graph, count):
    return jnp.abs(random_array((count, graph.num_edges), "float32", seed=4)) + 0.1


@functools.partial(jax.jit, static_argnames="options")
def _exact_forward(graph, operands, options):
    return reference.edge_reduce(graph, operands, options=options)


@functools.partial(jax.jit, static_argnames="options")
def _exact_backward(graph, operands, dy, options):
    return reference.edge_reduce_backward(graph, operands, dy, options=options)


def _exactly(function, graph, *arguments):
    with jax.enable_x64(True):
        *arrays, options = arguments
        return function(graph, *to_float64(tuple(arrays)), options=options)


@functools.partial(jax.jit, static_argnames="options")
def _forward(graph, operands, options):
    return FORWARD(PALLAS, graph, operands, options=options)


@functools.partial(jax.jit, static_argnames="options")
def _backward(graph, operands, dy, options):
    return BACKWARD(PALLAS, graph, operands, dy, options=options)


def _poison(*shapes):
    """What the allocator hands out next holds NaN."""
    jax.block_until_ready([jnp.full(s, jnp.nan, d) for s, d in shapes for _ in range(4)])


@pytest.mark.parametrize("activation", ["relu", "gelu", None])
@pytest.mark.parametrize("name, batch, widths", SHAPES + DEEP)
def test_sums_agree_with_float64(name, batch, widths, activation):
    graph, dtype = GRAPHS[name](), "float16" if batch == 7 else "bfloat16"
    options = _options(graph, activation, activation != "gelu")
    operands = _operands(graph, batch, widths, None, functools.partial(_real, dtype))
    exact = _exactly(_exact_forward, graph, operands, options)
    _poison((exact.shape, dtype), (exact.shape, "float32"))
    y = _forward(graph, operands, options)
    assert y.dtype == dtype
    assert_close(y, exact, reduction_length=max(widths), operands=dtype)


@pytest.mark.parametrize("own", [1, 3])
@pytest.mark.parametrize("widths", [(64, 96), (256, 256), (256, 256, 256)])
@pytest.mark.parametrize("name", ["sudoku", "ragged"])
def test_weights_of_edges_multiply_messages(name, widths, own):
    graph = GRAPHS[name]()
    make = functools.partial(_real, "bfloat16")
    operands = _operands(graph, 3, widths, _weights(graph, own), make)
    options = _options(graph, "silu")
    exact = _exactly(_exact_forward, graph, operands, options)
    y = _forward(graph, operands, options)
    assert_close(y, exact, reduction_length=max(widths), operands="bfloat16")


# Name of a graph, batch, widths, activation, for how many of the batch there are features.
WITH_FEATURES = [
    ("sudoku", 256, (96, 96), "relu", 1),
    ("sudoku", 64, (96, 96, 96), "gelu", 64),
    ("sudoku", 1, (128, 128), "relu", 1),
    ("sudoku", 7, (32, 96), "silu", 1),
    ("sudoku", 7, (96,), "relu", 7),
    ("sudoku", 3, (192, 192), "relu", 3),
    ("sudoku", 7, (256, 256), "silu", 1),
    ("ragged", 3, (256, 256, 128), "gelu", 3),
    ("ragged", 1, (256,), "relu", 1),
    ("ragged", 3, (64, 128, 32), "gelu", 3),
    ("ragged", 3, (64, 64), "gelu", 1),
    ("ragged", 1, (192, 64), "gelu", 1),
    ("few", 3, (64, 64), "relu", 1),
]


@pytest.mark.parametrize("weighted", [False, True], ids=["ones", "weights"])
@pytest.mark.parametrize("name, batch, widths, activation, features", WITH_FEATURES)
def test_features_of_edges_agree_with_float64(name, batch, widths, activation, features, weighted):
    graph, dtype = GRAPHS[name](), "float16" if batch == 7 else "bfloat16"
    options = _options(graph, activation)
    weights = _weights(graph, batch) if weighted else None
    # What rounding does around zero, the derivative of relu shows; integers are not rounded.
    make = functools.partial(_integer if activation == "relu" else _real, dtype)
    operands = _operands(graph, batch, widths, weights, make, features)
    exact = _exactly(_exact_forward, graph, operands, options)
    _poison((exact.shape, dtype), (exact.shape, "float32"))
    y = _forward(graph, operands, options)
    assert_close(y, exact, reduction_length=max(widths), operands=dtype)

    dy = make((batch, graph.num_rows, widths[-1]), 60, 1)
    exact = _exactly(_exact_backward, graph, operands, dy, options)
    _poison(((features, graph.num_edges, widths[0]), dtype), ((batch, graph.num_edges), "float32"))
    made = _backward(graph, operands, dy, options)
    assert jax.tree.structure(made) == jax.tree.structure(exact)
    length = max(batch * graph.num_edges, *widths)
    for a, e in zip(*map(jax.tree.leaves, (made, exact)), strict=True):
        assert a.dtype == (jnp.float32 if a is made.weights else dtype)
        assert_close(a, e, reduction_length=length, operands=dtype)


@pytest.mark.parametrize("name, batch, widths", SHAPES)
def test_sums_of_integers_are_exact(name, batch, widths):
    graph = GRAPHS[name]()
    operands = _operands(graph, batch, widths, None, functools.partial(_integer, "bfloat16"))
    options = _options(graph, "relu")
    exact = _exactly(_exact_forward, graph, operands, options)
    expected = np.asarray(exact).astype(np.float32).astype(jnp.bfloat16)
    y = np.asarray(_forward(graph, operands, options))
    is_whole = np.asarray(graph.degrees()) <= 64
    assert_bit_equal(y[:, is_whole], expected[:, is_whole])
    # The sums of pieces of rows have 16 bits.
    np.testing.assert_allclose(y.astype(np.float32), expected.astype(np.float32), rtol=2**-7)


def test_rows_without_edges_are_zero_whatever_is_not_finite():
    graph = _ragged()
    operands = _operands(graph, 1, (64, 64), None, functools.partial(_real, "bfloat16"))
    alone = np.flatnonzero(np.asarray(graph.degrees()) == 0)
    receivers = operands.receivers.at[:, alone].set(jnp.nan)
    senders = operands.senders.at[:, 0].set(jnp.inf)
    options = _options(graph, "gelu")
    y = _forward(graph, operands._replace(receivers=receivers), options)
    assert not np.asarray(y[0, alone]).any() and np.isfinite(np.asarray(y, np.float32)).all()
    y = _forward(graph, operands._replace(senders=senders), options)
    rows, indices = np.asarray(graph.receivers()), np.asarray(graph.indices)
    touched = rows[(indices == 0) & (rows < graph.num_rows)]
    finite = np.isfinite(np.asarray(y[0], np.float32)).all(1)
    assert set(np.flatnonzero(~finite)) <= set(touched) and finite[alone].all()


@pytest.mark.parametrize("widths", [(96, 96, 96), (256, 256), (192, 192, 192), (256, 256, 256)])
def test_results_repeat_to_the_bit_under_load(widths):
    graph = _sudoku()
    operands = _operands(graph, 256, widths, None, functools.partial(_real, "bfloat16"))
    options = _options(graph, "relu")
    first = _forward(graph, operands, options)
    for y in [_forward(graph, operands, options) for _ in range(20)]:
        assert_bit_equal(y, first)


def _needs_backward():
    if BACKWARD.unavailable("pallas", "cuda"):
        pytest.skip(f"reason: {BACKWARD.unavailable('pallas', 'cuda')}")


@pytest.mark.parametrize("own", [None, 1, "each"])
@pytest.mark.parametrize("name, batch, widths", SHAPES + DEEP)
def test_gradients_agree_with_float64(name, batch, widths, own):
    _needs_backward()
    graph = GRAPHS[name]()
    options = _options(graph, "gelu")
    weights = None if own is None else _weights(graph, batch if own == "each" else 1)
    operands = _operands(graph, batch, widths, weights, functools.partial(_real, "bfloat16"))
    dy = _real("bfloat16", (batch, graph.num_rows, widths[-1]), 60, 1)
    exact = _exactly(_exact_backward, graph, operands, dy, options)
    made = _backward(graph, operands, dy, options)
    length = max(batch * graph.num_edges, *widths)
    for a, e in zip(*map(jax.tree.leaves, (made, exact)), strict=True):
        assert a.dtype == (jnp.float32 if a is made.weights else jnp.bfloat16)
        assert_close(a, e, reduction_length=length, operands="bfloat16")


@pytest.mark.parametrize("activation", [None, "gelu_exact", "silu", "mish", "squared_relu"])
@pytest.mark.parametrize("last", [False, True], ids=["linear", "activated"])
def test_wide_gradients_of_every_activation_agree_with_float64(activation, last):
    _needs_backward()
    graph, batch, widths = _ragged(hub=300, edges=3000, rows=301, cols=107), 2, (256, 192, 256)
    options = _options(graph, activation, last)
    operands = _operands(graph, batch, widths, None, functools.partial(_real, "bfloat16"))
    dy = _real("bfloat16", (batch, graph.num_rows, widths[-1]), 60, 1)
    exact = _exactly(_exact_backward, graph, operands, dy, options)
    made = _backward(graph, operands, dy, options)
    length = max(batch * graph.num_edges, *widths)
    for a, e in zip(*map(jax.tree.leaves, (made, exact)), strict=True):
        assert_close(a, e, reduction_length=length, operands="bfloat16")


@pytest.mark.parametrize("name, batch, widths", SHAPES)
def test_gradients_of_integers_are_exact(name, batch, widths):
    _needs_backward()
    graph = GRAPHS[name]()
    options = _options(graph, "relu")
    operands = _operands(graph, batch, widths, None, functools.partial(_integer, "bfloat16"))
    dy = _integer("bfloat16", (batch, graph.num_rows, widths[-1]), 60, 1)
    exact = _exactly(_exact_backward, graph, operands, dy, options)
    shapes = [(leaf.shape, "float32") for leaf in jax.tree.leaves(operands)]
    _poison(*shapes)
    made = _backward(graph, operands, dy, options)
    for a, e in zip(*map(jax.tree.leaves, (made, exact)), strict=True):
        e = np.asarray(e)
        # Gradients that edges pass down are rounded to 8 bits before the products behind them.
        np.testing.assert_allclose(
            np.asarray(a).astype(np.float64), e, rtol=2**-8, atol=2**-8 * np.abs(e).max()
        )


def test_the_op_and_its_gradients_are_those_of_plain_jax():
    graph, widths = _sudoku(), (192, 96, 96, 96, 96)
    forms = enumerate(itertools.pairwise(widths))
    kernels = [_real("bfloat16", form, i, form[0]) for i, form in forms]
    biases = [_real("bfloat16", form.shape[1:], 9, 4) for form in kernels]
    h = random_array((64, 81, 96), "bfloat16", seed=1)
    params = ops.EdgeMLPParams(tuple(kernels), tuple(biases))

    def run(h, params, implementation):
        call = functools.partial(ops.edge_mlp_aggregate, graph, activation="gelu")
        y, pull_back = jax.vjp(lambda *a: call(*a, implementation=implementation), h, params)
        return y, pull_back(jnp.ones_like(y))

    made, expected = (
        jax.jit(functools.partial(run, implementation=i))(h, params) for i in (None, "xla")
    )
    for a, e in zip(*map(jax.tree.leaves, (made, expected)), strict=True):
        a, e = (np.asarray(x).astype(np.float32) for x in (a, e))
        np.testing.assert_allclose(a, e, rtol=0.05, atol=0.02 * np.abs(e).max())


def _mapped_case(graph):
    """An op, six members and parameters, all of small integers."""
    forms = enumerate(itertools.pairwise((128, 64, 64, 64)))
    kernels = tuple(_integer("bfloat16", form, i, form[0]) for i, form in forms)
    params = ops.EdgeMLPParams(kernels, (None,) * 3)
    h = _integer("bfloat16", (6, graph.num_rows, 64), 1, 1)

    def run(h, params, weights):
        options = {"activation": "relu", "weights": weights, "implementation": "pallas"}
        return ops.edge_mlp_aggregate(graph, h, params, **options).astype(jnp.float32)

    return run, h, params


def _assert_alike(made, expected):
    for a, e in zip(*map(jax.tree.leaves, (made, expected)), strict=True):
        a, e = (np.asarray(x).astype(np.float32).ravel() for x in (a, e))
        np.testing.assert_allclose(a, e, rtol=0.02, atol=0.02 * np.abs(e).max())


@pytest.mark.parametrize("own", [None, False, True], ids=["ones", "shared", "of each"])
@pytest.mark.parametrize("nested", [False, True], ids=["one axis", "two axes"])
def test_a_mapped_op_and_its_gradients_are_those_of_a_batch(nested, own):
    _needs_backward()
    graph = _sudoku()
    run, h, params = _mapped_case(graph)
    weights = None if own is None else _weights(graph, 6)[: 6 if own else 1]
    weights = weights if own else jax.tree.map(lambda w: w[0], weights)

    def gradients(function, *arguments):
        total = lambda *a: jnp.sum(jnp.tanh(function(*a) / 100))  # noqa: E731
        inexact = (0, 1) if own is None else (0, 1, 2)
        return jax.jit(jax.value_and_grad(total, inexact))(*arguments)

    mapped, apart = jax.vmap(run, (0, None, 0 if own else None)), (h, weights)
    if nested:
        mapped = jax.vmap(mapped, (0, None, 0 if own else None))
        h, weights = h.reshape(2, 3, *h.shape[1:]), weights
        weights = weights.reshape(2, 3, -1) if own else weights
    made = gradients(mapped, h, params, weights)
    _assert_alike(made, gradients(run, apart[0], params, apart[1]))


def test_each_member_of_a_mapped_gradient_has_its_own_of_parameters():
    _needs_backward()
    run, h, params = _mapped_case(_sudoku())
    gradient = jax.grad(lambda h, p: jnp.sum(jnp.tanh(run(h, p, None) / 100)), (0, 1))
    made = jax.jit(jax.vmap(gradient, (0, None)))(h, params)
    alone = [jax.jit(gradient)(x, params) for x in h]
    _assert_alike(made, jax.tree.map(lambda *leaves: jnp.stack(leaves), *alone))
