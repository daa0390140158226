"""Each rule applies where it is sound, and not where it is not."""

import jax
import jax.numpy as jnp
import jraph
import numpy as np
import pytest

import jaxgnn
from jaxgnn.fusion.recognise import templates
from jaxgnn.fusion.recognise.templates import argument_of
from jaxgnn.fusion.rules import dense
from jaxgnn.ops._dense.fused_linear import FUSED_LINEAR
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
W, E, HEADS = arrays((EDGES,), (EDGES, 3), (EDGES, 2, 1))
FILTERS, CHANNELS = arrays((EDGES, 4), (4,), seed=2)
KERNEL, BIAS, LAST, LAST_BIAS = arrays((11, 8), (8,), (8, 5), (5,), seed=1)
# Some edges of every kind: no receiver, no sender, neither.
DROPPED = jnp.where(jnp.arange(EDGES) % 5 == 0, NODES + 3, RECEIVERS)
NEGATIVE = jnp.where(jnp.arange(EDGES) % 5 == 1, -1, RECEIVERS)
OUT = jnp.where(jnp.arange(EDGES) % 5 == 0, NODES + 1, SENDERS)
LIST = SENDERS[: 4 * NODES].reshape(NODES, 4)
KEPT = jnp.arange(EDGES) % 7 != 0


def _sum(data, ids=RECEIVERS):
    return jax.ops.segment_sum(data, ids, NODES)


def _max(data, ids=RECEIVERS):
    return jax.ops.segment_max(data, ids, NODES)


def _min(data, ids=RECEIVERS):
    return jax.ops.segment_min(data, ids, NODES)


def _shifted(w, shift, ids=RECEIVERS, eps=0.0):
    powers = jnp.exp(w - jax.lax.stop_gradient(shift(w))[RECEIVERS])
    return powers / (_sum(powers) + eps)[ids]


def _guarded(w):
    """A softmax that gives zeros where all of a segment is -inf, or nothing is there."""
    counts = _sum(jnp.ones_like(RECEIVERS)).reshape(-1, *[1] * (w.ndim - 1))
    highest = jnp.where(counts > 0, _max(w), 0.0)
    highest = jnp.where(jnp.isneginf(highest), 0.0, highest)
    powers = jnp.exp(w - highest[RECEIVERS])
    totals = _sum(powers)
    return powers / jnp.where(totals > 0, totals, 1.0)[RECEIVERS]


def _guarded_by_epsilon(w):
    return _shifted(w, lambda w: jnp.where(jnp.isneginf(_max(w)), 0.0, _max(w)), eps=1e-16)


def _masked(w, mask):
    return _sum(
        X.reshape(NODES, 2, 2)[SENDERS] * _guarded(jnp.where(mask, w[..., 0], -jnp.inf))[..., None]
    )


def _mlp(columns, activation=jax.nn.relu):
    return activation(columns @ KERNEL + BIAS) @ LAST + LAST_BIAS


def _ends(x, e=E, order=(0, 1, 2)):
    parts = x[RECEIVERS], x[SENDERS], e
    return jnp.concatenate([parts[i] for i in order], axis=-1)


def _softmax(logits, ids=RECEIVERS, count=NODES):
    return jraph.segment_softmax(logits, ids, count)


def _products(q, k):
    return jnp.einsum("ehd,ehd->eh", q, k)


def _largest(x, k=2):
    values, columns = jax.lax.top_k(x, k)
    return jnp.zeros_like(x).at[jnp.arange(x.shape[0])[:, None], columns].set(values)


