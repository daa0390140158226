"""aggregate and neighbour_reduce against NumPy, against float64, and their bad input."""

import functools
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgnn
from jaxgnn import ops
from jaxgnn.graph import CSRGraph
from jaxgnn.ops._aggregate.aggregate import FORWARD
from jaxgnn.ops._aggregate.reference import aggregate as reference
from jaxgnn.testing import assert_close, check_against_float64, random_array
from pallas_kernels.arguments.aggregate import Form
from pallas_kernels.arguments.reductions import REDUCTIONS
from tests.ops._table import BARE, BUILT, longest_row, usable

IMPLEMENTATIONS = usable(FORWARD)
ALL = get_args(ops.Aggregation)
GIVEN = [n for n in IMPLEMENTATIONS if n != "xla"]
COMPILED = tuple(name for name in ALL if REDUCTIONS[name].is_compiled)


def _all_of(implementation):
    """The reductions that an implementation has."""
    return COMPILED if implementation == "ffi" else ALL


def _log_sum(m, axis):
    return np.logaddexp.reduce(m, axis=axis)


def _soft(m, axis):
    p = np.exp(m - m.max(axis=axis))
    return (p / p.sum(axis=axis) * m).sum(axis=axis)


NUMPY = {
    "sum": np.sum,
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "std": np.std,
    "var": np.var,
    "softmax": _soft,
    "logsumexp": _log_sum,
}


def _by_rows(graph, messages, reductions):
    """Row by row with NumPy in float64, zeros for rows without edges."""
    messages, indptr = np.asarray(messages, np.float64), np.asarray(graph.indptr)
    made = np.zeros((graph.num_rows, len(reductions) * messages.shape[1]))
    for row in range(graph.num_rows):
        of_row = messages[indptr[row] : indptr[row + 1]]
        if len(of_row):
            made[row] = np.concatenate([NUMPY[name](of_row, axis=0) for name in reductions])
    return made


@pytest.mark.costly
@pytest.mark.usefixtures("compiled_quickly")
@pytest.mark.parametrize(
    "name, implementation",
    [
        ("padding_edges", "xla"),
        *((n, i) for i in GIVEN for n in ("hub_row_spans_tasks", "all_padding")),
    ],
)
def test_all_reductions_are_numpys_over_the_rows(name, implementation):
    graph = BARE[name]
    messages = random_array((graph.num_edges, 5), "float32", seed=1) + 3
    x = random_array((graph.num_cols, 5), "float32", seed=2) - 2
    names = _all_of(implementation)
    run = jax.jit(functools.partial(ops.aggregate, reduce=names, implementation=implementation))
    reduced = run(graph, messages)
    length = 16 * longest_row(graph)  # a variance has a few sums behind it
    assert_close(reduced, _by_rows(graph, messages, names), reduction_length=length)
    run = functools.partial(ops.neighbour_reduce, reduce=names, implementation=implementation)
    gathered = np.asarray(x)[np.asarray(graph.indices)]
    assert_close(jax.jit(run)(graph, x), _by_rows(graph, gathered, names), reduction_length=length)


@functools.cache
def _reference(name, form):
    graph = BUILT[name]
    return lambda x: reference.forward(graph, x, form=form, keep=False)[0]


@pytest.mark.costly
@pytest.mark.usefixtures("compiled_quickly")
@pytest.mark.parametrize("implementation", GIVEN)
@pytest.mark.parametrize(
    "name, by_edge, ties",
    [
        ("repeated_edges", False, "first"),
        ("bipartite", True, "first"),
        ("padding_edges", True, "share"),
        ("hub_sender_spans_tasks", False, "share"),
    ],
)
def test_values_and_gradients_equal_float64(name, by_edge, ties, implementation):
    graph, names = BARE[name], _all_of(implementation)
    op = ops.aggregate if by_edge else ops.neighbour_reduce
    # A few values, so that there are ties.
    numbers = graph.num_edges if by_edge else graph.num_cols
    x = jnp.round(random_array((numbers, 3), "float32", seed=3) * 2) / 2
    check_against_float64(
        lambda x: op(graph, x, names, ties=ties, implementation=implementation),
        _reference(name, Form(names, by_edge, ties)),
        x,
        reduction_length=16 * longest_row(graph),
    )


