"""The ops of hyper-connections under JAX's transformations, values and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import jaxgnn
from jaxgnn import ops
from jaxgnn.testing import assert_bit_equal
from tests.ops.mhc._mhc import outputs, parameters, streams

N, DIM = 3, 10
PARAMS = parameters(N, DIM)


def _layer(x, params, implementation, fused=True):
    """Two sublayers through every op, with cheap functions in the place of layers."""
    phi, alpha, bias, gamma = params
    named = {"implementation": implementation}
    x, h_in, h_post, logits = ops.mhc_pre(x, *params, return_streams=True, **named)
    h_res = ops.sinkhorn(logits, iterations=2, **named)
    between = (x, jnp.tanh(h_in), h_post, h_res)
    if fused:
        x, h_in, h_post, logits = ops.mhc_post_pre(*between, *params, **named)
    else:
        x = ops.mhc_post(*between, **named)
        h_in, h_post, logits = ops.mhc_pre(x, *params, **named)
    h_res = ops.sinkhorn(logits, iterations=2, **named)
    x = ops.mhc_post(x, jnp.sin(h_in), h_post, h_res, **named)
    head = ops.mhc_head(x, phi[:N], alpha[0], bias[:N], gamma, **named)
    return x + ops.mhc_expand(head, N, **named)


def _value_and_gradients(x, params, implementation, wrap=lambda f: f):
    def loss(x, params):
        return jnp.mean(
            wrap(functools.partial(_layer, implementation=implementation))(x, params) ** 2
        )

    return jax.value_and_grad(loss, argnums=(0, 1))(x, params)


def _assert_near(actual, expected):
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5 * max(1.0, float(jnp.abs(e).max())))


@pytest.fixture(scope="module")
def expected():
    """By plain autodiff of the references."""
    run = jax.jit(functools.partial(_value_and_gradients, implementation="xla"))
    return run(streams((8,), N, DIM), PARAMS)


def test_the_written_backward_with_and_without_jit_equals_autodiff(expected):
    run = functools.partial(_value_and_gradients, implementation=None)
    for function in (run, jax.jit(run)):
        _assert_near(function(streams((8,), N, DIM), PARAMS), expected)


def test_fused_boundary_equals_the_two_ops():
    x = streams((8,), N, DIM)
    _assert_near(_layer(x, PARAMS, None), _layer(x, PARAMS, None, fused=False))


def test_vmap_over_streams_equals_a_leading_axis():
    x = streams((2, 4), N, DIM)
    apply = functools.partial(_layer, params=PARAMS, implementation=None)
    together = jax.jit(apply)(x)
    _assert_near(jax.jit(jax.vmap(jax.vmap(apply)))(x), together)
    _assert_near(jax.jit(jax.vmap(apply, in_axes=1, out_axes=1))(x), together)


def test_vmap_of_grad_sums_nothing_over_the_batch():
    x = streams((3, 4), N, DIM)
    gradients = jax.jit(functools.partial(_value_and_gradients, implementation=None))
    batched = jax.jit(jax.vmap(gradients, in_axes=(0, None)))(x, PARAMS)
    for i in range(3):
        _assert_near(jax.tree.map(lambda a, i=i: a[i], batched), gradients(x[i], PARAMS))


def test_vmap_over_parameters():
    x = streams((4,), N, DIM)
    both = jax.tree.map(lambda p: jnp.stack([p, 0.5 * p]), PARAMS)
    gradients = jax.jit(functools.partial(_value_and_gradients, implementation=None))
    batched = jax.jit(jax.vmap(gradients, in_axes=(None, 0)))(x, both)
    for i in range(2):
        one = gradients(x, jax.tree.map(lambda p, i=i: p[i], both))
        _assert_near(jax.tree.map(lambda a, i=i: a[i], batched), one)


# The ops that have a result of the streams beside others, and their arguments.
WITH_STREAMS = {
    "mhc_pre": (
        functools.partial(ops.mhc_pre, return_streams=True),
        (streams((4,), N, DIM), *PARAMS),
    ),
    "mhc_post_pre": (
        ops.mhc_post_pre,
        (streams((4,), N, DIM), *outputs((4,), N, DIM), *PARAMS),
    ),
}


@pytest.mark.usefixtures("compiled_quickly")
@pytest.mark.parametrize("name", WITH_STREAMS)
def test_the_gradient_of_a_vmap_of_any_one_argument_equals_autodiff(name):
    op, arguments = WITH_STREAMS[name]

    def gradients(mapped, implementation):
        axes = [0 if i == mapped else None for i in range(len(arguments))]
        batched = [
            jnp.stack([a, 0.5 * a, -a]) if i == mapped else a for i, a in enumerate(arguments)
        ]

        def loss(*batched):
            run = functools.partial(op, implementation=implementation)
            results = jax.tree.leaves(jax.vmap(run, in_axes=axes)(*batched))
            return sum(jnp.sum(jnp.sin(result)) for result in results)

        return jax.jit(jax.grad(loss, argnums=range(len(arguments))))(*batched)

    for mapped in range(len(arguments)):
        _assert_near(gradients(mapped, None), gradients(mapped, "xla"))


def test_the_streams_that_are_returned_are_not_copied():
    op, arguments = WITH_STREAMS["mhc_pre"]
    assert "select" in str(jax.make_jaxpr(op)(*arguments))
    assert " select(" not in jax.jit(op).lower(*arguments).compile().as_text()


def test_scan_over_layers_with_checkpoint_equals_layer_after_layer():
    x, stacked = streams((4,), N, DIM), jax.tree.map(lambda p: jnp.stack([p, 0.5 * p]), PARAMS)

    def scanned(x, stacked):
        step = jax.checkpoint(functools.partial(_layer, implementation=None))
        y, _ = jax.lax.scan(lambda x, params: (step(x, params), None), x, stacked)
        return jnp.mean(y**2)

    def unrolled(x, stacked):
        for i in range(2):
            x = _layer(x, jax.tree.map(lambda p, i=i: p[i], stacked), None)
        return jnp.mean(x**2)

    actual, expected = (
        jax.jit(jax.grad(loss, argnums=(0, 1)))(x, stacked) for loss in (scanned, unrolled)
    )
    _assert_near(actual, expected)


@pytest.mark.parametrize("implementation", ["xla", None])
def test_shard_map_over_tokens_sums_gradients_of_parameters(implementation, expected, four_devices):
    mesh = Mesh(four_devices, ("tokens",))
    spec = PartitionSpec("tokens")
    wrap = functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=spec
    )
    run = functools.partial(_value_and_gradients, implementation=implementation, wrap=wrap)
    _assert_near(jax.jit(run)(streams((8,), N, DIM), PARAMS), expected)


def test_deterministic_mode_repeats_to_the_bit():
    x = streams((8,), N, DIM)
    with jaxgnn.deterministic():
        run = jax.jit(functools.partial(_value_and_gradients, implementation=None))
        assert_bit_equal(run(x, PARAMS), run(x, PARAMS))


def test_a_name_that_the_table_lacks_is_refused():
    x, between = streams((2,), N, DIM), outputs((2,), N, DIM)
    calls = {
        "mhc_pre": lambda: ops.mhc_pre(x, *PARAMS, implementation="ffi"),
        "mhc_pre.static": lambda: ops.mhc_pre(x, None, None, PARAMS[2], implementation="ffi"),
        "mhc_post": lambda: ops.mhc_post(x, *between, implementation="ffi"),
        "mhc_post_pre": lambda: ops.mhc_post_pre(x, *between, *PARAMS, implementation="ffi"),
        "sinkhorn": lambda: ops.sinkhorn(between[2], implementation="ffi"),
        "permutation_mixture": lambda: ops.permutation_mixture(x[0, 0, :2], implementation="ffi"),
        "mhc_expand": lambda: ops.mhc_expand(x, 2, implementation="ffi"),
    }
    for name, call in calls.items():
        with pytest.raises(NotImplementedError, match=rf"{name}\[ffi\]: needs one of"):
            call()