APPLIES = {
    # sums of rows
    "rows": (lambda x: _sum(x[SENDERS]), (X,), ["spmm"]),
    "a vector": (lambda x: _sum(x[SENDERS]), (X[:, 0],), ["spmm"]),
    "three axes": (lambda x: _sum(x[SENDERS]), (X.reshape(NODES, 2, 2),), ["spmm"]),
    "taken": (lambda x: _sum(jnp.take(x, SENDERS, axis=0)), (X,), ["spmm"]),
    "added at": (lambda x, h: h.at[RECEIVERS].add(x[SENDERS]), (X, H), ["spmm"]),
    "weights": (lambda x, w: _sum(x[SENDERS] * w[:, None]), (X, W), ["spmm"]),
    "weights in front": (lambda x, w: -_sum(2.0 * w[:, None] * x[SENDERS]), (X, W), ["spmm"]),
    "divided": (lambda x, w: _sum(x[SENDERS] / (1 + w[:, None] ** 2)), (X, W), ["spmm"]),
    "heads": (lambda x, w: _sum(x.reshape(NODES, 2, 2)[SENDERS] * w), (X, HEADS), ["spmm"]),
    "both ends": (lambda x, h: _sum(x[SENDERS] * h[RECEIVERS]), (X, H), ["spmm"]),
    "scales of both ends": (
        lambda x, s: _sum(x[SENDERS] * (s[SENDERS] * s[RECEIVERS])[:, None]),
        (X, H[:, 0]),
        ["spmm"],
    ),
    # filters
    "filters": (lambda x, w: _sum(x[SENDERS] * w), (X, FILTERS), ["filtered_sum"]),
    "filters added at": (
        lambda x, w, h: h.at[RECEIVERS].add(-2.0 * w * x[SENDERS]),
        (X, FILTERS, H),
        ["filtered_sum"],
    ),
    "filters and numbers of edges": (
        lambda x, f, w: _sum(w[:, None] * jnp.tanh(f) * x[SENDERS] / (1 + w[:, None] ** 2)),
        (X, FILTERS, W),
        ["filtered_sum"],
    ),
    "filters at both ends": (
        lambda x, w, h: _sum(x[SENDERS] * w * h[RECEIVERS]),
        (X, FILTERS, H),
        ["filtered_sum"],
    ),
    "two filters": (
        lambda x, f, w: _sum(x[SENDERS] * f * jnp.cos(f) * w),
        (X, FILTERS, CHANNELS),
        ["filtered_sum"],
    ),
    "a filter of components": (
        lambda x, w: _sum(x.reshape(NODES, 2, 2)[SENDERS] * w[:, None]),
        (X, E[:, :2]),
        ["filtered_sum"],
    ),
    "filters of dropped edges": (
        lambda x, w: _sum(x[SENDERS] * w, DROPPED),
        (X, FILTERS),
        ["filtered_sum"],
    ),
    "filters by a kernel": (
        lambda x, e, k: _sum(x[SENDERS] * (e @ k)),
        (X, E, KERNEL[:3, :4]),
        ["filtered_sum by a kernel"],
    ),
    "filters by a kernel, bias and envelope": (
        lambda x, e, k, b, w: _sum((e @ k + b) * jnp.cos(w)[:, None] * x[SENDERS], DROPPED),
        (X, E, KERNEL[:3, :4], BIAS[:4], W),
        ["filtered_sum by a kernel"],
    ),
    "components by a transposed kernel": (
        lambda x, e, k: _sum(2.0 * x.reshape(NODES, 2, 2)[SENDERS] * (e @ k.T)[:, None]),
        (X, E, KERNEL[:2, :3]),
        ["filtered_sum by a kernel"],
    ),
    "filters that are read again": (
        lambda x, e, k: (_sum(x[SENDERS] * (e @ k)), e @ k),
        (X, E, KERNEL[:3, :4]),
        None,
    ),
    "mean": (lambda x: jraph.segment_mean(x[SENDERS], RECEIVERS, NODES), (X,), None),
    "batch": (lambda x: jax.vmap(lambda x: _sum(x[SENDERS]))(x), (jnp.stack([X, H]),), ["spmm"]),
    "dropped receivers": (lambda x: _sum(x[SENDERS], DROPPED), (X,), ["spmm"]),
    "negative receivers": (lambda x: _sum(x[SENDERS], NEGATIVE), (X,), ["spmm"]),
    "nobody reads what is not there": (
        lambda x: _sum(x.at[OUT].get(mode="fill"), DROPPED),
        (X,),
        ["spmm"],
    ),
    "clipped": (lambda x: _sum(x.at[OUT].get(mode="clip"), RECEIVERS), (X,), ["spmm"]),
    "negative ids": (lambda x: _sum(x[SENDERS - NODES]), (X,), ["spmm"]),
    "masked messages": (
        lambda x, w: _sum(jnp.where(KEPT[:, None], x[SENDERS] * w[:, None], 0), DROPPED),
        (X, W),
        ["spmm"],
    ),
    "a dense list": (lambda x: (x[LIST] * X[:, :1, None]).sum(1), (X,), ["spmm"]),
    "two sums": (lambda x: _sum(x[SENDERS]) + _sum(x[RECEIVERS], SENDERS), (X,), ["spmm"] * 2),
    # other reductions
    "maximum": (
        lambda x: jax.ops.segment_max(x[SENDERS], RECEIVERS, NODES),
        (X,),
        ["neighbour_reduce"],
    ),
    "minimum": (
        lambda x: jax.ops.segment_min(x[SENDERS], DROPPED, NODES),
        (X,),
        ["neighbour_reduce"],
    ),
    "ties": (
        lambda x: jax.ops.segment_max(jnp.round(x)[SENDERS], RECEIVERS, NODES),
        (X,),
        ["neighbour_reduce"],
    ),
    "sum of edges": (lambda e: _sum(jnp.sin(e)), (E,), ["aggregate"]),
    "maximum of edges": (lambda e: _max(e, DROPPED), (E,), ["aggregate"]),
    "sum of edges at": (lambda e, x: x.at[RECEIVERS].add(jnp.sin(e)), (E, X[:, :3]), ["aggregate"]),
    "softmax": (lambda w: _softmax(w), (W,), ["segment_softmax"]),
    "softmax with epsilon": (lambda w: _shifted(w, _max, eps=1e-16), (W,), ["segment_softmax"]),
    "softmax with guards": (lambda w: _guarded(w / 1.0), (W,), ["segment_softmax"]),
    "sums of gathered rows": (
        lambda x, a: jnp.sin(-(a[0] * x[SENDERS]).sum(-1)),
        (X, H),
        ["sums by nodes"],
    ),
    # attention
    "attention without some edges": (
        lambda w: _masked(w, (jnp.arange(EDGES) % 7 != 0)[:, None]),
        (HEADS,),
        ["segment_softmax and spmm"],
    ),
    "attention": (
        lambda x, w: _sum(x.reshape(NODES, 2, 2)[SENDERS] * _softmax(w)),
        (X, HEADS),
        ["segment_softmax and spmm"],
    ),
    "graph attention": (
        lambda x, a, b: _sum(
            x[SENDERS] * _softmax(jax.nn.leaky_relu((a[RECEIVERS] + b[SENDERS])[:, None], 0.2))
        ),
        (X, H[:, 0], H[:, 1]),
        ["gat_attention"],
    ),
    "graph attention with edges": (
        lambda x, a, e: _sum(
            x.reshape(NODES, 2, 2)[SENDERS]
            * _softmax(jax.nn.leaky_relu(a[RECEIVERS] + a[SENDERS] + e))
        ),
        (X, H[:, :2, None], HEADS),
        ["gat_attention"],
    ),
    "attention of a batch as large as the graph": (
        lambda x, a: jax.vmap(
            lambda x: _sum(
                x[SENDERS] * _softmax(jax.nn.leaky_relu((a[RECEIVERS] + a[SENDERS])[:, None]))
            )
        )(x),
        (jnp.stack([X] * NODES), H[:, 0]),
        ["segment_softmax and spmm"],
    ),
    "dot-product attention": (
        lambda q, k, v: _sum(
            v[SENDERS] * _softmax((q[RECEIVERS] * k[SENDERS]).sum(-1) / 2.0)[:, None]
        ),
        (X, H, X[:, :3]),
        ["dot_attention"],
    ),
    "dot-product attention with heads and features of edges": (
        lambda q, k, e: _sum(
            k.reshape(NODES, 2, 2)[SENDERS]
            * _softmax(
                _products(q.reshape(NODES, 2, 2)[RECEIVERS], k.reshape(NODES, 2, 2)[SENDERS])
                * -e[0, 0]
                + e[..., 0]
            )[..., None]
        ),
        (X, H, HEADS),
        ["dot_attention"],
    ),
    "dot-product attention in which keys ask": (
        lambda q, k: _sum(
            k[SENDERS] * _softmax((k[SENDERS] * q[RECEIVERS]).sum(-1, keepdims=True))
        ),
        (X, H),
        ["dot_attention"],
    ),
    "scores of sums": (
        lambda x, z, a: _sum(
            z[SENDERS] * _softmax(jax.nn.leaky_relu(x[RECEIVERS] + z[SENDERS]) @ a)[:, None]
        ),
        (X, H, X[0]),
        ["gatv2_attention"],
    ),
    "scores of sums by heads": (
        lambda x, z, a: _sum(
            z.reshape(NODES, 2, 2)[SENDERS]
            * _softmax(
                (
                    a.reshape(1, 2, 2)
                    * jax.nn.leaky_relu(
                        x.reshape(NODES, 2, 2)[RECEIVERS] + z.reshape(NODES, 2, 2)[SENDERS], 0.1
                    )
                ).sum(-1)
            )[..., None]
        ),
        (X, H, X[0]),
        ["gatv2_attention"],
    ),
    "scores of sums by heads, as a product": (
        lambda x, z, a: _sum(
            z.reshape(NODES, 2, 2)[SENDERS]
            * _softmax(
                jnp.einsum(
                    "ehd,hd->eh",
                    jax.nn.leaky_relu(
                        x.reshape(NODES, 2, 2)[RECEIVERS] + z.reshape(NODES, 2, 2)[SENDERS]
                    ),
                    a.reshape(2, 2),
                )
            )[..., None]
        ),
        (X, H, X[0]),
        ["gatv2_attention"],
    ),
    # networks on edges
    "projections": (lambda x: jnp.sin(_ends(x) @ KERNEL), (X,), None),
    "message network": (lambda x, e: _sum(_mlp(_ends(x, e))), (X, E), ["edge_mlp_aggregate"]),
    "message network in another order": (
        lambda x: _sum(_mlp(_ends(x, order=(2, 1, 0)), jax.nn.silu)),
        (X,),
        ["edge_mlp_aggregate"],
    ),
    "weighted message network": (
        lambda x, w: _sum(w[:, None] * _mlp(_ends(x)), DROPPED),
        (X, W),
        ["edge_mlp_aggregate"],
    ),
    "masked message network": (
        lambda x: _sum(jnp.where(KEPT[:, None], _mlp(_ends(x)), 0)),
        (X,),
        ["edge_mlp_aggregate"],
    ),
    "third ends are features of edges": (
        lambda x: _sum(
            _mlp(jnp.concatenate([x[RECEIVERS], x[SENDERS], x[SENDERS[::-1]][:, :3]], -1))
        ),
        (X,),
        ["edge_mlp_aggregate"],
    ),
    "batch of message networks": (
        lambda x: jax.vmap(lambda x: _sum(_mlp(_ends(x))))(x),
        (jnp.stack([X, H]),),
        None,
    ),
    # layers of nodes
    "a layer": (
        lambda x, w, b: jnp.sin(jax.nn.silu(x @ w.T + b)),
        (X, KERNEL.T[:, :4], BIAS),
        ["fused_linear"],
    ),
    "layers": (
        lambda x, w: jnp.sin(jax.nn.relu(jax.nn.relu(x @ w + BIAS) @ LAST + LAST_BIAS) @ LAST.T),
        (X, KERNEL[:4]),
        ["fused_mlp"],
    ),
    "layers of two activations": (
        lambda x, w: jax.nn.gelu(jax.nn.relu(jax.nn.relu(x @ w) @ LAST + LAST_BIAS) @ LAST.T),
        (X, KERNEL[:4]),
        ["fused_mlp"],
    ),
    "a hidden layer that is read": (
        lambda x, w: (h := jax.nn.relu(x @ w + BIAS), jax.nn.relu(h @ LAST) @ LAST.T),
        (X, KERNEL[:4]),
        ["fused_mlp", "fused_linear"],
    ),
    # largest entries
    "largest": (lambda x: _largest(x), (X,), ["maxk"]),
    "sum of the largest": (lambda x: _sum(_largest(x)[SENDERS]), (X,), ["maxk_spmm"]),
}