@pytest.mark.costly
@pytest.mark.usefixtures("compiled_quickly")
@pytest.mark.parametrize("implementation", GIVEN)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_short_floats_are_rounded_once_and_have_gradients(dtype, implementation):
    graph, names = BUILT["unweighted"], _all_of(implementation)
    x = random_array((graph.num_cols, 4), dtype, seed=4) + jnp.asarray(20, dtype)
    check_against_float64(
        lambda x: ops.neighbour_reduce(graph, x, names, implementation=implementation),
        _reference("unweighted", Form(names, False)),
        x,
        reduction_length=64 * longest_row(graph),
    )


@pytest.mark.usefixtures("compiled_quickly")
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_equal_extremes_share_the_gradient_or_the_first_gets_it(implementation):
    graph = CSRGraph.from_edges([0, 1, 2, 1], [0, 0, 0, 1], 3)
    x = jnp.array([[4.0], [4.0], [1.0]])

    def gradient(ties, reduce="max"):
        def total(x):
            y = ops.neighbour_reduce(graph, x, reduce, ties=ties, implementation=implementation)
            return y[0, 0] * 2 + y[1, 0]

        return jax.grad(total)(x).ravel().tolist()

    assert gradient("share") == [1.0, 2.0, 0.0]
    assert gradient("first") == [2.0, 1.0, 0.0]
    assert gradient("share", "min") == gradient("first", "min") == [0.0, 1.0, 2.0]
    of_jax = jax.grad(lambda x: jax.ops.segment_max(x[graph.senders], graph.receivers(), 3)[0, 0])
    assert (2 * of_jax(x)).ravel().tolist() == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_nan_and_infinities_stay_in_their_row_and_column(implementation):
    graph = CSRGraph.from_edges([0, 1, 2, 1, 2, 0], [0, 0, 1, 1, 2, 2], 3)
    x = jnp.array([[jnp.nan, 1.0], [1.0, -jnp.inf], [2.0, -jnp.inf]])
    reductions = ("max", "min", "logsumexp")
    y = ops.neighbour_reduce(graph, x, reductions, implementation=implementation)
    expected = [
        [jnp.nan, 1.0, jnp.nan, -jnp.inf, jnp.nan, 1.0],
        [2.0, -jnp.inf, 1.0, -jnp.inf, np.logaddexp(1, 2), -jnp.inf],
        [jnp.nan, 1.0, jnp.nan, -jnp.inf, jnp.nan, 1.0],
    ]
    np.testing.assert_allclose(y, expected, rtol=1e-6)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_variance_far_from_zero_keeps_its_digits(implementation):
    graph = CSRGraph.from_edges(np.arange(64), np.zeros(64, int), 1, num_senders=64)
    x = np.float32(1e4) + random_array((64, 3), "float32", seed=5)
    y = ops.neighbour_reduce(graph, x, ("var", "std"), implementation=implementation)
    exact = np.asarray(x, np.float64)
    expected = np.concatenate([exact.var(axis=0), exact.std(axis=0)])
    np.testing.assert_allclose(y[0], expected, rtol=1e-5)


def _far_from_zero():
    """Numbers of mean 100 and deviation 0.01, float32, over rows of one to many edges."""
    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(0, 30, (2, 300))
    graph = CSRGraph.from_edges([*senders, 0], [*receivers, 30], 31)  # one row of a single edge
    return graph, np.float32(100 + 0.01 * rng.normal(size=(301, 2)))


def _slopes(op, graph, x, names, implementation):
    """Gradients of a weighted sum of the results of each reduction."""
    wanted = random_array((graph.num_rows, 2), "float32", seed=6).astype(x.dtype)

    def total(x, name):
        return jnp.vdot(op(graph, x, name, implementation=implementation), wanted)

    made = jax.jit(lambda x: [jax.grad(total)(x, name) for name in names])(x)
    return dict(zip(names, (np.asarray(slope, np.float64) for slope in made), strict=True))


