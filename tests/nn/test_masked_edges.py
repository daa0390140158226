"""Masked edges: every layer computes what it does without the edges of presence zero."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxgnn import CSRGraph, nn
from jaxgnn.graph import HeteroGraph, masked
from tests.nn._table import EDGES, GRAPH, RELATION, case
from tests.nn.test_edge_weights import CASES

KEPT = np.array([0, 1, 3, 4])  # one of two edges of its row is missing, and no loop
LESS = CSRGraph.from_edges(np.asarray(GRAPH.senders)[KEPT], np.asarray(GRAPH.receivers())[KEPT], 4)
OPTIONS = {
    "SAGEConv, min": case(nn.SAGEConv, (8, 6), *CASES["SAGEConv"].args, reduce="min"),
    "SAGEConv, softmax": case(nn.SAGEConv, (8, 6), *CASES["SAGEConv"].args, reduce="softmax"),
    "EdgeMLP, mean": case(nn.EdgeMLP, (8, [6, 5]), *CASES["EdgeMLP"].args, reduce="mean"),
    "EdgeMLP, max": case(nn.EdgeMLP, (8, [6, 5]), *CASES["EdgeMLP"].args, reduce="max"),
    "PNAConv, edges": case(
        nn.PNAConv,
        (8, 6),
        GRAPH,
        CASES["PNAConv"].args[1],
        EDGES,
        edge_dim=3,
        average_degree=GRAPH,
        aggregators=("sum", "var", "logsumexp", "min"),
    ),
    "GATConv, numbers": case(
        nn.GATConv, (8, 6), *CASES["GATConv"].args, edge_dim=3, fill_value="add", concat=False
    ),
}
# Layers that return nodes, then edges, of which a graph without them has fewer.
RETURN_EDGES = {"InteractionNetwork", "GraphNetBlock"}
LAYERS = {name: c for name, c in (CASES | OPTIONS).items() if name != "DropEdge"}


def _args(args, graph, edges=slice(None)):
    """The arguments with another graph, and these of the arrays of edges."""

    def replaced(argument):
        if isinstance(argument, list):
            return [graph] * len(argument)
        if isinstance(argument, HeteroGraph):
            return HeteroGraph({RELATION: graph})
        if isinstance(argument, CSRGraph):
            return graph
        is_of_edges = hasattr(argument, "shape") and argument.shape[:1] == (5,)
        return argument[edges] if is_of_edges else argument

    return tuple(map(replaced, args))


@pytest.mark.costly(4)
@pytest.mark.parametrize("name", LAYERS)
def test_a_masked_edge_is_an_edge_that_is_not_there(name):
    make, args, _ = LAYERS[name]
    layer = make(nnx.Rngs(0))

    @jax.jit
    def results(presence):
        masks = jnp.ones(5), presence
        of_masked = (layer(*_args(args, masked(GRAPH, m))) for m in masks)
        return [*of_masked, layer(*args), layer(*_args(args, LESS, KEPT))]

    presence = jnp.zeros(5).at[KEPT].set(1.0)
    actual = map(list, map(jax.tree.leaves, results(presence)))
    if name in RETURN_EDGES:
        actual = ([nodes, *rest] for nodes, _, *rest in actual)
    all_there, one_missing, whole, less = actual
    assert not np.array_equal(whole[0], less[0])
    for actual, expected in zip([*all_there, *one_missing], [*whole, *less], strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.costly(1)
@pytest.mark.parametrize("name", LAYERS)
def test_derivatives_by_the_presence_agree_with_differences(name):
    make, args, _ = LAYERS[name]
    layer = make(nnx.Rngs(0))
    along, step = jnp.array([0.3, -0.5, 0.7, 0.4, -0.2]), 2.0**-7

    def value(presence):
        y = jax.tree.leaves(layer(*_args(args, masked(GRAPH, presence))))
        floats = (part for part in y if jnp.issubdtype(part.dtype, jnp.floating))
        return sum(jnp.sum(jnp.sin(part)) for part in floats)

    @jax.jit
    def slopes(presence):
        ahead, behind = (value(presence + sign * step * along) for sign in (1, -1))
        return jax.grad(value)(presence) @ along, (ahead - behind) / (2 * step)

    actual, expected = slopes(jnp.array([0.9, 0.7, 0.5, 0.8, 0.6]))
    np.testing.assert_allclose(actual, expected, rtol=2e-2, atol=5e-3)