@pytest.mark.parametrize("name", APPLIES)
def test_a_rule_applies_and_gives_the_same(name):
    fn, args, ops = APPLIES[name]
    found = applied(fuse(fn), *args)
    assert found and ops in (None, found)
    assert_same(fn, fuse(fn), *args)


@jax.custom_jvp
def _relu_with_another_slope(x):
    return jnp.maximum(x, 0)


_relu_with_another_slope.defjvps(lambda t, _, x: t)


def _threshold(x):
    return jnp.where(x >= jax.lax.top_k(x, 2)[0][:, -1:], x, 0)


DOES_NOT = {
    "rows of two tables": (lambda x, h: _sum(x[SENDERS] * h[SENDERS[::-1]]), (X, H)),
    "a row that is not there": (lambda x: _sum(x.at[OUT].get(mode="fill")), (X,)),
    "a row that is not there, out of promise": (
        lambda x: _sum(x.at[OUT].get(mode="promise_in_bounds")),
        (X,),
    ),
    "a maximum from zero": (lambda x: jnp.zeros((NODES, 4)).at[RECEIVERS].max(x[SENDERS]), (X,)),
    "integers": (lambda x: _sum(x.astype(jnp.int32)[SENDERS]), (X,)),
    "columns": (lambda x: x[:, jnp.array([0, 0, 3])], (X,)),
    "softmax of another shift": (lambda w: _shifted(w, _min), (W,)),
    "softmax of other segments": (lambda w: _shifted(w, _max, SENDERS), (W,)),
    "softmax with a large epsilon": (lambda w: _shifted(w, _max, eps=1e-3), (W,)),
    "scores of other neighbours": (
        lambda q, k: _sum(
            k[SENDERS] * _softmax((q[RECEIVERS] * k[SENDERS[::-1]]).sum(-1))[:, None]
        ),
        (X, H),
    ),
    "scores of sums, of other values": (
        lambda x, z, a: _sum(
            x[SENDERS] * _softmax(jax.nn.leaky_relu(x[RECEIVERS] + z[SENDERS]) @ a)[:, None]
        ),
        (X, H, X[0]),
    ),
    "sums of rows that are not there": (
        lambda x: jnp.nan_to_num(x.at[OUT].get(mode="fill").sum(-1)),
        (X,),
    ),
    "sums of products of two ends": (lambda x: (x[SENDERS] * x[RECEIVERS]).sum(-1), (X,)),
    "channels alone": (lambda x, c: _sum(x[SENDERS] * c), (X, CHANNELS)),
    "divided by filters": (lambda x, w: _sum(x[SENDERS] / (1 + w**2)), (X, FILTERS)),
    "a batch of filters": (
        lambda x, w: jax.vmap(lambda x, w: _sum(x[SENDERS] * w))(x, w),
        (jnp.stack([X, H]), jnp.stack([FILTERS, -FILTERS])),
    ),
    "softmax of dropped edges": (
        lambda w: jnp.where(DROPPED < NODES, _softmax(w, DROPPED), 0),
        (W,),
    ),
}
NO_OP = {
    *("sums by nodes", "spmm", "neighbour_reduce", "segment_softmax", "maxk", "gat_attention"),
    *("filtered_sum", "filtered_sum by a kernel"),
}


