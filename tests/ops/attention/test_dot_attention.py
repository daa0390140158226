"""dot_attention against its formula and against float64."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import ops
from jaxgnn.graph import CSRGraph
from jaxgnn.testing import random_array
from tests.ops._table import BARE
from tests.ops.attention._attention import IMPLEMENTATIONS, TABLE
from tests.ops.attention._checks import check_every_gradient, check_formula

OP = "dot_attention"


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
def test_heads_of_a_group_share_a_head_of_keys_and_values(implementation):
    graph = BARE["bipartite"]
    arrays = TABLE[OP].arrays(graph, full=False)
    shared = ops.dot_attention(graph, **arrays, implementation=implementation)
    repeated = arrays | {name: jnp.repeat(arrays[name], 2, axis=1) for name in ("k", "v")}
    own = ops.dot_attention(graph, **repeated, implementation=implementation)
    np.testing.assert_allclose(shared, own, rtol=1e-6, atol=1e-7)


@pytest.mark.usefixtures("compiled_quickly")
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_scale_multiplies_the_products_alone(implementation):
    graph = BARE["bipartite"]
    arrays = TABLE[OP].arrays(graph)
    scaled = TABLE[OP](graph, arrays, scale=-0.7, implementation=implementation)
    by_q = TABLE[OP](
        graph, arrays | {"q": arrays["q"] * -0.7}, scale=1.0, implementation=implementation
    )
    np.testing.assert_allclose(scaled, by_q, rtol=1e-5, atol=1e-6)


@pytest.mark.costly
@pytest.mark.usefixtures("compiled_quickly")
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("heads", "dim"), [(1, 1), (3, 1), (2, 37), (5, 64)])
def test_any_number_of_heads_and_any_width(heads, dim, implementation):
    graph = CSRGraph.from_edges([0, 1, 2, 0, 1], [1, 1, 1, 0, 0], 3)
    q, k, v = (random_array((3, heads, dim), "float32", seed=i) for i in range(3))
    y = ops.dot_attention(graph, q, k, v, implementation=implementation)
    scores = np.einsum("nhd,mhd->nmh", *(np.asarray(x, np.float64) for x in (q, k))) / dim**0.5
    dense = np.exp(scores)
    expected = np.zeros((3, heads, dim))
    for row, senders in ((1, [0, 1, 2]), (0, [0, 1])):
        p = dense[row, senders] / dense[row, senders].sum(0)
        expected[row] = np.einsum("eh,ehd->hd", p, np.asarray(v, np.float64)[senders])
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
