"""The segment functions against jax.ops and jraph: values, gradients, ids of all kinds."""

import functools
import re

import jax
import jax.numpy as jnp
import jraph
import numpy as np
import pytest
from flax import nnx

import jaxgnn
from jaxgnn import _ffi
from jaxgnn._arrays import eager as _id_range
from jaxgnn._ffi.aggregate import segment_order
from jaxgnn.ops._aggregate import segment_order as order_module
from jaxgnn.ops._aggregate import segments
from jaxgnn.testing import random_array

pytestmark = pytest.mark.usefixtures("compiled_quickly")

COUNT, SEGMENTS = 40, 7
# Segment 3 is empty; some ids are out of range on either side.
_DRAWN = np.random.default_rng(0).integers(-2, SEGMENTS + 2, COUNT)
IDS = {
    "any": np.where(_DRAWN == 3, 4, _DRAWN),
    "sorted": np.sort(np.where(_DRAWN == 3, 4, _DRAWN)),
    "in range": np.where(_DRAWN == 3, 4, _DRAWN).clip(0, SEGMENTS - 1),
}
OF_JAX = {
    name: (getattr(jaxgnn, name), getattr(jax.ops, name))
    for name in ("segment_sum", "segment_max", "segment_min", "segment_prod")
}
OF_JRAPH = {
    name: (getattr(jaxgnn, name), getattr(jraph, name))
    for name in (
        "segment_mean",
        "segment_variance",
        "segment_normalize",
        "segment_max_or_constant",
        "segment_min_or_constant",
        "segment_softmax",
    )
}


def _data(seed, shape=(COUNT, 3)):
    # Few values, so that there are ties.
    return jnp.round(random_array(shape, "float32", seed=seed) * 2) / 2 + 0.25


def _agree(ours, theirs, ids, is_sorted, differentiable=True):
    """Compares values and gradients in one program."""
    x, slope = _data(1), random_array((COUNT, 3), "float32", seed=2)

    @jax.jit
    def both(x, ids):
        def of(function):
            def run(x):
                with jax.numpy_dtype_promotion("standard"):
                    return function(x, ids, SEGMENTS, indices_are_sorted=is_sorted)

            if not differentiable:
                return (run(x),)
            y, pull_back = jax.vjp(run, x)
            return y, pull_back(slope[: y.shape[0]])[0]

        return of(ours), (of(theirs) if differentiable or theirs else None)

    made, expected = both(x, jnp.asarray(ids, jnp.int32))
    for a, e in zip(made, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-5)


@pytest.mark.costly
@pytest.mark.parametrize("kind", ["any", "sorted"])
@pytest.mark.parametrize("name", OF_JAX)
def test_values_and_gradients_are_those_of_jax_ops(name, kind):
    # jax.ops has no gradient of a product.
    _agree(*OF_JAX[name], IDS[kind], kind == "sorted", differentiable=name != "segment_prod")


@pytest.mark.costly
@pytest.mark.parametrize("name", OF_JRAPH)
def test_values_and_gradients_are_those_of_jraph(name):
    # What jraph gives entries of ids out of range depends on how indices wrap.
    _agree(*OF_JRAPH[name], IDS["in range"], False)


