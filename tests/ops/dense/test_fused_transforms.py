"""The fused linear layers under JAX's transformations, values and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import jaxgnn
from jaxgnn import ops
from jaxgnn.testing import assert_bit_equal
from tests.ops.dense._linear import features, layer, layers

IN = 6
PARAMS = layer(IN, 8), layers((8, 12, 5, IN)), layer(IN, IN, seed=7)


def _network(x, params, implementation=None):
    """Every op once: smooth and not, with the result of MaxK expanded."""
    first, (kernels, biases), last = params
    named = {"implementation": implementation}
    h = ops.fused_linear(x, *first, activation="gelu", **named)
    h = ops.fused_mlp(h, kernels, biases, activation="relu", **named)
    kept = ops.fused_linear(h, *last, activation=ops.MaxK(3), **named)
    return kept.todense()


def _value_and_gradients(x, params, implementation=None, wrap=lambda f: f):
    def loss(x, params):
        apply = wrap(functools.partial(_network, implementation=implementation))
        return jnp.mean(apply(x, params) ** 2)

    return jax.value_and_grad(loss, argnums=(0, 1))(x, params)


COMPILED = jax.jit(_value_and_gradients)


def _assert_near(actual, expected):
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5 * max(1.0, float(jnp.abs(e).max())))


@pytest.fixture(scope="module")
def expected():
    """By plain autodiff of the references."""
    run = jax.jit(functools.partial(_value_and_gradients, implementation="xla"))
    return run(features((8, IN)), PARAMS)


def test_the_written_backward_with_and_without_jit_equals_autodiff(expected):
    for function in (_value_and_gradients, COMPILED):
        _assert_near(function(features((8, IN)), PARAMS), expected)


def test_vmap_over_rows_equals_a_leading_axis():
    x = features((3, 4, IN))
    together = jax.jit(_network)(x, PARAMS)
    over_rows = jax.vmap(jax.vmap(_network, in_axes=(0, None)), in_axes=(1, None), out_axes=1)
    _assert_near(jax.jit(over_rows)(x, PARAMS), together)


@pytest.mark.parametrize("axes", [(0, None), (None, 0)], ids=["rows", "parameters"])
def test_vmap_of_grad_over_rows_or_parameters_equals_one_by_one(axes):
    if axes[0] == 0:
        given = features((2, 4, IN)), PARAMS
    else:
        given = features((4, IN)), jax.tree.map(lambda p: jnp.stack([p, 0.5 * p]), PARAMS)
    batched = jax.jit(jax.vmap(_value_and_gradients, in_axes=axes))(*given)
    for i in range(2):
        x, params = (
            arrays if axis is None else jax.tree.map(lambda a, i=i: a[i], arrays)
            for axis, arrays in zip(axes, given, strict=True)
        )
        _assert_near(jax.tree.map(lambda a, i=i: a[i], batched), COMPILED(x, params))


def test_scan_over_layers_with_checkpoint_equals_layer_after_layer():
    x, stacked = features((4, IN)), jax.tree.map(lambda p: jnp.stack([p, 0.5 * p]), PARAMS)

    def scanned(x, stacked):
        step = jax.checkpoint(_network)
        y, _ = jax.lax.scan(lambda x, params: (step(x, params), None), x, stacked)
        return jnp.mean(y**2)

    def unrolled(x, stacked):
        for i in range(2):
            x = _network(x, jax.tree.map(lambda p, i=i: p[i], stacked), "xla")
        return jnp.mean(x**2)

    actual, expected = (
        jax.jit(jax.grad(loss, argnums=(0, 1)))(x, stacked) for loss in (scanned, unrolled)
    )
    _assert_near(actual, expected)


@pytest.mark.parametrize("implementation", ["xla", None])
def test_shard_map_over_rows_sums_gradients_of_parameters(implementation, expected, four_devices):
    mesh = Mesh(four_devices, ("rows",))
    spec = PartitionSpec("rows")
    wrap = functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=spec
    )
    run = functools.partial(_value_and_gradients, implementation=implementation, wrap=wrap)
    _assert_near(jax.jit(run)(features((8, IN)), PARAMS), expected)


def test_the_gradient_can_be_differentiated():
    x, (first, (kernels, biases), _) = features((4, IN)), PARAMS

    def squared_gradient(x, implementation):
        def loss(x):
            h = ops.fused_linear(x, *first, activation="mish", implementation=implementation)
            y = ops.fused_mlp(h, kernels, biases, activation="silu", implementation=implementation)
            return jnp.sum(y**2)

        return jnp.sum(jax.grad(loss)(x) ** 2)

    actual, expected = (
        jax.jit(jax.grad(functools.partial(squared_gradient, implementation=i)))(x)
        for i in (None, "xla")
    )
    _assert_near(actual, expected)


def test_deterministic_mode_repeats_to_the_bit():
    x = features((8, IN))
    with jaxgnn.deterministic():
        assert_bit_equal(COMPILED(x, PARAMS), COMPILED(x, PARAMS))


def test_a_name_that_the_table_lacks_is_refused():
    x, (first, (kernels, biases), _) = features((8, IN)), PARAMS
    calls = {
        r"fused_linear\[ffi\]": lambda: ops.fused_linear(x, *first, implementation="ffi"),
        r"fused_mlp\[ffi\]": lambda: ops.fused_mlp(
            jnp.ones((2, 8)), kernels, biases, activation=None, implementation="ffi"
        ),
    }
    for name, call in calls.items():
        with pytest.raises(NotImplementedError, match=f"{name}: needs one of"):
            call()
