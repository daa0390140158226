"""hypergraph_conv refuses bad input with op, argument, expectation and value, before it runs."""

import jax
import jax.numpy as jnp
import pytest

from jaxgnn import Incidence, ops
from jaxgnn.ops._hypergraph.hypergraph_conv import _PATHS
from tests.ops.hypergraph._hypergraph import (
    FEATURES,
    HEADS,
    HYPEREDGES,
    INCIDENCE,
    NODES,
    WIDTH,
    arrays,
)

GIVEN = arrays()
PLAIN = arrays(attention=False)
NAN = float("nan")


def _call(given=GIVEN, incidence=INCIDENCE, **changes):
    return lambda: ops.hypergraph_conv(incidence=incidence, **given | changes)


def _ids(nodes, hyperedges, num_hyperedges=HYPEREDGES):
    return Incidence(jnp.array(nodes), jnp.array(hyperedges), NODES, num_hyperedges)


CASES = {
    "node out of range": (
        _call(incidence=_ids([0, NODES + 1], [0, 0])),
        ["node_ids[1]", "[0, 10), as num_nodes is 10", "got 11"],
    ),
    "more hyperedges than declared": (
        _call(incidence=_ids([0, 1, 2], [0, HYPEREDGES, 1])),
        ["hyperedge_ids[1]", "[0, 7), as num_hyperedges is 7", "got 7"],
    ),
    "negative id": (_call(incidence=_ids([0], [-1])), ["hyperedge_ids[0]", "got -1"]),
    "not an incidence": (
        _call(incidence=INCIDENCE.by_node()),
        ["hypergraph_conv: incidence", "a jaxgnn.Incidence", "CSRGraph"],
    ),
    "no node": (
        _call(incidence=Incidence.from_hyperedges([], 0), x=jnp.ones((0, FEATURES))),
        ["hypergraph_conv: incidence", "at least one node", "(0, 0)"],
    ),
    "x rows": (
        _call(x=GIVEN["x"][:-1]),
        ["hypergraph_conv: x", "[..., 10, features]", "each node", "(9, 6)"],
    ),
    "x vector": (_call(x=GIVEN["x"][0]), ["hypergraph_conv: x", "2 axes", "(6,)"]),
    "x integers": (_call(x=jnp.ones((NODES, 6), int)), ["x", "floating", "int32"]),
    "weight length": (
        _call(weight=GIVEN["weight"][:-2]),
        ["hypergraph_conv: weight", "(7,), one for each hyperedge", "(5,)"],
    ),
    "weight of each incidence": (
        _call(weight=jnp.ones(INCIDENCE.num_incidences)),
        ["hypergraph_conv: weight", "(7,)", "(35,)"],
    ),
    "weight matrix": (_call(weight=jnp.ones((HYPEREDGES, 1))), ["weight", "(7,)", "(7, 1)"]),
    "weight integers": (_call(weight=jnp.ones(HYPEREDGES, int)), ["weight", "floating", "int32"]),
    "weight NaN": (
        _call(weight=GIVEN["weight"].at[3].set(NAN)),
        ["hypergraph_conv: weight[3]", "finite, as each of 7 weights", "nan"],
    ),
    "weight infinite": (
        _call(weight=GIVEN["weight"].at[0].set(float("inf"))),
        ["hypergraph_conv: weight[0]", "finite", "inf"],
    ),
    "no such activation": (
        _call(PLAIN, activation="softplus"),
        ["hypergraph_conv: activation", "'gelu' or 'gelu_exact'", "'softplus'"],
    ),
    "residual shape": (
        _call(PLAIN, residual=PLAIN["x"]),
        ["hypergraph_conv: residual", "float32 of shape (10, 8), that of the result", "(10, 6)"],
    ),
    "residual dtype": (
        _call(PLAIN, residual=jnp.ones((NODES, WIDTH), "bfloat16")),
        ["hypergraph_conv: residual", "float32 of shape (10, 8)", "bfloat16 of shape (10, 8)"],
    ),
    "residual of a mean of heads": (
        _call(bias=None, concat=False, residual=jnp.ones((NODES, WIDTH))),
        ["hypergraph_conv: residual", "(10, 4), that of the result", "(10, 8)"],
    ),
    "attention without attributes": (
        _call(attributes=None),
        ["hypergraph_conv: attributes", "given with attention, of shape (7, 6)", "None"],
    ),
    "attributes without attention": (
        _call(attention=None),
        ["hypergraph_conv: attributes", "None without attention", "7 hyperedges", "(7, 6)"],
    ),
    "attributes of nodes": (
        _call(attributes=GIVEN["x"]),
        ["hypergraph_conv: attributes", "[..., 7, features]", "each hyperedge", "(10, 6)"],
    ),
    "attributes width": (
        _call(attributes=GIVEN["attributes"][:, :4]),
        ["hypergraph_conv: attributes", "float32[7, 6]", "float32[7, 4]"],
    ),
    "attributes dtype": (
        _call(attributes=GIVEN["attributes"].astype(jnp.bfloat16)),
        ["hypergraph_conv: attributes", "float32[7, 6]", "bfloat16[7, 6]"],
    ),
    "attributes of another batch": (
        _call(attributes=jnp.ones((3, HYPEREDGES, FEATURES))),
        ["hypergraph_conv: attributes", "leading axes of x, ()", "[3, 7, 6]"],
    ),
    "attention width": (
        _call(attention=GIVEN["attention"][:, :6]),
        ["hypergraph_conv: attention", "(2, 8), twice the 4 of a head", "(2, 6)"],
    ),
    "attention of no head": (
        _call(attention=jnp.ones((0, 8))),
        ["hypergraph_conv: attention", "at least one head", "(0, 8)"],
    ),
    "attention of three axes": (_call(attention=jnp.ones((1, 2, 8))), ["attention", "(1, 2, 8)"]),
    "kernel rows": (
        _call(kernel=GIVEN["kernel"][:-1]),
        ["hypergraph_conv: kernel", "float32 of shape (6, features)", "(10, 6)", "(5, 8)"],
    ),
    "kernel dtype": (
        _call(kernel=GIVEN["kernel"].astype(jnp.bfloat16)),
        ["hypergraph_conv: kernel", "float32", "bfloat16"],
    ),
    "kernel without a column for each head": (
        _call(kernel=GIVEN["kernel"][:, :7]),
        ["hypergraph_conv: kernel", "multiple of 2 columns", "(6, 7)"],
    ),
    "features without one for each head": (
        _call(kernel=None, attention=jnp.ones((4, 3))),
        ["hypergraph_conv: x", "multiple of 4 features", "got 6"],
    ),
    "bias of one head": (
        _call(bias=jnp.ones(WIDTH // HEADS)),
        ["hypergraph_conv: bias", "(8,)", "(4,)"],
    ),
    "bias of all heads for their mean": (_call(concat=False), ["bias", "(4,)", "(8,)"]),
    "weighting": (_call(weighting="mean"), ["weighting", "'paper' or 'pyg'", "'mean'"]),
    "normalization": (_call(normalization=None), ["normalization", "'mean' or 'sym'", "None"]),
    "attention mode": (
        _call(attention_mode="hyperedge"),
        ["attention_mode", "'node' or 'edge'", "'hyperedge'"],
    ),
    "concat": (_call(concat=1), ["concat", "True or False", "1"]),
    "negative slope": (_call(negative_slope="0.2"), ["negative_slope", "a number", "'0.2'"]),
    "dropout": (_call(dropout=1.0), ["hypergraph_conv: dropout", "[0, 1)", "1.0"]),
    "dropout of nothing": (_call(PLAIN, dropout=0.5), ["dropout", "0 without attention", "0.5"]),
    "precision": (_call(precision="fp8"), ["precision", "'tf32'", "'fp8'"]),
    "path": (_call(path="dense"), ["path", "'auto' or 'sums' or 'mixing'", "'dense'"]),
    "implementation": (_call(implementation="cuda"), ["implementation", "'cuda'"]),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_named(name):
    call, fragments = CASES[name]
    with pytest.raises(ValueError) as error:
        call()
    message, position = str(error.value), 0
    for fragment in fragments:
        position = message.find(fragment, position)
        assert position >= 0, f"{fragment!r} is missing, or out of order, in: {message}"


@pytest.mark.parametrize(
    "name",
    [
        "node out of range",
        "more hyperedges than declared",
        "weight length",
        "weight NaN",
        "attention without attributes",
    ],
)
def test_nothing_has_run_when_it_complains(name, monkeypatch):
    def run(*_):
        raise AssertionError("a path was taken")

    for path in _PATHS:
        monkeypatch.setitem(_PATHS, path, run)
    with pytest.raises(AssertionError, match="a path was taken"):
        _call()()
    with pytest.raises(ValueError):
        CASES[name][0]()


def test_shapes_are_checked_at_trace_time():
    weight = GIVEN["weight"][:-1]
    with pytest.raises(ValueError, match=r"weight must be of shape \(7,\)"):
        jax.jit(ops.hypergraph_conv).lower(GIVEN["x"], INCIDENCE, weight)
