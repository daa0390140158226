"""jaxgnn.fuse: what it takes, what it leaves alone, and that it composes with JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import jaxgnn
from jaxgnn import CSRGraph, ops
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


def _layer(x):
    return jnp.tanh(jax.ops.segment_sum(x[SENDERS], RECEIVERS, NODES))


def _given(x, senders, receivers):
    return jax.ops.segment_sum(x[senders], receivers, NODES)


def test_a_rewritten_function_is_the_same_under_jit_grad_and_vmap():
    (x,) = arrays((NODES, 3))
    assert applied(fuse(_layer), x) == ["spmm"]
    assert_same(_layer, fuse(_layer), x)
    members = jnp.stack([x, 2 * x])
    for both in (jax.vmap, lambda f: jax.vmap(jax.grad(lambda x: f(x).sum()))):
        np.testing.assert_allclose(both(fuse(_layer))(members), both(_layer)(members), atol=2e-5)


def test_a_rewritten_function_is_the_same_under_shard_map(four_devices):
    kinds = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((4,), ("batch",), axis_types=kinds, devices=four_devices)
    (x,) = arrays((4, NODES, 3))

    def sharded(layer):
        def run(x):
            return jax.vmap(layer)(x) + jax.lax.pmean(x.sum(), "batch")

        return jax.shard_map(run, mesh=mesh, in_specs=P("batch"), out_specs=P("batch"))

    np.testing.assert_allclose(sharded(fuse(_layer))(x), sharded(_layer)(x), rtol=1e-5, atol=1e-5)


@pytest.mark.costly(3)
@pytest.mark.parametrize(
    "around",
    [
        lambda f: lambda x: jax.lax.scan(lambda c, _: (f(c), c.sum()), x, None, length=3),
        lambda f: lambda x: jax.lax.cond(x[0, 0] > 0, f, lambda x: x, x),
        lambda f: lambda x: jax.lax.fori_loop(0, 3, lambda _, c: f(c), x),
        jax.checkpoint,
        jax.jit,
        lambda f: jax.checkpoint(jax.jit(lambda x: f(f(x)))),
        lambda f: _with_given_tangents(f),
        lambda f: _with_given_gradients(f),
    ],
    ids=["scan", "cond", "loop", "checkpoint", "jit", "nested", "custom_jvp", "custom_vjp"],
)
def test_bodies_of_control_flow_and_of_given_derivatives_are_rewritten(around):
    (x,) = arrays((NODES, 3))
    run = around(_layer)
    assert set(applied(fuse(run), x)) == {"spmm"}
    assert_same(run, fuse(run), x)


def _with_given_tangents(f):
    """The function with a derivative that JAX would find, too."""
    made = jax.custom_jvp(f)
    made.defjvp(lambda primals, tangents: jax.jvp(f, primals, tangents))
    return made


def _with_given_gradients(f):
    made = jax.custom_vjp(f)
    made.defvjp(lambda x: jax.vjp(f, x), lambda pull_back, g: pull_back(g))
    return made


def test_a_while_loop_is_rewritten():
    def run(x):
        def is_large(c):
            return jnp.abs(_layer(c)).max() > 0.1

        return jax.lax.while_loop(is_large, lambda c: 0.1 * _layer(0.01 * c), x)

    (x,) = arrays((NODES, 3))
    assert applied(fuse(run), x) == ["spmm", "spmm"]  # of the condition and of the body
    np.testing.assert_allclose(fuse(run)(x), run(x), rtol=1e-5, atol=1e-6)


def test_given_derivatives_are_kept():
    @jax.custom_vjp
    def doubled(x):
        return _layer(x)

    doubled.defvjp(lambda x: (_layer(x), None), lambda _, g: (2 * g,))
    (x,) = arrays((NODES, 3))
    run = fuse(lambda x: doubled(x).sum())
    np.testing.assert_array_equal(jax.grad(run)(x), jnp.full_like(x, 2))
    np.testing.assert_array_equal(jax.grad(jax.jit(run))(x), jnp.full_like(x, 2))
    assert applied(run, x) == ["spmm"]


def test_what_is_in_ops_of_this_library_is_left_alone():
    graph = CSRGraph.from_edges(SENDERS, RECEIVERS, NODES)
    (x,) = arrays((NODES, 3))
    assert applied(fuse(lambda x: ops.spmm(graph, x, implementation="xla")), x) == []
    assert applied(fuse(lambda x: ops.dot_attention(graph, *[x[:, None]] * 3)), x) == []


def test_ids_of_arguments_are_known_if_they_are_named():
    (x,) = arrays((NODES, 3))
    unnamed = jaxgnn.fuse(_given)
    assert applied(unnamed, x, SENDERS, RECEIVERS) == []
    assert "only when it runs" in refused(unnamed, x, SENDERS, RECEIVERS)
    for names in (True, ("senders", "receivers")):
        fused = fuse(_given, static_graph=names)
        assert applied(fused, x, SENDERS, RECEIVERS) == ["spmm"]
        for senders in (SENDERS, SENDERS[::-1], np.asarray(SENDERS)):  # also after another list
            expected = _given(x, senders, RECEIVERS)
            np.testing.assert_allclose(fused(x, senders, RECEIVERS), expected, rtol=1e-5)


def test_an_array_of_ids_that_changes_in_place_is_seen():
    (x,) = arrays((NODES, 3))
    fused = fuse(_given, static_graph="senders")
    senders, receivers = np.array(SENDERS), np.asarray(RECEIVERS)
    fused(x, senders, receivers)
    senders[:] = 0
    np.testing.assert_allclose(
        fused(x, senders, receivers), _given(x, senders, receivers), rtol=1e-5
    )


def test_integer_arguments_that_are_no_ids_may_change_without_another_compilation():
    traces = []

    def run(x, senders, labels):
        traces.append(1)
        return jnp.where(labels[:, None] > 0, _given(x, senders, RECEIVERS), 0)

    fused = fuse(run, static_graph=True)
    (x,) = arrays((NODES, 3))
    fused(x, SENDERS, jnp.zeros(NODES, jnp.int32))
    before = len(traces)
    labels = jnp.ones(NODES, jnp.int32)
    np.testing.assert_allclose(fused(x, SENDERS, labels), run(x, SENDERS, labels), rtol=1e-5)
    assert len(traces) == before + 1  # the call of run itself


class _Model(nnx.Module):
    def __init__(self):
        self.linear = nnx.Linear(3, 3, rngs=nnx.Rngs(0))
        self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))

    def __call__(self, x, train=False):
        x = self.dropout(self.linear(x)) if train else self.linear(x)
        return _layer(x)


def test_a_module_is_an_argument_whose_parameters_may_change():
    model, (x,) = _Model(), arrays((NODES, 3))
    fused = fuse(model)
    np.testing.assert_allclose(fused(x), model(x), rtol=1e-5)
    model.linear.bias[...] = jnp.ones(3)
    np.testing.assert_allclose(fused(x), model(x), rtol=1e-5)


def test_a_module_that_changes_its_state_is_left_as_it_is():
    model, (x,) = _Model(), arrays((NODES, 3))
    with pytest.warns(UserWarning, match="it changes its own state"):
        first = fuse(model)(x, train=True)
    assert (first != model(x, train=True)).any()  # the dropout goes on


def test_functions_with_side_effects_are_left_as_they_are(capfd):
    def run(x):
        jax.debug.print("seen")
        return _layer(x)

    (x,) = arrays((NODES, 3))
    with pytest.warns(UserWarning, match="side effects"):
        y = fuse(run)(x)
    jax.effects_barrier()
    np.testing.assert_allclose(y, _layer(x), rtol=1e-5)
    assert "seen" in capfd.readouterr().out
    assert "side effects" in str(jaxgnn.fuse.explain(run, x, measure=False))


def test_functions_that_can_not_be_traced_run_as_they_are():
    def run(x):
        return x if float(x.sum()) > 0 else -x

    with pytest.warns(UserWarning, match="it can not be traced: ConcretizationTypeError"):
        assert fuse(run)(jnp.ones(3)).tolist() == [1, 1, 1]


def test_errors_of_the_function_are_its_own():
    def run(x):
        raise KeyError("mine")

    with pytest.warns(UserWarning, match="KeyError"), pytest.raises(KeyError, match="mine"):
        fuse(run)(jnp.ones(3))


def test_arguments_that_are_no_arrays_stay_what_they_are():
    def run(x, count, kind):
        reduce = {"sum": jax.ops.segment_sum, "max": jax.ops.segment_max}[kind]
        return reduce(x[SENDERS], RECEIVERS, num_segments=count)

    fused, (x,) = fuse(run), arrays((NODES, 3))
    for count, kind in ((NODES, "sum"), (NODES + 2, "sum"), (NODES, "max")):
        np.testing.assert_allclose(fused(x, count, kind), run(x, count, kind), rtol=1e-5)


def test_equal_numbers_of_another_type_or_sign_are_other_arguments():
    (x,) = arrays((NODES, 3))
    divided = fuse(lambda x, number: _layer(x) / number)
    given = fuse(lambda x, number: (_layer(x), jnp.asarray(number)))
    assert not (divided(x, 0.0) == divided(x, -0.0)).any()
    for number, dtype in ((1, jnp.int32), (1.0, jnp.float32), (True, bool)):
        assert given(x, number)[1].dtype == dtype


def test_equal_terms_are_computed_once_and_unused_ones_never():
    def run(x):
        jnp.sin(x)
        return jnp.exp(x) + jnp.exp(x) * jnp.exp(-0.0 + x)

    (x,) = arrays((3,))
    explanation = jaxgnn.fuse.explain(run, x, measure=False)
    assert explanation.equations_before == 5  # exp, +, exp, *, +
    np.testing.assert_array_equal(fuse(run)(x), run(x))


def test_loops_whose_derivatives_alone_differ_are_not_taken_for_equal():
    def loop(factor):
        @jax.custom_vjp
        def same(x):
            return jnp.sin(x)

        same.defvjp(lambda x: (jnp.sin(x), None), lambda _, g: (factor * g,))
        return lambda x: jax.lax.fori_loop(0, 2, lambda _, c: same(c), x)

    def run(x):
        return loop(2.0)(x) + loop(3.0)(x)

    (x,) = arrays((3,))
    assert_same(run, fuse(lambda x: run(x) + 0 * _layer(jnp.outer(jnp.ones(NODES), x))[0]), x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"static_graph": "senders"}, "fuse: static_graph must be True, False or names among x"),
        ({"verify": "always"}, "fuse: verify must be one of 'off', 'warn', 'strict'"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        fuse(_layer, **options)
    with pytest.raises(ValueError, match="fuse: fn must be a function"):
        fuse(3)


def test_small_programs_are_left_to_xla():
    (x,) = arrays((NODES, 3))
    explanation = jaxgnn.fuse.explain(_layer, x, measure=False)
    assert explanation.findings.applied == []
    assert "it is faster from" in str(explanation)
    assert explanation.equations_before == explanation.equations_after
    np.testing.assert_allclose(jaxgnn.fuse(_layer)(x), jax.jit(_layer)(x), rtol=1e-6, atol=1e-6)


def test_a_graph_may_have_no_edges():
    none = jnp.zeros(0, jnp.int32)

    def run(x):
        return jax.ops.segment_sum(x[none], none, NODES)

    (x,) = arrays((NODES, 3))
    assert_same(run, fuse(run), x)
