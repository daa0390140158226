"""Messages that a ``where`` makes zero: known edges are dropped, and nothing of them is read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgnn
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

X, H = arrays((NODES, 4), (NODES, 4))
W, HEADS = arrays((EDGES,), (EDGES, 2, 1))
KERNEL, LAST = arrays((8, 6), (6, 3), seed=1)
# Node 5 is padding: all its edges are hidden, and some others.
MASK = (SENDERS != 5) & (RECEIVERS != 5) & (jnp.arange(EDGES) % 7 != 0)
ROWS = MASK[:, None]
SOME = jnp.arange(EDGES) % 7 != 0


def _sum(data, ids=RECEIVERS):
    return jax.ops.segment_sum(data, ids, NODES)


def _softmax(logits):
    powers = jnp.exp(logits - jax.ops.segment_max(logits, RECEIVERS, NODES)[RECEIVERS])
    return powers / _sum(powers)[RECEIVERS]


def _mlp(x):
    return jax.nn.relu(jnp.concatenate([x[RECEIVERS], x[SENDERS]], -1) @ KERNEL) @ LAST


MASKED = {
    "rows": (lambda x: _sum(jnp.where(ROWS, x[SENDERS], 0)), (X,), ["spmm"]),
    "weights": (lambda x, w: _sum(jnp.where(ROWS, x[SENDERS] * w[:, None], 0)), (X, W), ["spmm"]),
    "the other case": (
        lambda x, w: _sum(jnp.where(~ROWS, 0, -2 * x[SENDERS] / w[:, None])),
        (X, W),
        ["spmm"],
    ),
    "both ends": (
        lambda x, h: _sum(jnp.where(ROWS, x[SENDERS] * h[RECEIVERS], 0)),
        (X, H),
        ["spmm"],
    ),
    "heads": (
        lambda x, w: _sum(jnp.where(ROWS[..., None], x.reshape(NODES, 2, 2)[SENDERS] * w, 0)),
        (X, HEADS),
        ["spmm"],
    ),
    "two masks": (
        lambda x: _sum(jnp.where(ROWS, jnp.where(SENDERS[:, None] > 1, x[SENDERS], 0), 0)),
        (X,),
        ["spmm"],
    ),
    "weights of all edges behind a mask": (
        lambda x, w: _sum(jnp.where(ROWS, x[SENDERS] * _softmax(w)[:, None], 0)),
        (X, W),
        ["spmm", "segment_softmax"],
    ),
    "attention that the mask hides, too": (
        lambda x, w: _sum(
            jnp.where(
                SOME[:, None], x[SENDERS] * _softmax(jnp.where(SOME, w, -jnp.inf))[:, None], 0
            )
        ),
        (X, W),
        ["segment_softmax and spmm"],
    ),
    "a maximum": (
        lambda x: jax.ops.segment_max(jnp.where(ROWS, x[SENDERS], -jnp.inf), RECEIVERS, NODES),
        (X,),
        ["neighbour_reduce"],
    ),
    "a network": (lambda x: _sum(jnp.where(ROWS, _mlp(x), 0)), (X,), ["edge_mlp_aggregate"]),
    "a weighted network": (
        lambda x, w: _sum(jnp.where(ROWS, _mlp(x) * w[:, None], 0)),
        (X, W),
        ["edge_mlp_aggregate"],
    ),
}


@pytest.mark.costly(3)
@pytest.mark.parametrize("name", MASKED)
def test_masked_messages_are_dropped_edges(name):
    fn, args, ops = MASKED[name]
    assert ops in (None, applied(fuse(fn), *args))
    assert_same(fn, fuse(fn), *args)


HIDDEN = ("rows", "weights", "both ends", "heads", "a network", "a weighted network")


@pytest.mark.costly(2)
@pytest.mark.parametrize("spoiled", [jnp.nan, jnp.inf])
@pytest.mark.parametrize("name", HIDDEN)
def test_what_a_mask_hides_may_be_any_number(name, spoiled):
    fn, (x, *rest), _ = MASKED[name]
    x = x.at[5].set(spoiled)
    rest = [
        jnp.where(MASK.reshape(-1, *[1] * (a.ndim - 1)), a, spoiled) if a.shape[0] == EDGES else a
        for a in rest
    ]
    fused = fuse(fn)
    made, expected = fused(x, *rest), fn(x, *rest)
    assert jnp.isfinite(expected).all()
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-4)

    def slopes(f):
        return jax.grad(lambda *args: jnp.sin(f(*args)).sum(), tuple(range(1 + len(rest))))

    for of_fused in slopes(fused)(x, *rest):
        assert jnp.isfinite(of_fused).all()


def test_a_weight_behind_a_mask_is_assumed_to_be_finite():
    def run(x, w):
        return _sum(jnp.where(ROWS, x[SENDERS], 0) * w[:, None])

    (one,) = jaxgnn.fuse.explain(fuse(run), X, W, measure=False).findings.applied
    assert "finite weights at the edges that a mask has made zero before" in one.assumes
    assert_same(run, fuse(run), X, W)


NOT_DROPPED = {
    "a mask of numbers": lambda x: _sum(jnp.where(x[SENDERS, :1] > 0, x[SENDERS], 0)),
    "a mask of features": lambda x: _sum(jnp.where(jnp.arange(4) > 1, x[SENDERS], 0)),
    "another number than zero": lambda x: _sum(jnp.where(ROWS, x[SENDERS], 1)),
    "a mask of both": lambda x: _sum(jnp.where(ROWS & (jnp.arange(4) > 1), x[SENDERS], 0)),
    "a flag": lambda x: _sum(jnp.where(x[0, 0] > 0, x[SENDERS], 0)),
}


@pytest.mark.costly(2)
@pytest.mark.parametrize("name", NOT_DROPPED)
def test_masks_of_another_form_stay(name):
    fn = NOT_DROPPED[name]
    assert "spmm" not in applied(fuse(fn), X)
    assert_same(fn, fuse(fn), X)


def test_a_mask_that_is_known_only_when_it_runs_is_named():
    assert "a mask that hides messages is known only" in refused(
        fuse(NOT_DROPPED["a mask of numbers"]), X
    )


def test_a_mask_of_all_edges_leaves_zeros():
    def run(x):
        return _sum(jnp.where(jnp.asarray(np.zeros((EDGES, 1), bool)), x[SENDERS], 0))

    assert applied(fuse(run), X) == ["spmm"]
    assert_same(run, fuse(run), X)
