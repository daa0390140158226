"""The choice among rewrites that exclude each other, with egglog and without."""

import jax
import jax.numpy as jnp
import jraph
import numpy as np
import pytest

import jaxgnn
from jaxgnn.fusion import policy as cost
from jaxgnn.fusion import search as search_module
from jaxgnn.fusion.policy import Policy, Speeds, seconds_of
from jaxgnn.fusion.program.program import flops_of
from jaxgnn.fusion.rewriting import Rules
from jaxgnn.fusion.rules.rule import Rewrite, Rule
from jaxgnn.fusion.rules.table import RULES
from jaxgnn.fusion.transform import transformed
from tests.fusion._cases import NODES, RECEIVERS, SENDERS, arrays
from tests.fusion.rules.test_rules import APPLIES, DOES_NOT

SPEEDS = Speeds(bytes_per_second=1e9, flops_per_second=1e10, launch_seconds=1e-5)
X, KERNEL, VECTOR = arrays((NODES, 4), (4, 4), (8, 1))


@pytest.fixture(autouse=True)
def one_device_for_all_machines(monkeypatch):
    monkeypatch.setattr(search_module, "measured_speeds", lambda: SPEEDS)


def _tuple(x):
    counts = jnp.array([NODES]), jnp.array([SENDERS.size])
    return jraph.GraphsTuple(x, None, RECEIVERS, SENDERS, None, *counts)


def _gat(x):
    def logits(sent, received, _):
        return jax.nn.leaky_relu(jnp.concatenate([sent, received], axis=-1) @ VECTOR)

    return jraph.GAT(lambda x: x @ KERNEL, logits)(_tuple(x)).nodes


def _chain(x, depth=9):
    for i in range(depth):
        x = jax.nn.relu(x @ (KERNEL + i) + KERNEL[0])
    return x @ KERNEL


def _hypergraph(x):
    of_edges = jax.ops.segment_sum(x[SENDERS], RECEIVERS, NODES)
    return jax.ops.segment_sum(of_edges[RECEIVERS], SENDERS, NODES)


TARGETS = {
    "jraph.GraphConvolution": lambda x: (
        jraph.GraphConvolution(lambda x: x @ KERNEL, symmetric_normalization=False)(_tuple(x)).nodes
    ),
    "jraph.GAT": _gat,
    "a chain of ten layers": _chain,
    "hypergraph convolution": _hypergraph,
    **{name: case[0] for name, case in {**APPLIES, **DOES_NOT}.items()},
}


def _arguments(name):
    case = APPLIES.get(name) or DOES_NOT.get(name)
    return (X,) if case is None else case[1]


def _applied(closed, search, rules=RULES):
    found = transformed(closed, Rules(rules, Policy(only_if_faster=False)), {}, search)[1]
    return [(one.rule, one.where, one.note) for one in found.applied]


@pytest.mark.costly(25)
@pytest.mark.parametrize("name", TARGETS)
def test_both_searches_rewrite_the_targets_alike(name):
    closed = jax.make_jaxpr(TARGETS[name])(*_arguments(name))
    assert _applied(closed, "egglog") == _applied(closed, "matcher")


def test_an_activation_is_left_over_by_both_searches_where_the_layers_before_it_go_together():
    closed = jax.make_jaxpr(TARGETS["layers of two activations"])(
        *_arguments("layers of two activations")
    )
    for search in ("egglog", "matcher"):
        assert [rule for rule, *_ in _applied(closed, search)] == ["fused_mlp"]


def _rule(name, primitive, function, after):
    """A rule that makes what stands there of the first thing that a primitive reads."""

    def propose(view, equation):
        inputs = [view.program.inputs[0]]
        return Rewrite(equation, inputs, function, name, 10 * after, after)

    return Rule(name, frozenset((primitive,)), propose)


def test_the_cheapest_of_rewrites_that_exclude_each_other_is_taken():
    def run(x):
        return jnp.tanh(x @ x.T) + 1

    closed = jax.make_jaxpr(run)(X)
    slow = _rule("slow", "tanh", lambda x: [jnp.tanh(x @ x.T)], 10**9)
    fast = _rule("fast", "tanh", lambda x: [jnp.tanh(x @ x.T)], 10)
    part = _rule("part", "dot_general", lambda x: [x @ x.T], 10**8)
    rules = (slow, part, fast)  # the first one leaves nothing to the others
    assert [rule for rule, *_ in _applied(closed, "matcher", rules)] == ["slow"]
    assert [rule for rule, *_ in _applied(closed, "egglog", rules)] == ["fast"]
    findings = transformed(closed, Rules(rules, Policy(False)), {}, "egglog")[1]
    assert "other rewrites of the same terms cost less" in {one.reason for one in findings.refused}


def test_the_matcher_is_taken_where_egglog_is_not_installed(monkeypatch):
    fn, args, _ = APPLIES["message network"]
    monkeypatch.setattr(search_module, "has_egglog", lambda: False)
    monkeypatch.setattr(search_module, "_candidates", pytest.fail)
    monkeypatch.setattr(cost, "_FASTER_FROM", {})
    fused = jaxgnn.fuse(fn)
    np.testing.assert_allclose(fused(*args), fn(*args), rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="fuse: search must be 'auto' or 'matcher' where the pack"):
        jaxgnn.fuse(fn, search="egglog")


def test_several_processes_choose_alike_as_nothing_is_measured(monkeypatch):
    fn, args, _ = APPLIES["message network"]
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(search_module, "_candidates", pytest.fail)
    monkeypatch.setattr(cost, "_FASTER_FROM", {})
    assert jaxgnn.fuse.explain(fn, *args, measure=False).findings.applied


def test_all_sound_rewrites_are_not_weighed_by_themselves(monkeypatch):
    fn, args, _ = APPLIES["message network"]
    monkeypatch.setattr(search_module, "_candidates", pytest.fail)
    assert jaxgnn.fuse.explain(
        jaxgnn.fuse(fn, only_if_faster=False), *args, measure=False
    ).findings.applied


def test_an_unknown_search_is_named():
    with pytest.raises(ValueError, match="fuse: search must be one of 'auto', 'matcher', 'egglog'"):
        jaxgnn.fuse(_gat, search="all")


def test_costs_are_bytes_products_and_launches():
    def run(x, y):
        return jnp.tanh(x @ y)

    like = jax.ShapeDtypeStruct((1000, 100), "float32"), jax.ShapeDtypeStruct((100, 10), "float32")
    dot, tanh = jax.make_jaxpr(run)(*like).jaxpr.eqns
    assert flops_of(dot) == 2 * 1000 * 100 * 10
    of_bytes = 4 * (1000 * 100 + 100 * 10 + 1000 * 10) / SPEEDS.bytes_per_second
    assert seconds_of(dot, SPEEDS) == pytest.approx(of_bytes + SPEEDS.launch_seconds)
    assert seconds_of(tanh, SPEEDS) == pytest.approx(4 * 1000 * 10 / SPEEDS.bytes_per_second)


def test_the_speeds_of_this_device_are_measured_once(monkeypatch):
    for kind in ("cpu", "gpu"):
        monkeypatch.setitem(cost._COPIED, kind, 1 << 20)
        monkeypatch.setitem(cost._ROWS, kind, 64)
    cost._measured.cache_clear()
    first = cost.measured_speeds()
    assert min(first.bytes_per_second, first.flops_per_second, first.launch_seconds) > 0
    assert cost.measured_speeds() is first
    assert jax.jit(lambda x: x * cost.measured_speeds().launch_seconds)(1.0) >= 0  # while traced
    cost._measured.cache_clear()
