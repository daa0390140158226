"""gat_attention against its formula and against float64."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import ops
from jaxgnn.graph import CSRGraph
from jaxgnn.testing import random_array
from tests.ops._table import BARE
from tests.ops.attention._attention import IMPLEMENTATIONS, TABLE
from tests.ops.attention._checks import check_every_gradient, check_formula

OP = "gat_attention"


@pytest.mark.costly
@pytest.mark.usefixtures("compiled_quickly")
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", BARE)
def test_value_weights_and_every_gradient_equal_float64_on_every_graph(name, implementation):
    check_every_gradient(OP, name, implementation)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_it_is_the_formula_written_with_loops(implementation):
    check_formula(OP, implementation)


@pytest.mark.costly
@pytest.mark.usefixtures("compiled_quickly")
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("slope", [0.0, 1.0, -0.5])
def test_minus_infinity_masks_an_edge_whatever_the_slope(slope, implementation):
    graph = CSRGraph.from_edges([0, 1, 2, 0], [0, 0, 0, 1], 3)
    logits = jnp.array([[0.5], [-jnp.inf], [-2.0], [-jnp.inf]])
    zeros, v = jnp.zeros((3, 1)), random_array((3, 1, 4), "float32", seed=3)
    y, weights = ops.gat_attention(
        graph,
        zeros,
        zeros,
        v,
        edge_logits=logits,
        negative_slope=slope,
        return_weights=True,
        implementation=implementation,
    )
    p = np.exp([0.5, -2.0 * slope]) / np.exp([0.5, -2.0 * slope]).sum()
    np.testing.assert_allclose(weights.ravel(), [p[0], 0.0, p[1], 0.0], rtol=1e-5)
    np.testing.assert_allclose(y[0, 0], p[0] * v[0, 0] + p[1] * v[2, 0], rtol=1e-5, atol=1e-6)
    assert not y[1].any()


@pytest.mark.usefixtures("compiled_quickly")
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_numbers_of_nodes_may_be_float32_beside_shorter_values(implementation):
    graph = BARE["bipartite"]
    arrays = TABLE[OP].arrays(graph, full=False)
    short = arrays | {"v": arrays["v"].astype(jnp.bfloat16)}
    y = ops.gat_attention(graph, **short, implementation=implementation)
    wide = ops.gat_attention(
        graph, **(short | {"v": short["v"].astype(jnp.float32)}), implementation=implementation
    )
    assert y.dtype == jnp.bfloat16
    np.testing.assert_array_equal(y, wide.astype(jnp.bfloat16))
