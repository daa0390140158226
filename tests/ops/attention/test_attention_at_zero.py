"""The leaky ReLU of the scores where it has no derivative: at exactly zero."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn.testing import random_array
from tests.ops._table import BARE
from tests.ops.attention._attention import IMPLEMENTATIONS, TABLE

GRAPH = BARE["bipartite"]


def _gat_scores(a, i, j):
    return jax.nn.leaky_relu(a["a_dst"][i] + a["a_src"][j] + a["edge_logits"], 0.2)


def _gatv2_scores(a, i, j):
    added = jnp.einsum("ef,fhd->ehd", a["edge_features"], a["edge_kernel"])
    total = jax.nn.leaky_relu(a["x_dst"][i] + a["x_src"][j] + added, 0.2)
    return jnp.sum(a["attention"] * total, axis=-1) + a["edge_logits"]


SCORES = {"gat_attention": _gat_scores, "gatv2_attention": _gatv2_scores}


def _plain(op, a):
    """The op in plain JAX."""
    i, j = GRAPH.receivers(), GRAPH.indices
    scores = SCORES[op](a, i, j)
    peaks = jax.ops.segment_max(scores, i, GRAPH.num_rows)
    powers = jnp.exp(scores - jax.lax.stop_gradient(peaks)[i])
    weights = powers / jax.ops.segment_sum(powers, i, GRAPH.num_rows)[i]
    values = a[TABLE[op].summed][j]
    return jax.ops.segment_sum(weights[..., None] * values, i, GRAPH.num_rows)


def _arrays(op, everything_zero):
    """Whole numbers from -1 to 1 at both ends and on edges, of which many add up to zero."""
    made = TABLE[op].arrays(GRAPH)
    factor = 0.0 if everything_zero else 1.0
    weights = {"attention", "v"}
    whole = {n: factor * jnp.clip(jnp.round(x), -1, 1) for n, x in made.items() if n not in weights}
    return made | whole


@pytest.mark.usefixtures("compiled_quickly")
@pytest.mark.parametrize("everything_zero", [True, False])
@pytest.mark.parametrize("op", SCORES)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_gradients_at_zero_are_those_of_the_leaky_relu_of_jax(implementation, op, everything_zero):
    arrays = _arrays(op, everything_zero)
    dy = random_array((GRAPH.num_rows, *arrays[TABLE[op].summed].shape[1:]), "float32", seed=9)

    @jax.jit
    def gradients_of_both(arrays):
        compiled = functools.partial(TABLE[op], GRAPH, implementation=implementation)
        return [
            jax.value_and_grad(lambda a, run=run: jnp.sum(dy * run(a)))(arrays)
            for run in (compiled, functools.partial(_plain, op))
        ]

    made, expected = gradients_of_both(arrays)
    for a, e in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5)
