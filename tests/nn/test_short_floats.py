"""Every layer has gradients in bfloat16, whatever it is made of."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from tests.nn._table import LAYERS

# Layers on streams and experts have parameters that stay float32 beside short floats.
_OF_GRAPHS = [name for name in LAYERS if not name.startswith(("Hyper", "DropEdge"))]


def _short(tree):
    def cast(a):
        return a.astype(jnp.bfloat16) if jnp.issubdtype(a.dtype, jnp.floating) else a

    return jax.tree.map(cast, tree)


@pytest.mark.again("tests/ops/test_result_types.py")
@pytest.mark.parametrize("name", _OF_GRAPHS)
def test_a_layer_has_gradients_in_bfloat16(name):
    case = LAYERS[name]
    definition, parameters, rest = nnx.split(case.make(nnx.Rngs(0)), nnx.Param, ...)

    def loss(parameters, floats):
        args = jax.tree.unflatten(structure, [floats.get(i, leaf) for i, leaf in others])
        results = nnx.merge(definition, parameters, nnx.to_pure_dict(rest))(*args)
        leaves = [y for y in jax.tree.leaves(results) if jnp.issubdtype(y.dtype, jnp.floating)]
        return sum(jnp.sum(y).astype(jnp.float32) for y in leaves)

    leaves, structure = jax.tree.flatten(_short(case.args))
    others = list(enumerate(leaves))
    floats = {i: a for i, a in others if jnp.issubdtype(a.dtype, jnp.floating)}
    with jax.numpy_dtype_promotion("standard"):  # as for users
        gradients = jax.eval_shape(jax.grad(loss, argnums=1), _short(parameters), floats)
    assert {i: a.dtype for i, a in gradients.items()} == {i: jnp.bfloat16 for i in floats}
