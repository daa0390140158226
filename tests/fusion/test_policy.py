"""The policy takes the cases that were measured apart for what they are, on each platform."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgnn
from jaxgnn.fusion import policy

NODES, EDGES, WIDTH = 20_000, 1_200_000, 128
_rng = np.random.default_rng(0)
SENDERS = jnp.asarray(_rng.integers(0, NODES, EDGES), jnp.int32)
RECEIVERS = jnp.asarray(np.sort(_rng.integers(0, NODES, EDGES)), jnp.int32)


def _array(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


X, E, SQUARE = _array(NODES, WIDTH), _array(EDGES, WIDTH), _array(WIDTH, WIDTH)


def _sum(messages, ids=RECEIVERS):
    return jax.ops.segment_sum(messages, ids, NODES)


def _filtered(x, e):
    return _sum(x[SENDERS] * e)


def _shifted(x, e):
    return _sum(x[SENDERS] + e)


def _updated(e, kernel):
    new = e + jnp.tanh(e @ kernel)
    return new, _sum(new)


def _once(x, kernel):
    ends = jnp.concatenate([x[SENDERS], x[RECEIVERS]], axis=-1)
    return _sum(jax.nn.relu(ends @ jnp.concatenate([kernel, kernel])) @ kernel)


def _twice(x, kernel):
    ends = jnp.concatenate([x[SENDERS], x[RECEIVERS]], axis=-1)
    messages = jax.nn.relu(ends @ jnp.concatenate([kernel, kernel])) @ kernel
    return _sum(messages) + _sum(messages, SENDERS)


def _rules_of(function, *args):
    return {
        one.rule for one in jaxgnn.fuse.explain(function, *args, measure=False).findings.applied
    }


def test_rows_that_edges_filter_are_summed_by_the_op_on_a_cpu_alone(monkeypatch):
    assert _rules_of(_filtered, X, E) == {"neighbour_sum"}
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert _rules_of(_filtered, X, E) == set()


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_messages_that_xla_computes_within_its_sum_are_left_to_it(platform, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    assert _rules_of(_shifted, X, E) == set()


def test_edges_that_are_kept_and_summed_are_summed_by_the_op_on_a_gpu_alone(monkeypatch):
    assert _rules_of(_updated, E, SQUARE) == set()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert _rules_of(_updated, E, SQUARE) == {"segments"}


def test_messages_summed_at_both_ends_are_computed_once_on_a_gpu(monkeypatch):
    assert "edge_mlp" in _rules_of(_twice, X, SQUARE)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert "edge_mlp" in _rules_of(_once, X, SQUARE)
    assert _rules_of(_twice, X, SQUARE) == {"edge_projection", "segments"}


def test_a_gpu_sums_floats_of_16_bits_by_the_op_wherever_they_come_from(monkeypatch):
    short = [jax.ShapeDtypeStruct(a.shape, jnp.bfloat16) for a in (X, E)]
    assert _rules_of(_shifted, *short) == set()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert _rules_of(_shifted, *short) == {"segments"}


def test_a_case_that_was_slower_at_any_size_says_so(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    refused = jaxgnn.fuse.explain(_shifted, X, E, measure=False).findings.refused
    assert "sums of sorted products was not measured to be faster on a GPU" in {
        one.reason for one in refused
    }


def test_every_case_of_a_rule_is_listed_for_both_platforms():
    cases = [set(of_platform) for of_platform in policy._FASTER_FROM.values()]
    sums = {case for case in set.union(*cases) if case.startswith(("sums of", "extremes of"))}
    assert all(sums <= of_platform for of_platform in cases)
