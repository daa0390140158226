"""Equations of integers in NumPy give what JAX gives, and compile nothing."""

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxgnn.fusion.program.integers import _FUNCTIONS, evaluated
from jaxgnn.fusion.program.program import Program

A = np.array([[3, -2, 0], [2**31 - 1, -(2**31), 7]], np.int32)
B = np.array([[2, 5, -1], [1, -1, 7]], np.int32)
FLAGS = A > 1
PLACES = np.array([1, 0, -1, 1, 5], np.int32)
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
    "cumsum": lambda: (lambda x: lax.cumsum(x, 1, reverse=True), A),
    "cummax": lambda: (lambda x: lax.cummax(x, 1), A),
    "cummin": lambda: (lambda x: lax.cummin(x, 0, reverse=True), A),
    "gather": lambda: (lambda x, i: x.at[i].get(mode="fill"), A, PLACES),
    "scatter": lambda: (
        lambda x, i: x.at[i].set(7, mode="clip", unique_indices=True),
        A,
        PLACES[:2],
    ),
    "scatter-add": lambda: (lambda x, i, y: x.at[:, i].add(y), A, PLACES, A[:, :1]),
    "reduce_max": lambda: (lambda x: lax.reduce_max(x, (1,)), A),
    "reduce_min": lambda: (lambda x: lax.reduce_min(x, (0, 1)), A),
    "reduce_sum": lambda: (lambda x: lax.reduce_sum(x, (1,)), A),
}
# More gathers and scatters: slices, bounds, several indices, axes in another order.
CUBE = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
SLICES = {
    "rows": lambda: (lambda x, i: x[i], CUBE, PLACES),
    "rows that are clipped": lambda: (lambda x, i: x.at[i].get(mode="clip"), CUBE, PLACES),
    "a value for others": lambda: (
        lambda x, i: x.at[i].get(mode="fill", fill_value=-9),
        CUBE,
        PLACES,
    ),
    "unsigned": lambda: (lambda x, i: x.at[i].get(mode="fill"), CUBE.astype(np.uint8), PLACES),
    "booleans": lambda: (lambda x, i: x.at[i].get(mode="fill"), CUBE > 5, PLACES),
    "a middle axis": lambda: (lambda x, i: x[:, i], CUBE, PLACES[None]),
    "axes around a slice": lambda: (lambda x, i: x[i, :, i], CUBE, PLACES[None]),
    "no starts": lambda: (
        lambda x, i: lax.gather(
            x, i, lax.GatherDimensionNumbers((1,), (0,), (0,)), (1, 3), mode="clip"
        ),
        A,
        PLACES[:0, None],
    ),
    "set a block": lambda: (lambda x, i: x.at[i, 1:3].set(5), CUBE, PLACES[:2]),
    "add twice to one": lambda: (lambda x, i: x.at[i].add(1), A, PLACES),
    "add outside": lambda: (lambda x, i: x.at[:, i, 1].add(x[:, :, 0]), CUBE, PLACES[[0, 1, 4]]),
    "add scalars": lambda: (lambda x, i: x.at[i, i].add(i), A, PLACES),
}


def test_every_primitive_has_a_case():
    assert set(CASES) == set(_FUNCTIONS)


@pytest.mark.parametrize("name", CASES)
def test_a_primitive_gives_what_jax_gives(name):
    function, *operands = CASES[name]()
    assert name in _compared(function, operands)


@pytest.mark.parametrize("name", SLICES)
def test_gathers_and_scatters_give_what_jax_gives(name):
    function, *operands = SLICES[name]()
    assert _compared(function, operands) & {"gather", "scatter", "scatter-add"}


def _compared(function, operands) -> set[str]:
    """Compares each equation with JAX; returns the names of those that NumPy evaluates."""
    program = Program.from_jaxpr(jax.make_jaxpr(function)(*operands))
    values = {**program.constants, **dict(zip(program.inputs, operands, strict=True))}
    names = set()
    for equation in program.equations:
        reads = [
            np.asarray(a.val if isinstance(a, jex.Literal) else values[a]) for a in equation.invars
        ]
        expected = equation.primitive.bind(*map(jnp.asarray, reads), **equation.params)
        made = evaluated(equation, reads)
        if made is not None:
            np.testing.assert_array_equal(made[0], expected)
            assert made[0].dtype == expected.dtype
            names.add(equation.primitive.name)
        values[equation.outvars[0]] = expected
    return names


def test_batches_of_gathers_are_left_to_jax():
    closed = jax.make_jaxpr(jax.vmap(lambda x, i: x[i]))(A, A * 0)
    (gather,) = [e for e in closed.jaxpr.eqns if e.primitive.name == "gather"]
    assert evaluated(gather, [A, A[..., None] * 0]) is None


def test_floats_are_left_to_jax():
    closed = jax.make_jaxpr(lax.add)(1.0, 2.0)
    assert evaluated(closed.jaxpr.eqns[0], [np.float32(1), np.float32(2)]) is None
