"""Irregular code that no rule is for is named by ``explain``, with a reason."""

import jax
import jax.numpy as jnp
import pytest

import jaxgnn
from tests.fusion._cases import EDGES, NODES, RECEIVERS, SENDERS, arrays, fuse

X, H, E = arrays((NODES, 4), (NODES, 4), (EDGES, 4))
LIST = SENDERS[: 4 * NODES].reshape(NODES, 4)
ADJACENCY = jnp.zeros((NODES, NODES), bool).at[RECEIVERS, SENDERS].set(True)


def _lennard_jones(x):
    squared = ((x[:, None] - x[LIST]) ** 2).sum(-1)
    inverse = (1 / (1 + squared)) ** 3
    return jnp.where(LIST < NODES - 2, 4 * (inverse**2 - inverse), 0).sum(1)


def _pairs(x):
    messages = jax.nn.relu(x[:, None] + x[None])
    return jnp.where(ADJACENCY[..., None], messages, -1e9).max(1)


LEFT = {
    "a gather": (lambda x: x[SENDERS] - x[RECEIVERS], "rows are read by sub"),
    "a gather that is a result": (lambda x: x[SENDERS], "its rows are a result"),
    "a gather of computed ids": (
        lambda x: x[jnp.argsort(x[:, 0])],
        "ids are known only when it runs",
    ),
    "single entries": (lambda x: x[SENDERS, SENDERS % 4].sum(), "single entries"),
    "a write": (lambda x: x.at[SENDERS].set(1.0), "rows are written"),
    "a product of segments": (
        lambda x: jax.ops.segment_prod(x[SENDERS], RECEIVERS, NODES),
        "no op multiplies",
    ),
    "integers": (
        lambda x: jax.ops.segment_sum((x[SENDERS] > 0).astype(jnp.int32), RECEIVERS, NODES),
        "ops reduce floats, not int32",
    ),
    "a batch of graphs": (
        lambda x: jax.vmap(lambda ids: jax.ops.segment_sum(x[:4], ids, NODES))(LIST),
        "each member of a batch has ids of its own",
    ),
    "a list of a batch": (
        lambda x: jax.vmap(lambda x: x[LIST].sum(1))(jnp.stack([x, x])),
        "a list along a later axis",
    ),
    "several axes": (
        lambda x: jnp.zeros((NODES, NODES)).at[RECEIVERS, SENDERS].add(x[SENDERS, 0]),
        "its ids index several axes",
    ),
    "pairs of a dense list": (_lennard_jones, "no product of gathered rows and weights"),
    "all pairs with a mask": (_pairs, "all pairs are computed"),
}


@pytest.mark.parametrize("name", LEFT)
def test_irregular_code_that_stays_is_named(name):
    fn, reason = LEFT[name]
    explanation = jaxgnn.fuse.explain(fuse(fn), X, measure=False)
    assert explanation.findings.applied == []
    assert reason in "; ".join(one.reason for one in explanation.findings.refused)
    assert "not rewritten: " in str(explanation)


def test_what_a_rule_refuses_is_not_named_again():
    def run(x, e):
        return jax.ops.segment_sum(x[SENDERS] * e, RECEIVERS, NODES)

    places = [one.where for one in jaxgnn.fuse.explain(run, X, E, measure=False).findings.refused]
    assert len([place for place in places if place.startswith("scatter-add")]) == 2  # two rules


def test_gathers_of_a_rewrite_are_not_named():
    def run(x):
        return jnp.sin(x[SENDERS] @ H.T)

    explanation = jaxgnn.fuse.explain(fuse(run), X, measure=False)
    assert len(explanation.findings.applied) == 1
    assert "gather" not in str(explanation.findings.refused)


def test_irregular_code_in_a_loop_is_named_with_its_place():
    def run(x):
        return jax.lax.scan(lambda c, _: (jnp.sin(c[SENDERS[:NODES]]), None), x, None, length=2)[0]

    places = [one.where for one in jaxgnn.fuse.explain(run, X, measure=False).findings.refused]
    assert f"scan: gather -> float32[{NODES},4]" in places


def test_a_function_without_graph_code_says_so():
    text = str(jaxgnn.fuse.explain(jnp.sin, X, measure=False))
    assert "it has no gathers, scatters, or other code that a rule is for" in text
