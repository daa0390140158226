"""gatv2_attention against its formula and against float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import ops
from jaxgnn.graph import CSRGraph
from jaxgnn.testing import random_array
from tests.ops._table import BARE
from tests.ops.attention._attention import IMPLEMENTATIONS, TABLE
from tests.ops.attention._checks import check_every_gradient, check_formula

OP = "gatv2_attention"


@pytest.mark.costly
@pytest.mark.usefixtures("compiled_quickly")
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", BARE)
def test_value_weights_and_every_gradient_equal_float64_on_every_graph(name, implementation):
    check_every_gradient(OP, name, implementation)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_it_is_the_formula_written_with_loops(implementation):
    check_formula(OP, implementation)


@pytest.mark.usefixtures("compiled_quickly")
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_features_of_edges_are_equal_to_what_their_kernel_makes_of_senders(implementation):
    # Each sender has one edge, so its own features can take what the edge adds.
    graph = CSRGraph.from_edges([3, 1, 0, 2], [0, 0, 1, 3], 4)
    arrays = TABLE[OP].arrays(graph)
    added = jnp.einsum("ef,fhd->ehd", arrays.pop("edge_features"), arrays.pop("edge_kernel"))
    arrays.pop("edge_logits")
    x_src = arrays["x_src"].at[graph.indices].add(added)
    scores = arrays | {"x_src": x_src}
    _, weights = ops.gatv2_attention(
        graph, **scores, return_weights=True, implementation=implementation
    )
    identity = jnp.eye(4 * 5).reshape(20, 4, 5)
    _, of_edges = ops.gatv2_attention(
        graph,
        **arrays,
        edge_features=added.reshape(4, 20),
        edge_kernel=identity,
        return_weights=True,
        implementation=implementation,
    )
    np.testing.assert_allclose(weights, of_edges, rtol=1e-5, atol=1e-6)


@pytest.mark.costly
@pytest.mark.usefixtures("compiled_quickly")
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("heads", "dim"), [(1, 1), (3, 1), (2, 37), (5, 64)])
def test_any_number_of_heads_and_any_width(heads, dim, implementation):
    graph = CSRGraph.from_edges([0, 1, 2], [1, 1, 1], 3)
    x, z = (random_array((3, heads, dim), "float32", seed=i) for i in range(2))
    vectors = random_array((heads, dim), "float32", seed=2)
    y = ops.gatv2_attention(graph, x, z, vectors, negative_slope=0.3, implementation=implementation)
    sums = np.asarray(x, np.float64)[1] + np.asarray(z, np.float64)
    scores = np.einsum("jhd,hd->jh", np.where(sums > 0, sums, 0.3 * sums), vectors)
    p = np.exp(scores - scores.max(0))
    p /= p.sum(0)
    np.testing.assert_allclose(y[1], np.einsum("jh,jhd->hd", p, z), rtol=1e-4, atol=1e-5)
    assert not y[0].any() and not y[2].any()


def test_features_of_no_edges_have_a_gradient():
    graph = CSRGraph.from_edges(np.zeros(0, np.int32), np.zeros(0, np.int32), 3)
    x, kernel, vector = jnp.ones((3, 2, 4)), jnp.ones((5, 2, 4)), jnp.ones((2, 4))

    def total(features, kernel):
        arrays = {"edge_features": features, "edge_kernel": kernel}
        return jnp.sum(ops.gatv2_attention(graph, x, x, vector, **arrays))

    of_features, of_kernel = jax.grad(total, argnums=(0, 1))(jnp.ones((0, 5)), kernel)
    assert of_features.shape == (0, 5) and of_kernel.shape == kernel.shape and not of_kernel.any()
