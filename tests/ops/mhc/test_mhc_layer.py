"""mhc_layer against float64 autodiff of its formulae, whether its two ends are linked or not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from jaxgnn import ops
from jaxgnn.ops._mhc import mhc_layer, pallas
from jaxgnn.ops._mhc.mhc_pre import MHC_PRE
from jaxgnn.ops._mhc.reference import mhc_post as reference_post
from jaxgnn.ops._mhc.reference import mhc_pre as reference_pre
from jaxgnn.ops._mhc.reference import sinkhorn as reference_sinkhorn
from jaxgnn.ops.core.dispatch import current_platform
from jaxgnn.testing import check_against_float64, random_array
from pallas_kernels.arguments.mhc import MHCConstants, MHCParams
from tests.ops.mhc._mhc import SHAPES, length, parameters, rounded, streams

pytestmark = pytest.mark.usefixtures("compiled_quickly")

CONSTANTS = {"norm_eps": 1e-3, "pre_eps": 1e-2, "post_scale": 1.7}
BALANCE = {"iterations": 3, "eps": 1e-4, "last": "columns"}
OPTIONS = CONSTANTS | BALANCE
N, DIM = 4, 10
PARAMS = parameters(N, DIM)


def _weight(dim):
    """Parameter of the layer: sums of the input's features, of about its size."""
    return random_array((dim, dim), "float32", seed=8, scale=dim**-0.5)


def _layer(h_in, weight):
    """A layer in float32, whose input and output are rounded to the dtype of the streams.

    XLA may leave out a conversion to bfloat16 and back, and does so on a GPU; it never leaves out
    ``reduce_precision``, which rounds the gradients in the same places.
    """
    inner = rounded(h_in.astype(weight.dtype), h_in.dtype)
    return rounded(jnp.tanh(inner @ weight), h_in.dtype).astype(h_in.dtype)


WEIGHT = _weight(DIM)
SCALES = [(0.1, False), (1.0, True), (3.0, False)]


def _run(x, weight, *params, layer=_layer, **options):
    return ops.mhc_layer(lambda h: layer(h, weight), x, *params, **OPTIONS | options)


def _with(**options):
    return functools.partial(_run, **options)


def _apart(x, weight, *params, transposed=False):
    """By the ops that it consists of."""
    x, h_in, h_post, logits = ops.mhc_pre(x, *params, **CONSTANTS, return_streams=True)
    h_res = ops.sinkhorn(logits, **BALANCE)
    return ops.mhc_post(x, _layer(h_in, weight), h_post, h_res, transposed=transposed)


@functools.cache  # one function for each, so that JAX compiles it once
def _oracle(dtype, transposed):
    """The formulae. What goes into the layer and out of it is rounded, and so are its gradients."""

    @jax.custom_vjp
    def stored(a):
        return rounded(a, dtype)

    stored.defvjp(lambda a: (stored(a), None), lambda _, g: (stored(g),))

    def apply(x, weight, *params):
        (h_in, h_post, logits), _ = reference_pre.mhc_pre(
            x, MHCParams(*params), constants=MHCConstants(**CONSTANTS)
        )
        h_res = reference_sinkhorn.sinkhorn(logits, **BALANCE)
        f = stored(_layer(stored(h_in), weight))
        return reference_post.mhc_post(x, f, h_post, h_res, transposed=transposed)

    return jax.jit(apply)


def _link(monkeypatch, linked):
    """Links the ends, or not; the list is of the backward passes that were traced so."""
    if linked and MHC_PRE.unavailable("pallas", "cuda"):
        pytest.skip(f"reason: {MHC_PRE.unavailable('pallas', 'cuda')}")
    traced, backward = [], mhc_layer.PRE_BACKWARD

    def spied(*args, **options):
        traced.append("linked")
        return backward(*args, **options)

    monkeypatch.setattr(pallas, "has_paired_backward", lambda x: linked)
    monkeypatch.setattr(mhc_layer, "PRE_BACKWARD", spied)
    return traced


@pytest.fixture(params=[False, True], ids=["apart", "linked"])
def either(request, monkeypatch):
    """For tests of gradients: once with the ops apart, once with linked ends, as is asserted."""
    traced = _link(monkeypatch, request.param)
    yield
    assert bool(traced) == request.param


@pytest.fixture
def linked(monkeypatch):
    """For tests of gradients with linked ends, as is asserted."""
    traced = _link(monkeypatch, True)
    yield
    assert traced