@pytest.mark.costly
@pytest.mark.usefixtures("compiled_quickly")
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("op", [ops.aggregate, ops.neighbour_reduce])
def test_gradients_far_from_zero_keep_their_digits(op, implementation):
    graph, messages = _far_from_zero()
    x = jnp.asarray(messages if op is ops.aggregate else messages[: graph.num_cols])
    # The result of a softmax is rounded where it is, so distances from it have that error.
    errors = {"std": 1e-6, "var": 1e-6, "logsumexp": 1e-6, "softmax": 5e-5}
    made = _slopes(op, graph, x, tuple(errors), implementation)
    with jax.enable_x64(True):
        exact = _slopes(op, graph, x.astype(jnp.float64), tuple(errors), "xla")
    for name, error in errors.items():
        assert np.abs(made[name] - exact[name]).max() < error * np.abs(exact[name]).max(), name


@pytest.mark.usefixtures("compiled_quickly")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", [ops.aggregate, ops.neighbour_reduce])
def test_equal_numbers_have_no_spread_and_no_gradient_of_it(op, dtype):
    graph, messages = _far_from_zero()
    count = len(messages) if op is ops.aggregate else graph.num_cols
    with jax.enable_x64(dtype == "float64"):
        x = jnp.full((count, 2), 100.1, dtype)  # whose sums are rounded
        for implementation in (None, "xla"):
            assert not np.asarray(op(graph, x, "var", implementation=implementation)).any()
            (slope,) = _slopes(op, graph, x, ("std",), implementation).values()
            assert not slope.any()