@pytest.mark.parametrize("name", DOES_NOT)
def test_a_rule_does_not_apply_where_it_would_be_wrong(name):
    fn, args = DOES_NOT[name]
    assert not NO_OP & set(applied(fuse(fn), *args))
    assert_same(fn, fuse(fn), *args)


NO_NETWORK = {
    "another slope": lambda x: _sum(_mlp(_ends(x), _relu_with_another_slope)),
    "a maximum with zero, of another slope there": lambda x: _sum(
        _mlp(_ends(x), lambda z: jnp.maximum(z, 0))
    ),
    "tanh": lambda x: _sum(_mlp(_ends(x), jnp.tanh)),
    "an activation behind": lambda x: _sum(jax.nn.relu(_mlp(_ends(x)))),
    "a maximum": lambda x: jax.ops.segment_max(_mlp(_ends(x)), RECEIVERS, NODES),
    "a norm before": lambda x: _sum(_mlp(_ends(x) / jnp.abs(_ends(x)).max(-1, keepdims=True))),
    "a bias by edge": lambda x: _sum(jax.nn.relu(_ends(x) @ KERNEL + W[:, None]) @ LAST),
}


@pytest.mark.costly(3)
@pytest.mark.parametrize("name", NO_NETWORK)
def test_message_networks_of_another_form_are_none(name):
    fn = NO_NETWORK[name]
    assert "edge_mlp_aggregate" not in applied(fuse(fn), X)
    assert_same(fn, fuse(fn), X)