def _check(shape, dtype="float32", transposed=False, scale=1.0):
    _, n, dim = shape
    check_against_float64(
        _with(transposed=transposed),
        _oracle(dtype, transposed),
        streams(*shape, dtype, scale),
        _weight(dim),
        *parameters(n, dim),
        reduction_length=4 * length(*shape),
    )


@pytest.mark.costly(3)
@pytest.mark.usefixtures("either")
@pytest.mark.parametrize(("scale", "transposed"), SCALES)
def test_value_and_every_gradient_equal_float64_at_every_scale_of_x(scale, transposed):
    _check(((8,), 4, 24), transposed=transposed, scale=scale)


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("shape", [SHAPES[2], SHAPES[6]])
def test_value_and_every_gradient_equal_float64_at_every_shape(shape):
    _check(shape)


@pytest.mark.usefixtures("linked")
@pytest.mark.parametrize(("scale", "transposed"), SCALES)
def test_gradients_of_the_streams_are_rounded_as_one_in_bfloat16(scale, transposed):
    _check(((2, 4), 4, 24), "bfloat16", transposed, scale)


@pytest.mark.parametrize("implementation", ["xla", None])
@pytest.mark.parametrize("transposed", [False, True])
def test_value_is_that_of_the_ops_apart(transposed, implementation, monkeypatch):
    _link(monkeypatch, True)
    x = streams((8,), N, DIM, "bfloat16")
    options = {"transposed": transposed, "implementation": implementation}
    made = jax.jit(_with(**options))(x, WEIGHT, *PARAMS)
    expected = jax.jit(functools.partial(_apart, transposed=transposed))(x, WEIGHT, *PARAMS)
    assert made.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        made.astype(jnp.float32), expected.astype(jnp.float32), rtol=1e-2, atol=1e-5
    )


def _gradients(function, *inputs):
    """To all inputs, of a loss that weighs every entry differently."""

    def loss(*inputs):
        y = function(*inputs)
        return jnp.sum(random_array(y.shape, y.dtype, seed=9) * y)

    return jax.jit(jax.grad(loss, argnums=tuple(range(len(inputs)))))(*inputs)


def _assert_same_gradients(first, second, *inputs):
    actual, expected = _gradients(first, *inputs), _gradients(second, *inputs)
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5 * max(1.0, float(jnp.abs(e).max())))


ARGUMENTS = ("x", "weight", "phi", "alpha", "bias", "gamma")


@pytest.mark.usefixtures("linked")
@pytest.mark.parametrize("name", ["x", "weight", "phi", "bias"])
def test_vmap_over_some_arguments_sums_gradients_of_the_others(name):
    inputs = [streams((3,), N, DIM), WEIGHT, *PARAMS]
    at = ARGUMENTS.index(name)
    inputs[at] = jnp.stack([inputs[at], 0.5 * inputs[at]])
    in_axes = [0 if i == at else None for i in range(len(inputs))]
    oracle = jax.vmap(_with(implementation="xla"), in_axes)
    _assert_same_gradients(jax.vmap(_run, in_axes), oracle, *inputs)


@pytest.mark.usefixtures("linked")
def test_scan_over_layers_with_checkpoint_equals_layer_after_layer():
    x = streams((3,), N, DIM)
    stacked = jax.tree.map(lambda p: jnp.stack([p, 0.5 * p]), (WEIGHT, *PARAMS))

    def scanned(x, *stacked):
        step = jax.checkpoint(_run)
        return jax.lax.scan(lambda x, params: (step(x, *params), None), x, stacked)[0]

    def unrolled(x, *stacked):
        for i in range(2):
            x = _run(x, *(p[i] for p in stacked), implementation="xla")
        return x

    _assert_same_gradients(scanned, unrolled, x, *stacked)


LAYERS = {
    "constant": lambda h, weight: jnp.broadcast_to(weight[0], h.shape),
    "without a gradient": lambda h, weight: jax.lax.stop_gradient(_layer(h, weight)),
    "identity": lambda h, weight: h,
}


