"""Layers on graphs without edges, in dtypes and installations that no kernel serves."""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import CSRGraph, nn
from jaxgnn._ffi import _library
from jaxgnn.graph import HeteroGraph
from jaxgnn.ops.core import dispatch
from tests.nn._table import EDGES, GRAPH, HETERO, LAYERS, RELATION, total

EMPTY = CSRGraph.from_edge_index(np.zeros((2, 0), int), GRAPH.num_rows)
OF_GRAPHS = {
    name: case
    for name, case in LAYERS.items()
    if name != "DropEdge"  # its result has no numbers
    and any(a is GRAPH or a is HETERO or (isinstance(a, list) and a[0] is GRAPH) for a in case.args)
}


@pytest.fixture
def empty_installation():
    """An installation that has compiled nothing, with float64 and promotions as users have them."""
    caches = _library.load, _library.why_missing, dispatch._warn_once

    def forget():
        for cached in caches:
            cached.cache_clear()

    forget()
    with (
        mock.patch.object(_library, "library_path", lambda platform: None),
        jax.enable_x64(True),
        jax.numpy_dtype_promotion("standard"),
    ):
        yield
    forget()


def _emptied(argument, dtype):
    """The argument for a graph of the same nodes without edges."""
    if argument is HETERO:
        return HeteroGraph({RELATION: EMPTY})
    if isinstance(argument, list | dict):
        return jax.tree.map(
            lambda a: _emptied(a, dtype), argument, is_leaf=lambda a: isinstance(a, CSRGraph)
        )
    if not isinstance(argument, jax.Array):
        return EMPTY if argument is GRAPH else argument
    return jnp.asarray(argument[:0] if len(argument) == len(EDGES) else argument, dtype)


def _to_dtype(state, dtype):
    """The variables of a layer, those that are floats in the dtype."""
    return jax.tree.map(
        lambda a: a.astype(dtype) if jnp.issubdtype(a.dtype, jnp.floating) else a, state
    )


@pytest.mark.costly(4)
@pytest.mark.usefixtures("empty_installation")
@pytest.mark.filterwarnings("ignore:.*slow path")
@pytest.mark.parametrize("name", OF_GRAPHS)
def test_every_layer_has_values_and_gradients(name):
    """Shapes alone are computed, where sizes of zero are refused or divided by."""
    case = OF_GRAPHS[name]
    args = [_emptied(a, "float64") for a in case.args]
    definition, state = nnx.split(case.make(nnx.Rngs(0)))
    params, rest = nnx.split_state(_to_dtype(state, "float64"), nnx.Param, ...)

    def loss(params):
        return total(nnx.merge(definition, params, rest)(*args)) ** 2

    slopes = jax.eval_shape(lambda params: jax.grad(loss)(params), params)
    assert jax.tree.map(jnp.shape, slopes) == jax.tree.map(jnp.shape, params)


@pytest.mark.usefixtures("empty_installation")
@pytest.mark.filterwarnings("ignore:.*slow path")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_attention_with_features_of_no_edges_is_the_term_of_the_root(dtype):
    layer = nn.TransformerConv(4, 5, heads=2, edge_dim=3, rngs=nnx.Rngs(0))
    definition, state = nnx.split(layer)
    layer = nnx.merge(definition, _to_dtype(state, dtype))
    x = jnp.asarray(np.arange(16).reshape(4, 4) / 7, dtype)

    def run(x):
        y = layer(EMPTY, x, jnp.zeros((0, 3), dtype))
        return jnp.sum(y), y

    slope, y = jax.jit(jax.grad(run, has_aux=True))(x)
    assert y.dtype == dtype
    np.testing.assert_allclose(y, layer.root_linear(x), rtol=1e-5)
    np.testing.assert_allclose(slope[0], layer.root_linear.kernel[...].sum(1), rtol=1e-5)
