"""Graphs stacked along a leading axis: methods take them inside of ``jax.vmap`` alone."""

import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgnn.graph import CBSR, CSRGraph, Incidence
from tests.graph._oracles import check_message, random_edges

GRAPHS = [random_edges(seed, 6, 6, 40).graph() for seed in range(3)]
HYPERGRAPHS = [
    Incidence.from_hyperedge_index(np.random.default_rng(seed).integers(0, 4, (2, 9)), 5, 4)
    for seed in range(3)
]
ARGUMENTS = {
    "normalized": ("mean",),
    "sort_edges": (np.ones(40, np.float32),),
    "sender_table": (np.ones((6, 2), np.float32),),
    "with_known_degrees": ((2, None),),
    "with_weights": (np.ones((3, 40), np.float32),),
}
# These say the number of members, or of what each member has.
NUMBERS = ("num_rows", "num_edges", "shape", "is_normalized", "num_incidences")


def stacked(graphs, *, planned=True):
    """All of them as one, as ``jax.vmap`` returns them."""
    if not planned:
        graphs = [type(graph)(**{**vars(graph), "plan": None}) for graph in map(bare, graphs)]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *graphs)


def bare(graph):
    """The same arrays in an object that has no plan in its cache."""
    return jax.tree.unflatten(*jax.tree.flatten(graph)[::-1])


def methods(kind):
    """Names of what can be asked of an object, except for what makes one of other things."""
    for name, member in inspect.getmembers(kind):
        is_own = callable(member) and not inspect.ismethod(member)
        if not name.startswith("_") and is_own:
            yield name


CASES = [(graphs, name) for graphs in (GRAPHS, HYPERGRAPHS) for name in methods(type(graphs[0]))]


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize(("graphs", "name"), CASES, ids=lambda case: str(case)[:30])
def test_every_method_refuses_a_stacked_graph_and_names_vmap(graphs, name, planned):
    graph = stacked(graphs, planned=planned)
    with pytest.raises(ValueError, match=r"jax\.vmap") as error:
        getattr(graph, name)(*ARGUMENTS.get(name, ()))
    check_message(str(error.value), [f"{type(graph).__name__}.{name}: self", "jax.vmap", "[3, "])


def test_only_weights_that_are_stacked_are_found_too():
    graph = dataclasses.replace(GRAPHS[0], weights=jnp.ones((3, 40)))
    with pytest.raises(ValueError, match=r"jax\.vmap.* got weights float32\[3, 40\]"):
        graph.normalized("sym")


@pytest.mark.parametrize("graphs", [GRAPHS, HYPERGRAPHS], ids=["CSRGraph", "Incidence"])
def test_numbers_are_those_of_each_member(graphs):
    graph = stacked(graphs)
    for name in NUMBERS:
        if hasattr(graphs[0], name):
            assert getattr(graph, name) == getattr(graphs[0], name)
    assert "[3, " in repr(graph)


def test_inside_vmap_each_member_is_a_graph():
    means = jax.vmap(lambda graph: graph.normalized("mean"))(stacked(GRAPHS))
    degrees = jax.vmap(CSRGraph.degrees)(means)
    for at, graph in enumerate(GRAPHS):
        np.testing.assert_array_equal(degrees[at], graph.degrees())
        expected = graph.normalized("mean").weights
        np.testing.assert_allclose(means.weights[at], expected, rtol=1e-6)


def test_a_batch_of_hypergraphs_refuses_stacked_ones():
    with pytest.raises(ValueError, match=r"jax\.vmap"):
        Incidence.batch([stacked(HYPERGRAPHS)])


def test_leading_axes_of_compressed_rows_are_their_own():
    values = jnp.arange(24.0).reshape(2, 3, 4)
    cbsr = CBSR(values, jnp.broadcast_to(jnp.array([0, 2, 3, 6], jnp.uint8), (2, 3, 4)), 7)
    each = [CBSR(v, i, 7).todense() for v, i in zip(cbsr.values, cbsr.indices, strict=True)]
    np.testing.assert_array_equal(cbsr.validate().todense(), jnp.stack(each))
    shared = CBSR(values, cbsr.indices[0], 7)
    with pytest.raises(ValueError, match="indices must be of the shape"):
        shared.todense()
