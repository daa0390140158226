"""Forward mode of every op: it agrees with reverse mode and with the plain formulas."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import jaxgnn
from jaxgnn import CSRGraph, ops
from jaxgnn._derivatives.call import with_derivative_of
from jaxgnn.ops.core.custom_gradient import custom_vjp
from tests._programs import equations_of
from tests.ops._calls import EAGER, GRAPH, WEIGHTED, X

LONG = pytest.mark.again("tests/ops/attention/test_attention_second_order.py")  # it compiles long
ALL = [
    pytest.param(op, case, id=f"{op}-{case or 'plain'}", marks=LONG if "dropout" in case else ())
    for op, cases in EAGER.items()
    for case in cases
]


def _near(actual, expected):
    """Asserts that arrays are equal to rounding, relative to their largest entry."""
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        largest = float(np.max(np.abs(e), initial=1.0))
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=2e-5 * largest)


def _numbers(tree):
    return [y for y in jax.tree.leaves(tree) if jnp.issubdtype(y.dtype, jnp.inexact)]


def _cosines(tree):
    """Arrays of the shapes of these, with other numbers in each."""
    leaves, structure = jax.tree.flatten(tree)
    made = [jnp.cos(jnp.arange(x.size) + i).reshape(x.shape) for i, x in enumerate(leaves)]
    return structure.unflatten([y.astype(x.dtype) for x, y in zip(leaves, made, strict=True)])


def _product(a, b):
    return sum(map(jnp.vdot, jax.tree.leaves(a), jax.tree.leaves(b)))


def _loss(run):
    return lambda tree: sum(jnp.sum(jnp.sin(y)) for y in run(tree))


def _case(op, case, implementation):
    function, tree = EAGER[op][case]
    return lambda tree: _numbers(function(tree, implementation)), tree, _cosines(tree)


@pytest.mark.costly(5)
@pytest.mark.parametrize("op, case", ALL)
def test_tangents_are_the_transpose_of_the_gradient(op, case):
    run, tree, along = _case(op, case, None)

    @jax.jit
    def both(tree):
        y, dy = jax.jvp(run, (tree,), (along,))
        slopes = _cosines(y)
        return _product(dy, slopes), _product(along, jax.vjp(run, tree)[1](slopes)[0])

    _near(*both(tree))


@pytest.mark.costly(2)
@pytest.mark.parametrize("op, case", ALL)
def test_tangents_and_products_with_the_hessian_are_those_of_the_plain_formula(op, case):
    def both(implementation):
        run, tree, along = _case(op, case, implementation)
        of_gradient = jax.jvp(jax.grad(_loss(run)), (tree,), (along,))
        return jax.jvp(run, (tree,), (along,)), of_gradient

    _near(*(jax.jit(functools.partial(both, name))() for name in (None, "xla")))


def _scanned(run, x):
    return jax.lax.scan(lambda h, _: (jnp.sin(run(h)), None), x, length=2)[0]


def _squared(run):
    return lambda x: jnp.sum(jnp.sin(run(x)) ** 2)


# Each is a function of a function, its argument and a tangent.
WAYS = {
    "of jit": lambda run, x, along: jax.jvp(jax.jit(run), (x,), (along,)),
    "linearize": lambda run, x, along: jax.linearize(run, x)[1](along),
    "jacfwd": lambda run, x, _: jax.jacfwd(run)(x),
    "vmap": lambda run, x, along: jax.vmap(lambda t: jax.jvp(run, (x,), (t,))[1])(
        jnp.stack([along, x])
    ),
    "of vmap": lambda run, x, along: jax.jvp(
        lambda x: jax.vmap(lambda factor: run(factor * x))(jnp.ones(2)), (x,), (along,)
    ),
    "checkpoint": lambda run, x, along: jax.jvp(
        jax.grad(jax.checkpoint(_squared(run))), (x,), (along,)
    ),
    "scan": lambda run, x, along: jax.jvp(
        jax.grad(lambda x: jnp.sum(_scanned(run, x) ** 2)), (x,), (along,)
    ),
    "grad": lambda run, x, along: jax.grad(_squared(lambda x: jax.jvp(run, (x,), (along,))[1]))(x),
    "grad by the tangent": lambda run, x, along: jax.grad(
        _squared(lambda along: jax.jvp(run, (x,), (along,))[1])
    )(along),
    "twice": lambda run, x, along: jax.jvp(
        lambda x: jax.jvp(run, (x,), (along,))[1], (x,), (jnp.sin(along),)
    ),
    "hessian": lambda run, x, _: jax.hessian(_squared(run))(x),
    "shard_map": lambda run, x, along: jax.shard_map(
        lambda x, along: jax.jvp(run, (x[0],), (along[0],))[1][None],
        mesh=Mesh(np.array(jax.devices()[:4]), "d"),
        in_specs=PartitionSpec("d"),
        out_specs=PartitionSpec("d"),
    )(jnp.stack([x] * 4), jnp.stack([along] * 4)),
}


@pytest.mark.parametrize("way", WAYS)
def test_transformations_have_the_tangents_of_the_plain_formula(way):
    def run(x, implementation):
        scores = ops.sddmm(GRAPH, x, x, implementation=implementation)
        weights = ops.segment_softmax(GRAPH, scores, implementation=implementation)
        return ops.spmm(GRAPH.with_weights(weights), x, implementation=implementation)

    def made(x, along):
        both = (functools.partial(run, implementation=name) for name in (None, "xla"))
        return [WAYS[way](function, x, along) for function in both]

    x = X[:, :2]
    _near(*jax.jit(made)(x, jnp.cos(x)))


def test_a_fused_function_has_forward_mode():
    senders, receivers = np.array([0, 1, 2, 0, 3] * 4), np.array([1, 2, 2, 3, 0] * 4)

    def layer(x):
        return jax.ops.segment_sum(jnp.tanh(x)[senders], receivers, 4)

    fused = jaxgnn.fuse(layer, only_if_faster=False)
    assert "jaxgnn_call" in str(jax.make_jaxpr(fused)(X))
    for run in (lambda f: jax.jvp(f, (X,), (jnp.cos(X),)), lambda f: jax.jacfwd(f)(X[:, :1])):
        _near(run(fused), run(layer))


DEGENERATE = {
    "no edges": (CSRGraph.from_edges([], [], 4), X),
    "isolated nodes": (CSRGraph.from_edges([0], [1], 4), X),
    "repeated edges": (CSRGraph.from_edges([0, 0, 0, 2], [1, 1, 1, 3], 4), X),
    "width one": (GRAPH, X[:, :1]),
}


@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_graphs_have_tangents(name):
    graph, x = DEGENERATE[name]

    def run(x, implementation):
        sums = ops.spmm(graph, x, implementation=implementation)
        largest = ops.neighbour_reduce(graph, x, ("max", "std"), implementation=implementation)
        return sums, largest

    def made(x, along):
        both = (functools.partial(run, implementation=name) for name in (None, "xla"))
        return [jax.jvp(function, (x,), (along,)) for function in both]

    _near(*jax.jit(made)(x, jnp.cos(x)))


def test_nothing_leaks_from_padding_into_tangents():
    padded = CSRGraph(jnp.array([0, 1, 2, 2]), jnp.array([1, 0, 3, 3]), num_cols=4)
    x = jnp.ones((4, 2)).at[2:].set(jnp.nan)
    weights = jnp.array([1.0, 2.0, jnp.nan, jnp.nan])

    def run(weights, x):
        return ops.spmm(padded.with_weights(weights), x)

    made = jax.jit(lambda *given: jax.jvp(run, given, (jnp.cos(weights), jnp.sin(x))))(weights, x)
    assert all(np.isfinite(array).all() for array in made)


def test_reverse_mode_runs_each_kernel_once():
    def loss(x):
        return jnp.sum(jnp.sin(ops.spmm(WEIGHTED, x, implementation=None)))

    text = jax.jit(jax.grad(loss)).lower(X).as_text()
    expected = {"cpu": 2}.get(ops.core.dispatch.current_platform())
    if expected is not None:
        assert len(re.findall(r"custom_call @jaxgnn_spmm\b", text)) == expected
    names = [e.primitive.name for e in equations_of(jax.make_jaxpr(jax.grad(loss))(X).jaxpr)]
    assert "jaxgnn_tangents" not in names


def test_a_kernel_has_the_derivatives_of_its_formula():
    def formula(x):
        return {"y": x**3, "count": jnp.arange(3)}

    kernel = with_derivative_of(formula, lambda x: jax.lax.stop_gradient(formula(x)), "kernel")
    x, along = jnp.arange(3.0), jnp.ones(3)
    for run in (
        lambda f: jax.jvp(lambda x: f(x)["y"], (x,), (along,)),
        lambda f: jax.grad(lambda x: jnp.sum(f(x)["y"]))(x),
        lambda f: jax.jit(jax.hessian(lambda x: jnp.sum(f(x)["y"])))(x),
        lambda f: jax.vmap(jax.grad(lambda x: f(x)["y"]))(x),
        lambda f: jax.jvp(jax.vmap(lambda x: f(x)["y"]), (x,), (along,)),
    ):
        _near(run(kernel), run(formula))


def test_arguments_without_gradient_and_whole_numbers_have_no_tangents():
    @functools.partial(custom_vjp, nondiff_argnums=(0,))
    def run(power, x, ids, shift):
        return {"y": x**power + jax.lax.stop_gradient(shift), "ids": ids}

    run.defvjp(
        lambda power, x, ids, shift: (run(power, x, ids, shift), (x, power)),
        lambda power, kept, slopes: (power * kept[0] ** (kept[1] - 1) * slopes["y"], None, None),
    )
    x, ids = jnp.arange(1.0, 4.0), jnp.arange(3)

    def along(x, shift):
        return jax.jvp(lambda x, shift: run(3, x, ids, shift)["y"], (x, shift), (x, shift))[1]

    for wrap in (lambda f: f, jax.jit, jax.vmap):
        np.testing.assert_allclose(wrap(along)(x, x), 3 * x**3, rtol=1e-6)
