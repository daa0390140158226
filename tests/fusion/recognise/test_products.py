"""A factor is placed by its axes, also where axes of other meaning have as many entries."""

import jax
import jax.numpy as jnp
import jraph
import numpy as np
import pytest

from tests.fusion._cases import applied, arrays, fuse

NODES, SIDE = 5, 8  # as many edges as features and heads
_rng = np.random.default_rng(0)
SENDERS, RECEIVERS = (jnp.asarray(_rng.integers(0, NODES, SIDE), jnp.int32) for _ in range(2))
X, A, HEADS = arrays((NODES, SIDE), (SIDE, 3), (NODES, SIDE, 3))
Q, K = arrays((NODES, 2, 4), (NODES, 2, 4), seed=1)
VECTOR = A[:, 0]


def _sum(data):
    return jax.ops.segment_sum(data, RECEIVERS, NODES)


def _softmax(logits):
    return jraph.segment_softmax(logits, RECEIVERS, NODES)


def _attended(scores):
    return _sum(K[SENDERS] * _softmax(scores)[:, None, None])


# Of each: a function, and the rewrites, or None where it does not matter which they are.
CASES = {
    "features summed by edges": (
        lambda x, a: _sum(x[SENDERS] * a.sum(1, keepdims=True).reshape(1, -1)),
        (X, A),
        ["aggregate"],
    ),
    "edges behind a reshape": (
        lambda x, a: _sum(x[SENDERS] * a.sum(1).reshape(1, -1).reshape(-1, 1)),
        (X, A),
        ["spmm"],
    ),
    "features behind a transpose": (
        lambda x, v: _sum(x[SENDERS] * v[:, None].T),
        (X, VECTOR),
        ["aggregate"],
    ),
    "edges behind a transpose": (
        lambda x, v: _sum(x[SENDERS] * v[None].T),
        (X, VECTOR),
        ["spmm"],
    ),
    "a table that is transposed": (lambda x: _sum(x[SENDERS].T), (X,), ["aggregate"]),
    "a product of features alone": (
        lambda x, v: _sum(x[SENDERS] * jnp.squeeze(v[:, None] * v[:, None], 1)),
        (X, VECTOR),
        ["aggregate"],
    ),
    "a softmax of heads": (
        lambda h, v: _sum(h[SENDERS] * _softmax(v)[None, :, None]),
        (HEADS, VECTOR),
        ["spmm", "segment_softmax"],
    ),
    "a softmax of edges": (
        lambda h, v: _sum(h[SENDERS] * _softmax(v)[:, None, None]),
        (HEADS, VECTOR),
        ["segment_softmax and spmm"],
    ),
    "inner products of all heads together": (
        lambda q, k: _attended((q[RECEIVERS] * k[SENDERS]).reshape(SIDE, -1).sum(-1)),
        (Q, K),
        ["segment_softmax and spmm"],
    ),
    "inner products of merged heads, as a product": (
        lambda q, k: _attended(
            jnp.einsum("ef,ef->e", q[RECEIVERS].reshape(SIDE, -1), k[SENDERS].reshape(SIDE, -1))
        ),
        (Q, K),
        ["segment_softmax and spmm"],
    ),
    "inner products of merged scores": (
        lambda q, k, v: _attended(
            jax.nn.leaky_relu(q[RECEIVERS] + k[SENDERS]).reshape(SIDE, -1) @ v
        ),
        (Q, K, VECTOR),
        ["segment_softmax and spmm"],
    ),
    "scores repeated along the heads": (
        lambda h, q, k: _sum(
            h[SENDERS]
            * _softmax(
                jnp.broadcast_to((q[RECEIVERS] * k[SENDERS]).sum((1, 2))[None], (SIDE, SIDE))
            )[..., None]
        ),
        (HEADS, Q, K),
        None,
    ),
    "features in a sum by nodes": (
        lambda x, a: jnp.sin((x[:3][SENDERS % 3] * a.sum(1, keepdims=True).reshape(1, -1)).sum(-1)),
        (X, A),
        ["sums by nodes"],
    ),
    "edges in a sum by nodes": (
        lambda x, a: jnp.sin((x[:3][SENDERS % 3] * a.sum(1).reshape(1, -1).T).sum(-1)),
        (X, A),
        [],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_factor_varies_along_its_own_axis(name):
    fn, args, ops = CASES[name]
    assert ops in (None, applied(fuse(fn), *args))

    def slopes(fn):
        def loss(*args):
            y = fn(*args)
            return jnp.sum(y * jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)), y

        return jax.jit(jax.grad(loss, range(len(args)), has_aux=True))(*args)

    for made, expected in zip(*map(jax.tree.leaves, (slopes(fuse(fn)), slopes(fn))), strict=True):
        np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)