@pytest.mark.parametrize(
    "threshold",
    [
        _threshold,
        lambda x: x * (x >= jax.lax.top_k(x, 2)[0][:, -1:]).astype(x.dtype),
        lambda x: jnp.where(jnp.sort(x, -1)[:, -2, None] > x, 0, x),
        lambda x: jnp.where(x < -jnp.sort(-x, -1)[:, 1:2], 0, x),
    ],
)
def test_a_threshold_that_keeps_ties_is_not_maxk_and_named(threshold):
    x = jnp.round(X)
    assert applied(fuse(threshold), x) == []
    assert "a threshold keeps all entries that tie" in refused(fuse(threshold), x)
    assert_same(threshold, fuse(threshold), x)


def test_reasons_are_named():
    fn, args = DOES_NOT["a row that is not there"]
    assert "a gathered id is out of range" in refused(fuse(fn), *args)
    fn, args = DOES_NOT["rows of two tables"]
    assert "rows of two tables are multiplied" in refused(fuse(fn), *args)
    fn, args = DOES_NOT["channels alone"]
    assert "a factor is neither read by row nor an array of edges" in refused(fuse(fn), *args)
    fn, args = DOES_NOT["a batch of filters"]
    assert "filters of edges have an axis before" in refused(fuse(fn), *args)
    fn, args = DOES_NOT["a maximum from zero"]
    assert "the reduction does not start at -inf" in refused(fuse(fn), *args)


