"""Modules of Haiku, Flax Linen, Equinox, jraph and e3nn-jax run under fuse, on the ops."""

import e3nn_jax as e3nn
import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import jraph
import numpy as np
import pytest

import jaxgnn
from tests.fusion._cases import EDGES, NODES, RECEIVERS, SENDERS, applied, arrays, fuse

X, W = arrays((NODES, 4), (EDGES, 1))


@pytest.fixture(autouse=True)
def dtypes_are_promoted_as_for_users():
    with jax.numpy_dtype_promotion("standard"):
        yield


def _mean(x):
    counts = jax.ops.segment_sum(jnp.ones_like(RECEIVERS), RECEIVERS, NODES)
    total = jax.ops.segment_sum(x[SENDERS], RECEIVERS, NODES)
    return total / jnp.maximum(counts, 1)[:, None].astype(x.dtype)


def _assert_same_gradients(fn, fused, *args):
    def slopes(f):
        return jax.jit(jax.grad(lambda *args: jnp.sin(f(*args)).sum(), range(len(args))))(*args)

    for made, expected in zip(*map(jax.tree.leaves, (slopes(fused), slopes(fn))), strict=True):
        np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)


def test_a_haiku_module():
    def forward(x):
        x = jax.nn.relu(_mean(hk.Linear(6)(x)))
        return _mean(hk.nets.MLP([5, 3])(x))

    module = hk.without_apply_rng(hk.transform(forward))
    parameters = module.init(jax.random.key(0), X)
    fused = fuse(module.apply)
    assert applied(fused, parameters, X).count("spmm") == 2
    np.testing.assert_allclose(fused(parameters, X), module.apply(parameters, X), atol=1e-5)
    _assert_same_gradients(module.apply, fused, parameters, X)


def test_a_haiku_module_with_state_and_random_numbers():
    def forward(x):
        total = hk.get_state("total", (), init=jnp.zeros)
        hk.set_state("total", total + x.sum())
        return _mean(hk.dropout(hk.next_rng_key(), 0.5, hk.Linear(6)(x)))

    module = hk.transform_with_state(forward)
    parameters, state = module.init(jax.random.key(0), X)
    args = parameters, state, jax.random.key(1), X
    fused = fuse(module.apply)
    assert "spmm" in applied(fused, *args)
    for made, expected in zip(
        *map(jax.tree.leaves, (fused(*args), module.apply(*args))), strict=True
    ):
        np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)


class _Linen(nn.Module):
    @nn.compact
    def __call__(self, x):
        return _mean(nn.Dense(5)(nn.LayerNorm()(x)))


def test_a_linen_module():
    module = _Linen()
    parameters = module.init(jax.random.key(0), X)
    fused = fuse(module.apply)
    assert "spmm" in applied(fused, parameters, X)
    np.testing.assert_allclose(fused(parameters, X), module.apply(parameters, X), atol=1e-5)
    _assert_same_gradients(module.apply, fused, parameters, X)


class _Equinox(eqx.Module):
    linear: eqx.nn.Linear
    depth: int = eqx.field(static=True)

    def __call__(self, x):
        for _ in range(self.depth):
            x = jnp.tanh(_mean(jax.vmap(self.linear)(x)))
        return x


def test_an_equinox_module():
    module = _Equinox(eqx.nn.Linear(4, 4, key=jax.random.key(0)), 2)
    fused = fuse(module)
    assert applied(fused, X).count("spmm") == 2
    np.testing.assert_allclose(fused(X), module(X), rtol=1e-5, atol=1e-5)

    def loss(module, x, wrap):
        return jnp.sum(wrap(module)(x) ** 2)

    made, expected = (
        eqx.filter_grad(lambda m, wrap=wrap: loss(m, X, wrap))(module)
        for wrap in (fuse, lambda module: module)
    )
    for one, other in zip(*map(jax.tree.leaves, (made, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_an_equinox_module_compiled_by_its_own_jit():
    module = _Equinox(eqx.nn.Linear(4, 4, key=jax.random.key(0)), 1)
    made = eqx.filter_jit(lambda module, x: fuse(module)(x))(module, X)
    np.testing.assert_allclose(made, module(X), rtol=1e-5, atol=1e-5)


def test_a_jraph_network_of_haiku_modules():
    def forward(x):
        counts = jnp.array([NODES]), jnp.array([EDGES])
        graph = jraph.GraphsTuple(x, None, RECEIVERS, SENDERS, None, *counts)
        graph = jraph.GraphConvolution(hk.Linear(5), add_self_edges=True)(graph)
        layer = jraph.InteractionNetwork(
            update_edge_fn=lambda edges, sent, received: hk.nets.MLP([6, 5])(
                jnp.concatenate([received, sent], -1)
            ),
            update_node_fn=lambda nodes, received: nodes + received,
        )
        return layer(graph).nodes

    module = hk.without_apply_rng(hk.transform(forward))
    parameters = module.init(jax.random.key(0), X)
    fused = fuse(module.apply)
    assert {"spmm", "edge_mlp_aggregate"} <= set(applied(fused, parameters, X))
    np.testing.assert_allclose(
        fused(parameters, X), module.apply(parameters, X), rtol=1e-4, atol=1e-5
    )


def test_scatter_sum_of_e3nn():
    def run(x, w):
        x = e3nn.IrrepsArray("1x0e + 1x1o", x)
        return e3nn.scatter_sum(x[SENDERS] * w, dst=RECEIVERS, output_size=NODES).array

    fused = fuse(run)
    assert applied(fused, X, W) == ["spmm"]
    np.testing.assert_allclose(fused(X, W), run(X, W), rtol=1e-5, atol=1e-5)


def test_arrays_of_e3nn_are_arguments_and_results():
    def run(x):
        x = e3nn.tensor_square(x)[SENDERS]
        return e3nn.scatter_sum(x, dst=RECEIVERS, output_size=NODES)

    x = e3nn.IrrepsArray("1x0e + 1x1o", X)
    made, expected = fuse(run)(x), run(x)
    assert applied(fuse(run), x) == ["spmm"]
    assert made.irreps == expected.irreps
    np.testing.assert_allclose(made.array, expected.array, rtol=1e-5, atol=1e-5)


@pytest.mark.again("tests/fusion/recognise/test_irregular_code.py")
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64:UserWarning")
def test_a_neighbour_list_of_jax_md():
    from jax_md import energy, partition, space

    displacement, _ = space.periodic(4.0)
    positions = jax.random.uniform(jax.random.key(0), (20, 3)) * 4
    neighbour_fn, energy_fn = energy.lennard_jones_neighbor_list(
        displacement, 4.0, sigma=0.5, r_cutoff=2.0, format=partition.Dense
    )
    neighbours = neighbour_fn.allocate(positions)

    def run(positions):
        return energy_fn(positions, neighbor=neighbours)

    fused = fuse(run)
    np.testing.assert_allclose(fused(positions), run(positions), rtol=1e-5)
    np.testing.assert_allclose(
        jax.grad(fused)(positions), jax.grad(run)(positions), rtol=1e-4, atol=1e-3
    )
    assert "gather" in str(jaxgnn.fuse.explain(run, positions, measure=False))
