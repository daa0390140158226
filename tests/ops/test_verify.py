"""``jaxgnn.verify`` finds what is wrong, lets pass what is right, and costs nothing when off."""

import re
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgnn
from jaxgnn import CSRGraph, ops
from jaxgnn.ops._attention import gat_attention
from jaxgnn.ops.core import dispatch
from jaxgnn.ops.core.registry import BY_NAME
from tests.ops._table import usable

GRAPH = CSRGraph.from_edges([0, 1, 2, 2], [1, 0, 0, 2], 3, weights=jnp.arange(1.0, 5.0))
BARE = GRAPH.without_weights()


def _features(dtype="float32"):
    return jnp.asarray(np.random.default_rng(0).normal(size=(3, 8)), dtype)


def _doubling(wrong=lambda y: y, wrong_gradient=lambda dx: dx):
    """An op of the library's kind, ``2 x``, whose fast path is as wrong as asked for."""

    def table(name, error):
        fast = dispatch.Implementation(dict.fromkeys(("cpu", "cuda"), lambda x: error(x + x)))
        return dispatch.Kernel(name, {"xla": dispatch.xla(lambda x: 2 * x), "ffi": fast})

    value, backward = table("double", wrong), table("double.backward", wrong_gradient)

    @partial(jax.custom_vjp, nondiff_argnums=(0,))
    def run(request, x):
        return value(request, x)

    run.defvjp(
        lambda request, x: (value(request, x), ()),
        lambda request, _, dy: (backward(request, dy),),
    )
    return lambda x: run(dispatch.resolve("double", None), x)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_right_kernels_pass_with_their_gradients(dtype):
    def loss(x, weights):
        graph = GRAPH.with_weights(weights)
        kept = ops.maxk(x, 3)
        y = ops.spmm(graph, x) + ops.maxk_spmm(graph, kept)
        return jnp.sum(y.astype(jnp.float32) ** 2)

    @jaxgnn.verify("strict")
    def checked(x):
        return jax.jit(jax.value_and_grad(loss))(x, GRAPH.weights)

    value, gradient = jax.block_until_ready(checked(_features(dtype)))
    assert np.isfinite(value) and np.isfinite(np.asarray(gradient, np.float32)).all()


def test_what_is_left_of_terms_that_cancel_may_differ_by_their_roundings_and_no_more():
    x = jnp.array([1.0, 3.0, 0.7])

    def table(error):
        fast = dict.fromkeys(("cpu", "cuda"), lambda x, y: x - y + error)
        entries = {"xla": dispatch.xla(jnp.subtract), "ffi": dispatch.Implementation(fast)}
        return dispatch.Kernel("difference", entries)

    def run(error, **options):
        with jaxgnn.verify("strict", **options):
            return table(error)(dispatch.resolve("difference", None), x, x)

    run(1e-6)
    for error, options in ((1e-4, {}), (1e-6, {"tolerance": 0.0})):
        with pytest.raises(ops.VerificationError, match=r"difference\[ffi\]"):
            run(error, **options)


def _attention(x):
    h = x.reshape(3, 2, 4)
    narrow, logits = jnp.sum(h, axis=-1), jnp.ones((4, 2), x.dtype)
    y, weights = ops.gat_attention(BARE, narrow, narrow, h, return_weights=True)
    y += ops.gatv2_attention(BARE, h, h, h[0], edge_logits=logits)
    y += ops.dot_attention(BARE, h, h, h, dropout=0.3, key=jax.random.key(0))
    return jnp.sum((y + ops.spmm(GRAPH.with_weights(weights), h)).astype(jnp.float32) ** 2)


def test_right_kernels_of_attention_pass_with_their_gradients():
    """Of rows with one edge too, where the gradients of scores cancel."""
    with jaxgnn.verify("strict"):
        gradient = jax.block_until_ready(jax.jit(jax.grad(_attention))(_features()))
    assert np.isfinite(gradient).all()


@pytest.mark.costly
@pytest.mark.parametrize("kernel", ["forward", "weights", "backward"])
def test_a_wrong_kernel_of_attention_is_named(kernel, monkeypatch):
    table = getattr(gat_attention, kernel.upper())
    kernels = [name for name in usable(table) if name != "xla"]  # the fastest comes last
    right = table.implementations[kernels[-1]]

    def wrong(*given, **options):
        run = right.runs[dispatch.current_platform()]
        return jax.tree.map(lambda a: 1.01 * a, run(*given, **options))

    spoilt = dispatch.Implementation(dict.fromkeys(("cpu", "cuda"), wrong))
    monkeypatch.setitem(table.implementations, kernels[-1], spoilt)
    name = "gat_attention" if kernel == "forward" else f"gat_attention.{kernel}"

    def loss(h):
        narrow = jnp.sum(h, axis=-1)
        return jnp.sum(ops.gat_attention(BARE, narrow, narrow, h, return_weights=True)[0] ** 2)

    found = pytest.raises(jax.errors.JaxRuntimeError, match=rf"{name}\[{kernels[-1]}\]")
    with jaxgnn.verify("strict"), found:
        jax.block_until_ready(jax.jit(jax.grad(loss))(_features().reshape(3, 2, 4)))