def test_weights_and_scales_count_in_sums_and_means_alone():
    graph = BUILT["weighted"].with_weights(jnp.abs(BUILT["weighted"].weights)).normalized("sym")
    x = random_array((graph.num_cols, 4), "float32", seed=6)
    reductions = ("mean", "sum")
    degrees = np.maximum(np.asarray(graph.degrees()), 1)[:, None]

    def made(weights, reduce):
        return ops.neighbour_reduce(graph.with_weights(weights), x, reduce)

    mean, total = jnp.split(made(graph.weights, reductions), 2, axis=-1)
    expected = graph.to_scipy() @ np.asarray(x)
    np.testing.assert_allclose(total, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(mean, expected / degrees, rtol=1e-5, atol=1e-6)
    slope = jax.grad(lambda w: jnp.sum(made(w, reductions) ** 2))(graph.weights)
    assert np.asarray(slope).any()
    for names in ("max", ("max", "sum")):
        with pytest.raises(ValueError, match="neighbour_reduce: graph must be without weights"):
            made(graph.weights, names)
    with pytest.raises(ValueError, match="aggregate: graph must be without weights"):
        ops.aggregate(graph, graph.weights[:, None], "max")


def test_a_temperature_scales_the_numbers_and_has_a_gradient():
    graph = BUILT["unweighted"]
    x = random_array((graph.num_cols, 2), "float32", seed=7)
    messages = np.asarray(x)[np.asarray(graph.indices)]
    reductions = ("logsumexp", "max", "softmax")

    def run(temperature):
        return ops.neighbour_reduce(graph, x, reductions, temperature=temperature)

    scaled = _by_rows(graph, messages / 0.5, ("logsumexp", "softmax")) * 0.5
    expected = [scaled[:, :2], _by_rows(graph, messages, ("max",)), scaled[:, 2:]]
    np.testing.assert_allclose(run(0.5), np.concatenate(expected, 1), rtol=1e-5, atol=1e-6)
    ahead, behind = (float(jnp.sum(run(t))) for t in (0.51, 0.49))
    slope = jax.grad(lambda t: jnp.sum(run(t)))(jnp.float32(0.5))
    np.testing.assert_allclose(slope, (ahead - behind) / 0.02, rtol=1e-2)


@pytest.mark.parametrize("implementation", GIVEN)
def test_batches_features_and_axes_share_the_graph(implementation):
    graph = BUILT["unweighted"]
    options = {"reduce": ("mean", "max"), "implementation": implementation}
    x = random_array((3, graph.num_cols, 2, 4), "float32", seed=8)
    together = ops.neighbour_reduce(graph, x, axis=1, **options)
    assert together.shape == (3, graph.num_rows, 2, 8)
    mapped = jax.vmap(lambda x: ops.neighbour_reduce(graph, x, axis=0, **options))(x)
    assert (mapped == together).all()
    for i in (0, 1):
        alone = ops.neighbour_reduce(graph, x[:, :, i], **options)
        assert (alone == together[:, :, i]).all()
    scores = random_array((graph.num_edges,), "float32", seed=9)
    highest = ops.aggregate(graph, scores, "max", axis=0, implementation=implementation)
    assert_close(highest, _by_rows(graph, scores[:, None], ("max",))[:, 0], reduction_length=1)


@pytest.mark.parametrize("implementation", GIVEN)
def test_it_can_be_differentiated_twice(implementation):
    graph = BUILT["repeated_edges"]
    x = random_array((graph.num_cols, 2), "float32", seed=10)
    reductions = ("max", "std", "softmax", "logsumexp")

    def second(name):
        def first(x):
            run = functools.partial(ops.neighbour_reduce, graph, reduce=reductions)
            return jnp.sum(jax.grad(lambda x: jnp.sum(run(x, implementation=name) ** 3))(x) ** 2)

        return jax.jit(jax.grad(first))(x)

    np.testing.assert_allclose(second(implementation), second("xla"), rtol=1e-3, atol=1e-5)


@pytest.mark.again("tests/ops/test_verify.py")
@pytest.mark.parametrize("ties", get_args(ops.Ties))
def test_verification_finds_nothing_in_values_statistics_and_gradients(ties):
    graph = BUILT["isolated_nodes"]
    x = random_array((graph.num_cols, 3), "float32", seed=11)

    @jaxgnn.verify("strict")
    def checked(x):
        run = functools.partial(ops.neighbour_reduce, graph, reduce=ALL, ties=ties)
        return jax.grad(lambda x: jnp.sum(run(x) ** 2))(x)

    assert np.isfinite(checked(x)).all()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_a_traced_graph_has_sums_and_means_alone_as_well(reduce, dtype):
    graph = BUILT["unweighted"]
    x = random_array((graph.num_cols, 3), dtype, seed=12)
    made = jax.jit(functools.partial(ops.neighbour_reduce, reduce=reduce))(graph, x)
    expected = _by_rows(graph, np.asarray(x)[np.asarray(graph.indices)], (reduce,))
    assert_close(made, expected, reduction_length=longest_row(graph))


GRAPH = BUILT["repeated_edges"]
X, MESSAGES = jnp.ones((3, 2)), jnp.ones((12, 2))
BAD = {
    "aggregate: graph must be a jaxgnn.graph.CSRGraph": lambda: ops.aggregate(None, MESSAGES),
    r"aggregate: messages must be of 12 entries along axis -2.*\(3, 2\)": lambda: ops.aggregate(
        GRAPH, X
    ),
    r"neighbour_reduce: x must be of 3 entries along axis -2.*\(12, 2\)": (
        lambda: ops.neighbour_reduce(GRAPH, MESSAGES)
    ),
    "aggregate: messages must be of a floating dtype, got int32": lambda: ops.aggregate(
        GRAPH, MESSAGES.astype(int)
    ),
    "aggregate: reduce must be among sum, mean.*got 'median'": lambda: ops.aggregate(
        GRAPH, MESSAGES, "median"
    ),
    r"aggregate: reduce must be one of sum.*got \(\)": lambda: ops.aggregate(GRAPH, MESSAGES, ()),
    "aggregate: reduce must be of different reductions": lambda: ops.aggregate(
        GRAPH, MESSAGES, ("max", "max")
    ),
    "aggregate: reduce must be one reduction for an array without": lambda: ops.aggregate(
        GRAPH, MESSAGES[:, 0], ("max", "min"), axis=0
    ),
    "aggregate: axis must be an axis of messages.*got -2": lambda: ops.aggregate(
        GRAPH, MESSAGES[:, 0]
    ),
    "aggregate: ties must be 'share' or 'first', got 'last'": lambda: ops.aggregate(
        GRAPH, MESSAGES, "max", ties="last"
    ),
    "aggregate: temperature must be positive and finite, got 0": lambda: ops.aggregate(
        GRAPH, MESSAGES, "softmax", temperature=0
    ),
    r"aggregate: temperature must be a positive number or a scalar array, got float32\[2\]": (
        lambda: ops.aggregate(GRAPH, MESSAGES, "softmax", temperature=jnp.ones(2))
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_refused_by_name(message):
    with pytest.raises(ValueError, match=message):
        BAD[message]()
