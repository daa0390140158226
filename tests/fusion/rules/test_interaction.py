"""Interaction blocks in plain JAX, in libraries' spellings, become ``ops.interaction``."""

import functools

import equinox
import flax.linen
import flax.nnx
import haiku
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn.fusion.program.program import Program
from jaxgnn.fusion.program.variables import View
from jaxgnn.fusion.recognise.norms import norm_of
from tests.fusion._cases import (
    EDGES,
    NODES,
    RECEIVERS,
    SENDERS,
    applied,
    arrays,
    assert_same,
    fuse,
    refused,
)

WIDTH = 6
H, E = arrays((NODES, WIDTH), (EDGES, WIDTH))
FIRST, SECOND, ROWS = arrays((3 * WIDTH, 8), (8, WIDTH), (3, WIDTH), seed=1)
BIAS, SCALE, OFFSET = ROWS
ORDER = np.argsort(np.asarray(RECEIVERS), kind="stable")


def _layer_norm(x):
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.var(x, axis=-1, keepdims=True) + 1e-5) * SCALE + OFFSET


def _update(h, e, receivers=RECEIVERS, senders=SENDERS, norm=_layer_norm, activation=jax.nn.silu):
    x = jnp.concatenate([h[receivers], h[senders], e], axis=-1)
    return norm(activation(x @ FIRST) @ SECOND + BIAS)


def _sum(of_edges, ids=RECEIVERS):
    return jax.ops.segment_sum(of_edges, ids, NODES)


def _graphcast(h, e):
    update = _update(h, e)
    return _sum(update), e + update


def _sorted(h, e):
    receivers, senders = RECEIVERS[ORDER], SENDERS[ORDER]
    update = _update(h, e, receivers, senders)
    return _sum(update, receivers), e + update


def _edges_are_summed(h, e):
    e = e + _update(h, e, activation=jax.nn.relu)
    return _sum(e), e


def _graph_network(h, e):
    update = _update(h, e, norm=lambda x: x)
    return _sum(update), _sum(update, SENDERS), update


def _update_is_kept(h, e):
    update = _update(h, e)
    return _sum(update), jnp.sin(update)


def _two_steps(h, e):
    for _ in range(2):
        update = _update(h, e)
        h, e = h + jnp.tanh(_sum(update)), e + update
    return h, e


def _other_order_of_columns(h, e):
    x = jnp.concatenate([e, h[SENDERS], h[RECEIVERS]], axis=-1)
    update = _layer_norm(jax.nn.silu(x @ FIRST) @ SECOND)
    return _sum(update), e + update


BLOCKS = {
    "as in GraphCast": (_graphcast, 1),
    "sorted edges": (_sorted, 1),
    "edges are summed": (_edges_are_summed, 1),
    "a graph network without a norm": (_graph_network, 1),
    "the update is read by other code": (_update_is_kept, 1),
    "two steps": (_two_steps, 2),
    "columns in another order": (_other_order_of_columns, 1),
}


@pytest.mark.costly(3)
@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_becomes_the_op_with_equal_values_and_gradients(name):
    function, count = BLOCKS[name]
    fused = fuse(function)
    assert applied(fused, H, E).count("interaction") == count
    assert_same(fused, function, H, E)


def _drops_edges(h, e):
    update = _update(h, e)
    ids = jnp.where(jnp.arange(EDGES) % 5 == 0, NODES + 3, RECEIVERS)
    return _sum(update, ids), e + update


def _norm_of_edges_and_features(h, e):
    update = _update(h, e, norm=lambda x: x / jnp.sqrt(jnp.mean(x * x) + 1e-5))
    return _sum(update), e + update


def _summed_twice_with_another_factor(h, e):
    update = _update(h, e)
    return _sum(e + 2 * update), e + update


@pytest.mark.parametrize(
    "function", [_drops_edges, _norm_of_edges_and_features, _summed_twice_with_another_factor]
)
def test_other_code_is_not_taken_for_a_block(function):
    fused = fuse(function)
    assert "interaction" not in applied(fused, H, E)
    assert_same(fused, function, H, E)


def test_dropped_edges_are_named():
    assert "drops some edges, whose new features are needed" in refused(fuse(_drops_edges), H, E)


def _haiku(module):
    made = haiku.without_apply_rng(haiku.transform(module))
    variables = made.init(jax.random.key(0), jnp.ones((5, WIDTH)))
    return functools.partial(made.apply, variables)


def _linen():
    module = flax.linen.LayerNorm()
    variables = module.init(jax.random.key(0), jnp.ones((5, WIDTH)))
    return functools.partial(module.apply, variables)


NORMS = {
    "haiku": (lambda: _haiku(lambda x: haiku.LayerNorm(-1, True, True)(x)), "layer"),
    "haiku, rms": (lambda: _haiku(lambda x: haiku.RMSNorm(-1)(x)), "rms"),
    "linen": (_linen, "layer"),
    "nnx": (lambda: flax.nnx.LayerNorm(WIDTH, rngs=flax.nnx.Rngs(0)), "layer"),
    "nnx, rms": (lambda: flax.nnx.RMSNorm(WIDTH, rngs=flax.nnx.Rngs(0)), "rms"),
    "equinox": (lambda: jax.vmap(equinox.nn.LayerNorm(WIDTH)), "layer"),
    "jax.nn.standardize": (lambda: jax.nn.standardize, "layer"),
    "a quotient": (lambda: lambda x: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(_var(x)), "layer"),
    "another variance": (
        lambda: lambda x: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(_var(2 * x)),
        None,
    ),
    "another axis": (lambda: lambda x: (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-5), None),
    "another mean": (lambda: lambda x: (x - x.sum(-1, keepdims=True)) / jnp.sqrt(_var(x)), None),
}


def _var(x):
    return x.var(-1, keepdims=True) + 1e-5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", NORMS)
def test_norms_of_libraries_are_recognised_and_others_are_not(name, dtype):
    make, kind = NORMS[name]
    with jax.numpy_dtype_promotion("standard"):  # libraries rely on it
        program = Program.from_jaxpr(jax.make_jaxpr(make())(jnp.ones((5, WIDTH), dtype)))
    found = norm_of(View(program, {}), program.outputs[0])
    assert (found and found.kind) == kind
    if found is not None:
        assert found.y is program.inputs[0] and 0.9e-6 < found.eps < 1.1e-5
