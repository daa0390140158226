"""All layers take NumPy arrays in either byte order, and never cut integers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import CSRGraph, Incidence, nn
from jaxgnn.graph import GraphBatch, HeteroGraph, RelationalGraph
from tests.nn._table import GRAPH, LAYERS, X

GRAPHS = CSRGraph | Incidence | GraphBatch | HeteroGraph | RelationalGraph


def _swapped(tree):
    """The arrays in NumPy, in the other byte order than this machine's; graphs stay."""

    def swap(leaf):
        if isinstance(leaf, jax.Array) and not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            array = np.asarray(leaf)
            return array.astype(array.dtype.newbyteorder())
        return leaf

    return jax.tree.map(swap, tree, is_leaf=lambda leaf: isinstance(leaf, GRAPHS))


@pytest.mark.every
@pytest.mark.parametrize("name", LAYERS)
def test_arrays_in_the_other_byte_order_are_traced_as_those_in_this_one(name):
    case = LAYERS[name]
    layer = case.make(nnx.Rngs(0))
    layer.eval()

    def shapes(args):
        rngs = {"rngs": nnx.Rngs(1)} if case.drops else {}
        results = nnx.eval_shape(lambda layer, rngs: layer(*args, **rngs), layer, rngs)
        return [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(results)]

    assert shapes(_swapped(case.args)) == shapes(case.args)


def test_their_values_are_the_same():
    for layer in (nn.AGNNConv(), nn.JumpingKnowledge("max")):
        of_graph = (GRAPH,) if isinstance(layer, nn.AGNNConv) else ()
        features = X if of_graph else [X, 2 * X]
        np.testing.assert_array_equal(
            layer(*of_graph, _swapped(features)), layer(*of_graph, features)
        )


def test_integers_that_jax_would_cut_are_named_by_layer_and_argument():
    wide = np.full((4, 8), 2**32)
    message = "must be in the range of int32, or used under jax_enable_x64, got 4294967296"
    with pytest.raises(ValueError, match=rf"JumpingKnowledge: \w+\[1\] {message}"):
        nn.JumpingKnowledge("max")([X, wide])
    with pytest.raises(ValueError, match=f"AGNNConv: x {message}"):
        nn.AGNNConv()(graph=GRAPH, x=wide)