def test_strict_raises_and_names_the_worst_entry():
    double = _doubling(lambda y: y.at[1, 2].add(0.5).at[0, 0].add(0.1))
    with jaxgnn.verify("strict"), pytest.raises(ops.VerificationError) as raised:
        double(jnp.ones((2, 3)))
    text = str(raised.value)
    assert text == (
        "double[ffi]: entry [1, 2] is 2.5, the reference has 2.0: "
        "the difference 0.5 is more than 0.0002"
    )


def test_under_jit_the_error_is_quoted():
    double = _doubling(lambda y: y.at[1].add(0.5))
    with (
        jaxgnn.verify("strict"),
        pytest.raises(jax.errors.JaxRuntimeError, match=r"VerificationError.*double.*entry"),
    ):
        jax.block_until_ready(jax.jit(double)(jnp.ones(3)))


def test_warn_warns_and_returns_what_the_op_made():
    double = _doubling(lambda y: y.at[1].add(0.5))
    with jaxgnn.verify("warn"), pytest.warns(RuntimeWarning, match=r"double\[ffi\]: entry \[1\]"):
        y = jax.jit(double)(jnp.ones(3))
        jax.effects_barrier()
    assert y.tolist() == [2.0, 2.5, 2.0]


def test_a_wrong_gradient_is_found_also_when_it_is_pulled_back_outside_of_the_context():
    double = _doubling(wrong_gradient=lambda dx: 1.1 * dx)
    with jaxgnn.verify("strict"):
        _, pull_back = jax.vjp(double, jnp.ones(3))
    with pytest.raises(ops.VerificationError, match=r"double.backward\[ffi\].*2.2"):
        pull_back(jnp.ones(3))


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: jax.vmap(f),
        lambda f: jax.checkpoint(f),
        lambda f: lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, length=2)[0],
        lambda f: jax.grad(lambda x: jnp.sum(f(x))),
    ],
    ids=["vmap", "checkpoint", "scan", "grad"],
)
def test_found_under_transformations(transform):
    double = _doubling(lambda y: y + 1.0)
    run = jax.jit(transform(double))
    with (
        jaxgnn.verify("strict"),
        pytest.raises(jax.errors.JaxRuntimeError, match="VerificationError"),
    ):
        jax.block_until_ready(run(jnp.ones((2, 3))))


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf])
def test_what_is_not_finite_has_to_be_in_the_same_places(bad):
    x = jnp.array([1.0, bad, 3.0])
    with jaxgnn.verify("strict"):
        _doubling()(x)
        with pytest.raises(ops.VerificationError, match=r"entry \[0\]"):
            _doubling(lambda y: y.at[0].set(bad))(jnp.ones(3))
        with pytest.raises(ops.VerificationError, match=r"entry \[1\]"):
            _doubling(lambda y: y.at[1].set(0.0))(x)


@pytest.mark.parametrize("wrong", [jnp.nan, jnp.inf, -jnp.inf])
@pytest.mark.parametrize("right", [1.0, jnp.nan, jnp.inf, -jnp.inf])
def test_no_tolerance_excuses_what_is_not_finite(right, wrong):
    """Not even one that is itself more than the largest number."""
    x = jnp.array([1.5e38, right])
    double = _doubling(lambda y: y.at[1].set(wrong))
    with jaxgnn.verify("strict", tolerance=1e30):
        if np.array_equal(right, wrong, equal_nan=True):
            double(x)
        else:
            with pytest.raises(ops.VerificationError, match=r"entry \[1\]"):
                double(x)


def test_shapes_have_to_be_the_same_and_integers_are_not_cut_to_fewer_bits():
    def table(fast, x):
        entry = dispatch.Implementation(dict.fromkeys(("cpu", "cuda"), fast))
        kernel = dispatch.Kernel("double", {"xla": dispatch.xla(lambda x: 2 * x), "ffi": entry})
        return kernel(dispatch.resolve("double", "ffi"), x)

    with jaxgnn.verify("strict"):
        with pytest.raises(ops.VerificationError, match=r"is of shape \(1, 3\), .* of \(3,\)"):
            table(lambda x: 2 * x[None], jnp.ones(3))
        with pytest.raises(ops.VerificationError, match=r"entry .* is 0, the reference has 256"):
            table(lambda x: (2 * x).astype(jnp.uint8), jnp.array([128]))


