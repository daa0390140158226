"""The references of sparse ops on rows of very many edges: what they are compared with is exact."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import ops
from jaxgnn.graph import CSRGraph
from jaxgnn.testing import random_array

COUNT, NODES = 300_000, 50
SENDERS = np.random.default_rng(0).integers(0, NODES, COUNT)
RECEIVERS = np.where(np.arange(COUNT) < 1000, np.arange(COUNT) % NODES, 0)
HUB = CSRGraph.from_edges(SENDERS, RECEIVERS, NODES)
# Of one sign, so that what is rounded grows with the sum.
X = jnp.abs(random_array((NODES, 4), "float32", seed=1)) + 0.1
ADJACENCY = np.zeros((NODES, NODES))
np.add.at(ADJACENCY, (RECEIVERS, SENDERS), 1.0)


@pytest.mark.parametrize("transposed", [False, True], ids=["receiver", "sender"])
def test_sums_of_a_hub_by_the_reference_are_as_exact_as_short_ones(transposed):
    graph = HUB.transpose() if transposed else HUB
    made = ops.spmm(graph, X, implementation="xla")
    matrix = ADJACENCY.T if transposed else ADJACENCY
    np.testing.assert_allclose(made, matrix @ np.asarray(X, np.float64), rtol=2e-6)


def test_gradients_of_a_hub_by_the_reference_are_as_exact_as_short_ones():
    made = jax.grad(lambda x: jnp.sum(ops.spmm(HUB.transpose(), x, implementation="xla")))(X)
    exact = ADJACENCY.sum(1)[:, None] * np.ones((1, 4))
    np.testing.assert_allclose(made, exact, rtol=2e-6)


def test_attention_over_a_hub_by_the_reference_is_as_exact_as_a_short_one():
    logits = jnp.asarray(np.random.default_rng(2).uniform(-1, 1, (COUNT, 1)), jnp.float32)
    made = np.asarray(ops.segment_softmax(HUB, logits, implementation="xla"), np.float64)
    wide = np.exp(np.asarray(logits, np.float64))
    rows = np.asarray(HUB.receivers())
    exact = wide / np.bincount(rows, wide[:, 0], NODES)[rows][:, None]
    np.testing.assert_allclose(made, exact, rtol=2e-6)
