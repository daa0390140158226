"""Sums of very many numbers: what ops are compared with, and what they divide by, is exact.

Weights are all 0.1, which float32 rounds each time in the same direction when it adds them in turn.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn import ops
from jaxgnn.graph import CSRGraph, Incidence
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


@pytest.mark.costly
@pytest.mark.parametrize("weighting", ["paper", "pyg"])
@pytest.mark.parametrize("normalization", ["mean", "sym"])
def test_a_node_of_very_many_hyperedges_is_divided_by_its_exact_degree(weighting, normalization):
    """Node 0 is in all hyperedges, each of which has one other node."""
    count, nodes = 50_000, 20
    others = 1 + np.arange(count) % (nodes - 1)
    index = np.array([np.zeros(count), np.arange(count)]), np.array([others, np.arange(count)])
    incidence = Incidence.from_hyperedge_index(np.hstack(index).astype(np.int32), nodes, count)
    x, weight = X[:nodes], jnp.full(count, 0.1, jnp.float32)
    exact = _hypergraph_conv_of_pairs(np.asarray(x, np.float64), others, weighting, normalization)
    for tolerance, how in (
        (5e-6, {"implementation": "xla"}),
        (1e-4, {"path": "sums"}),  # of which kernels round more
        (1e-4, {"path": "mixing"}),
    ):
        options = {"weighting": weighting, "normalization": normalization, **how}
        made = ops.hypergraph_conv(x, incidence, weight, **options)
        np.testing.assert_allclose(made, exact, rtol=tolerance, err_msg=str(how))


def _hypergraph_conv_of_pairs(x, others, weighting, normalization):
    """In float64, of node 0 with each of the others, by hyperedges of the weight 0.1."""
    counts = np.bincount(others, minlength=len(x)).astype(np.float64)
    counts[0] = len(others)
    degrees = np.float64(np.float32(0.1)) * counts
    right = degrees**-0.5 if normalization == "sym" else np.ones_like(degrees)
    left = right if normalization == "sym" else 1 / degrees
    z = x * right[:, None]
    weight = np.float64(np.float32(0.1)) if weighting == "paper" else 1.0
    pairs = 0.5 * weight * (z[0] + z[1:])
    sums = np.vstack([(counts[1:, None] * pairs).sum(0), counts[1:, None] * pairs])
    return sums * left[:, None]


@pytest.mark.parametrize("implementation", ["xla", None])
def test_a_weighted_mean_over_a_hub_is_divided_by_the_exact_sum(implementation):
    """Few messages are not zero, so that their sum rounds otherwise than that of the weights."""
    features = jnp.zeros((COUNT, 1)).at[::1000].set(1.0)
    first = jnp.zeros((9, 4)).at[8].set(1.0)  # reads the feature of the edge alone
    made = ops.edge_mlp_aggregate(
        HUB,
        X,
        ops.EdgeMLPParams([first, jnp.eye(4)], [None, None]),
        features,
        weights=jnp.full(COUNT, 0.1, jnp.float32),
        reduce="mean",
        activation=None,
        implementation=implementation,
    )
    counts = np.bincount(np.asarray(HUB.receivers()), np.asarray(features)[:, 0], NODES)
    exact = counts / np.diff(HUB.indptr)
    np.testing.assert_allclose(made, np.tile(exact[:, None], (1, 4)), rtol=1e-5)
