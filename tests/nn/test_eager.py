"""Layers called outside of ``jit`` are compiled once, their gradients too, and leave nothing."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxgnn import nn, ops
from jaxgnn.testing import random_array
from tests._eager_costs import assert_costs_nothing_again
from tests.nn._table import GRAPH, LAYERS, STREAMS, X, public_modules, total

# Options under which a layer runs other code.
VARIANTS = {
    "ExpertCoupler": {"activation": jnp.tanh},
    "FusedLinear": {"activation": ops.MaxK(2)},
    "HyperConnection": {"mixing": "permutations"},
    "HyperStack": {"recompute_every": 2},
    "MaxK": {"early_stop": 3},
    "MessagePassing": {"recompute_every": 2},
}
ALL = [
    *((name, None, False) for name in LAYERS),
    *((name, None, True) for name in VARIANTS),
    *((name, "xla", False) for name in ("HyperStack", "MessagePassing", "SAGEConv")),
]


def test_the_table_has_every_layer():
    assert set(LAYERS) == public_modules(nn)


def assert_cheap(module, case):
    """Values, with dropout too, and gradients to the parameters."""

    def loss(module):
        options = {"rngs": nnx.Rngs(dropout=0)} if case.drops else {}
        return total(module(*case.args, **options))

    has_parameters = bool(jax.tree.leaves(nnx.state(module, nnx.Param)))

    def call():
        return module(*case.args), nnx.grad(loss)(module) if has_parameters else None

    assert_costs_nothing_again(call)


@pytest.mark.costly
@pytest.mark.parametrize("name, implementation, varied", ALL)
def test_a_layer_is_compiled_once_and_leaves_nothing(name, implementation, varied):
    module = LAYERS[name].make(nnx.Rngs(0), **(VARIANTS[name] if varied else {}))
    with ops.default_implementation(implementation):
        assert_cheap(module, LAYERS[name])


def test_steps_with_everything_that_they_take_are_compiled_once():
    layer = LAYERS["MessagePassing"].make(nnx.Rngs(0))
    options = {"warm_up": 2, "num_steps": 4, "readout": nnx.Linear(8, 3, rngs=nnx.Rngs(1))}

    def call(x):
        h, outputs = layer(GRAPH, x, **options, rngs=nnx.Rngs(dropout=0))
        return jnp.sum(h) + jnp.sum(outputs)

    assert_costs_nothing_again(lambda: jax.value_and_grad(call)(X))


def test_eager_steps_are_those_of_jit():
    layer = LAYERS["MessagePassing"].make(nnx.Rngs(0))

    def run(x):
        return layer(GRAPH, x, num_steps=2, warm_up=jnp.int32(2), rngs=nnx.Rngs(dropout=0))

    assert jnp.allclose(run(X), jax.jit(run)(X), rtol=1e-5, atol=1e-6)


def test_steps_that_are_constants_of_a_gradient_leave_nothing():
    layer = LAYERS["MessagePassing"].make(nnx.Rngs(0))
    gradient = jax.grad(lambda x: jnp.sum(x * layer(GRAPH, X)))
    assert_costs_nothing_again(lambda: gradient(X))


class _Counting(nnx.Module):
    """A layer with state, a random stream of its own, and options of several kinds."""

    def __init__(self, rngs):
        self.calls = nnx.BatchStat(jnp.zeros(()))
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x, power, shift, *, rngs=None):
        self.calls[...] += 1
        x = self.dropout(x) if rngs is None else self.dropout(x, rngs=rngs)
        return x**power + shift


def test_a_stack_that_recomputes_passes_on_state_and_options_when_eager():
    layers = [
        nn.HyperConnection(_Counting(nnx.Rngs(dropout=i)), 8, num_streams=2, rngs=nnx.Rngs(i))
        for i in range(2)
    ]
    stack = nn.HyperStack(layers, recompute_every=1)
    shift = random_array((8,), "float32", seed=3)
    first = stack(STREAMS, 2, shift)
    second = stack(STREAMS, 2, shift)
    assert not jnp.allclose(first, second)  # the streams of random numbers have gone on
    assert [float(c.layer.calls[...]) for c in stack.layers] == [2.0, 2.0]
    rngs = nnx.Rngs(dropout=0)
    third = stack(STREAMS, 2, shift, rngs=rngs)
    assert int(rngs["dropout"].count[...]) == 2
    assert not jnp.allclose(third, stack(STREAMS, 2, 2 * shift, rngs=nnx.Rngs(dropout=0)))
    assert_costs_nothing_again(lambda: stack(STREAMS, 2, shift, rngs=nnx.Rngs(dropout=0)))
