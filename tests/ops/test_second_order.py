"""Second derivatives of ops whose gradients are kernels without derivatives of their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import ops
from jaxgnn.ops._dense import fused_linear, fused_mlp
from jaxgnn.ops._edge_mlp import edge_mlp_aggregate
from jaxgnn.ops.core.dispatch import Plan
from jaxgnn.testing import random_array
from tests.ops.edge_mlp._edges import RING

X = random_array((RING.num_rows, 5), "float32", seed=0)
KERNELS = tuple(random_array(s, "float32", seed=i) for i, s in enumerate([(5, 7), (7, 3)]))
OF_EDGES = random_array((10, 7), "float32", seed=3), KERNELS[1]
BIASES = jnp.ones(7), None

# The module that has the kernels of the gradient, the op, and its arrays.
OPS = {
    "fused_linear": (
        fused_linear,
        lambda x, kernels, **options: ops.fused_linear(x, kernels[0], BIASES[0], **options),
        (X, KERNELS),
    ),
    "fused_mlp": (
        fused_mlp,
        lambda x, kernels, **options: ops.fused_mlp(x, kernels, BIASES, **options),
        (X, KERNELS),
    ),
    "edge_mlp_aggregate": (
        edge_mlp_aggregate,
        lambda x, kernels, **options: ops.edge_mlp_aggregate(
            RING, x, ops.EdgeMLPParams(kernels, BIASES), **options
        ),
        (X, OF_EDGES),
    ),
}


@pytest.mark.parametrize("name", OPS)
def test_the_gradient_of_a_gradient_is_that_of_the_formula_and_not_of_the_kernel(name, monkeypatch):
    module, op, arrays = OPS[name]
    kernels, calls = module.BACKWARD, []

    def without_derivative(*arguments, **options):
        calls.append(name)
        return jax.lax.stop_gradient(kernels(*arguments, **options))

    monkeypatch.setattr(module, "BACKWARD", without_derivative)
    # On a CPU an MLP runs layer by layer unless it is told otherwise.
    monkeypatch.setattr(Plan, "runs_kernels", True)

    def squared_gradient(implementation):
        options = {"activation": "silu", "implementation": implementation}

        def slope(arrays):
            gradient = jax.grad(lambda x: jnp.sum(jnp.sin(op(x, arrays[1], **options))))
            return jnp.sum(gradient(arrays[0]) ** 2)

        return jax.jit(jax.grad(slope))(arrays)

    actual, expected = squared_gradient(None), squared_gradient("xla")
    assert calls
    for a, e in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-4)