@pytest.mark.costly
@pytest.mark.parametrize("name", ["projections", "message network", "both ends", "maximum"])
def test_what_no_edge_reads_may_be_nan(name):
    fn, (x, *rest), _ = APPLIES[name]
    spoiled = x.at[NODES - 1].set(jnp.nan)  # which has no edges
    fused = fuse(fn)
    np.testing.assert_allclose(fused(spoiled, *rest), fn(spoiled, *rest), atol=1e-4)

    def loss(f):
        return lambda x: jnp.where(jnp.isfinite(y := f(x, *rest)), y, 0).sum()

    np.testing.assert_allclose(
        jax.grad(loss(fused))(spoiled), jax.grad(loss(fn))(spoiled), atol=1e-4
    )


@pytest.mark.parametrize("of", ["softmax", "attention", "epsilon", "attention with epsilon"])
def test_segments_whose_logits_are_all_minus_infinity_give_zeros(of):
    w = jnp.where((RECEIVERS == 2) | (jnp.arange(EDGES) % 7 == 0), -jnp.inf, W)
    fn = {
        "softmax": _guarded,
        "attention": lambda w: _sum(X[SENDERS] * _guarded(w)[:, None]),
        "epsilon": _guarded_by_epsilon,
        "attention with epsilon": lambda w: _sum(X[SENDERS] * _guarded_by_epsilon(w)[:, None]),
    }[of]
    assert "segment_softmax" in applied(fuse(fn), w)[0]
    assert jnp.isfinite(fn(w)).all()
    assert_same(fn, fuse(fn), w)


