"""Equal programs are found equal, whatever their names, and others are not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn.testing import program_fingerprint, same_program


def compiled(function, *arguments):
    return jax.jit(function).lower(*arguments).compile()


def layer(x, kernel):
    return jnp.maximum(x @ kernel + 1, 0).sum(0)


X, KERNEL = jnp.ones((8, 4)), jnp.ones((4, 4))


def test_names_of_functions_and_arguments_and_lines_of_source_do_not_count():
    def another(features, weights):
        scores = features @ weights
        with jax.named_scope('braces } and "quotes" {'):
            shifted = scores + 1
        return jnp.maximum(shifted, 0).sum(axis=0)

    first, second = compiled(layer, X, KERNEL), compiled(another, X, KERNEL)
    assert first.as_text() != second.as_text()
    assert same_program(first, second)
    assert program_fingerprint(first) == program_fingerprint(second)


@pytest.mark.parametrize(
    "other",
    [
        lambda x, kernel: jnp.maximum(x @ kernel + 2, 0).sum(0),
        lambda x, kernel: jnp.minimum(x @ kernel + 1, 0).sum(0),
        lambda x, kernel: jnp.maximum(x @ kernel + 1, 0).sum(1),
        lambda x, kernel: jnp.maximum(x @ kernel.T + 1, 0).sum(0),
        lambda x, kernel: (layer(x, kernel), x),
    ],
    ids=["constant", "operation", "axis", "order", "result"],
)
def test_another_computation_is_another_program(other):
    assert not same_program(compiled(layer, X, KERNEL), compiled(other, X, KERNEL))


def test_operands_in_another_order_are_another_program():
    a, b = jnp.ones(4), jnp.ones(4)
    assert not same_program(compiled(lambda a, b: a - b, a, b), compiled(lambda a, b: b - a, a, b))


def test_other_shapes_and_dtypes_are_other_programs():
    first = compiled(jnp.sin, jnp.ones(4))
    assert not same_program(first, compiled(jnp.sin, jnp.ones(5)))
    assert not same_program(first, compiled(jnp.sin, jnp.ones(4, jnp.bfloat16)))


def test_what_the_text_does_not_tell_is_not_the_same():
    values = np.random.default_rng(0).normal(size=(2, 64)).astype(np.float32)
    with_constants = [compiled(lambda x, v=v: x + v, jnp.ones(64)) for v in values]
    result = jax.ShapeDtypeStruct((4,), jnp.float32)
    with_callbacks = [
        compiled(lambda x, f=f: jax.pure_callback(f, result, x), jnp.ones(4))
        for f in (np.sin, np.cos)
    ]
    for pair in (with_constants, with_callbacks):
        assert not same_program(*pair)
        assert [program_fingerprint(one) for one in pair] == [None, None]
