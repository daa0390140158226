"""Forward-mode derivatives: the plain formulas have them, and errors of kernels say so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn.ops.core.custom_gradient import reverse_vjp
from jaxgnn.ops.core.one_platform import on_a_gpu
from tests.ops._calls import EAGER

OPS = ("neighbour_reduce", "sinkhorn", "spmm")


@pytest.mark.parametrize("op", OPS)
def test_the_error_of_forward_mode_names_the_implementation_that_has_it(op):
    function, tree = next(iter(EAGER[op].values()))
    tangents = jax.tree.map(jnp.ones_like, tree)
    for run in (jax.jvp, lambda f, p, t: jax.jacfwd(f)(*p)):
        with pytest.raises(TypeError, match='pass implementation="xla"'):
            run(lambda tree: function(tree, None), (tree,), (tangents,))
    _, slope = jax.jit(lambda *args: jax.jvp(lambda t: function(t, "xla"), args[:1], args[1:]))(
        tree, tangents
    )
    assert np.isfinite(slope).all()


def test_other_errors_of_types_are_those_of_the_function():
    @reverse_vjp
    def function(x):
        raise TypeError("its own")

    function.defvjp(lambda x: (x, None), lambda _, dy: (dy,))
    with pytest.raises(TypeError, match="its own"):
        function(jnp.ones(2))


def test_derivatives_of_a_gpu_kernel_are_refused_with_the_name_that_has_them():
    kernel = on_a_gpu(lambda x: 2 * x)
    with pytest.raises(NotImplementedError, match='pass implementation="xla"'):
        jax.grad(lambda x: jnp.sum(kernel(x)))(jnp.ones(2))