CONSTANTS = {
    "a constant": lambda c: _sum(jnp.broadcast_to(c, (EDGES,))),
    "rows": lambda c: _sum(jnp.abs(X)[SENDERS] * c),
    "messages": lambda c: _sum(jnp.abs(_mlp(_ends(X))[:, :1] * 0 + 1) * c),
    "the MLP of messages": lambda c: _sum(_mlp(_ends(X)) * c)[NODES - 1],
}


@pytest.mark.costly(2)
@pytest.mark.parametrize("of", CONSTANTS)
def test_segments_without_edges_are_zero_whatever_the_constant(of):
    c = jnp.float32(jnp.inf)
    assert applied(fuse(CONSTANTS[of]), c)
    assert_same(CONSTANTS[of], fuse(CONSTANTS[of]), c)


def _leaky(x, slope=0.2, compare=jnp.greater):
    return jnp.where(compare(x, 0), x, slope * x)


OTHER_LEAKY = {
    "negative slope at zero": _leaky,
    "no slope": lambda x: jax.nn.leaky_relu(x, 0.0),
    "a slope that turns": lambda x: jax.nn.leaky_relu(x, -0.5),
}


@pytest.mark.costly(3)
@pytest.mark.parametrize("name", OTHER_LEAKY)
def test_scores_of_another_leaky_relu_are_not_those_of_the_op(name):
    def run(a, b):
        return _sum(X[SENDERS] * _softmax(OTHER_LEAKY[name](a[RECEIVERS] + b[SENDERS]))[:, None])

    scores = [jnp.where(jnp.arange(NODES) < 4, 0.0, a[:, 0]) for a in (X, H)]  # some are zero
    assert applied(fuse(run), *scores) == ["segment_softmax and spmm"]
    assert_same(run, fuse(run), *scores)


@pytest.mark.parametrize("of", ["heads", "all of a segment"])
def test_masks_of_another_form_stay_in_the_logits(of):
    masks = {
        "heads": jnp.stack([jnp.arange(EDGES) % 7 != 0, jnp.arange(EDGES) % 5 != 0], -1),
        "all of a segment": (RECEIVERS != 2)[:, None],
    }

    def run(w):
        return _masked(w, masks[of])

    assert applied(fuse(run), HEADS) == ["segment_softmax and spmm"]
    assert_same(run, fuse(run), HEADS)


def test_messages_that_are_needed_are_not_computed_again():
    def run(x):
        messages = _mlp(_ends(x))
        return _sum(messages), messages

    assert applied(fuse(run), X) == ["interaction"]  # which returns them
    assert_same(run, fuse(run), X)


def test_senders_that_are_made_of_numbers_are_ordered_in_the_step():
    def run(x):
        return _sum(x[(x[:, 0] > 0).astype(jnp.int32)], RECEIVERS[:NODES])

    assert applied(fuse(run), X) == ["spmm"]
    assert_same(run, fuse(run), X)


def test_weights_that_are_known_are_put_in_order_ahead():
    degrees = _sum(jnp.ones(EDGES))

    def run(x):
        norms = jnp.where(degrees > 0, degrees, 1.0) ** -0.5
        return _sum(x[SENDERS] * (norms[SENDERS] * norms[RECEIVERS])[:, None])

    explanation = jaxgnn.fuse.explain(fuse(run), X, measure=False)
    assert applied(fuse(run), X) == ["spmm"] and explanation.equations_after == 1
    assert_same(run, fuse(run), X)


def test_ids_and_weights_may_be_made_in_more_steps_than_python_calls_may_be_deep():
    def run(x, weights):
        senders = SENDERS
        for i in range(1200):
            senders, weights = (senders + i) % NODES, weights * 1.5
        return jax.ops.segment_sum(x[senders] * weights[:, None], RECEIVERS, NODES)

    x, weights = arrays((NODES, 2), (EDGES,))
    assert applied(fuse(run), x, weights) == ["spmm"]