def test_a_gradient_that_is_not_finite_where_the_formula_has_numbers_is_found(monkeypatch):
    """By ops of several pieces, each of which is what it should be."""
    hypergraph = jaxgnn.Incidence.from_hyperedges([[0, 1], [2]], 3)
    kernels = jnp.ones((16, 4)), jnp.ones((4, 4))

    def mixing(x):
        return ops.hypergraph_conv(x, hypergraph, path="mixing")

    def messages(x):
        params = ops.EdgeMLPParams(kernels, (None, None))
        return ops.edge_mlp_aggregate(GRAPH, x, params)

    x = _features().at[0, 0].set(jnp.nan)
    for op, table, run in (
        ("hypergraph_conv[mixing]", "MIX_BACKWARD", mixing),
        ("edge_mlp_aggregate[split]", "BACKWARD", messages),
    ):
        with jaxgnn.verify("strict"):
            jax.block_until_ready(jax.grad(lambda x, run=run: jnp.sum(run(x)[2:]))(x))
        module = sys.modules[BY_NAME[op.partition("[")[0]].module]
        right = getattr(module, table).implementations["xla"].runs["cpu"]

        def wrong(*given, right=right, **options):
            return jax.tree.map(lambda a: a * jnp.nan, right(*given, **options))

        kernel = dispatch.Kernel("spoilt", {"xla": dispatch.xla(wrong)})
        monkeypatch.setattr(module, table, kernel)
        found = pytest.raises(ops.VerificationError, match=re.escape(f"{op}.gradients"))
        with jaxgnn.verify("strict"), found:
            jax.grad(lambda x, run=run: jnp.sum(run(x)))(x)


def test_the_tolerance_is_relative_to_the_largest_entry():
    x = jnp.array([100.0, 1.0])
    double = _doubling(lambda y: y.at[1].add(0.1))
    with jaxgnn.verify("strict", tolerance=1e-3):
        double(x)
    with jaxgnn.verify("strict", tolerance=jnp.float32(1e-4)), pytest.raises(ops.VerificationError):
        double(x)


def test_a_hub_of_the_graph_may_differ_by_the_roundings_of_its_sum_and_no_more():
    hub = CSRGraph.from_edges(np.arange(20_000), np.zeros(20_000, int), 20_000)
    x, transposed = jnp.full((20_000, 1), 0.3), hub.transpose()

    @jax.jit
    def run(x):
        return jax.value_and_grad(lambda x: jnp.sum(ops.spmm(hub, x) + ops.spmm(transposed, x)))(x)

    with jaxgnn.verify("strict"):
        jax.block_until_ready(run(x))
        # What no sum of so many is excused for.
        wrong = CSRGraph.from_edges(np.arange(19_900), np.zeros(19_900, int), 20_000)
        fast = dict.fromkeys(("cpu", "cuda"), lambda _, x: ops.spmm(wrong, x))
        table = {
            "xla": dispatch.xla(lambda graph, x: ops.spmm(graph, x, implementation="xla")),
            "ffi": dispatch.Implementation(fast),
        }
        with pytest.raises(ops.VerificationError, match="spmm"):
            dispatch.Kernel("spmm", table)(dispatch.resolve("spmm", None), hub, x)


def test_integers_have_to_be_equal_and_empty_arrays_are():
    double = _doubling(lambda y: y.at[0].add(1))
    with jaxgnn.verify("strict", tolerance=1.0):
        with pytest.raises(ops.VerificationError, match=r"entry \[0\] is 5, the reference has 4"):
            double(jnp.array([2, 300]))
        _doubling()(jnp.zeros((0, 3)))
        assert _doubling()(jnp.float32(2.0)) == 4.0


def test_named_references_and_nested_offs_are_not_checked():
    double = _doubling(lambda y: y + 1.0)
    with jaxgnn.verify("strict"):
        with jaxgnn.default_implementation("xla"):
            assert double(jnp.ones(2)).tolist() == [2.0, 2.0]
        with jaxgnn.verify("off"):
            assert double(jnp.ones(2)).tolist() == [3.0, 3.0]


def test_off_adds_nothing_and_a_compiled_function_heeds_the_mode():
    run = jax.jit(lambda x: ops.spmm(GRAPH, x))
    x = _features()
    plain = str(jax.make_jaxpr(run)(x))
    with jaxgnn.verify("off"):
        assert str(jax.make_jaxpr(run)(x)) == plain
    assert "debug_callback" not in plain
    run(x)
    with jaxgnn.verify("warn"):
        assert "debug_callback" in str(jax.make_jaxpr(run)(x))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"mode": "loud"}, "verify: mode must be one of off, warn, strict, got 'loud'"),
        ({"mode": "warn", "tolerance": -1.0}, "verify: tolerance must be None or at least zero"),
        ({"mode": "warn", "tolerance": float("nan")}, "verify: tolerance"),
        ({"mode": "warn", "tolerance": float("inf")}, "and finite, got inf"),
    ],
)
def test_bad_settings_are_named(arguments, message):
    with pytest.raises(ValueError, match=message), jaxgnn.verify(**arguments):
        pass