@pytest.mark.usefixtures("four_devices", "linked")  # skipped before gradients are asserted
# What is constant is the same on all devices, unlike the streams.
@pytest.mark.parametrize("layer", [_layer, LAYERS["constant"]], ids=["tanh", "constant"])
def test_shard_map_over_tokens_sums_gradients_of_parameters(layer, four_devices):
    mesh = Mesh(four_devices, ("tokens",))
    tokens, whole = PartitionSpec("tokens"), PartitionSpec()
    specs = (tokens, *[whole] * 5)
    apply = _with(layer=layer)
    sharded = jax.shard_map(apply, mesh=mesh, in_specs=specs, out_specs=tokens)
    inputs = streams((8,), N, DIM), WEIGHT, *PARAMS
    _assert_same_gradients(sharded, functools.partial(apply, implementation="xla"), *inputs)


@pytest.mark.usefixtures("linked")
@pytest.mark.parametrize("name", LAYERS)
def test_layers_through_which_little_or_all_flows(name):
    apply = _with(layer=LAYERS[name])
    oracle = functools.partial(apply, implementation="xla")
    _assert_same_gradients(apply, oracle, streams((3,), N, DIM), WEIGHT, *PARAMS)


@pytest.mark.usefixtures("linked")
def test_gradients_of_gradients_equal_those_of_the_reference():
    inputs = streams((2,), 2, 4), _weight(4), *parameters(2, 4)

    def slope(x, *rest, **options):
        return jax.grad(lambda x: jnp.sum(_run(x, *rest, **options) ** 2))(x)

    _assert_same_gradients(slope, functools.partial(slope, implementation="xla"), *inputs)


def test_the_layer_is_called_once():
    calls = []
    jax.eval_shape(
        lambda x: _run(x, WEIGHT, *PARAMS, layer=lambda h, _: calls.append(h) or h),
        streams((3,), N, DIM),
    )
    assert len(calls) == 1


def test_backward_keeps_the_streams_once_and_a_few_numbers_a_token(monkeypatch):
    _link(monkeypatch, True)
    x, params = streams((32,), 4, 64, "bfloat16"), parameters(4, 64)
    apply = functools.partial(ops.mhc_layer, lambda h: h)
    saved = jax.tree.leaves(jax.eval_shape(lambda *a: jax.vjp(apply, *a)[1], x, *params))
    inputs = x.nbytes + sum(p.nbytes for p in params)
    of_a_token = (24 + 1) + 16 + 4 + 16  # of mhc_pre, logits, h_post, h_res
    kept = sum(leaf.size * leaf.dtype.itemsize for leaf in saved)
    assert kept <= inputs + 32 * (4 * of_a_token + 2 * 64)  # and the layer's output


def test_the_implicit_gradient_is_that_of_the_ops_apart(monkeypatch):
    traced = _link(monkeypatch, True)
    options = BALANCE | {"iterations": 20, "eps": 0.0, "gradient": "implicit"}
    inputs = streams((3,), N, DIM), WEIGHT, *PARAMS
    _assert_same_gradients(_with(**options), _with(**options, implementation="xla"), *inputs)
    assert not traced


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((8, 2048, 4, 1280), "bfloat16", True),
        ((16383, 4, 1280), "bfloat16", True),
        ((0, 4, 1280), "bfloat16", False),
        ((16384, 2, 1280), "bfloat16", False),
        ((16384, 3, 1280), "bfloat16", False),
        ((16384, 4, 1280), "float32", False),
        ((16384, 4, 32), "bfloat16", False),
        ((16384, 4, 100), "bfloat16", False),
        ((16384, 4, 8256), "bfloat16", False),
    ],
)
def test_ends_are_linked_where_there_are_kernels(shape, dtype, expected):
    if MHC_PRE.unavailable("pallas", "cuda"):
        pytest.skip(f"reason: {MHC_PRE.unavailable('pallas', 'cuda')}")
    assert pallas.has_paired_backward(jax.ShapeDtypeStruct(shape, dtype)) is expected


@pytest.mark.parametrize("ends_are_linked", [False, True])
@pytest.mark.parametrize("name", ["pallas", "ffi"])
def test_a_name_that_can_not_run_is_refused(name, ends_are_linked, monkeypatch):
    if MHC_PRE.unavailable(name, current_platform()) is None:
        pytest.skip(f"reason: {name} runs here")
    _link(monkeypatch, ends_are_linked)
    with pytest.raises(NotImplementedError, match=rf"mhc_pre\[{name}\]: needs"):
        _run(streams((3,), N, DIM), WEIGHT, *PARAMS, implementation=name)