@pytest.mark.parametrize("heads", [4])
def test_numbers_of_heads_alone_are_weights_of_all_edges(heads):
    """Also where there are as many heads as edges, and for lists of other lengths."""
    of_heads, of_edges, x = arrays((heads,), (8,), (5, heads, 3))
    for edges in (4, 8):
        senders, receivers = SENDERS[:edges] % 5, RECEIVERS[:edges] % 5

        def run(x, given=None, edges=edges, senders=senders, receivers=receivers):
            w = (of_heads if given is None else given)[None, :, None]
            alpha = jraph.segment_softmax(of_edges[:edges, None] * x[senders, :, 0], receivers, 5)
            return [
                jax.ops.segment_sum(x[senders] * w, receivers, 5),
                jax.ops.segment_sum(x[senders] * w * of_edges[:edges, None, None], receivers, 5),
                jax.ops.segment_sum(x[senders] * w * alpha[:, :, None], receivers, 5),
            ]

        for args in ((x,), (x, of_heads)):
            assert applied(fuse(run), *args).count("spmm") >= 2
            for made, expected in zip(fuse(run)(*args), run(*args), strict=True):
                np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)


def test_each_layer_of_a_chain_is_asked_about_as_often_in_a_longer_one(monkeypatch):
    counts = []

    def counted(view, atom, template):
        counts.append(1)
        return argument_of(view, atom, template)

    monkeypatch.setattr(templates, "argument_of", counted)

    def calls(layers):
        def run(x):
            for _ in range(layers):
                x = jax.nn.silu(x @ KERNEL[:8, :8] + BIAS)
            return x @ LAST

        counts.clear()
        assert applied(fuse(run), KERNEL) == ["fused_mlp"]
        return len(counts)

    assert calls(20) - calls(10) == calls(30) - calls(20)


def test_two_layers_keep_their_own_graphs_and_share_one():
    def run(x):
        x = jnp.tanh(_sum(x[SENDERS]))
        x = jnp.tanh(_sum(x[SENDERS]))
        return _sum(x[RECEIVERS], SENDERS)

    assert applied(fuse(run), X) == ["spmm"] * 3
    assert_same(run, fuse(run), X)


def test_padding_does_not_reach_attention():
    # Scores of dropped edges are arbitrary, and their gradients NaN in the function as it is.
    def run(x, w):
        return _sum(x[SENDERS] * _softmax(w[:, None], DROPPED), DROPPED)

    fused = fuse(run)
    assert applied(fused, X, W) == ["segment_softmax and spmm"]
    np.testing.assert_allclose(fused(X, W), run(X, W), atol=1e-5)
    assert np.isfinite(jax.grad(lambda w: fused(X, w).sum())(W)).all()


def _layer(x, w):
    return jax.nn.relu(x @ w)


def _bfloat16(rows, width):
    return [jax.ShapeDtypeStruct(shape, "bfloat16") for shape in ((rows, width), (width, width))]


def test_layers_are_left_to_xla_where_the_op_would_choose_it(monkeypatch):
    fused = jaxgnn.fuse(_layer)
    monkeypatch.setattr(dense, "current_platform", lambda: "cpu")
    assert applied(fused, *_bfloat16(2048, 128)) == []
    assert "no kernel" in refused(fused, *_bfloat16(2048, 128))
    if FUSED_LINEAR.unavailable("pallas", "cuda"):
        pytest.skip(f"reason: {FUSED_LINEAR.unavailable('pallas', 'cuda')}")
    # As on a GPU, whatever this machine has.
    monkeypatch.setattr(dense, "current_platform", lambda: "cuda")
    # So many rows are more bytes than those from which fuse rewrites on a GPU.
    assert applied(fused, *_bfloat16(2**17, 128)) == ["fused_linear"]
    assert applied(fused, *_bfloat16(2047, 128)) == []  # as many were not timed
