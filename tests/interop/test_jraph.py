"""``jaxgnn.interop.jraph`` has jraph's names, gives what jraph gives, and passes jraph's tests."""

import functools
import pickle

import jax
import jax.numpy as jnp
import jraph
import numpy as np
import pytest

import jaxgnn
from jaxgnn.interop import jraph as ours
from jaxgnn.testing import random_array
from tests.interop import jraphs_own


def test_all_public_names_are_there_and_segment_functions_are_ours():
    public = {name for name in dir(jraph) if not name.startswith("_")}
    assert public == set(dir(ours)) and set(jraph.__all__) <= public
    assert ours.GraphsTuple is jraph.GraphsTuple
    for name in public:
        if name.startswith("segment_"):
            assert getattr(ours, name).__wrapped__ is getattr(jaxgnn, name)
            assert pickle.loads(pickle.dumps(getattr(ours, name))) is getattr(ours, name)
    assert ours.GraphNetwork.__defaults__[1] is ours.segment_sum
    assert jraph.GraphNetwork.__defaults__[1] is jraph.segment_sum  # which is as it was
    with pytest.raises(AttributeError, match="nonesuch"):
        _ = ours.nonesuch


def test_negative_ids_are_dropped_as_in_jraph():
    x, ids = jnp.array([5.0, 1.0, 7.0, 1.0]), np.array([-1, 0, 9, 0])
    for name in ("segment_sum", "segment_mean", "segment_max_or_constant", "segment_variance"):
        made, expected = (getattr(module, name)(x, ids, 2) for module in (ours, jraph))
        np.testing.assert_array_equal(made, expected)
    with pytest.raises(ValueError, match="got 1 negative, the first at 0: -1"):
        jaxgnn.segment_sum(x, ids, 2)


@functools.cache
def _graph() -> jraph.GraphsTuple:
    """Two graphs of 6 and 4 nodes."""
    rng = np.random.default_rng(0)
    ends = [np.concatenate([rng.integers(0, 6, 14), 6 + rng.integers(0, 4, 8)]) for _ in "sr"]
    return jraph.GraphsTuple(
        nodes=random_array((10, 4), "float32", seed=1),
        edges=random_array((22, 4), "float32", seed=2),
        globals=random_array((2, 4), "float32", seed=3),
        senders=jnp.asarray(ends[0], jnp.int32),
        receivers=jnp.asarray(ends[1], jnp.int32),
        n_node=jnp.array([6, 4], jnp.int32),
        n_edge=jnp.array([14, 8], jnp.int32),
    )


def _sum_of(*arrays):
    return sum(jnp.tanh(jnp.sum(a, -1, keepdims=True) * jnp.ones(4)) for a in arrays)


def _attention_logits(sent, received, edges):
    del edges
    return jnp.sum(sent * received, axis=-1, keepdims=True)


NETWORKS = {
    "GraphNetwork": lambda m: m.GraphNetwork(
        lambda e, s, r, g: _sum_of(e, s, r, g),
        lambda n, s, r, g: _sum_of(n, s, r, g),
        lambda n, e, g: _sum_of(n, e, g),
    ),
    "InteractionNetwork": lambda m: m.InteractionNetwork(
        lambda e, s, r: _sum_of(e, s, r), lambda n, r: _sum_of(n, r)
    ),
    "GAT": lambda m: m.GAT(
        lambda n: 2 * n, lambda s, r, e: _attention_logits(s, r, e), lambda n: jnp.tanh(n)
    ),
    "GraphConvolution": lambda m: m.GraphConvolution(lambda n: jnp.tanh(n), add_self_edges=True),
}


@pytest.mark.costly
@pytest.mark.parametrize("name", NETWORKS)
def test_models_and_their_gradients_are_those_of_jraph(name):
    def run(module):
        network = NETWORKS[name](module)

        def total(nodes):
            graph = _graph()._replace(nodes=nodes)
            if name in ("GAT", "GraphConvolution"):
                graph = graph._replace(edges=None, globals=None)
            leaves = jax.tree.leaves(network(graph)._replace(senders=None, receivers=None))
            return sum(jnp.sum(leaf**2) for leaf in leaves if leaf.dtype == jnp.float32)

        return jax.value_and_grad(total)

    with jax.numpy_dtype_promotion("standard"):
        made, expected = jax.jit(lambda x: (run(ours)(x), run(jraph)(x)))(_graph().nodes)
    jax.tree.map(
        lambda a, e: np.testing.assert_allclose(a, e, rtol=2e-5, atol=1e-5), made, expected
    )


@pytest.mark.again("tests/ops/aggregate/test_segments.py")
@pytest.mark.costly(1)
@pytest.mark.parametrize("name", jraphs_own.FILES)
def test_jraphs_own_tests_of_segments_and_of_models_pass(name):
    reason = jraphs_own.why_missing()
    if reason is not None:
        pytest.skip(f"reason: {reason}")
    assert jraphs_own.failures(name, "jaxgnn") == {}
