"""Equations of integers in NumPy give what JAX gives, and compile nothing."""

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxgnn.fusion._integers import _FUNCTIONS, evaluated

A = np.array([[3, -2, 0], [2**31 - 1, -(2**31), 7]], np.int32)
B = np.array([[2, 5, -1], [1, -1, 7]], np.int32)
FLAGS = A > 1
CASES = {
    "add": lambda: (lax.add, A, B),
    "sub": lambda: (lax.sub, A, B),
    "mul": lambda: (lax.mul, A, B),
    "neg": lambda: (lax.neg, A),
    "max": lambda: (lax.max, A, B),
    "min": lambda: (lax.min, A, B),
    "lt": lambda: (lax.lt, A, B),
    "le": lambda: (lax.le, A, B),
    "gt": lambda: (lax.gt, A, B),
    "ge": lambda: (lax.ge, A, B),
    "eq": lambda: (lax.eq, A, B),
    "ne": lambda: (lax.ne, A, B),
    "and": lambda: (lax.bitwise_and, A, B),
    "or": lambda: (lax.bitwise_or, A, B),
    "xor": lambda: (lax.bitwise_xor, A, B),
    "not": lambda: (lax.bitwise_not, FLAGS),
    "select_n": lambda: (lax.select_n, FLAGS, A, B),
    "clamp": lambda: (lambda x: lax.clamp(jnp.int32(0), x, jnp.int32(5)), A),
    "convert_element_type": lambda: (lambda x: lax.convert_element_type(x, jnp.uint8), A),
    "copy": lambda: (lambda x: lax.copy_p.bind(x), A),
    "stop_gradient": lambda: (lax.stop_gradient, A),
    "broadcast_in_dim": lambda: (lambda x: lax.broadcast_in_dim(x, (4, 2, 3), (1, 2)), A),
    "slice": lambda: (lambda x: lax.slice(x, (0, 0), (2, 3), (1, 2)), A),
    "iota": lambda: (lambda: lax.broadcasted_iota(jnp.int32, (3, 4), 1),),
    "reshape": lambda: (lambda x: lax.reshape(x, (3, 2)), A),
    "squeeze": lambda: (lambda x: lax.squeeze(x, (0,)), A[None]),
    "transpose": lambda: (lambda x: lax.transpose(x, (1, 0)), A),
    "rev": lambda: (lambda x: lax.rev(x, (1,)), A),
    "concatenate": lambda: (lambda x, y: lax.concatenate([x, y], 1), A, B),
    "reduce_sum": lambda: (lambda x: lax.reduce_sum(x, (1,)), A),
}


def test_every_primitive_has_a_case():
    assert set(CASES) == set(_FUNCTIONS)


@pytest.mark.parametrize("name", CASES)
def test_a_primitive_gives_what_jax_gives(name):
    function, *operands = CASES[name]()
    closed = jax.make_jaxpr(function)(*operands)
    equations = [e for e in closed.jaxpr.eqns if e.primitive.name == name]
    (equation,) = equations
    known = dict(zip(closed.jaxpr.invars, operands, strict=True))
    reads = [
        np.asarray(a.val) if isinstance(a, jex.Literal) else known.get(a) for a in equation.invars
    ]
    (expected,) = jex.jaxpr_as_fun(closed)(*operands)
    (made,) = evaluated(equation, reads)
    np.testing.assert_array_equal(made, expected)
    assert made.dtype == expected.dtype


def test_floats_are_left_to_jax():
    closed = jax.make_jaxpr(lax.add)(1.0, 2.0)
    assert evaluated(closed.jaxpr.eqns[0], [np.float32(1), np.float32(2)]) is None