def test_logsumexp_and_the_gradient_of_a_product_are_those_of_rows():
    ids = jnp.asarray([0, 0, 0, 2, 2, 5], jnp.int32)
    x = jnp.array([[0.0], [3.0], [4.0], [0.0], [0.0], [1.0]])
    made = jaxgnn.segment_logsumexp(x + 1000, ids, 3)
    expected = [[1000 + np.log(1 + np.exp(3) + np.exp(4))], [-np.inf], [1000 + np.log(2)]]
    np.testing.assert_allclose(made, expected, rtol=1e-6)
    slope = jax.grad(lambda x: jnp.sum(jaxgnn.segment_prod(x, ids, 3)))(x)
    # One zero gets the product of the others; with two zeros nobody has a gradient.
    assert slope.ravel().tolist() == [12.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_entries_out_of_range_get_nothing():
    ids = jnp.asarray([-1, 0, 9, 0], jnp.int32)
    x = jnp.array([5.0, 1.0, 7.0, 1.0])
    run = lambda function: jax.jit(lambda x, ids: function(x, ids, 2))(x, ids).tolist()  # noqa: E731
    assert run(jaxgnn.segment_softmax) == [0.0, 0.5, 0.0, 0.5]
    assert run(jaxgnn.segment_normalize) == [0.0] * 4
    assert jaxgnn.segment_sum(x, ids, 2, mode="clip").tolist() == [7.0, 7.0]


def test_the_gradient_of_logsumexp_is_a_softmax_far_from_zero_too():
    x = np.float32(1000 + np.random.default_rng(0).normal(size=(40, 2)))
    ids = jnp.arange(40) % 3
    made = jax.grad(lambda x: jnp.sum(jaxgnn.segment_logsumexp(x, ids, 3)))(jnp.asarray(x))
    exponentials = np.exp(x.astype(np.float64) - 1000)
    expected = np.concatenate(
        [exponentials[i : i + 1] / exponentials[i % 3 :: 3].sum(0) for i in range(40)]
    )
    np.testing.assert_allclose(made, expected, rtol=1e-6)


ALL = (*OF_JAX, *OF_JRAPH, "segment_logsumexp")
NEGATIVE = np.array([0, 4, -3, -1])


@pytest.fixture(params=["where the host reads them in place", "on an accelerator"])
def place_of_ids(request, monkeypatch):
    """Concrete ids of JAX are read by the host, or as if they were in the memory of a GPU."""
    if "accelerator" in request.param:
        for module in (_id_range, segments):
            monkeypatch.setattr(module, "is_read_in_place", lambda ids: not hasattr(ids, "devices"))


@pytest.mark.usefixtures("place_of_ids")
@pytest.mark.parametrize("name", ALL)
def test_negative_ids_are_refused_wherever_concrete_ids_are(name):
    function = getattr(jaxgnn, name)
    expected = f"{name}: segment_ids must be at least zero, and num_segments or more for padding, "
    expected += "got 2 negative, the first at 2: -3"
    on_device = jnp.asarray(NEGATIVE)
    for ids in (NEGATIVE, NEGATIVE.tolist(), NEGATIVE.astype(np.int8), on_device):
        with pytest.raises(ValueError, match=re.escape(expected)):
            function(jnp.ones(4), ids, 2)
    with pytest.raises(ValueError, match=re.escape(expected)):
        function(jnp.ones(4), on_device)  # num_segments is read from them
    for ids in (NEGATIVE, on_device):  # constants of a traced function
        with pytest.raises(ValueError, match=re.escape(expected)):
            jax.eval_shape(lambda x, ids=ids: function(x, ids, 2), jnp.ones(4))


@pytest.mark.usefixtures("place_of_ids")
def test_ids_that_a_traced_function_holds_tell_the_number_of_segments():
    ids = jnp.array([0, 3, 3])
    assert jax.jit(lambda x: jaxgnn.segment_sum(x, ids))(jnp.ones(3)).tolist() == [1, 0, 0, 2]
    assert jaxgnn.segment_sum(jnp.ones(3), ids, mode="clip").shape == (4,)
    with pytest.raises(ValueError, match="num_segments must be None or an int, not traced"):
        jax.jit(lambda count: jaxgnn.segment_sum(jnp.ones(3), ids, count))(4)


def test_ids_on_an_accelerator_are_read_once(monkeypatch):
    reads = []
    monkeypatch.setattr(segments, "is_read_in_place", lambda _: False)
    monkeypatch.setattr(segments, "least_and_most", lambda ids: reads.append(ids) or (0, 1))
    first, second = jnp.array([0, 1]), jnp.array([1, 1])
    for ids in (first, first, second, first):
        jaxgnn.segment_sum(jnp.ones(2), ids, 2)
        jaxgnn.segment_max(jnp.ones(2), ids)
    assert [ids.tolist() for ids in reads] == [[0, 1], [1, 1]]


def test_negative_ids_that_nobody_reads_are_dropped_as_in_jax_ops():
    ids = jax.ShapeDtypeStruct((4,), jnp.int32)
    for name in ALL:
        function = functools.partial(getattr(jaxgnn, name), num_segments=2)
        assert jax.eval_shape(function, jax.ShapeDtypeStruct((4,), jnp.float32), ids)
    made = jax.jit(lambda ids: jaxgnn.segment_sum(jnp.arange(4.0), ids, 2))(jnp.asarray(NEGATIVE))
    assert made.tolist() == [0.0, 0.0]


def test_other_shapes_dtypes_and_defaults_are_those_of_jax_ops():
    x, ids = _data(3, (10, 2, 2)), jnp.asarray(IDS["in range"][:10])
    made, expected = jaxgnn.segment_sum(x, ids), jax.ops.segment_sum(x, ids)
    np.testing.assert_allclose(made, expected, rtol=1e-6)
    whole = jnp.arange(4)
    for name, (ours, theirs) in OF_JAX.items():
        some = jnp.asarray([0, 2, 2, 0])
        assert (ours(whole, some, 4) == theirs(whole, some, 4)).all(), name
        empty = jnp.zeros((0, 3)), jnp.zeros(0, jnp.int32)
        np.testing.assert_array_equal(ours(*empty, 2), theirs(*empty, 2))
    add = jax.jit(lambda ids: jaxgnn.segment_sum(jnp.ones(3), ids, 2))
    for ids in (np.array([0, 1, 200], np.uint8), np.array([0, 1, -7], np.int8)):
        assert add(ids).tolist() == [1.0, 1.0]
    beyond = np.array([0, 2**32, 2**31 + 1])  # ids of numpy that int32 would wrap
    assert jaxgnn.segment_sum(jnp.ones(3), beyond, 2).tolist() == [1.0, 0.0]
    small = np.array([0, 7], np.uint8)  # whose dtype has no id of the last segment
    assert jaxgnn.segment_sum(jnp.ones(2), small, 300, mode="clip")[7] == 1
    short = jaxgnn.segment_sum(jnp.full((4096,), 1.25, jnp.bfloat16), jnp.zeros(4096, int), 1)
    assert short.dtype == jnp.bfloat16 and short[0] == 5120  # where bfloat16 sums stop at 512


def test_means_of_integers_and_complex_numbers_are_exact():
    ids = np.array([1, 1, 1, 0])
    for numbers in (np.arange(4), np.arange(4).astype(np.complex64) * (2 + 1j)):
        made = jaxgnn.segment_mean(numbers, ids, 3)
        np.testing.assert_array_equal(made, [numbers[3], numbers[1], 0])
    # Sums that int8 would wrap, and that float32 would round at each step.
    for numbers in (np.array([100, 100, 100, 1], np.int8), np.array([2**25, 1, 1, 1])):
        expected = np.float32(numbers[:3].sum(dtype=np.int64)) / np.float32(3)
        assert jaxgnn.segment_mean(numbers, ids, 2).tolist() == [1, expected]


def test_means_of_integers_whose_sums_int32_does_not_hold_are_right():
    ids = np.array([0, 0, 0, 1])
    for numbers in (np.full(4, 2**30, np.int32), np.full(4, -(2**30)), np.full(4, 2**31, "uint32")):
        made = jaxgnn.segment_mean(numbers, ids, 2)
        np.testing.assert_allclose(made, np.float32(numbers[:2]), rtol=1e-6)


def test_ids_may_be_lists_of_traced_numbers_and_variables_of_flax():
    x = jnp.array([1.0, 2.0, 4.0])
    listed = jax.jit(lambda i: jaxgnn.segment_sum(x, [i, 0, i], 3))
    assert listed(2).tolist() == [2.0, 0.0, 5.0]
    of_variable = nnx.jit(lambda ids: jaxgnn.segment_sum(x, ids, 3))
    ids = nnx.Variable(jnp.array([2, 0, 2]))
    assert of_variable(ids).tolist() == jaxgnn.segment_sum(x, ids).tolist() == [2.0, 0.0, 5.0]


def test_gradients_of_any_order_are_right_and_no_scatters():
    ids, x = jnp.zeros(5, jnp.int32), random_array((5, 1), "float32", seed=4)

    def second(function):
        inner = jax.grad(lambda x: jnp.sum(function(x) ** 2))
        return jax.jit(jax.grad(lambda x: jnp.sum(inner(x) ** 2)))

    ours = second(lambda x: jaxgnn.segment_softmax(x, ids, 1))
    np.testing.assert_allclose(
        ours(x), second(lambda x: jax.nn.softmax(x, axis=0))(x), rtol=1e-4, atol=1e-6
    )
    for name in ("segment_sum", "segment_mean", "segment_max", "segment_softmax"):
        function = getattr(jaxgnn, name)
        gradient = jax.grad(lambda x, f=function: jnp.sum(f(x, ids, 1, True) ** 2))
        compiled = jax.jit(gradient).lower(x).as_text(dialect="hlo")
        # The offsets of the schedule of rows are counted by scatters of integers.
        assert not re.search(r"= f32\S* scatter\(", compiled), name
    of_jax = jax.grad(lambda x: jnp.sum(jax.ops.segment_max(x, ids, 1) ** 2))
    compiled = jax.jit(of_jax).lower(x).as_text(dialect="hlo")
    assert re.search(r"= f32\S* scatter\(", compiled)


@pytest.fixture
def on_the_cpu():
    """Runs a test of native code for CPUs there, also where JAX has a GPU."""
    assert _ffi.why_missing("cpu") is None  # and its targets are registered
    with jax.default_device(jax.devices("cpu")[0]):
        yield


@pytest.mark.usefixtures("on_the_cpu")
def test_all_ways_to_order_the_entries_agree():
    ids = jnp.asarray(IDS["any"], jnp.int32)
    indptr, order = order_module.sorted_order(ids, SEGMENTS)
    for made in (
        segment_order(ids, SEGMENTS),
        # Ascending ids are in order already, but for those that are negative.
        order_module.order_of_sorted(jnp.sort(ids), SEGMENTS),
    ):
        np.testing.assert_array_equal(made[0], indptr)
    entries = np.asarray(order)[: int(indptr[-1])]
    np.testing.assert_array_equal(np.asarray(made[1])[0], int(jnp.sum(ids < 0)))
    np.testing.assert_array_equal(segment_order(ids, SEGMENTS)[1][: len(entries)], entries)
    kept = np.asarray(ids)[entries]
    assert (np.diff(kept) >= 0).all() and ((kept >= 0) & (kept < SEGMENTS)).all()


def test_batches_of_ids_and_of_data_are_mapped():
    x, ids = _data(5, (3, COUNT, 2)), jnp.stack([jnp.asarray(i, jnp.int32) for i in IDS.values()])
    run = jax.jit(lambda x, i: jaxgnn.segment_max(x, i, SEGMENTS))
    for made, own, i in zip(jax.vmap(run)(x, ids), x, ids, strict=True):
        np.testing.assert_array_equal(made, jax.ops.segment_max(own, i, SEGMENTS))
    shared = jax.vmap(run, in_axes=(0, None))(x, ids[0])
    np.testing.assert_array_equal(shared[1], run(x[1], ids[0]))


BAD = {
    "segment_sum: segment_ids must be of an integer dtype, got float32": lambda: jaxgnn.segment_sum(
        jnp.ones(3), jnp.ones(3), 1
    ),
    r"segment_max: segment_ids must be one id for each entry.*\(2,\) for data of shape \(3,\)": (
        lambda: jaxgnn.segment_max(jnp.ones(3), jnp.ones(2, int), 1)
    ),
    "segment_mean: num_segments must be given under jit": lambda: jax.jit(jaxgnn.segment_mean)(
        jnp.ones(3), jnp.ones(3, int)
    ),
    "segment_min: num_segments must be at least zero, got -1": lambda: jaxgnn.segment_min(
        jnp.ones(3), jnp.ones(3, int), -1
    ),
    "segment_softmax: the data must be of real numbers, got complex64": lambda: (
        jaxgnn.segment_softmax(jnp.ones(3, complex), jnp.ones(3, int), 2)
    ),
    "segment_max: num_segments must be None or an int, not traced, got 2.5": lambda: (
        jaxgnn.segment_max(jnp.ones(3), jnp.ones(3, int), 2.5)
    ),
    r"segment_max: num_segments must be None or an int, not traced, got array\(2.5\)": (
        lambda: jaxgnn.segment_max(jnp.ones(3), jnp.ones(3, int), np.array(2.5))
    ),
    r"segment_max: num_segments must be None or an int, not traced, got array\(\[2\]\)": (
        lambda: jaxgnn.segment_max(jnp.ones(3), jnp.ones(3, int), np.array([2]))
    ),
    "segment_sum: mode must be None, 'drop'.*'wrap'": lambda: jaxgnn.segment_sum(
        jnp.ones(3), jnp.ones(3, int), 2, mode="wrap"
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_refused_by_name(message):
    with pytest.raises(ValueError, match=message):
        BAD[message]()
