"""Products with matrices go to the narrower side of a sum over neighbours, where it is the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fusion._cases import (
    EDGES,
    NODES,
    RECEIVERS,
    SENDERS,
    applied,
    arrays,
    assert_same,
    fuse,
    refused,
)

WIDE, NARROW, WEIGHTS, DEGREES = arrays((NODES, 8), (NODES, 2), (EDGES,), (NODES,))
SHRINK, GROW = arrays((8, 2), (2, 8), seed=1)
DROPPED = jnp.where(jnp.arange(EDGES) % 5 == 0, NODES + 3, RECEIVERS)


def _sum(messages, ids=RECEIVERS, count=NODES):
    return jax.ops.segment_sum(messages, ids, count)


def _mean(messages):
    counts = _sum(jnp.ones((EDGES, 1)))
    return _sum(messages) / jnp.maximum(counts, 1)


MOVED = {
    "narrower": (lambda x: _sum(x[SENDERS]) @ SHRINK, WIDE, "the product first"),
    "narrower, by the transpose": (
        lambda x: jnp.einsum("nd,kd->nk", _sum(x[SENDERS]), SHRINK.T),
        WIDE,
        "the product first",
    ),
    "narrower, weighted": (
        lambda x: _sum(-x[SENDERS] * WEIGHTS[:, None], DROPPED) @ SHRINK,
        WIDE,
        "the product first",
    ),
    "narrower, of a mean": (lambda x: _mean(x[SENDERS]) @ SHRINK, WIDE, "the product first"),
    "narrower, scaled by rows": (
        lambda x: (-2.0 * DEGREES[:, None] * _sum(x[SENDERS])) @ SHRINK,
        WIDE,
        "the product first",
    ),
    "narrower, of a batch": (
        lambda x: jax.vmap(lambda x: _sum(x[SENDERS]) @ SHRINK)(x),
        jnp.stack([WIDE, 2 * WIDE]),
        "the product first",
    ),
    "wider": (lambda x: _sum((x @ GROW)[SENDERS]), NARROW, "the sum first"),
    "wider, weighted": (
        lambda x: -_sum((x @ GROW)[SENDERS] * WEIGHTS[:, None], DROPPED),
        NARROW,
        "the sum first",
    ),
    "wider, by edges": (lambda x: _sum(x[SENDERS] @ GROW), NARROW, "the sum first"),
}
STAYS = {
    "as wide": (lambda x: _sum(x[SENDERS]) @ (SHRINK @ GROW), WIDE),
    "a sum that is read": (lambda x: (y := _sum(x[SENDERS])) @ SHRINK + y[:, :2], WIDE),
    "a product that is read": (lambda x: _sum((y := x @ GROW)[SENDERS]) + y, NARROW),
    "a bias": (lambda x: _sum((x @ GROW + 1.0)[SENDERS]), NARROW),
    "an activation": (lambda x: jnp.tanh(_sum(x[SENDERS])) @ SHRINK, WIDE),
    "a scale of columns": (lambda x: (_sum(x[SENDERS]) * WIDE[0]) @ SHRINK, WIDE),
    "a sum that is repeated": (
        lambda x: jnp.broadcast_to(_sum(x[SENDERS])[:1], x.shape) @ SHRINK,
        WIDE,
    ),
    "one sum of all that is repeated": (
        lambda x: (
            jnp.broadcast_to(jax.ops.segment_sum(x[SENDERS], 0 * RECEIVERS, 1), x.shape) @ SHRINK
        ),
        WIDE,
    ),
    "no columns": (lambda x: _sum((x[:, :0] @ GROW[:0])[SENDERS]), NARROW),
    "a maximum": (
        lambda x: jax.ops.segment_max((x @ GROW)[SENDERS[:6]], jnp.arange(6), 6),
        NARROW,
    ),
    "a sum from other numbers": (
        lambda x: (x + 1.0).at[RECEIVERS].add(x[SENDERS]) @ SHRINK,
        WIDE,
    ),
    "a product along the nodes": (lambda x: SHRINK[:NODES].T @ _sum(x[SENDERS]), WIDE),
    "rows that are not there": (
        lambda x: jnp.nan_to_num(_sum(x.at[SENDERS + 3].get(mode="fill")) @ SHRINK),
        WIDE,
    ),
}


@pytest.mark.costly(4)
@pytest.mark.parametrize("name", MOVED)
def test_the_sum_runs_on_the_narrower_rows(name):
    fn, x, order = MOVED[name]
    found = applied(fuse(fn), x)
    assert {order, "spmm"} <= set(found)
    assert_same(fn, fuse(fn), x)


@pytest.mark.costly(4)
@pytest.mark.parametrize("name", STAYS)
def test_the_order_stays_where_another_would_be_wrong_or_slower(name):
    fn, x = STAYS[name]
    assert not {"the product first", "the sum first"} & set(applied(fuse(fn), x))
    assert_same(fn, fuse(fn), x)


def test_few_receivers_are_multiplied_rather_than_many_senders():
    (x,) = arrays((4000, 8))
    (kernel,) = arrays((8, 4), seed=1)
    senders = jnp.asarray(np.random.default_rng(0).integers(0, 4000, EDGES))

    def layer(x):
        return _sum(x[senders]) @ kernel

    assert applied(fuse(layer), x) == ["spmm"]
    assert "costs more than it saves" in refused(fuse(layer), x)


def test_rows_that_no_edge_reads_may_be_nan():
    def layer(x, kernel):
        return _sum(x[SENDERS]) @ kernel

    spoiled = WIDE.at[NODES - 1].set(jnp.nan)  # which has no edges
    fused = fuse(layer)
    assert "the product first" in applied(fused, spoiled, SHRINK)
    np.testing.assert_allclose(fused(spoiled, SHRINK), layer(spoiled, SHRINK), atol=1e-4)
    gradients = jax.grad(lambda *args: fused(*args).sum(), argnums=(0, 1))(spoiled, SHRINK)
    assert all(np.isfinite(gradient).all() for gradient in gradients)
