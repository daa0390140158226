"""Second derivatives of ops of graphs inside of a ``lax.scan``, against those of the same steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import CSRGraph, nn, ops

GRAPH = CSRGraph.from_edges([0, 1, 2, 3, 0], [1, 2, 2, 0, 2], 4)
SCORES = jnp.linspace(-1.0, 1.0, GRAPH.num_edges)

STEPS = {
    "spmm": lambda h: ops.spmm(GRAPH, h),
    "neighbour_reduce": lambda h: ops.neighbour_reduce(GRAPH, h, "std"),
    "segment_softmax": lambda h: h * ops.segment_softmax(GRAPH, SCORES * h[0, 0])[:4, None],
}


def _second_derivative(run):
    x = jnp.linspace(0.5, 1.5, 12).reshape(4, 3)
    return jax.jit(jax.grad(lambda x: jnp.sum(jnp.cos(x) * jax.grad(run)(x))))(x)


@pytest.mark.parametrize("name", STEPS)
def test_a_scan_has_the_second_derivatives_of_its_steps(name):
    def step(h):
        return jnp.sin(STEPS[name](h)) + h

    def scanned(h):
        return jnp.sum(jax.lax.scan(lambda h, _: (step(h), None), h, None, length=2)[0] ** 2)

    of_scan = _second_derivative(scanned)
    of_steps = _second_derivative(lambda h: jnp.sum(step(step(h)) ** 2))
    np.testing.assert_allclose(of_scan, of_steps, rtol=1e-5, atol=1e-5)


def test_two_steps_of_message_passing_have_second_derivatives():
    layer = nn.MessagePassing(
        lambda x_dst, x_src, _: jnp.sin(x_src - x_dst), lambda x, arrived: x + arrived, reduce="sum"
    )
    of_scan = _second_derivative(lambda x: jnp.sum(jnp.sin(layer(GRAPH, x, num_steps=2))))
    of_steps = _second_derivative(lambda x: jnp.sum(jnp.sin(layer(GRAPH, layer(GRAPH, x)))))
    np.testing.assert_allclose(of_scan, of_steps, rtol=1e-5, atol=1e-5)


def test_a_scan_stores_the_graph_once_and_not_for_each_step():
    def loss(x):
        return jnp.sum(jax.lax.scan(lambda h, _: (STEPS["spmm"](h), None), x, None, length=7)[0])

    text = str(jax.make_jaxpr(jax.grad(loss))(jnp.ones((4, 3))))
    assert "f32[4,3]" in text
    assert "i32[7," not in text
