"""Loops of Python over the members of a batch become one call, where that is the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fusion._cases import (
    NODES,
    RECEIVERS,
    SENDERS,
    applied,
    arrays,
    assert_same,
    fuse,
    refused,
)

BATCH, WIDTH = 3, 4
(X,) = arrays((BATCH, NODES, WIDTH))
FIRST, BIAS, LAST = arrays((2 * WIDTH, 6), (6,), (6, WIDTH), seed=1)
(KERNEL,) = arrays((WIDTH, WIDTH), seed=2)
SLOPES = np.asarray(X)


def _keys():
    return list(jax.random.split(jax.random.key(0), BATCH))


def _dense(x):
    return jax.nn.relu(x @ KERNEL)


def _messages(x, offset=0):
    ends = jnp.concatenate([x[RECEIVERS + offset], x[SENDERS + offset]], axis=-1)
    return jax.ops.segment_sum(jax.nn.relu(ends @ FIRST + BIAS) @ LAST, RECEIVERS, NODES)


def _recurrent(x):
    for _ in range(2):
        x = jnp.tanh(x + _messages(x))
    return x


def _looped(x):
    return jax.lax.scan(lambda c, _: (jax.nn.relu(x @ KERNEL + c), None), x, None, length=2)[0]


ONE_CALL = {
    "by index": lambda x: jnp.stack([_dense(x[i]) for i in range(BATCH)]),
    "by iteration": lambda x: jnp.stack([_dense(member) for member in x]),
    "slices": lambda x: jnp.concatenate([_dense(x[i : i + 1]) for i in range(BATCH)]),
    "an array of a list": lambda x: jnp.array([_dense(x[i]) for i in range(BATCH)]),
    "rows one after another": lambda x: jnp.concatenate([_dense(x[i]) for i in range(BATCH)]),
    "numbers": lambda x: jnp.asarray([_dense(member).sum() for member in jnp.unstack(x)]),
    "split": lambda x: jnp.stack([_dense(part) for part in jnp.split(x, BATCH)]),
    "a part of the batch": lambda x: jnp.stack([_dense(x[i]) for i in range(1, BATCH)]),
    "a loop inside": lambda x: jnp.stack([_looped(member) for member in x]),
    "rows of members": lambda x: jnp.stack([_dense(x[i, 2:4]) for i in range(BATCH)]),
}


@pytest.mark.costly(5)
@pytest.mark.parametrize("name", ONE_CALL)
def test_a_loop_over_a_batch_is_one_call(name):
    fn = ONE_CALL[name]
    assert applied(fuse(fn), X)[0] == "vmap"
    assert_same(fn, fuse(fn), X)


def test_other_rules_see_the_one_call():
    def loop(x):
        return jnp.stack([_recurrent(member) for member in x])

    assert applied(fuse(loop), X) == ["vmap"] + ["edge_mlp_aggregate"] * 2
    assert_same(loop, fuse(loop), X)


def test_ids_with_an_offset_for_each_member_are_one_list():
    def loop(x):
        return jnp.concatenate([_messages(x, i * NODES) for i in range(BATCH)])

    rows = X.reshape(-1, WIDTH)
    assert applied(fuse(loop), rows)[0] == "vmap"
    assert_same(loop, fuse(loop), rows)


def test_a_loop_of_a_loop_is_one_call_of_copies():
    def loop(x):
        rows = [jnp.stack([_dense(x[i, j]) for j in range(NODES)]) for i in range(BATCH)]
        return jnp.stack(rows)

    assert applied(fuse(loop), X) == ["vmap"] + ["fused_linear"] * NODES
    assert_same(loop, fuse(loop), X)


def _random(key, x):
    return _dense(x) + jax.random.normal(key, x.shape)


def _branch(x):
    return jax.lax.cond(x[0, 0] > 0, _dense, jnp.tanh, x)


def _sloped(i):
    slope = SLOPES[i]

    @jax.custom_jvp
    def same(x):
        return x + 0.0

    same.defjvps(lambda t, _, x: t * slope)
    return same


COPIES = {
    "another order": (
        lambda x: jnp.stack([_dense(x[i]) for i in (2, 1, 0)]),
        "made by different equations",
    ),
    "another number": (
        lambda x: jnp.stack([_dense(x[i]) * (i + 1.5) for i in range(BATCH)]),
        "differ in a number",
    ),
    "another function": (
        lambda x: jnp.stack([_dense(x[0]), _dense(jnp.sin(x[1])), _dense(x[2])]),
        "made by different equations",
    ),
    "another slope": (
        lambda x: jnp.stack([_dense(x[0]) @ KERNEL, _other_slope(x[1] @ KERNEL) @ KERNEL]),
        "made by different equations",
    ),
    "a member that all read": (
        lambda x: jnp.stack([_dense(x[i]) * x[0] for i in range(BATCH)]),
        "read different arrays",
    ),
    "members of two arrays": (
        lambda x: jnp.stack([_dense(x[0]), _dense((2 * x)[1])]),
        "made by different equations",
    ),
    "a member that is read": (
        lambda x: (jnp.stack(y := [_dense(x[i]) for i in range(BATCH)]), y[0].sum()),
        "read by something else",
    ),
    "random numbers": (
        lambda x: jnp.stack([_random(k, m) for k, m in zip(_keys(), x, strict=True)]),
        "of a batch may be another one",
    ),
    "a branch in a loop": (
        lambda x: jnp.stack(
            [jax.lax.fori_loop(0, 2, lambda _, c: _branch(c), m) @ KERNEL for m in x]
        ),
        "of a batch may be another one",
    ),
    "slopes of other arrays": (
        lambda x: jnp.stack([_sloped(i)(x[i]) @ KERNEL for i in range(BATCH)]),
        "made by different equations",
    ),
    "a branch": (
        lambda x: jnp.stack([_branch(m) @ KERNEL for m in x]),
        "of a batch may be another one",
    ),
}


@jax.custom_jvp
def _other_slope(x):
    return jax.nn.relu(x)


_other_slope.defjvps(lambda t, _, x: t)


@pytest.mark.costly(5)
@pytest.mark.parametrize("name", COPIES)
def test_copies_that_differ_stay(name):
    fn, reason = COPIES[name]
    assert "vmap" not in applied(fuse(fn), X)
    assert reason in refused(fuse(fn), X)
    assert_same(fn, fuse(fn), X)


def test_columns_side_by_side_are_no_batch():
    def heads(x):
        return jnp.concatenate([_dense(x[0]), _dense(x[1])], axis=-1)

    assert "vmap" not in applied(fuse(heads), X)
    np.testing.assert_allclose(fuse(heads)(X), heads(X), rtol=1e-5)
